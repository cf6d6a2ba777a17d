// A copy that outlives its Manager and hangs in the device: its engine lives, and says so to the next.
#include <gtest/gtest.h>

#include "tests/native/gpu_bed.h"
#include "tests/native/kept.h"

namespace orbitkv::test {
namespace {

constexpr int kStallMs = 3000;  // the least that serve takes

TEST(GpuKeep, AnEngineThatWaitsForItsCopiesIsNotTakenForAStalledOne) {
  const Directory windows;
  keep_windows_in(windows.path());
  Kept kept({}, {"--pool-size", "16MiB", "--stall-after", std::to_string(kStallMs / 1000), "--stalled-engine",
                 "kill"});
  auto engine = start_gpu_helper({"socket=" + kept.manager().socket(), "instance=3"});
  ASSERT_EQ(engine.line(), "ready ");
  engine.say("begin save 0 1 12");
  ASSERT_EQ(engine.line(), "begun ");
  const pid_t before = kept.manager_pid();
  kept.kill();
  ASSERT_TRUE(kept.lives_again(before));
  // Twice the time is what ends a stalled one, and it is looked for from time to time.
  for (int waited = 0; waited < 2 * kStallMs + 2000; waited += 100, ::usleep(100'000))
    ASSERT_TRUE(engine.running()) << kept.manager().log();
  EXPECT_EQ(kept.manager().status()["kept.old_grants"], 12u);
  EXPECT_EQ(kept.manager().status()["pool.retired_slabs"], 0u);
  engine.say("release");
  ASSERT_EQ(engine.line(), "release ");
  EXPECT_EQ(kept.manager().settle("kept.old_grants", 0), 0u);
  EXPECT_EQ(kept.manager().status()["pool.retired_slabs"], 0u);
}

}  // namespace
}  // namespace orbitkv::test
