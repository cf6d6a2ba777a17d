// Cases `layers_*` of `orbitkv bench restore` on a GPU: when the first layer is ready as a
// share of the whole restore, and when a consumer stream ends that waits for each layer and
// then computes (arithmetic without memory that takes about half of, as long as, or twice
// what a layer's copy takes) over max(copy, compute). Alone and together by turns in one
// run. The pages are compared at the end.
#pragma once

#include "bench/gpu.h"

namespace orbitkv::bench {
Status run_layers(const Options& options, Gpu& gpu);
}  // namespace orbitkv::bench
