// The core alone: what a query and its release cost without a channel. One thread.
#pragma once

#include "base/result.h"
#include "bench/harness.h"

namespace orbitkv::bench {

// Case core_8x64: eight sessions of as many engines in turn, 64 resident hashes a query.
Status run_core_queries(const Options& options);

}  // namespace orbitkv::bench
