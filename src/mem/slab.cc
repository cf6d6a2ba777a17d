#include "mem/slab.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include "base/check.h"
#include "base/text.h"
#include "mem/slab_passed.h"

namespace orbitkv::mem {
namespace {

constexpr int kSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
constexpr int kForbiddenSeals = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;
constexpr unsigned kNoExecSeal = 0x0008U;  // MFD_NOEXEC_SEAL, Linux 6.3

int create_memfd(SlabId id, unsigned flags) {
  char name[32];
  std::snprintf(name, sizeof name, "orbitkv-slab-%u", id.value);
  const int fd = ::memfd_create(name, flags | kNoExecSeal);
  if (fd >= 0 || errno != EINVAL) return fd;
  return ::memfd_create(name, flags);
}

// A shared mapping of reserved pages reserves them for the file; they stay so when the
// mapping is gone.
Status reserve_huge(int fd, ByteCount bytes) {
  void* base = ::mmap(nullptr, bytes.value, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return errno_error("cannot reserve 2 MiB pages for a slab");
  ::munmap(base, bytes.value);
  return ok_status();
}

PassedSlabEdges g_passed_edges{};

}  // namespace

PassedSlabEdges& passed_slab_edges() {
  return g_passed_edges;
}

void advance(SlabInfo& slab, SlabState to, Placement placement) {
  ORBITKV_CHECK(slab.state < SlabState::kCount && to < SlabState::kCount, "no such state of a slab");
  const auto from = static_cast<std::size_t>(slab.state), next = static_cast<std::size_t>(to);
  const SlabEdge edge = detail::kSlabEdges[from][next];
  const bool may = edge == SlabEdge::kAny ||
                   edge == (placement == Placement::kSparse ? SlabEdge::kSparse : SlabEdge::kPlaced);
  ORBITKV_CHECK(may, "a slab is offered once, when its pages are placed, and retires once");
  slab.state = to;
  g_passed_edges[from][next].store(true, std::memory_order_relaxed);
}

Result<UniqueFd> make_slab_memory(SlabId id, ByteCount bytes, PageSource source) {
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (source == PageSource::kReservedHuge) flags |= MFD_HUGETLB | MFD_HUGE_2MB;
  UniqueFd fd(create_memfd(id, flags));
  if (!fd.valid()) return errno_error("cannot make the memory of a slab (memfd_create)");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes.value)) != 0)
    return errno_error("cannot size the memory of a slab");
  if (source == PageSource::kReservedHuge) ORBITKV_RETURN_IF_ERROR(reserve_huge(fd.get(), bytes));
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return errno_error("cannot seal the size of a slab");
  return fd;
}

Status check_slab_memory(const UniqueFd& fd, SlabId id, ByteCount bytes) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return reject(format_text("slab %u: the descriptor is not a memfd", id.value));
  if ((seals & kSeals) != kSeals || (seals & kForbiddenSeals) != 0) {
    return reject(format_text("slab %u: seals 0x%x, but its size must be sealed and its contents must not be",
                              id.value, static_cast<unsigned>(seals)));
  }
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) return errno_error("cannot size a slab");
  if (static_cast<std::uint64_t>(status.st_size) != bytes.value) {
    return reject(format_text("slab %u has %llu bytes, %llu were offered", id.value,
                              static_cast<unsigned long long>(status.st_size),
                              static_cast<unsigned long long>(bytes.value)));
  }
  return ok_status();
}

}  // namespace orbitkv::mem
