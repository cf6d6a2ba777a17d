// How many bytes the SSD is spared by the write policies, and at which loss of hits: a trace
// of requests through ssd/admission.h. Called by the bench's main thread; no I/O but the trace.
#pragma once

#include "bench/harness.h"

namespace orbitkv::bench {

int run_endurance_bench(const Options& options);

}  // namespace orbitkv::bench
