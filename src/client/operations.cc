#include "client/operations.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/limits.h"
#include "base/text.h"
#include "rt/spin.h"

namespace orbitkv::client {
namespace {
// A small copy on a device ends sooner than a thread that sleeps is awake again.
constexpr Duration kSpinFor = microseconds(100);

// Offsets are of the same call: a later transfer of it has reached a point when the last has.
void merge(std::optional<OperationReport>& sum, const OperationReport& more) {
  if (!sum) {
    sum = more;
    return;
  }
  const auto later = [&](std::uint64_t OperationReport::* at) {
    (*sum).*at = std::max((*sum).*at, more.*at);
  };
  later(&OperationReport::readiness_ns);
  later(&OperationReport::dispatched_ns);
  later(&OperationReport::dequeued_ns);
  later(&OperationReport::claimed_ns);
  later(&OperationReport::enqueued_ns);
  later(&OperationReport::drained_ns);
  sum->bytes += more.bytes;
  sum->fragments += more.fragments;
  sum->method = more.method;
}
}  // namespace

OperationTable::OperationTable() : completion_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

OperationHandle OperationTable::open(std::uint32_t transfers, Helper* helper) {
  std::lock_guard lock(mutex_);
  const OperationHandle handle{next_++};
  State& state = states_[handle.value];
  state.left = state.not_enqueued = transfers;
  state.helper = helper;
  if (transfers > 0) {
    ++open_;
  } else {
    complete(handle);
    announce_locked();
  }
  return handle;
}

void OperationTable::forget(OperationHandle handle) {
  std::lock_guard lock(mutex_);
  if (states_.erase(handle.value)) --open_;
  changed_.notify_all();
}

void OperationTable::finish(OperationHandle handle, const TransferOutcome& outcome,
                            const OperationReport* report) {
  std::unique_lock lock(mutex_);
  auto it = states_.find(handle.value);
  ORBITKV_CHECK(it != states_.end() && it->second.left > 0, "a transfer ended twice");
  State& state = it->second;
  state.blocks += outcome.blocks;
  state.resident += outcome.resident;
  state.left_out += outcome.dropped;
  state.being_made |= outcome.being_made;
  state.success &= outcome.success;
  if (state.message.empty()) state.message = outcome.message;
  if (report) merge(state.report, *report);
  if (--state.left > 0) return;
  --open_;
  if (state.dropped) {
    states_.erase(it);
  } else {
    complete(handle);
  }
  lock.unlock();
  changed_.notify_all();
}

void OperationTable::announce() {
  std::lock_guard lock(mutex_);
  announce_locked();
}

void OperationTable::announce_locked() {
  if (!completed_.empty()) eventfd_write(completion_.get(), 1);
}

void OperationTable::mark_enqueued(OperationHandle handle) {
  std::lock_guard lock(mutex_);
  auto it = states_.find(handle.value);
  if (it == states_.end() || --it->second.not_enqueued > 0) return;
  set(enqueued_, handle);
  changed_.notify_all();
}

void OperationTable::set(Marks& marks, OperationHandle handle) {
  marks[handle.value % marks.size()].store(handle.value, std::memory_order_release);
}

// A user who never drops handles or asks for completions keeps a bounded number of them.
void OperationTable::complete(OperationHandle handle) {
  if (completed_.size() == limits::kHandlesKept) completed_.pop_front();
  completed_.push_back(handle);
  set(ended_, handle);
  if (states_.size() > limits::kHandlesKept) forget_oldest();
}

void OperationTable::forget_oldest() {
  for (auto it = states_.begin(); it != states_.end(); ++it) {
    if (it->second.left > 0) continue;
    states_.erase(it);
    return;
  }
}

OperationStatus OperationTable::status_of(OperationHandle handle) const {
  auto it = states_.find(handle.value);
  if (it == states_.end())
    return {true, false, 0, "unknown operation handle: it was dropped or never issued"};
  const State& state = it->second;
  if (state.left > 0) return {};
  OperationStatus status{true, state.success, state.blocks, state.message, state.resident, state.left_out};
  if (status.dropped > 0 && status.message.empty())
    status.message =
        format_text("%u of %u blocks were dropped: ", status.dropped,
                    status.blocks + status.resident + status.dropped) +
        (state.being_made
             ? "the Manager's memory was still being made"
             : format_text(
                   "the Manager's pool (orbitkv status) or block table (serve --max-blocks) has no room that "
                   "may be evicted, or more than %u blocks were being saved at once: save the rest "
                   "again, many in smaller parts",
                   limits::kInflightImages));
  return status;
}

OperationStatus OperationTable::poll(OperationHandle handle) {
  std::lock_guard lock(mutex_);
  return status_of(handle);
}

// Drops the lock while it spins. It may end early or late: who calls looks again.
void OperationTable::spin(std::unique_lock<std::mutex>& lock, OperationHandle handle, const Marks& marks) {
  auto it = states_.find(handle.value);
  if (it == states_.end() || it->second.helper == nullptr) return;
  Helper& helper = *it->second.helper;
  const auto& mark = marks[handle.value % marks.size()];
  lock.unlock();
  const TimePoint end = monotonic_now() + kSpinFor;
  while (mark.load(std::memory_order_acquire) != handle.value && monotonic_now() < end) {
    helper.help();
    rt::spin_pause();
  }
  lock.lock();
}

OperationStatus OperationTable::wait(OperationHandle handle, std::uint32_t timeout_ms) {
  std::unique_lock lock(mutex_);
  if (timeout_ms > 0 && !status_of(handle).done) {
    spin(lock, handle, ended_);
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return status_of(handle).done; });
  }
  return status_of(handle);
}

