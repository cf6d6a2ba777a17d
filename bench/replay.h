// `orbitkv bench replay FILE`: runs the operations of a trace (ORBITKV_TRACE_TRANSFERS)
// again on a GPU, through the copier, by each method, and counts from the geometry alone
// what they compile to: launches, units, DMA calls. Operations of one shape are run once.
// Fails when a replayed count is not the computed one, or a byte is wrong; a recorded count
// that differs is shown (an operation that was granted in parts took more launches).
#pragma once

#include "bench/harness.h"

namespace orbitkv::bench {
int run_replay_bench(const Options& options);
}  // namespace orbitkv::bench
