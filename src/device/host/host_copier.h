// The host copier and the CPU as a device: pages and images are memory of this process,
// so there are no streams, fences are empty and slabs need no preparation. submit()
// copies in the caller's thread; the first poll ends the batch. Also: a chosen
// instruction set, and the checksums of a page as it lies in host memory, for tests
// and tools.
#pragma once

#include <memory>
#include <vector>

#include "device/copier.h"
#include "device/device.h"
#include "device/host/mix_copy.h"

namespace orbitkv::device {

// "cpu:0". `isa` is one that isa_supported() has said yes to.
std::unique_ptr<Device> make_host_device(Isa isa);
std::unique_ptr<Device> make_host_device();  // the best instruction set

std::unique_ptr<Copier> make_host_copier(const CopierOptions& options, Isa isa);
std::unique_ptr<Copier> make_host_copier(const CopierOptions& options = {});

// The check of every fragment of one engine block, in layout order: what a save of
// this block under this seed would write into the image's header.
std::vector<std::uint64_t> page_checks(const GroupGeometry& group, std::uint32_t block, std::uint64_t seed);

// A batch that writes at least this much streams past the caches. Pages and images are
// drawn from memory far larger than the caches, so the destination's old lines would only
// be fetched to be overwritten; below, the reader that follows finds its bytes in the cache.
inline constexpr ByteCount kStreamFrom = 64 * kKiB;

}  // namespace orbitkv::device
