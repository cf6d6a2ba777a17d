// A slab that retires while a GPU engine's copies into it stand on the device's queues.
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/native/gpu_bed.h"

namespace orbitkv::test {
namespace {

constexpr std::uint64_t kPool = 16ull << 20;

// Another engine dies in a save, so that the slab must go.
void die_in_save(const Manager& manager) {
  auto killed = start_helper({"engine", "socket=" + manager.socket(), "instance=9"}, "client_claimed:kill:1");
  ASSERT_EQ(killed.line(), "ready ");
  killed.say("save 0 9000 12");
  ASSERT_TRUE(killed.ended_within());
}

class GpuRetire : public testing::Test {
 protected:
  void SetUp() override {
    keep_windows_in(directory_.path());
    ASSERT_EQ(witness_.connect().message, "");
  }
  Directory directory_;
  Manager manager_{{"--pool-size", "16MiB", "--retire-after", "50"}};
  Engine witness_{{.socket = manager_.socket(), .shape = {}, .instance = 2}};
};

TEST_F(GpuRetire, TheRegistrationGoesWhenTheLastCopyHasEnded) {
  auto engine = start_gpu_helper({"socket=" + manager_.socket()});
  ASSERT_EQ(engine.line(), "ready ");
  engine.say("begin save 0 1 12");
  ASSERT_EQ(engine.line(60'000), "begun ");
  die_in_save(manager_);
  ASSERT_EQ(manager_.settle("pool.quarantined", 0), 0u) << "nobody waits for a device";
  EXPECT_EQ(manager_.settle("pool.capacity", kPool), kPool);
  EXPECT_EQ(manager_.status()["pool.retired"], kPool) << "copies stand on it";
  // The new slab is used while the old one is still written to.
  ASSERT_EQ(witness_.save(0, 1, 12).blocks, 12u);
  ASSERT_EQ(witness_.save(16, 500, 24).blocks, 24u);
  engine.say("release");
  ASSERT_EQ(engine.line(), "release ");
  engine.say("wait");
  ASSERT_TRUE(engine.line());
  EXPECT_EQ(manager_.settle("pool.retired", 0), 0u);
  EXPECT_EQ(witness_.restore(40, 1, 12).wrong, 0u);
  EXPECT_EQ(witness_.restore(40, 500, 24).wrong, 0u);
  // The engine works on the new slab like everybody.
  engine.say("save 0 700 12");
  EXPECT_EQ(engine.line(), "saved 1 12 0 0 ");
  manager_.settle("operations", 0);
  EXPECT_EQ(witness_.restore(40, 700, 12).hits, 12u);
}

TEST_F(GpuRetire, AnEngineThatIsKilledWithCopiesOnTheDeviceGivesItsBytesBack) {
  auto engine = start_gpu_helper({"socket=" + manager_.socket()});
  ASSERT_EQ(engine.line(), "ready ");
  engine.say("begin save 0 1 12");
  ASSERT_EQ(engine.line(60'000), "begun ");
  die_in_save(manager_);
  ASSERT_EQ(manager_.settle("pool.quarantined", 0), 0u);
  ASSERT_EQ(witness_.save(0, 1, 12).blocks, 12u);
  engine.signal(SIGKILL);
  EXPECT_EQ(manager_.settle("pool.retired", 0), 0u);
  EXPECT_EQ(manager_.settle("operations", 0), 0u);
  EXPECT_EQ(witness_.restore(40, 1, 12).wrong, 0u);
}

}  // namespace
}  // namespace orbitkv::test
