#include "mem/mapped_slab.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "mem/slab.h"

namespace orbitkv::mem {
namespace {

// Where the kernel can map a huge page as one, too.
constexpr std::uint64_t kAlignment = limits::kRegisterPiece.value;
static_assert(kAlignment % limits::kHugePageBytes.value == 0);

// Address space of `bytes` that begins at such a place; nullptr: none is left.
std::byte* reserve_aligned(std::uint64_t bytes) {
  const std::uint64_t align = kAlignment;
  void* raw = ::mmap(nullptr, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(raw);
  const std::uint64_t skip = (align - reinterpret_cast<std::uintptr_t>(raw) % align) % align;
  if (skip > 0) ::munmap(begin, skip);
  const std::uint64_t page = 4096;
  const std::uint64_t kept = (bytes + page - 1) / page * page;
  if (skip + kept < bytes + align) ::munmap(begin + skip + kept, bytes + align - skip - kept);
  return begin + skip;
}

}  // namespace

Result<MappedSlab> MappedSlab::map(const UniqueFd& fd, SlabId id, ByteCount bytes) {
  ORBITKV_RETURN_IF_ERROR(check_slab_memory(fd, id, bytes));
  std::byte* const base = reserve_aligned(bytes.value);
  if (base == nullptr) return errno_error("cannot find address space for a slab");
  void* const at = ::mmap(base, bytes.value, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0);
  if (at == MAP_FAILED || ::madvise(at, bytes.value, MADV_DONTFORK) != 0) {
    const Error error = errno_error("cannot map a slab");
    ::munmap(base, bytes.value);
    return error;
  }
  MappedSlab slab;
  slab.id_ = id;
  slab.base_ = base;
  slab.bytes_ = bytes;
  return slab;
}

MappedSlab::MappedSlab(MappedSlab&& other) noexcept
    : id_(other.id_),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, ByteCount(0))) {}

MappedSlab& MappedSlab::operator=(MappedSlab&& other) noexcept {
  if (this == &other) return *this;
  if (base_ != nullptr) ::munmap(base_, bytes_.value);
  id_ = other.id_;
  base_ = std::exchange(other.base_, nullptr);
  bytes_ = std::exchange(other.bytes_, ByteCount(0));
  return *this;
}

MappedSlab::~MappedSlab() {
  if (base_ != nullptr) ::munmap(base_, bytes_.value);
}

}  // namespace orbitkv::mem
