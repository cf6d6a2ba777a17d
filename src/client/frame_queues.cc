#include "client/frame_queues.h"

#include <utility>

#include "client/claim_ids.h"

namespace orbitkv::client {

bool FrameQueues::push(Line& line, std::size_t most, std::size_t& bytes, Parcel parcel) {
  if (line.size() == most || bytes + parcel.frame.size() > limits::kCarriedBytes.value) return false;
  bytes += parcel.frame.size();
  line.push_back(std::move(parcel));
  return true;
}

FrameQueues::Parcel FrameQueues::pop(Line& line, std::size_t& bytes) {
  Parcel first = std::move(line.front());
  line.pop_front();
  bytes -= first.frame.size();
  return first;
}

void FrameQueues::send(Parcel parcel) {
  std::lock_guard lock(mutex_);
  Line& line = out_.at(parcel.participant.value);
  std::erase_if(line, [&](const Parcel& each) {
    const bool old = claim_number(each.token) == claim_number(parcel.token);
    out_bytes_ -= old ? each.frame.size() : 0;
    return old;
  });
  if (push(line, kMostInLine, out_bytes_, std::move(parcel))) sent_.notify_all();
}

// Of all lines the first one with a frame from the turn on.
FrameQueues::Line* FrameQueues::next(std::optional<ParticipantIndex> only) {
  if (only) return out_[only->value].empty() ? nullptr : &out_[only->value];
  for (std::size_t i = 0; i < out_.size(); ++i) {
    const std::size_t at = (turn_ + i) % out_.size();
    if (out_[at].empty()) continue;
    turn_ = at + 1;
    return &out_[at];
  }
  return nullptr;
}

bool FrameQueues::take(std::optional<std::chrono::milliseconds> timeout, std::optional<ParticipantIndex> only,
                       Parcel& out) {
  std::unique_lock lock(mutex_);
  Line* line = nullptr;
  const auto some = [&] { return stop_ || (line = next(only)) != nullptr; };
  if (timeout) {
    sent_.wait_for(lock, *timeout, some);
  } else {
    sent_.wait(lock, some);
  }
  if (stop_ || line == nullptr) return false;
  out = pop(*line, out_bytes_);
  return true;
}

void FrameQueues::arrived(Parcel parcel) {
  std::lock_guard lock(mutex_);
  if (!stop_ && push(in_, kMostArrivals, in_bytes_, std::move(parcel))) came_.notify_one();
}

bool FrameQueues::receive(std::chrono::milliseconds timeout, Parcel& out) {
  std::unique_lock lock(mutex_);
  if (!came_.wait_for(lock, timeout, [this] { return !in_.empty(); })) return false;
  out = pop(in_, in_bytes_);
  return true;
}

void FrameQueues::stop() {
  std::lock_guard lock(mutex_);
  stop_ = true;
  sent_.notify_all();
}

bool FrameQueues::stopped() const {
  std::lock_guard lock(mutex_);
  return stop_;
}

bool FrameQueues::over() const {
  std::lock_guard lock(mutex_);
  return stop_ && in_.empty();
}

}  // namespace orbitkv::client
