#include "bench/compiled.h"

namespace orbitkv::bench {
namespace {

// As device/cuda/queues.cc bounds its calls.
constexpr std::uint64_t kCopiesPerCall = 64;

// Rows at a constant pitch are one call, single runs share calls where the driver has that.
std::uint64_t dma_calls(const device::cuda::LaunchPlan& plan, const CompileRules& rules) {
  std::uint64_t calls = 0, runs = 0;
  for (const device::cuda::PlanFragment& f : plan.fragments) {
    const std::uint64_t rows = f.bytes / f.row_bytes;
    const bool pitched = rows > 1 && f.row_stride <= static_cast<std::uint64_t>(rules.max_pitch);
    (pitched ? calls : runs) += pitched ? f.slots : f.slots * rows;
  }
  return calls + (rules.batched_dma ? (runs + kCopiesPerCall - 1) / kCopiesPerCall : runs);
}

}  // namespace

Compiled compile(std::span<const device::cuda::PlanGroup> groups, const CompileRules& rules) {
  Compiled out;
  for (const device::cuda::LaunchPlan& plan : device::cuda::build_launches(groups, rules.plan)) {
    ++out.launches;
    out.units += plan.units;
    out.plan_bytes += plan.upload_bytes();
    out.dma_calls += dma_calls(plan, rules);
  }
  return out;
}

}  // namespace orbitkv::bench
