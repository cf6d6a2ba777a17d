#include "client/operations.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/limits.h"

namespace orbitkv::client {
OperationTable::OperationTable() : completion_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

OperationHandle OperationTable::open(std::uint32_t parts) {
  std::lock_guard lock(mutex_);
  const OperationHandle handle{next_++};
  states_[handle.value].parts_left = parts;
  if (parts > 0)
    ++open_;
  else
    complete(handle);
  return handle;
}

void OperationTable::forget(OperationHandle handle) {
  std::lock_guard lock(mutex_);
  if (states_.erase(handle.value)) --open_;
  ended_.notify_all();
}

void OperationTable::finish_part(OperationHandle handle, const PartOutcome& outcome) {
  std::lock_guard lock(mutex_);
  auto it = states_.find(handle.value);
  ORBITKV_CHECK(it != states_.end() && it->second.parts_left > 0, "a part ended twice");
  State& state = it->second;
  state.blocks += outcome.blocks;
  state.success &= outcome.success;
  if (state.message.empty()) state.message = outcome.message;
  if (--state.parts_left > 0) return;
  --open_;
  if (state.dropped) {
    states_.erase(it);
  } else {
    complete(handle);
  }
  ended_.notify_all();
}

// A user who never drops handles or asks for completions keeps a bounded number of them.
void OperationTable::complete(OperationHandle handle) {
  if (completed_.size() == limits::kHandlesKept) completed_.pop_front();
  completed_.push_back(handle);
  eventfd_write(completion_.get(), 1);
  if (states_.size() > limits::kHandlesKept) forget_oldest();
}

void OperationTable::forget_oldest() {
  for (auto it = states_.begin(); it != states_.end(); ++it) {
    if (it->second.parts_left > 0) continue;
    states_.erase(it);
    return;
  }
}

OperationStatus OperationTable::status_of(OperationHandle handle) const {
  auto it = states_.find(handle.value);
  if (it == states_.end())
    return {true, false, 0, "unknown operation handle: it was dropped or never issued"};
  const State& state = it->second;
  if (state.parts_left > 0) return {};
  return {true, state.success, state.blocks, state.message};
}

OperationStatus OperationTable::poll(OperationHandle handle) {
  std::lock_guard lock(mutex_);
  return status_of(handle);
}

OperationStatus OperationTable::wait(OperationHandle handle, std::uint32_t timeout_ms) {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return status_of(handle).done; });
  return status_of(handle);
}

bool OperationTable::wait_all(std::uint32_t timeout_ms) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return open_ == 0; });
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
  if (it->second.parts_left > 0) {
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
