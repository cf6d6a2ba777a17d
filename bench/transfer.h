// `orbitkv bench restore` and `publish`: one operation of the client, from the call to
// its verified end, beside memcpy of the same bytes. The lease or the fresh hashes are
// prepared off the clock; every case ends by comparing bytes.
#pragma once

#include "bench/harness.h"

namespace orbitkv::bench {
int run_restore_bench(const Options& options);
int run_publish_bench(const Options& options);
}  // namespace orbitkv::bench