// A failure that is known already is told when the operation has ended: until then its
// pages are lent.
std::optional<Outcome> OperationTable::enqueued_of(OperationHandle handle) const {
  const OperationStatus status = status_of(handle);
  if (status.done) return status.success ? Outcome{} : Outcome{Action::kRecompute, status.message};
  if (states_.at(handle.value).not_enqueued == 0) return Outcome{};
  return std::nullopt;
}

Outcome OperationTable::wait_enqueued(OperationHandle handle, std::uint32_t timeout_ms) {
  std::unique_lock lock(mutex_);
  std::optional<Outcome> outcome = enqueued_of(handle);
  if (!outcome && timeout_ms > 0) {
    spin(lock, handle, enqueued_);
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                      [&] { return (outcome = enqueued_of(handle)).has_value(); });
  }
  return outcome.value_or(Outcome{Action::kRetry,
                                  "the copies do not stand on the device's queues yet; wait "
                                  "again, and let nothing wait for the layer events"});
}

Outcome OperationTable::report(OperationHandle handle, OperationReport& out) {
  std::lock_guard lock(mutex_);
  auto it = states_.find(handle.value);
  if (it == states_.end())
    return {Action::kReject, "unknown operation handle: it was dropped or never issued"};
  if (it->second.left > 0) return {Action::kReject, "the operation is not done; report() follows wait()"};
  if (!it->second.report)
    return {Action::kReject, "the operation was not traced; set trace_file or ORBITKV_TRACE_TRANSFERS"};
  out = *it->second.report;
  return {};
}

bool OperationTable::wait_all(std::uint32_t timeout_ms) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return open_ == 0; });
}

std::vector<OperationHandle> OperationTable::take_completed() {
  std::lock_guard lock(mutex_);
  eventfd_t count = 0;
  eventfd_read(completion_.get(), &count);
  std::vector<OperationHandle> taken(completed_.begin(), completed_.end());
  completed_.clear();
  return taken;
}

void OperationTable::drop(OperationHandle handle) {
  std::lock_guard lock(mutex_);
  auto it = states_.find(handle.value);
  if (it == states_.end()) return;
  if (it->second.left > 0) {
    it->second.dropped = true;
    return;
  }
  states_.erase(it);
  std::erase_if(completed_, [&](OperationHandle h) { return h.value == handle.value; });
}

std::uint32_t OperationTable::open_count() {
  std::lock_guard lock(mutex_);
  return open_;
}

}  // namespace orbitkv::client
