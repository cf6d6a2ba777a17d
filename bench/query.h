// `orbitkv bench query`: lease of resident blocks over the channel, fresh request ids,
// release off the clock. The ceiling is a probe of the same keys in the same kind of
// table in one process.
#pragma once

#include "bench/harness.h"

namespace orbitkv::bench {
int run_query_bench(const Options& options);
}
