// Session memories that are used again: making one costs a thousand times what a session
// of a run does. Both sides of a session hold aliases of one mapping. One thread.
#pragma once

#include <memory>

#include "shm/session_memory.h"

namespace orbitkv::sim {

// A fresh one; back in stock when the last holder lets go.
std::shared_ptr<shm::SessionMemory> session_memory(SessionId session, Epoch epoch);

}  // namespace orbitkv::sim
