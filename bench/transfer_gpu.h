// `orbitkv bench restore` and `publish` with --device cuda:0: one operation of the client
// on pages of a GPU, from the call to its verified end, beside one DMA of the same bytes.
// Where the time goes (stages_us) comes from further operations with tracing on. Restores
// also have layers_* (bench/layers_gpu.h) and attach_64GiB. Bytes are compared as on the
// CPU.
#pragma once

#include "bench/harness.h"

namespace orbitkv::bench {
int run_restore_gpu_bench(const Options& options);
int run_publish_gpu_bench(const Options& options);
}  // namespace orbitkv::bench
