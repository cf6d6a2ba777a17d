// What a batch compiles to on a GPU, counted from its geometry alone: the numbers that a
// trace should show, and a replay too. Pure.
#pragma once

#include <span>

#include "device/cuda/plan_builder.h"

namespace orbitkv::bench {

struct Compiled {
  std::uint64_t launches = 0;   // kernels, when all goes by kernel
  std::uint64_t units = 0;      // of all launches
  std::uint64_t dma_calls = 0;  // when all goes by DMA; sums are launches beside them
  std::uint64_t plan_bytes = 0;
  std::uint64_t submissions(bool by_dma) const { return by_dma ? dma_calls + launches : launches; }
};
struct CompileRules {
  device::cuda::PlanRules plan;
  bool batched_dma = true;
  int max_pitch = 0;
};
Compiled compile(std::span<const device::cuda::PlanGroup> groups, const CompileRules& rules);

}  // namespace orbitkv::bench
