// Engines that stand still, or are in the middle of something, while their Manager is replaced.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/native/engine.h"
#include "tests/native/kept.h"
#include "tests/native/processes.h"

namespace orbitkv::test {
namespace {

// A helper that stands still in the middle of a copy: in a save, or in a restore of what is there.
Process stopped_in(Kept& kept, const char* verb, std::uint64_t hash, int instance = 3) {
  Process helper =
      start_helper({"engine", "socket=" + kept.manager().socket(), "instance=" + std::to_string(instance)},
                   "client_mid_copy:stop:5");
  EXPECT_EQ(helper.line(), "ready ");
  helper.say(std::string(verb) + " 0 " + std::to_string(hash) + " 12");
  EXPECT_TRUE(helper.stopped_within());
  return helper;
}

void next_life(Kept& kept) {
  const pid_t before = kept.manager_pid();
  kept.kill();
  ASSERT_TRUE(kept.lives_again(before)) << kept.manager().log();
}

// What it reads is neither evicted nor lent again, however short memory is.
TEST(KeepEngines, ARestoreUnderWayOverAKillKeepsItsSources) {
  Kept kept({}, {"--pool-size", "2MiB"});
  Engine witness({.socket = kept.manager().socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(witness.connect().message, "");
  ASSERT_TRUE(witness.save(0, 500, 12).success);
  ASSERT_EQ(kept.manager().settle("operations", 0), 0u);
  Process reader = stopped_in(kept, "restore", 500);
  next_life(kept);
  EXPECT_EQ(kept.manager().status()["kept.old_sessions.0.restores"], 1u);
  ASSERT_TRUE(witness.client().wait_connected(kDoneWithinMs).ok());
  for (std::uint64_t round = 0; round < 10; ++round)
    ASSERT_TRUE(witness.save(0, 10'000 + 100 * round, 48).success);
  EXPECT_GT(kept.manager().status()["evicted"], 100u);
  reader.signal(SIGCONT);
  const auto line = reader.line();
  ASSERT_TRUE(line);
  EXPECT_EQ(line->substr(0, 18), "restored 1 12 12 0") << *line;
  const auto left = [&] {
    const auto json = kept.manager().try_status();
    return !json.ok() || json->find("\"old_sessions\":[]") == std::string::npos;
  };
  const TimePoint deadline = monotonic_now() + seconds(10);
  while (left() && monotonic_now() < deadline) ::usleep(5000);
  EXPECT_FALSE(left());
}

// Its bytes count for as long as it lives, through every life of a Manager.
TEST(KeepEngines, WhatAStoppedEngineMapsCountsOverSeveralLives) {
  Kept kept;
  Engine witness({.socket = kept.manager().socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(witness.connect().message, "");
  Process stopped = stopped_in(kept, "save", 1);
  const std::uint64_t bytes = kept.manager().status()["pool.capacity"];
  for (int life = 0; life < 2; ++life) next_life(kept);
  EXPECT_EQ(kept.manager().status()["kept.old_grants"], 12u);
  EXPECT_EQ(kept.manager().status()["kept.old_sessions.0.pid"], static_cast<std::uint64_t>(stopped.pid()));
  auto dies =
      start_helper({"engine", "socket=" + kept.manager().socket(), "instance=9"}, "client_mid_copy:kill:1");
  ASSERT_EQ(dies.line(), "ready ");
  dies.say("save 0 77000 12");
  ASSERT_TRUE(dies.ended_within());
  EXPECT_EQ(kept.manager().settle("pool.retired", bytes), bytes) << kept.manager().log();
  for (int life = 0; life < 2; ++life) {
    next_life(kept);
    EXPECT_EQ(kept.manager().settle("pool.retired", bytes), bytes) << life;
  }
  stopped.signal(SIGKILL);
  ASSERT_TRUE(stopped.ended_within());
  EXPECT_EQ(kept.manager().settle("pool.retired", 0), 0u);
  EXPECT_EQ(kept.manager().settle("kept.old_grants", 0), 0u);
}

// The headroom is taken, so the last slab retires without another: the next life finds none at all.
TEST(KeepEngines, WhatAStoppedEngineMapsCountsWhereTheLastSlabRetired) {
  Kept kept(Environment{{"ORBITKV_FAULT", "manager_retire_marked:kill:2"}});
  const std::uint64_t bytes = kept.manager().status()["pool.capacity"];
  const pid_t first = kept.manager_pid();
  Process stopped = stopped_in(kept, "save", 1);
  const auto dies_in_save = [&](const char* instance) {
    auto dies =
        start_helper({"engine", "socket=" + kept.manager().socket(), std::string("instance=") + instance},
                     "client_mid_copy:kill:1");
    ASSERT_EQ(dies.line(), "ready ");
    dies.say("save 0 77000 12");
    ASSERT_TRUE(dies.ended_within());
  };
  dies_in_save("9");
  ASSERT_EQ(kept.manager().settle("pool.retired", bytes), bytes) << kept.manager().log();
  ASSERT_EQ(kept.manager().settle("pool.capacity", bytes), bytes);
  dies_in_save("10");
  ASSERT_TRUE(kept.lives_again(first)) << kept.manager().log();
  EXPECT_GE(kept.manager().status()["pool.retired"], bytes) << kept.manager().log();
  next_life(kept);
  EXPECT_GE(kept.manager().status()["pool.retired"], bytes) << kept.manager().log();
  stopped.signal(SIGKILL);
  ASSERT_TRUE(stopped.ended_within());
  EXPECT_EQ(kept.manager().settle("pool.retired", 0), 0u);
  EXPECT_EQ(kept.manager().settle("pool.capacity", bytes), bytes) << kept.manager().log();
}

TEST(KeepEngines, WhereTheLastSlabRetiredASuccessorGoesOnAndWaitsForMemory) {
  const Directory directory;
  Kept kept;
  const std::uint64_t bytes = kept.manager().status()["pool.capacity"];
  Process stopped = stopped_in(kept, "save", 1);
  for (const std::uint64_t n : {1, 2}) {
    auto dies =
        start_helper({"engine", "socket=" + kept.manager().socket(), "instance=" + std::to_string(8 + n)},
                     "client_mid_copy:kill:1");
    ASSERT_EQ(dies.line(), "ready ");
    dies.say("save 0 77000 12");
    ASSERT_TRUE(dies.ended_within());
    ASSERT_EQ(kept.manager().settle("pool.retired", n * bytes), n * bytes) << kept.manager().log();
    ASSERT_EQ(kept.manager().settle("pool.capacity", bytes * (2 - n)), bytes * (2 - n));
  }
  EXPECT_NE(kept.manager().try_status()->find("\"stored\":true"), std::string::npos);
  const std::string path = directory.path() + "/orbitkv";
  std::ofstream(path) << "#!/bin/sh\nORBITKV_FAULT=manager_no_memory:fail:1 exec " << orbitkv_binary()
                      << " \"$@\"\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  EXPECT_EQ(kept.upgrade({"--binary", path}), 0) << kept.said();
  EXPECT_EQ(kept.manager().status()["pool.retired"], 2 * bytes);
  EXPECT_NE(kept.manager().log().find("waiting until engines have let go"), std::string::npos);
  stopped.signal(SIGKILL);
  ASSERT_TRUE(stopped.ended_within());
  EXPECT_EQ(kept.manager().settle("pool.capacity", bytes), bytes) << kept.manager().log();
}

TEST(KeepEngines, AnEngineThatStoppedBeforeThisLifeIsEndedAsTheOperatorWants) {
  Kept kept({}, {"--stall-after", "3", "--stalled-engine", "kill"});
  Process stopped = stopped_in(kept, "save", 1);
  next_life(kept);
  ASSERT_TRUE(stopped.ended_within());
  EXPECT_EQ(kept.manager().settle("kept.old_grants", 0), 0u);
  EXPECT_EQ(kept.manager().settle("pool.quarantined", 0), 0u);
}

// Whoever keeps descriptors may stand still: slabs retire, and are replaced, all the same.
TEST(KeepEngines, AKeeperThatIsStoppedHoldsUpNoSlab) {
  Kept kept;
  Engine witness({.socket = kept.manager().socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(witness.connect().message, "");
  const std::uint64_t bytes = kept.manager().status()["pool.capacity"];
  auto dies =
      start_helper({"engine", "socket=" + kept.manager().socket(), "instance=9"}, "client_mid_copy:kill:1");
  ASSERT_EQ(dies.line(), "ready ");
  kept.keeper().signal(SIGSTOP);
  dies.say("save 0 77000 12");
  ASSERT_TRUE(dies.ended_within());
  EXPECT_EQ(kept.manager().settle("pool.retired_slabs", 1), 1u);
  EXPECT_EQ(kept.manager().settle("pool.quarantined", 0), 0u);
  EXPECT_EQ(kept.manager().settle("pool.capacity", bytes), bytes);
  EXPECT_EQ(kept.manager().status()["pool.retired"], bytes) << "the keeper has it yet";
  kept.keeper().signal(SIGCONT);
  EXPECT_EQ(kept.manager().settle("pool.retired", 0), 0u);
}

// Whoever has the lock of the same file knows that the device has ended.
TEST(KeepEngines, KilledWhileBlocksAreReadFromSsdNoSlabIsLost) {
  const Directory directory;
  Kept kept({}, {"--ssd-path", directory.path() + "/store", "--ssd-size", "64MiB", "--ssd-segment-size",
                 "1MiB", "--ssd-write-policy", "all"});
  Engine engine({.socket = kept.manager().socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(engine.connect().message, "");
  for (std::uint64_t n = 0; n < 4; ++n) ASSERT_TRUE(engine.save(0, 1000 + 48 * n, 48).success);
  std::uint64_t wrong = 0;
  const auto seen = [&] {  // a kill under loads
    const std::string log = kept.manager().log();
    for (std::size_t at = 0; (at = log.find(" extents were lent", at)) != std::string::npos; ++at)
      if (log.substr(0, at).rfind(" 0") != at - 2) return true;
    return false;
  };
  for (int life = 0; life < 8 || (life < 60 && !seen()); ++life) {
    ASSERT_EQ(kept.manager().settle("ssd.opening.ready", 1), 1u) << "nothing is written before";
    Process evict({orbitkv_binary(), "evict", "--wait", "--bootstrap-socket", kept.manager().socket()},
                  {{}, "/dev/null", 0});
    ASSERT_TRUE(evict.ended_within());
    // A lease that a kill left over keeps its blocks.
    ASSERT_LT(kept.manager().status()["blocks"], 192u);
    std::atomic<bool> stop{false};
    std::thread reads([&] {
      for (std::uint64_t n = 0; !stop; ++n) {
        const auto restored = engine.restore(0, 1000 + n % 4 * 48, 48);
        if (restored.status.success) wrong += restored.wrong;
      }
    });
    const pid_t before = kept.manager_pid();
    ::usleep(static_cast<useconds_t>(life % 8) * 300);
    ::kill(before, SIGKILL);
    EXPECT_TRUE(kept.lives_again(before)) << kept.manager().log();
    stop = true;
    reads.join();
    EXPECT_EQ(kept.manager().settle("kept.old_grants", 0), 0u);
    EXPECT_EQ(kept.manager().status()["pool.quarantined"], 0u);
    EXPECT_EQ(kept.manager().status()["pool.retired_slabs"], 0u);
    ASSERT_TRUE(engine.client().wait_connected(kDoneWithinMs).ok());
  }
  EXPECT_TRUE(seen());
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(engine.restore(0, 1000, 48).hits, 48u);
}

TEST(KeepEngines, BlocksAreDroppedByTheirScopeBeforeTheirEngineIsBack) {
  Kept kept;
  {
    Engine engine({.socket = kept.manager().socket(),
                   .shape = {},
                   .instance = 2,
                   .name_space = R"({"scope":"one","v":1})"});
    ASSERT_EQ(engine.connect().message, "");
    ASSERT_TRUE(engine.save(0, 1, 12).success);
    kept.manager().settle("operations", 0);
  }
  next_life(kept);
  Process drop({orbitkv_binary(), "drop", "--scope", "one", "--bootstrap-socket", kept.manager().socket()},
               {{}, "/dev/null", 0});
  const auto status = drop.ended_within();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0);
  EXPECT_EQ(kept.manager().settle("blocks", 0), 0u);
}

}  // namespace
}  // namespace orbitkv::test
