// `orbitkv bench alloc`: how full a pool of mixed slots gets and what a replacement
// costs. Slots of five sizes with their headers, drawn at random (seeded) until 90 % of
// the pool is live, 10^6 replacements, each by a newly drawn size, then allocation until
// the first refusal. Cases are pool sizes; the memory is sparse. Uses no Manager.
#pragma once

#include "bench/harness.h"

namespace orbitkv::bench {

// Returns the exit status: 0, or 1 when the pool could not be made.
int run_alloc_bench(const Options& options);

}  // namespace orbitkv::bench
