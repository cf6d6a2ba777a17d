// Slabs that retire under real processes: engines that die, stop or never answer cost no
// capacity, and nobody else a byte.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/native/engine.h"
#include "tests/native/processes.h"

namespace orbitkv::test {
namespace {

constexpr std::uint64_t kPool = 16ull << 20;
const std::vector<std::string> kFlags = {"--pool-size", "16MiB", "--retire-after", "50"};

int kills() {
  const char* wanted = std::getenv("ORBITKV_KILLS");
  return wanted != nullptr ? std::max(1, std::atoi(wanted)) : 6;
}

std::size_t slab_descriptors(pid_t pid) {
  std::size_t n = 0;
  std::error_code gone;
  for (const auto& each : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    const auto target = std::filesystem::read_symlink(each.path(), gone);
    n += target.string().find("orbitkv-slab") != std::string::npos ? 1 : 0;
  }
  return n;
}
std::size_t slab_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t n = 0;
  for (std::string line; std::getline(maps, line);)
    n += line.find("orbitkv-slab") != std::string::npos ? 1 : 0;
  return n;
}

// All capacity is there, in slabs that nobody else may write to.
void expect_whole(const Manager& manager) {
  EXPECT_EQ(manager.settle("pool.quarantined", 0), 0u);
  EXPECT_EQ(manager.settle("pool.capacity", kPool), kPool);
  EXPECT_EQ(manager.settle("pool.retiring", 0), 0u);
}

TEST(Retire, ManyDeathsInASaveCostNoCapacityAndNoByte) {
  Manager manager(kFlags);
  Engine witness({.socket = manager.socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(witness.connect().message, "");
  const char* const points[] = {"client_claimed", "client_mid_copy", "client_before_drained"};
  const int n = kills();
  for (int i = 0; i < n; ++i) {
    SCOPED_TRACE(i);
    const std::uint64_t hash = 1000 * (static_cast<std::uint64_t>(i) + 1);
    auto engine =
        start_helper({"engine", "socket=" + manager.socket()}, std::string(points[i % 3]) + ":kill:1");
    ASSERT_EQ(engine.line(), "ready ");
    engine.say("save 0 " + std::to_string(hash) + " 12");
    ASSERT_TRUE(engine.ended_within());
    // Beside it: saves and restores go on, and what they give back is right.
    const auto saved = witness.save(0, hash + 100, 8);
    EXPECT_TRUE(saved.done);
    const auto beside = witness.restore(16, hash + 100, 8);
    EXPECT_TRUE(!beside.status.success || beside.wrong == 0);
    expect_whole(manager);
    EXPECT_EQ(manager.settle("pool.retired", 0), 0u) << "the witness has not let go";
    ASSERT_TRUE(witness.save(0, hash + 200, 8).success);
    ASSERT_EQ(manager.settle("operations", 0), 0u);
    const auto restored = witness.restore(32, hash + 200, 8);
    EXPECT_EQ(restored.hits, 8u);
    EXPECT_EQ(restored.wrong, 0u);
  }
  EXPECT_EQ(manager.status()["pool.retired_slabs"], static_cast<std::uint64_t>(n));
  EXPECT_EQ(slab_descriptors(manager.pid()), 1u);
  EXPECT_EQ(slab_mappings(), 1u);
  EXPECT_TRUE(manager.alive());
}

TEST(Retire, AStoppedEngineIsGoneRoundAndResumesHarmless) {
  Manager manager(kFlags);
  auto stopped =
      start_helper({"engine", "socket=" + manager.socket(), "instance=3"}, "client_claimed:stop:1");
  ASSERT_EQ(stopped.line(), "ready ");
  stopped.say("save 0 1 12");
  ASSERT_TRUE(stopped.stopped_within());
  Engine witness({.socket = manager.socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(witness.connect().message, "");
  {
    auto killed = start_helper({"engine", "socket=" + manager.socket()}, "client_claimed:kill:1");
    ASSERT_EQ(killed.line(), "ready ");
    killed.say("save 0 500 12");
    ASSERT_TRUE(killed.ended_within());
  }
  expect_whole(manager);
  EXPECT_EQ(manager.status()["pool.retired"], kPool) << "the stopped one maps it";
  // Its blocks are anybody's to save.
  ASSERT_EQ(witness.save(0, 1, 12).blocks, 12u);
  stopped.signal(SIGCONT);
  ASSERT_TRUE(stopped.line());
  EXPECT_EQ(manager.settle("pool.retired", 0), 0u);
  EXPECT_EQ(manager.settle("operations", 0), 0u);
  const auto restored = witness.restore(16, 1, 12);
  EXPECT_EQ(restored.hits, 12u);
  EXPECT_EQ(restored.wrong, 0u);
  // And it goes on as if nothing had been.
  stopped.say("save 0 900 12");
  EXPECT_EQ(stopped.line(), "saved 1 12 0 0 ");
  EXPECT_EQ(manager.settle("operations", 0), 0u);
  EXPECT_EQ(witness.restore(32, 900, 12).wrong, 0u);
}

TEST(Retire, ARestoreThatWasStoppedStillFindsItsBytes) {
  Manager manager(kFlags);
  Engine witness({.socket = manager.socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(witness.connect().message, "");
  ASSERT_EQ(witness.save(0, 1, 12).blocks, 12u);
  manager.settle("blocks", 12);
  auto stopped =
      start_helper({"engine", "socket=" + manager.socket(), "instance=3"}, "client_claimed:stop:1");
  ASSERT_EQ(stopped.line(), "ready ");
  stopped.say("restore 0 1 12");
  ASSERT_TRUE(stopped.stopped_within());
  {
    auto killed = start_helper({"engine", "socket=" + manager.socket()}, "client_claimed:kill:1");
    ASSERT_EQ(killed.line(), "ready ");
    killed.say("save 0 500 12");
    ASSERT_TRUE(killed.ended_within());
  }
  expect_whole(manager);
  ASSERT_TRUE(witness.save(0, 2000, 12).success);  // into the fresh slab
  stopped.signal(SIGCONT);
  EXPECT_EQ(stopped.line(), "restored 1 12 12 0 ");
  EXPECT_EQ(manager.settle("pool.retired", 0), 0u);
}

TEST(Retire, AnEngineThatNeverAnswersHoldsOnlyItsHeadroom) {
  Manager manager(kFlags);
  auto silent = start_helper({"engine", "socket=" + manager.socket(), "instance=3"});
  ASSERT_EQ(silent.line(), "ready ");
  silent.signal(SIGSTOP);
  ASSERT_TRUE(silent.stopped_within());
  const auto die = [&](const char* hash) {
    auto killed = start_helper({"engine", "socket=" + manager.socket()}, "client_claimed:kill:1");
    ASSERT_EQ(killed.line(), "ready ");
    killed.say(std::string("save 0 ") + hash + " 12");
    ASSERT_TRUE(killed.ended_within());
  };
  die("500");
  expect_whole(manager);
  EXPECT_EQ(manager.settle("pool.retired", kPool), kPool);
  die("700");
  EXPECT_EQ(manager.settle("pool.quarantined", 0), 0u);
  EXPECT_EQ(manager.settle("pool.retired", 2 * kPool), 2 * kPool);
  EXPECT_EQ(manager.status()["pool.capacity"], 0u) << "the headroom is one slab";
  bool said = false;
  for (int i = 0; i < 1000 && !said; ++i, ::usleep(10'000))
    said = manager.log().find("the pool stays smaller until") != std::string::npos;
  EXPECT_TRUE(said);
  silent.signal(SIGKILL);
  EXPECT_EQ(manager.settle("pool.retired", 0), 0u);
  expect_whole(manager);
}

TEST(Retire, SlabsAreAddedAndDrainedByCommand) {
  Manager manager({"--pool-size", "16MiB"});
  Engine engine({.socket = manager.socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(engine.connect().message, "");
  const auto pool = [&](std::vector<std::string> words) {
    std::vector<std::string> command = {orbitkv_binary(), "pool"};
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), {"--bootstrap-socket", manager.socket()});
    Process process(command, {});
    std::string text;
    while (auto line = process.line()) text += *line + "\n";
    const auto status = process.ended_within();
    return status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0 ? text : "failed: " + text;
  };
  EXPECT_EQ(pool({"add", "20MiB"}), "3 slabs are wanted, 1 are in use; see orbitkv pool list\n");
  EXPECT_EQ(manager.settle("pool.capacity", 3 * kPool), 3 * kPool);
  EXPECT_NE(pool({"list"}).find("slab     2  in use"), std::string::npos);
  EXPECT_EQ(pool({"drain", "0"}), "2 slabs are wanted, 3 are in use; see orbitkv pool list\n");
  EXPECT_EQ(manager.settle("pool.capacity", 2 * kPool), 2 * kPool);
  EXPECT_EQ(manager.settle("pool.retired", 0), 0u);
  EXPECT_EQ(pool({"drain", "16MiB", "--json"}), "{\"in_use\":2,\"wanted\":1}\n");
  EXPECT_EQ(manager.settle("pool.capacity", kPool), kPool);
  EXPECT_EQ(pool({"drain", "1"}).substr(0, 7), "failed:");
  EXPECT_EQ(engine.save(0, 1, 12).blocks, 12u);
  EXPECT_EQ(engine.restore(16, 1, 12).wrong, 0u);
}

}  // namespace
}  // namespace orbitkv::test
