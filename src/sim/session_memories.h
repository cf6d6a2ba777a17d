// Session memories that are used again: making one costs a thousand times what a session
// of a run does. Both sides of a session hold aliases of one mapping. One thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "shm/session_memory.h"

namespace orbitkv::sim {

// A fresh one; back in stock when the last holder lets go.
std::shared_ptr<shm::SessionMemory> session_memory(SessionId session, Epoch epoch);
// The part of one that holds its state: clients take the lowest record first, so behind one that was
// never taken none was, and slots and plan bank mean nothing without them.
std::span<std::byte> state_of(const shm::SessionMemory& memory);
// What has served another session made fresh: its state, that is.
void renew(const shm::SessionMemory& memory, SessionId session, Epoch epoch);

}  // namespace orbitkv::sim
