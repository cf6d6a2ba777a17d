// How much may be on the device at once: a bound of requests, and a window of bytes that
// is tuned while requests wait for it. Compares the current window with twice and half of
// it by turns: twice must bring throughput to be kept, half is taken where it brings as
// much, because what waits in the device's queue cannot be overtaken by reads. Pure: time
// comes in. One thread, or the caller's lock.
#pragma once

#include <array>
#include <cstdint>

#include "base/ids.h"
#include "base/time.h"

namespace orbitkv::ssd {

class DepthTuner {
 public:
  enum class Tune : std::uint8_t { kYes, kNo };  // kNo: no window
  DepthTuner(std::uint32_t most_requests, Tune tune);

  // Whether a request may go now. A few may always.
  bool admits() const;
  void started(ByteCount bytes);
  // `waiting`: others would have gone but for the bounds.
  enum class Waiting : std::uint8_t { kNo, kYes };
  void ended(ByteCount bytes, TimePoint now, Waiting waiting);

  std::uint32_t in_flight() const { return requests_; }
  std::uint32_t depth() const { return most_requests_; }
  ByteCount window() const;

 private:
  // Rounds of one trial, each the current window and then the other.
  static constexpr std::size_t kRounds = 7;
  enum class Try : std::uint8_t { kMore, kLess };

  std::uint64_t window_in_trial() const;
  void end_epoch(double bytes_per_ns);
  void decide();
  void start_epoch();

  const std::uint32_t most_requests_;
  const Tune tune_;
  std::uint32_t requests_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t window_;

  Try try_ = Try::kMore;
  bool other_ = false;        // this epoch runs at the window that is tried
  std::uint64_t settle_ = 0;  // bytes that still belong to the epoch before
  std::uint64_t moved_ = 0;   // bytes of this epoch
  TimePoint epoch_start_, resting_until_;
  double current_rate_ = 0;
  std::size_t rounds_ = 0;
  std::array<double, kRounds> gain_{};  // other / current
};

}  // namespace orbitkv::ssd
