#include "bench/compiled.h"

#include "device/cuda/windows.h"

namespace orbitkv::bench {
namespace {

device::cuda::PlanRules rules_of(const CompileFacts& facts, Carrier carrier) {
  device::cuda::PlanRules rules;
  rules.has_bulk = facts.has_bulk && facts.payload > device::cuda::kTinyBytes;
  rules.stage_bytes = facts.stage_bytes;
  rules.max_slots = device::cuda::slots_that_fit(facts.shared_bytes);
  if (carrier == Carrier::kDma) {
    rules.max_bytes = device::cuda::kDirectBytes;
    rules.max_runs = device::cuda::kDirectRuns;
  }
  return rules;
}

// Rows at a constant pitch are one call, single runs share calls where the driver has that.
std::uint64_t dma_calls(const device::cuda::LaunchPlan& plan, const CompileFacts& facts) {
  std::uint64_t calls = 0, runs = 0;
  for (const device::cuda::PlanFragment& f : plan.fragments) {
    const std::uint64_t rows = f.bytes / f.row_bytes;
    const bool pitched = rows > 1 && f.row_stride <= static_cast<std::uint64_t>(facts.max_pitch);
    (pitched ? calls : runs) += pitched ? f.slots : f.slots * rows;
  }
  return calls + (facts.batched_dma ? (runs + device::cuda::kCopiesPerCall - 1) / device::cuda::kCopiesPerCall
                                    : runs);
}

}  // namespace

Compiled compile(std::span<const device::cuda::PlanGroup> groups, const CompileFacts& facts,
                 Carrier carrier) {
  Compiled out;
  for (const device::cuda::LaunchPlan& plan :
       device::cuda::build_launches(groups, rules_of(facts, carrier))) {
    ++out.launches;
    out.units += plan.units;
    out.plan_bytes += plan.upload_bytes();
    if (carrier == Carrier::kDma && plan.runs <= device::cuda::kDirectRuns)
      out.dma_calls += dma_calls(plan, facts);
  }
  return out;
}

}  // namespace orbitkv::bench
