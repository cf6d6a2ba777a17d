// How long the core's thread is held by one call or turn at most, with the longest lists that there
// may be. CPU time, so that what else runs costs nothing. One thread.
#pragma once

#include "base/result.h"
#include "bench/harness.h"

namespace orbitkv::bench {

// Case longest_turn: limits::kTailPages hashes, 2,000 a part; a figure for each way in which such a list
// begins, waits and ends.
Status run_longest_turns(const Options& options);

}  // namespace orbitkv::bench
