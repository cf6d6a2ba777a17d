// What a batch compiles to on a GPU, counted from its geometry alone: the numbers that a
// trace should show, and a replay too. Pure.
#pragma once

#include <span>

#include "device/cuda/plan_builder.h"

namespace orbitkv::bench {

// All by kernel, or all by DMA (sums are launches beside its calls).
enum class Carrier : std::uint8_t { kKernel, kDma };
struct Compiled {
  std::uint64_t launches = 0;
  std::uint64_t units = 0;      // of all launches
  std::uint64_t dma_calls = 0;  // 0 by kernel
  std::uint64_t plan_bytes = 0;
  std::uint64_t submissions() const { return dma_calls + launches; }
};
// What of a machine and a batch decides.
struct CompileFacts {
  std::uint64_t payload = 0;
  std::uint32_t stage_bytes = 0;
  std::uint32_t shared_bytes = 0;
  int max_pitch = 0;
  bool has_bulk = true;
  bool batched_dma = true;
};
Compiled compile(std::span<const device::cuda::PlanGroup> groups, const CompileFacts& facts, Carrier carrier);

}  // namespace orbitkv::bench
