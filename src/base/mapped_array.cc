#include "base/mapped_array.h"

#include <sys/mman.h>

#include "base/check.h"
#include "base/limits.h"

namespace orbitkv {

namespace {

constexpr std::size_t kHuge = limits::kHugePageBytes.value;

std::byte* map(std::size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  ORBITKV_CHECK(p != MAP_FAILED,
                "no address space for a table; lower its bound (max_blocks, SSD records) or raise ulimit -v");
  return static_cast<std::byte*>(p);
}

}  // namespace

// Whole huge pages, or the ends of a table would be of small ones: of one of a few MiB that is most of it.
MappedBytes::MappedBytes(std::size_t bytes) : bytes_(bytes) {
  if (bytes_ < kHuge) {
    data_ = map(bytes_);
    return;
  }
  bytes_ = (bytes + kHuge - 1) / kHuge * kHuge;
  std::byte* const p = map(bytes_ + kHuge);
  const std::size_t before = (kHuge - reinterpret_cast<std::uintptr_t>(p) % kHuge) % kHuge;
  data_ = p + before;
  if (before > 0) ::munmap(p, before);
  if (before < kHuge) ::munmap(data_ + bytes_, kHuge - before);
  // Refusal only costs speed.
  (void)::madvise(data_, bytes_, MADV_HUGEPAGE);
}

MappedBytes::~MappedBytes() {
  ::munmap(data_, bytes_);
}

}  // namespace orbitkv
