// The memory of one launch: plan, sums and flags in pinned host memory, counters on the
// device, and the events that say when it may serve another launch. A pool has a fixed
// number of them; a copier has a pool a direction. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "device/cuda/context.h"
#include "device/cuda/plan.h"

namespace orbitkv::device::cuda {

struct LaunchMemory {
  PlanFragment* fragments = nullptr;  // kMaxFragmentsPerLaunch
  PlanSlot* slots = nullptr;          // kMaxSlotsPerLaunch
  PlanSum* sums = nullptr;            // kMaxSumsPerLaunch
  std::uint32_t* flags = nullptr;     // kMaxFragmentsPerLaunch
  CuPtr device_fragments = 0, device_slots = 0, device_sums = 0, device_flags = 0;
  CuPtr counters = 0;
  CuEvent ended = nullptr;      // after the launch
  CuEvent signalled = nullptr;  // after the last wait for its flags
  bool waited_for = false;      // a queue waits for its flags, up to `signalled`
  bool ended_by_sums = false;   // `ended` was recorded on the stream of sums, not of copies
  bool rests = true;            // nothing on the device knows it any more
  std::uint64_t order = 0;      // of its launch among those of its pool
  std::uint32_t sequence = 0;
  std::uint64_t nonce = 0;

  // For whoever waits on a device queue for flags that will not come.
  void raise_all() {
    for (std::uint32_t i = 0; i < kMaxFragmentsPerLaunch; ++i)
      __atomic_store_n(&flags[i], sequence, __ATOMIC_RELEASE);
  }
  // Whether the sum has arrived, and what it is.
  bool sum_at(std::size_t index, std::uint64_t& out) const {
    const std::uint64_t masked = __atomic_load_n(&sums[index].masked, __ATOMIC_RELAXED);
    out = masked ^ nonce;
    return __atomic_load_n(&sums[index].mixed, __ATOMIC_RELAXED) == out * kSumFactor + nonce;
  }
  bool raised(std::uint32_t signal) const {
    return __atomic_load_n(&flags[signal], __ATOMIC_ACQUIRE) == sequence;
  }
};

class LaunchPool {
 public:
  static Result<std::unique_ptr<LaunchPool>> create(std::shared_ptr<Context> context, std::uint32_t count);
  // Everything has ended.
  ~LaunchPool();

  bool any_free() const { return !free_.empty(); }
  // Null: all are in use. Flags are down, sequence and nonce fresh. Launches are enqueued in
  // the order in which they were taken.
  LaunchMemory* take();
  // Its launch was seen to end, or never began; its flags may still be waited for.
  void give_back(LaunchMemory* transfer);

 private:
  explicit LaunchPool(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  Status fill(std::uint32_t count);
  void find_resting();
  bool signals_are_read(const LaunchMemory& transfer) const;

  const std::shared_ptr<Context> context_;
  void* host_ = nullptr;
  CuPtr counters_ = 0;
  std::vector<LaunchMemory> transfers_;
  std::vector<LaunchMemory*> free_;  // oldest first; some may not rest yet
  std::uint64_t launches_ = 0;
};

}  // namespace orbitkv::device::cuda
