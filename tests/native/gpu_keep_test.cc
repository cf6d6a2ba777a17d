// A copy that outlives its Manager and hangs in the device: its engine lives, and says so to the next.
#include <gtest/gtest.h>

#include "tests/native/gpu_bed.h"
#include "tests/native/kept.h"

namespace orbitkv::test {
namespace {

TEST(GpuKeep, AnEngineThatWaitsForItsCopiesSaysThatItLives) {
  const Directory windows;
  keep_windows_in(windows.path());
  Kept kept({}, {"--pool-size", "16MiB"});
  auto engine = start_gpu_helper({"socket=" + kept.manager().socket(), "instance=3"});
  ASSERT_EQ(engine.line(), "ready ");
  engine.say("begin save 0 1 12");
  ASSERT_EQ(engine.line(), "begun ");
  const pid_t before = kept.manager_pid();
  kept.kill();
  ASSERT_TRUE(kept.lives_again(before));
  // Without a beat the time would only grow.
  for (int look = 0; look < 2; ++look) {
    ::usleep(2'500'000);
    const auto silent = [&] { return kept.manager().status()["kept.old_sessions.0.silent_s"]; };
    const TimePoint deadline = monotonic_now() + seconds(20);
    while (silent() > 1 && monotonic_now() < deadline) ::usleep(20'000);
    ASSERT_LT(monotonic_now(), deadline) << "it gives no sign of life";
  }
  EXPECT_EQ(kept.manager().status()["kept.old_grants"], 12u);
  EXPECT_EQ(kept.manager().status()["pool.retired_slabs"], 0u);
  engine.say("release");
  ASSERT_EQ(engine.line(), "release ");
  EXPECT_EQ(kept.manager().settle("kept.old_grants", 0), 0u);
  EXPECT_EQ(kept.manager().status()["pool.retired_slabs"], 0u);
}

}  // namespace
}  // namespace orbitkv::test
