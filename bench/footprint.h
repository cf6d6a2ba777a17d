// `orbitkv bench idle`, `memory` and `attach`: what a Manager costs while nobody asks,
// how many bytes of it a block takes, and how long an engine waits for a large pool.
#pragma once

#include "bench/harness.h"

namespace orbitkv::bench {
int run_idle_bench(const Options& options);
int run_memory_bench(const Options& options);
int run_attach_bench(const Options& options);
}  // namespace orbitkv::bench
