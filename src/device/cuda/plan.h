// What a copy kernel is told: the plan of one launch, as it lies in pinned memory that
// the device reads. Affine: slots x fragments, multiplied on the device. Shared by the
// host code and kernels.cu, so plain integers only. Pure values.
#pragma once

#ifndef __CUDACC_RTC__
#include <cstdint>
#endif

namespace orbitkv::device::cuda {

// One image: where it lies (as the device addresses it) and the engine block.
struct alignas(16) PlanSlot {
  std::uint64_t image;
  std::uint32_t block;
  std::uint32_t pad;
};

// One fragment of every slot in [first_slot, first_slot + slots). Work is counted in units
// of at most stage_bytes: `pack` whole small fragments of consecutive slots, or one chunk
// of a large one. Sums: one a chunk, at first_sum + slot * chunks + chunk.
struct alignas(16) PlanFragment {
  std::uint64_t base;          // device address of block 0, row 0
  std::uint64_t block_stride;  // bytes
  std::uint64_t row_stride;    // bytes
  std::uint32_t image_offset;  // from the start of the image, multiple of 128
  std::uint32_t row_bytes;
  std::uint32_t bytes;  // rows * row_bytes
  std::uint32_t first_slot;
  std::uint32_t slots;
  std::uint32_t pack;        // whole fragments a unit, >= 1
  std::uint32_t chunks;      // units a fragment, 1 if pack > 1
  std::uint32_t first_unit;  // of all units before this fragment
  std::uint32_t first_sum;
  std::uint32_t signal;  // index of the layer's flag in this launch, ascending
};
static_assert(sizeof(PlanSlot) == 16 && sizeof(PlanFragment) == 64, "layout shared with kernels");

// The raw sum of a chunk, twice, so that it proves itself: one that has not arrived yet, or
// an earlier launch's, does not agree with this launch's nonce. So no fence over the link is
// needed to order it before its layer's flag.
struct alignas(16) PlanSum {
  std::uint64_t masked;  // sum ^ nonce
  std::uint64_t mixed;   // sum * kSumFactor + nonce
};
inline constexpr std::uint64_t kSumFactor = 0x9E3779B97F4A7C15ull;

// A plan that is small enough to travel with the launch.
inline constexpr std::uint32_t kSmallFragments = 4, kSmallSlots = 32;
struct SmallPlan {
  PlanFragment fragments[kSmallFragments];
  PlanSlot slots[kSmallSlots];
};

// Parameters of one launch; passed by value. What it points to belongs to this launch
// alone, from before it is enqueued until it has ended: nothing of an earlier launch can
// pass for its own.
struct PlanLaunch {
  std::uint64_t fragments;  // device address of PlanFragment[fragment_count]; 0: `small`
  std::uint64_t slots;      // device address of PlanSlot[slot_count]
  std::uint64_t sums;       // device address of PlanSum[], host memory
  std::uint64_t flags;      // device address of u32[signals], host memory, != sequence at rest
  std::uint64_t counters;   // device address of u32[signals], device memory, zero at rest
  std::uint64_t nonce;
  std::uint32_t fragment_count;
  std::uint32_t slot_count;
  std::uint32_t units;     // in all
  std::uint32_t signals;   // layers
  std::uint32_t sequence;  // what a finished layer's flag is set to
  std::uint32_t stage_bytes;
  std::uint32_t loads;      // stages that hold loads in flight, a CTA
  std::uint32_t stores;     // stages that hold stores in flight, a CTA
  std::uint32_t to_image;   // 1: save
  std::uint32_t sum_only;   // 1: no copy; sums over the engine's pages (after DMA)
  std::uint32_t skip_sums;  // 1: nobody looks at the sums; the bulk kernel leaves them 0
  std::uint32_t pad;
  SmallPlan small;
};

inline constexpr std::uint32_t kMaxFragmentsPerLaunch = 256;
inline constexpr std::uint32_t kMaxSlotsPerLaunch = 4096;
inline constexpr std::uint32_t kMaxSumsPerLaunch = 96 * 1024;
inline constexpr std::uint32_t kMaxPack = 32;
inline constexpr std::uint32_t kMaxStages = 8;  // loads and stores of a CTA, each

// Threads of a CTA, and the dynamic shared memory that a launch needs.
inline constexpr std::uint32_t kBulkSumWarps = 8, kBulkFirstSumWarp = 3;
inline constexpr std::uint32_t kBulkThreads = 32 * (kBulkFirstSumWarp + kBulkSumWarps);
inline constexpr std::uint32_t kAnyThreads = 512;
constexpr std::uint32_t table_bytes(const PlanLaunch& plan) {
  return plan.fragment_count * std::uint32_t{sizeof(PlanFragment)} +
         plan.slot_count * std::uint32_t{sizeof(PlanSlot)};
}
constexpr std::uint32_t bulk_shared_bytes(const PlanLaunch& plan) {
  return (plan.loads + plan.stores) * (plan.stage_bytes + kMaxPack * 8 + 3 * 8) + table_bytes(plan) + 32;
}
// Slots of a launch that leave room for a full fragment table and four stages of 16 KiB.
constexpr std::uint32_t slots_that_fit(std::uint32_t shared_bytes) {
  constexpr auto kRest = static_cast<std::uint32_t>(4 * (16 * 1024 + kMaxPack * 8 + 3 * 8) +
                                                    kMaxFragmentsPerLaunch * sizeof(PlanFragment) + 32);
  constexpr auto kEach = static_cast<std::uint32_t>(sizeof(PlanSlot));
  const std::uint32_t fit = shared_bytes > kRest ? (shared_bytes - kRest) / kEach : 0;
  return fit < 16 ? 16 : fit > kMaxSlotsPerLaunch ? kMaxSlotsPerLaunch : fit;
}
constexpr std::uint32_t any_shared_bytes(const PlanLaunch& plan) {
  return table_bytes(plan) + 2 * kMaxPack * 8;
}

}  // namespace orbitkv::device::cuda
