// `orbitkv bench restore` and `publish`: one operation of the client, from the call to
// its verified end, beside memcpy of the same bytes. The lease or the fresh hashes are
// prepared off the clock. Every restore is compared byte by byte, of a run of publishes the
// last one.
#pragma once

#include "bench/harness.h"

namespace orbitkv::bench {
int run_restore_bench(const Options& options);
int run_publish_bench(const Options& options);
}  // namespace orbitkv::bench
