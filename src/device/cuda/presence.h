// Makes the pages of a mapping present in the calling thread's own time. The driver does
// the same inside cuMemHostRegister, half a second a GiB, and holds a lock meanwhile that
// every CUDA call of the process waits for. Blocks for as long as the kernel needs to
// clear the pages; any thread, no lock of the driver's.
#pragma once

#include <functional>
#include <span>

#include "base/ids.h"

namespace orbitkv::device::cuda {

// False: some pages cannot be had. Nothing is written and no signal is raised; who needs
// the pages will be told why.
using Populate = std::function<bool(std::span<std::byte> pages)>;

bool populate(std::span<std::byte> pages);
// For kernels older than 5.14: has the kernel read a byte of each page.
bool populate_by_reading(std::span<std::byte> pages);

// A removal, or the end, waits for no more than one such piece: some milliseconds.
inline constexpr ByteCount kPopulatePiece{4 * 1024 * 1024};

}  // namespace orbitkv::device::cuda
