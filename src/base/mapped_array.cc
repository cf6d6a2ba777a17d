#include "base/mapped_array.h"

#include <sys/mman.h>

#include "base/check.h"

namespace orbitkv {

MappedBytes::MappedBytes(std::size_t bytes) : bytes_(bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* p = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  ORBITKV_CHECK(p != MAP_FAILED,
                "no address space for a table; lower its bound (max_blocks, SSD records) or raise ulimit -v");
  data_ = static_cast<std::byte*>(p);
  // Refusal only costs speed.
  (void)::madvise(p, bytes_, MADV_HUGEPAGE);
}

MappedBytes::~MappedBytes() {
  ::munmap(data_, bytes_);
}

}  // namespace orbitkv
