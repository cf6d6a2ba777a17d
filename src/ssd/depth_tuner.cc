#include "ssd/depth_tuner.h"

#include <algorithm>

namespace orbitkv::ssd {
namespace {

constexpr std::uint64_t kLeastWindow = 4 * kMiB.value;
constexpr std::uint64_t kFirstWindow = 16 * kMiB.value;
constexpr std::uint64_t kMostWindow = kGiB.value;
constexpr std::uint32_t kAlways = 4;  // requests that go in any case
constexpr double kWorthMore = 1.02;   // twice the window costs twice the latency
constexpr double kWorthLess = 0.995;
constexpr double kLowLess = 0.98;
constexpr std::uint64_t kEpochWindows = 4;      // an epoch moves so many windows,
constexpr Duration kEpoch = milliseconds(20);   // and lasts at least so long
constexpr Duration kRest = milliseconds(2000);  // after both directions were tried

}  // namespace

DepthTuner::DepthTuner(std::uint32_t most_requests, Tune tune)
    : most_requests_(std::max(most_requests, 1u)), tune_(tune), window_(kFirstWindow) {}

std::uint64_t DepthTuner::window_in_trial() const {
  if (!other_) return window_;
  return try_ == Try::kMore ? window_ * 2 : window_ / 2;
}

ByteCount DepthTuner::window() const {
  return ByteCount(tune_ == Tune::kYes ? window_in_trial() : kMostWindow);
}

bool DepthTuner::admits() const {
  // Some keep the device busy, however large, and the one that reaches over the window goes.
  return requests_ < std::min(most_requests_, kAlways) ||
         (requests_ < most_requests_ && bytes_ < window().value);
}

void DepthTuner::started(ByteCount bytes) {
  ++requests_;
  bytes_ += bytes.value;
}

void DepthTuner::ended(ByteCount bytes, TimePoint now, Waiting waiting) {
  --requests_;
  bytes_ -= bytes.value;
  if (tune_ == Tune::kNo || now < resting_until_) return;
  // Where nobody waits, or for the number of requests, the window decides nothing.
  if (waiting == Waiting::kNo || requests_ + 1 >= most_requests_) {
    other_ = false;
    rounds_ = 0;
    return start_epoch();
  }
  if (settle_ > 0) {
    settle_ -= std::min(settle_, bytes.value);
    epoch_start_ = now;
    return;
  }
  moved_ += bytes.value;
  const Duration took = now - epoch_start_;
  if (took < kEpoch || moved_ < kEpochWindows * window_in_trial()) return;
  end_epoch(static_cast<double>(moved_) / static_cast<double>(took.ns));
  if (try_ == Try::kMore && rounds_ == 0 && !other_) resting_until_ = now + kRest;
}

void DepthTuner::start_epoch() {
  settle_ = std::max(2 * window_, bytes_);
  moved_ = 0;
}

void DepthTuner::end_epoch(double rate) {
  if (other_) {
    gain_[rounds_++] = rate / current_rate_;
    if (rounds_ == kRounds) decide();
  } else {
    current_rate_ = rate;
  }
  other_ = !other_ && rounds_ < kRounds;
  start_epoch();
}

void DepthTuner::decide() {
  // The device drifts: most rounds must agree.
  std::sort(gain_.begin(), gain_.end());
  const double median = gain_[kRounds / 2], low = gain_[kRounds / 4];
  if (try_ == Try::kMore && median >= kWorthMore && low >= 1)
    window_ = std::min(window_ * 2, kMostWindow / 2);
  if (try_ == Try::kLess && median >= kWorthLess && low >= kLowLess)
    window_ = std::max(window_ / 2, kLeastWindow);
  try_ = try_ == Try::kMore ? Try::kLess : Try::kMore;
  rounds_ = 0;
}

}  // namespace orbitkv::ssd
