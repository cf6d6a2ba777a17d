// Many seeds, in processes of their own, so that a check that stops one is a finding of its seed
// and the rest still runs. One thread a process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/run.h"

namespace orbitkv::sim {

struct SeedResult {
  std::uint64_t seed = 0;
  std::uint64_t operations = 0, events = 0, digest = 0;
  std::string checker, text;  // empty: no finding; "stopped": a check of the production code
};

struct Batch {
  std::uint64_t first = 1, count = 1;
  RunOptions run;
  std::uint32_t jobs = 1;  // processes at once; what comes of the seeds does not depend on it
};

// Calls `each` with every seed's result, in order; false ends it. `reached`: for each of all_cells()
// how many seeds have reached it, added to.
void run_batch(const Batch& batch, std::vector<std::uint32_t>& reached,
               const std::function<bool(const SeedResult&)>& each);

}  // namespace orbitkv::sim
