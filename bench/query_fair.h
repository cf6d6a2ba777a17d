// One session that asks now and then beside seven that flood: what it waits for is the
// Manager's own turn, so that sessions and core run here in one thread, by the production
// host, and only the CPU time of the host counts. Main thread of the bench.
#pragma once

#include "bench/harness.h"

namespace orbitkv::bench {

Status run_fair_queries(const Options& options);

}  // namespace orbitkv::bench
