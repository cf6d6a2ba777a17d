// Io on an io_uring of the owner's thread: a submission and a look for results are one
// system call each and never wait, so that handing requests to another thread would cost
// the owner as much and the device its depth. Registered files and memory, no SQPOLL. A
// request is cut into chunks that the block layer takes without blocking, one entry of
// the ring each. Belongs to the thread that submits first, which also destroys it.
#pragma once

#include <memory>

#include "base/result.h"
#include "ssd/io.h"

namespace orbitkv::ssd {

// kReject: the kernel, its settings or a sandbox forbid it; says which and the remedy.
Result<std::unique_ptr<Io>> make_uring_io(const IoOptions& options);

}  // namespace orbitkv::ssd
