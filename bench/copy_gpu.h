// `orbitkv bench copy --device cuda:0`: the production copier of a GPU, checksums included,
// on shuffled pages and images, beside one large DMA, one call a fragment and the batched
// call in the same run. Cases: h2d_ (restore), d2h_ (save) and both_, then fragment
// ("_split": K and V apart), method and thread blocks (0: DMA). Every byte is compared
// after each case. Uses no Manager.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/harness.h"

namespace orbitkv::bench {

// How much is moved; tests take less.
struct CopyLoad {
  std::uint64_t set_bytes = 256 * kMiB.value;   // one operation
  std::uint64_t rival_bytes = 64 * kMiB.value;  // one operation of one-call-a-fragment and batched
  std::uint32_t operations = 4;                 // a run
  std::vector<std::uint64_t> fragments = {2048, 4096, 16384, 65536, 262144, 2097152};
};

// Exit status: 0; 1 when a byte or a checksum was wrong; kSkipped without a GPU.
int run_copy_gpu_bench(const Options& options, const CopyLoad& load = {});

}  // namespace orbitkv::bench
