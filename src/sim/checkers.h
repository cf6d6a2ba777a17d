// What must hold in the core's tables between any two events, recounted from the tables:
// bytes of the pool, pins, states, and that nobody starves. Called every few thousand events and at the end.
// One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cache/core.h"
#include "mem/pool.h"

namespace orbitkv::sim {

struct Wrong {
  const char* checker;
  std::string text;
};
struct Known {
  ByteCount old;                // lent by an earlier life of the Manager
  std::uint32_t instances = 0;  // at once, at most
};
// The first thing that does not add up, or goes beyond its bound.
std::optional<Wrong> recount(const cache::Core& core, const mem::Pool& pool, const Known& known);
// Of that: more were admitted before one that waits than may be.
std::optional<Wrong> starves(std::uint32_t overtaken, std::uint32_t instances);

}  // namespace orbitkv::sim
