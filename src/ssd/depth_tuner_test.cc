// The window follows what a device gives: a simulated one with a latency, a bandwidth and
// seeded noise, in virtual time.
#include "ssd/depth_tuner.h"

#include <gtest/gtest.h>

#include <queue>
#include <random>

namespace orbitkv::ssd {
namespace {

struct Device {
  double bytes_per_ns = 1;
  Duration latency;
  double noise = 0;  // of a request's time: 0.1 is 10 %
};

struct Outcome {
  ByteCount window;
  std::uint32_t most = 0;        // requests at once
  std::uint64_t most_bytes = 0;  // and bytes
};

// Requests of `block` that never run out, for so long.
Outcome run(DepthTuner& tuner, const Device& device, ByteCount block, Duration time) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> jitter(1 - device.noise, 1 + device.noise);
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> due;
  std::int64_t now = 1, free_at = 0;
  Outcome out;
  while (now < time.ns) {
    while (tuner.admits()) {
      tuner.started(block);
      const auto transfer =
          static_cast<std::int64_t>(static_cast<double>(block.value) / device.bytes_per_ns * jitter(random));
      free_at = std::max(free_at, now) + transfer;
      due.push(free_at + device.latency.ns);
      out.most = std::max(out.most, tuner.in_flight());
    }
    now = due.top();
    due.pop();
    tuner.ended(block, {now}, DepthTuner::Waiting::kYes);
  }
  out.window = tuner.window();
  while (!due.empty()) {
    tuner.ended(block, {now}, DepthTuner::Waiting::kNo);
    due.pop();
  }
  return out;
}

TEST(DepthTuner, GrowsWhileThatIsFaster) {
  DepthTuner tuner(512, DepthTuner::Tune::kYes);
  // 10 GB/s at 10 ms: 100 MB are on their way at full speed.
  const Outcome out = run(tuner, {10, milliseconds(10)}, kMiB, seconds(60));
  EXPECT_GE(out.window, 64 * kMiB);
  EXPECT_LE(out.window, 256 * kMiB);
}

TEST(DepthTuner, ShrinksWhereLessIsAsFast) {
  DepthTuner tuner(512, DepthTuner::Tune::kYes);
  // 2 GB/s at 0.1 ms: 0.2 MB do.
  const Outcome out = run(tuner, {2, microseconds(100)}, 256 * kKiB, seconds(60));
  EXPECT_LE(out.window, 4 * kMiB);
}

TEST(DepthTuner, NoiseDoesNotDriveItAway) {
  DepthTuner tuner(512, DepthTuner::Tune::kYes);
  // 8 MiB are just what it takes: 3 GB/s at 2.5 ms.
  const Outcome out = run(tuner, {3, microseconds(2500), 0.3}, kMiB, seconds(120));
  EXPECT_GE(out.window, 4 * kMiB);
  EXPECT_LE(out.window, 32 * kMiB);
}

TEST(DepthTuner, RequestsAreBoundedAndAFewLargeOnesGo) {
  DepthTuner few(3, DepthTuner::Tune::kYes);
  EXPECT_EQ(run(few, {1, milliseconds(1)}, 64 * kKiB, milliseconds(100)).most, 3u);
  DepthTuner large(64, DepthTuner::Tune::kYes);
  EXPECT_EQ(run(large, {1, milliseconds(1)}, 256 * kMiB, seconds(2)).most, 4u);
  DepthTuner one(1, DepthTuner::Tune::kYes);
  EXPECT_EQ(run(one, {1, milliseconds(1)}, 256 * kMiB, seconds(2)).most, 1u);
}

TEST(DepthTuner, WithoutTuningOnlyRequestsAreBounded) {
  DepthTuner tuner(40, DepthTuner::Tune::kNo);
  const Outcome out = run(tuner, {1, milliseconds(1)}, 4 * kMiB, seconds(10));
  EXPECT_EQ(out.most, 40u);
  EXPECT_EQ(out.window, kGiB);
}

}  // namespace
}  // namespace orbitkv::ssd
