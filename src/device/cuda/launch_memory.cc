#include "device/cuda/launch_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <type_traits>

#include "base/checksum.h"
#include "base/time.h"

namespace orbitkv::device::cuda {
namespace {

constexpr std::size_t kFragmentBytes = kMaxFragmentsPerLaunch * sizeof(PlanFragment);
constexpr std::size_t kSlotBytes = kMaxSlotsPerLaunch * sizeof(PlanSlot);
constexpr std::size_t kFlagBytes = kMaxFragmentsPerLaunch * sizeof(std::uint32_t);
constexpr std::size_t kSumBytes = kMaxSumsPerLaunch * sizeof(PlanSum);
constexpr std::size_t kLaunchBytes = kFragmentBytes + kSlotBytes + kFlagBytes + kSumBytes;

// Never twice in a process: memory that another copier has given back still holds its sums.
std::uint64_t fresh_nonce() {
  static std::atomic<std::uint64_t> launches{static_cast<std::uint64_t>(monotonic_now().ns)};
  return checksum::finish(launches.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace

Result<std::unique_ptr<LaunchPool>> LaunchPool::create(std::shared_ptr<Context> context,
                                                       std::uint32_t count) {
  std::unique_ptr<LaunchPool> pool(new LaunchPool(std::move(context)));
  ORBITKV_RETURN_IF_ERROR(pool->fill(count));
  return pool;
}

Status LaunchPool::fill(std::uint32_t count) {
  Scope scope(*context_);
  const Driver& d = context_->driver();
  ORBITKV_RETURN_IF_ERROR(
      status_of(d, "cuMemHostAlloc",
                d.cuMemHostAlloc(&host_, count * kLaunchBytes, kHostAllocPortable | kHostAllocDeviceMap)));
  CuPtr device = 0;
  ORBITKV_RETURN_IF_ERROR(
      status_of(d, "cuMemHostGetDevicePointer", d.cuMemHostGetDevicePointer(&device, host_, 0)));
  ORBITKV_RETURN_IF_ERROR(status_of(d, "cuMemAlloc", d.cuMemAlloc(&counters_, count * kFlagBytes)));
  const std::vector<std::uint32_t> zeros(count * kMaxFragmentsPerLaunch);
  ORBITKV_RETURN_IF_ERROR(
      status_of(d, "cuMemcpyHtoD", d.cuMemcpyHtoD(counters_, zeros.data(), count * kFlagBytes)));
  auto* host = static_cast<std::byte*>(host_);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t at = i * kLaunchBytes;
    LaunchMemory t;
    const auto place = [&](auto*& pointer, CuPtr& address, std::size_t offset) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(host + at + offset);
      address = device + at + offset;
    };
    place(t.fragments, t.device_fragments, 0);
    place(t.slots, t.device_slots, kFragmentBytes);
    place(t.flags, t.device_flags, kFragmentBytes + kSlotBytes);
    place(t.sums, t.device_sums, kFragmentBytes + kSlotBytes + kFlagBytes);
    t.counters = counters_ + i * kFlagBytes;
    ORBITKV_RETURN_IF_ERROR(status_of(d, "cuEventCreate", d.cuEventCreate(&t.ended, kEventDisableTiming)));
    transfers_.push_back(t);
    LaunchMemory& kept = transfers_.back();
    ORBITKV_RETURN_IF_ERROR(
        status_of(d, "cuEventCreate", d.cuEventCreate(&kept.signalled, kEventDisableTiming)));
  }
  for (LaunchMemory& t : transfers_) free_.push_back(&t);
  return ok_status();
}

LaunchPool::~LaunchPool() {
  Scope scope(*context_);
  const Driver& d = context_->driver();
  for (LaunchMemory& t : transfers_) {
    if (t.ended != nullptr) d.cuEventDestroy(t.ended);
    if (t.signalled != nullptr) d.cuEventDestroy(t.signalled);
  }
  if (counters_ != 0) d.cuMemFree(counters_);
  if (host_ != nullptr) d.cuMemFreeHost(host_);
}

// A stream may not have looked at the flags yet: lowering them would make it wait for ever.
bool LaunchPool::signals_are_read(const LaunchMemory& t) const {
  return !t.waited_for || context_->driver().cuEventQuery(t.signalled) != kCuNotReady;
}

// The last thread blocks of a launch may still be leaving after all flags are up. What has
// ended on a stream ended after all before it there, so one look at the newest tells of most.
void LaunchPool::find_resting() {
  std::vector<LaunchMemory*> by_age = free_;
  std::sort(by_age.begin(), by_age.end(), [](auto* a, auto* b) { return a->order > b->order; });
  std::array<bool, 2> ended{};  // those that are older than this one, by stream
  for (LaunchMemory* t : by_age) {
    bool& known = ended[t->ended_by_sums ? 1 : 0];
    known = known || context_->driver().cuEventQuery(t->ended) != kCuNotReady;
    t->rests = known && signals_are_read(*t);
  }
}

LaunchMemory* LaunchPool::take() {
  const auto resting = [&] {
    return std::find_if(free_.begin(), free_.end(), [](const LaunchMemory* t) { return t->rests; });
  };
  auto it = resting();
  if (it == free_.end()) {
    find_resting();
    it = resting();
  }
  if (it == free_.end()) return nullptr;
  LaunchMemory* t = *it;
  free_.erase(it);
  std::fill_n(t->flags, kMaxFragmentsPerLaunch, 0u);
  if (++t->sequence == 0) t->sequence = 1;
  t->nonce = fresh_nonce();
  t->order = ++launches_;
  t->waited_for = t->ended_by_sums = false;
  return t;
}

void LaunchPool::give_back(LaunchMemory* transfer) {
  transfer->rests = false;
  free_.push_back(transfer);
}

}  // namespace orbitkv::device::cuda
