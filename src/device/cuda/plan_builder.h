// Cuts a batch into launches: which fragments of which slots, in the engine's consuming
// order, within what one launch can hold. Pure; no device, any thread. Ranges were
// checked when the group was registered (device::validate).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/copier.h"
#include "device/cuda/plan.h"

namespace orbitkv::device::cuda {

// The widest access that every address, stride and length of a fragment allows. kBulk:
// multiples of 16 with rows of at least 64 bytes.
enum class Width : std::uint8_t { kBulk, k16, k8, k1 };
Width width_of(const FragmentGeometry& fragment, std::uint64_t image_offset);

// One group of a batch: its slots that take part, as the device addresses their images.
struct PlanGroup {
  const GroupGeometry* geometry = nullptr;
  const model::SlotLayout* layout = nullptr;
  std::vector<std::uint64_t> images;  // device addresses
  std::vector<std::uint32_t> blocks;
};

struct PlanRules {
  std::uint32_t stage_bytes = 16 * 1024;  // multiple of 16
  std::uint32_t max_slots = kMaxSlotsPerLaunch;
  std::uint32_t max_fragments = kMaxFragmentsPerLaunch;
  std::uint32_t max_sums = kMaxSumsPerLaunch;
  std::uint64_t max_bytes = ~std::uint64_t{0};  // soft: one fragment of one window may exceed it
  std::uint64_t max_runs = ~std::uint64_t{0};   // copies if DMA makes them; soft: one slot may exceed it
  bool has_bulk = true;                         // false: kBulk is never chosen
  bool skip_sums = false;
  bool one_turn_a_launch = false;  // nothing but the end of a launch says that a layer is there
};

// What a PlanFragment of a launch is part of.
struct FragmentRef {
  std::uint32_t group = 0;       // of the batch
  std::uint32_t fragment = 0;    // of the group
  std::uint32_t first_slot = 0;  // of the group's slots
};

// Fragments in ascending turns. Slots that several fragments use stand once.
struct LaunchPlan {
  Width width = Width::kBulk;
  std::vector<PlanFragment> fragments;
  std::vector<FragmentRef> refs;  // one a fragment
  std::vector<PlanSlot> slots;
  std::vector<std::uint16_t> turns;  // of each signal, ascending
  std::uint32_t units = 0, sums = 0;
  std::uint32_t stage_bytes = 0;
  std::uint64_t bytes = 0;         // payload
  std::uint64_t runs = 0;          // contiguous pieces
  bool skip_sums = false;          // tests of tests and benchmarks: nobody looks at the sums
  bool last_turn_goes_on = false;  // the last signal's turn has more bytes in the next launch
  std::uint64_t upload_bytes() const {
    return fragments.size() * sizeof(PlanFragment) + slots.size() * sizeof(PlanSlot);
  }
};

// Every byte of every fragment of every slot exactly once; a turn's launches follow each
// other. Groups without slots add nothing.
std::vector<LaunchPlan> build_launches(std::span<const PlanGroup> groups, const PlanRules& rules);

}  // namespace orbitkv::device::cuda
