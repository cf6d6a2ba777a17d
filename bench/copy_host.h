// `orbitkv bench copy`: save and restore of the host copier, checksum fused, beside
// memcpy of the same bytes in the same order, operation by operation in the same run.
// Pages and images are shuffled over memory that no cache holds; `_hot` cases repeat one
// block. `_unfused` is memcpy followed by a checksum pass. Uses no Manager.
#pragma once

#include "bench/harness.h"

namespace orbitkv::bench {

// Returns the exit status: 0, or 1 when a byte or a checksum was wrong.
int run_copy_host_bench(const Options& options);

}  // namespace orbitkv::bench
