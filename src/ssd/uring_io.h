// Io on an io_uring: one ring and one thread that submits and waits, so that the owner's
// thread never runs the block layer. Registered files and memory, no SQPOLL. The owner
// wakes the thread only where it sleeps; everything else goes through a bounded queue.
#pragma once

#include <memory>

#include "base/result.h"
#include "ssd/io.h"

namespace orbitkv::ssd {

// kReject: the kernel, its settings or a sandbox forbid it; says which and the remedy.
Result<std::unique_ptr<Io>> make_uring_io(const IoOptions& options);

}  // namespace orbitkv::ssd
