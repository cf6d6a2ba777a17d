// What must hold in the core's tables between any two events, recounted from the tables:
// bytes of the pool, pins, states. Called every few thousand events and at the end. One thread.
#pragma once

#include <optional>
#include <string>

#include "cache/core.h"
#include "mem/pool.h"

namespace orbitkv::sim {

// The first thing that does not add up. `old`: bytes lent by an earlier life of the Manager.
std::optional<std::string> recount(const cache::Core& core, const mem::Pool& pool, ByteCount old);

}  // namespace orbitkv::sim
