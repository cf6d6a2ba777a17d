// `orbitkv bench channel`: round trips over a session's channel. `ping`: full command
// and reply, encode, CRC and ring, both sides spinning on pinned cores; `ping_asleep`:
// the far side has gone to sleep before each call. The ceiling of both is a bare
// 64-byte ring ping between the same two cores in the same run.
#pragma once

#include "bench/harness.h"

namespace orbitkv::bench {

// Returns the exit status: 0, or 1 on a wrong byte or a dead far side.
int run_channel_bench(const Options& options);

}  // namespace orbitkv::bench
