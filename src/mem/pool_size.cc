#include "mem/pool_size.h"

#include <sys/resource.h>

#include <algorithm>
#include <bit>

#include "base/limits.h"
#include "base/text.h"
#include "mem/extent_allocator.h"
#include "mem/kept_scan.h"
#include "mem/pool.h"

namespace orbitkv::mem {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr rlim_t kOtherDescriptors = 1024;  // sessions, sockets, logs
// Left to the rest of the machine when a pool is given a size.
constexpr std::uint64_t kHeadroomShare = 64;
// A pool that can be cut has slabs to retire one of.
constexpr ByteCount kOneSlab = 512 * kMiB;
constexpr ByteCount kLeastSlab = limits::kSlotImageBytes;
constexpr std::uint64_t kSlabsWanted = 4;

double gibibytes(ByteCount bytes) {
  return static_cast<double>(bytes.value) / static_cast<double>(kGiB.value);
}

std::vector<ByteCount> cut(ByteCount bytes, ByteCount each) {
  std::vector<ByteCount> sizes;
  for (ByteCount left = bytes; left.value > 0; left -= sizes.back()) sizes.push_back(std::min(left, each));
  return sizes;
}

}  // namespace

std::vector<ByteCount> slab_sizes(ByteCount bytes, ByteCount each) {
  if (each.value > 0) return cut(bytes, each);
  if (bytes < kOneSlab) return {bytes};
  const std::uint64_t least = (bytes.value + limits::kSlabBytes.value - 1) / limits::kSlabBytes.value;
  const std::uint64_t count = std::max(least, std::min(kSlabsWanted, bytes.value / kLeastSlab.value));
  const std::uint64_t step = count * limits::kHugePageBytes.value;
  return cut(bytes, ByteCount((bytes.value + step - 1) / step * limits::kHugePageBytes.value));
}

ByteCount leave_out(const KeptPool& kept, std::vector<ByteCount>& sizes) {
  const auto wanted = kept.wanted_of(static_cast<std::uint32_t>(sizes.size()));
  ByteCount odd;  // of kept slabs of another size, and of retired ones
  for (const KeptRetired& gone : kept.retired) odd += gone.bytes;
  for (const KeptPool::Slab& slab : kept.slabs) {
    const auto same = std::find(sizes.begin(), sizes.end(), slab.bytes);
    if (same == sizes.end()) {
      odd += slab.bytes;
    } else {
      sizes.erase(same);
    }
  }
  while (!sizes.empty() && odd >= sizes.back()) {
    odd -= sizes.back();
    sizes.pop_back();
  }
  while (wanted && !sizes.empty() && kept.slabs.size() + sizes.size() > *wanted) sizes.pop_back();
  ByteCount left;
  for (const ByteCount size : sizes) left += size;
  return left;
}

Status check_config(const PoolConfig& config) {
  if (config.bytes.value == 0) return reject("the pool has no bytes; give --pool-size");
  const ByteCount most = limits::kSlabs * limits::kSlabBytes;
  if (config.bytes > most) {
    return reject(
        format_text("a pool of %.1f GiB is more than the %.0f GiB that %u slabs make; lower --pool-size",
                    gibibytes(config.bytes), gibibytes(most), limits::kSlabs));
  }
  if (!std::has_single_bit(config.unit) || config.unit < kExtentUnit || config.unit > kPage) {
    return reject(format_text("extents in units of %u bytes cannot be; a power of two from %llu to %llu can",
                              config.unit, static_cast<unsigned long long>(kExtentUnit),
                              static_cast<unsigned long long>(kPage)));
  }
  if (config.huge_pages == HugePages::kOn && !config.prefault)
    return reject("--hugepages on needs --prefault: pages become huge before a slab is offered");
  return ok_status();
}

Status check_memory(const PoolConfig& config, const HostMemory& memory) {
  if (!config.prefault) return ok_status();
  const ByteCount reserved = config.huge_pages == HugePages::kOff ? ByteCount(0) : memory.reserved_huge;
  const ByteCount needed = config.bytes - std::min(config.bytes, reserved);
  const ByteCount room(memory.available.value - memory.available.value / kHeadroomShare);
  if (needed <= room) return ok_status();
  return busy(
      format_text("a pool of %.2f GiB does not fit: %.2f GiB of memory are available (by %s) and %.2f GiB "
                  "in reserved huge pages; lower --pool-size or free memory",
                  gibibytes(config.bytes), gibibytes(memory.available), memory.bound_by.c_str(),
                  gibibytes(memory.reserved_huge)));
}

Status allow_descriptors(std::size_t slabs) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return errno_error("cannot read the limit of open files");
  const rlim_t needed = slabs + kOtherDescriptors;
  if (limit.rlim_cur >= needed) return ok_status();
  if (limit.rlim_max < slabs + kOtherDescriptors / 4) {
    return reject(format_text(
        "%zu slabs need about %llu open files, the hard limit is %llu; raise it (ulimit -Hn, "
        "LimitNOFILE=) or lower --pool-size",
        slabs, static_cast<unsigned long long>(needed), static_cast<unsigned long long>(limit.rlim_max)));
  }
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return errno_error("cannot raise the limit of open files");
  return ok_status();
}

}  // namespace orbitkv::mem
