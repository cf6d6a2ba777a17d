// The calls that place pages of a mapped slab, as errno values: 0 or what the kernel
// said. Touching never raises SIGBUS. SlabBuilder's threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "base/ids.h"
#include "base/unique_fd.h"

namespace orbitkv::mem {

// Gives every page of the range memory.
int touch(std::byte* at, ByteCount bytes);

// Makes the 2 MiB at `at` one huge page. EAGAIN, EBUSY and ENOMEM (pages in motion,
// none free) are tried again a few times unless `stop`; EINVAL means that this machine
// never will.
int collapse(std::byte* at, const std::atomic<bool>& stop);

// Why collapse() said EINVAL, in words that name the setting.
std::string explain_collapse_refusal();

// Allocates what the file still lacks.
int fill_holes(const UniqueFd& memory, ByteCount bytes);

}  // namespace orbitkv::mem
