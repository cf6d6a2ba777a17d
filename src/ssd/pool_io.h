// Io by a pool of threads that call preadv and pwritev: as fast as io_uring for large
// requests, at more CPU, and allowed everywhere. Same seam, same suite. Its threads take
// a request each when the bounds and the turns allow; the owner's thread only queues.
// Registers no memory.
#pragma once

#include <memory>

#include "ssd/io.h"

namespace orbitkv::ssd {

std::unique_ptr<Io> make_pool_io(const IoOptions& options);

}  // namespace orbitkv::ssd
