#include "device/cuda/launch_memory.h"

#include <algorithm>
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

// Its last thread blocks may still be leaving after all flags are up, and a stream may not
// have looked at the flags yet: lowering them then would make it wait for ever.
bool LaunchPool::rests(const LaunchMemory& t) const {
  const Driver& d = context_->driver();
  if (t.sequence == 0) return true;
  if (d.cuEventQuery(t.ended) == kCuNotReady) return false;
  return !t.waited_for || d.cuEventQuery(t.signalled) != kCuNotReady;
}

LaunchMemory* LaunchPool::take() {
  auto it = std::find_if(free_.begin(), free_.end(), [&](const LaunchMemory* t) { return rests(*t); });
  if (it == free_.end()) return nullptr;
  LaunchMemory* t = *it;
  free_.erase(it);
  std::fill_n(t->flags, kMaxFragmentsPerLaunch, 0u);
  if (++t->sequence == 0) t->sequence = 1;
  t->nonce = fresh_nonce();
  t->waited_for = false;
  return t;
}

void LaunchPool::give_back(LaunchMemory* transfer) {
  free_.push_back(transfer);
}

}  // namespace orbitkv::device::cuda
