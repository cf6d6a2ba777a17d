// The host copier beyond the seam: a chosen instruction set, and the checksums of a
// page as it lies in host memory, for tests and tools. make_host_copier() of
// device/copier.h takes the best instruction set.
#pragma once

#include <memory>
#include <vector>

#include "device/copier.h"
#include "device/host/mix_copy.h"

namespace orbitkv::device {

// `isa` is one that isa_supported() has said yes to.
std::unique_ptr<Copier> make_host_copier(HostCopierOptions options, Isa isa);

// The check of every fragment of one engine block, in layout order: what a save of
// this block under this seed would write into the image's header.
std::vector<std::uint64_t> page_checks(const GroupGeometry& group, std::uint32_t block, std::uint64_t seed);

// A batch that writes at least this much streams past the caches. Pages and images are
// drawn from memory far larger than the caches, so the destination's old lines would only
// be fetched to be overwritten; below, the reader that follows finds its bytes in the cache.
inline constexpr ByteCount kStreamFrom = 64 * kKiB;

}  // namespace orbitkv::device
