// Upgrades that go wrong, and starts that have to wait: nothing that is kept is lost by them, and
// the Manager that serves goes on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/native/upgrade.h"

namespace orbitkv::test {
namespace {

TEST_F(Upgrade, ABinaryThatCannotSayWhatItCouldGoOnWithIsRefused) {
  EXPECT_NE(kept.upgrade({"--binary", "/bin/false"}), 0);
  EXPECT_NE(kept.upgrade({"--binary", "/bin/true"}), 0);
  EXPECT_NE(kept.upgrade({"--binary", "/no/such/orbitkv"}), 0);
  const std::string other = directory.path() + "/other";
  std::ofstream(other) << "#!/bin/sh\necho '{\"kept_format\":99999}'\n";
  ::chmod(other.c_str(), 0700);
  EXPECT_NE(kept.upgrade({"--binary", other}), 0);
  EXPECT_EQ(kept.manager_pid(), pid) << "it serves on";
}

TEST_F(Upgrade, ABinaryOfALaterFormatIsAskedWhatItReads) {
  const auto reading_from = [&](const std::string& from) {
    const std::string path = directory.path() + "/from" + from;
    std::ofstream(path) << "#!/bin/sh\ncase \"$*\" in *--can-keep*)\n"
                        << "echo '{\"kept_format\":99999,\"kept_format_from\":" << from << "}'; exit;; esac\n"
                        << "exec " << orbitkv_binary() << " \"$@\"\n";
    ::chmod(path.c_str(), 0700);
    return path;
  };
  EXPECT_EQ(kept.upgrade({"--binary", reading_from("99998")}), 1);
  EXPECT_NE(kept.said().find("goes on with kept memory of formats 99998 to 99999"), std::string::npos)
      << kept.said();
  EXPECT_EQ(kept.manager_pid(), pid) << "it serves on";
  EXPECT_EQ(kept.upgrade({"--binary", reading_from("1")}), 0) << kept.said();
  expect_next_life(kBlocks);
}

TEST_F(Upgrade, ABinaryThatSaysNoEndIsEnded) {
  const std::string endless = directory.path() + "/endless", closed = directory.path() + "/closed";
  std::ofstream(endless) << "#!/bin/sh\nexec yes\n";
  std::ofstream(closed) << "#!/bin/sh\nexec 1>&-\nexec sleep 300\n";
  for (const std::string& path : {endless, closed}) {
    ::chmod(path.c_str(), 0700);
    EXPECT_EQ(kept.upgrade({"--binary", path}), 1) << path;
  }
  EXPECT_EQ(kept.manager_pid(), pid) << "it serves on";
}

TEST_F(Upgrade, ABinaryThatDoesNotServeIsGivenUpAndForgotten) {
  const std::string bad = script(directory, "exit 1");
  EXPECT_EQ(kept.upgrade({"--binary", bad}), 1);
  EXPECT_NE(kept.said().find("does not serve (exit status 1): back to"), std::string::npos) << kept.said();
  EXPECT_NE(kept.said().find("serves again, with 48 blocks taken over"), std::string::npos) << kept.said();
  expect_next_life(kBlocks);
  EXPECT_TRUE(says(kept, "does not serve"));
  // Nor is it one that ends as a Manager does that has made place.
  incarnation = engine.client().health().incarnation;
  EXPECT_EQ(kept.upgrade({"--binary", script(directory, "exit 77", "/other")}), 1);
  EXPECT_NE(kept.said().find("does not serve (exit status 77): back to"), std::string::npos) << kept.said();
  expect_next_life(kBlocks);
  // What stands at the path of the running one is not the bad one.
  incarnation = engine.client().health().incarnation;
  kept.keeper().signal(SIGHUP);
  expect_next_life(kBlocks);
}

// A tracer, a profiler or a shell: the Manager is no child of its keeper.
TEST_F(Upgrade, OneBehindAWrapperServesAndIsUpgraded) {
  const std::string wrapper = script(directory, orbitkv_binary() + " \"$@\"\nexit $?");
  ASSERT_EQ(kept.upgrade({"--binary", wrapper}), 0) << kept.said();
  expect_next_life(kBlocks);
  EXPECT_EQ(kept.manager().status()["kept.keeper"], static_cast<std::uint64_t>(kept.keeper().pid()));
  incarnation = engine.client().health().incarnation;
  kept.keeper().signal(SIGHUP);
  expect_next_life(kBlocks);
  // Its image, a shell's, is none to go back to.
  script(directory, "exit 1");
  incarnation = engine.client().health().incarnation;
  EXPECT_EQ(kept.upgrade(), 1);
  expect_next_life(kBlocks);
}

// Nobody holds the claim of which somebody has removed the file.
TEST_F(Upgrade, WhereNoClaimIsHeldTheGapIsNoEnd) {
  ASSERT_TRUE(std::filesystem::remove(kept.manager().socket() + ".keeper"));
  const std::string slow = script(directory, "sleep 0.3; exec " + orbitkv_binary() + " \"$@\"");
  EXPECT_EQ(kept.upgrade({"--binary", slow}), 0) << kept.said();
  expect_next_life(kBlocks);
}

TEST_F(Upgrade, OneThatDoesNotSayHowItCameIsToldOfAsThat) {
  const std::string path = script(directory, "unset ORBITKV_LIFE_CAME; exec " + orbitkv_binary() + " \"$@\"");
  EXPECT_EQ(kept.upgrade({"--binary", path}), 0) << kept.said();
  const std::string answer = directory.path() + "/answer";
  Process asks({"/bin/sh", "-c", "exec \"$@\" >&2", "sh", orbitkv_binary(), "upgrade", "--json", "--binary",
                path, "--bootstrap-socket", kept.manager().socket()},
               {{}, answer, 0});
  EXPECT_EQ(asks.ended_within(kUpgradedWithinMs), 0);
  std::ifstream file(answer);
  const std::string said{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(said.find("\"upgraded\":null"), said.npos) << said;
}

// Whoever serves by then may be the successor that another one asked for.
TEST_F(Upgrade, AFailureIsToldOfWhereAnotherUpgradeCameBetween) {
  const std::string path = directory.path() + "/slow", asked = path + "-asked", go = path + "-go";
  std::ofstream(path) << "#!/bin/sh\ncase \"$*\" in *--can-keep*) :> " << asked << "; while [ ! -e " << go
                      << " ]; do sleep 0.02; done; exec " << orbitkv_binary() << " \"$@\";; esac\nexit 1\n";
  ::chmod(path.c_str(), 0700);
  int code = 0;
  std::thread fails([&] { code = kept.upgrade({"--binary", path}); });
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  while (!std::filesystem::exists(asked) && monotonic_now() < deadline) ::usleep(1000);
  EXPECT_EQ(kept.upgrade(), 0) << kept.said();
  std::ofstream{go};
  fails.join();
  EXPECT_EQ(code, 1) << kept.said();
  expect_next_life(kBlocks);
}

TEST_F(Upgrade, OneThatFollowsOnAnEndIsNoSuccessor) {
  const std::string path =
      script(directory, "export ORBITKV_LIFE_CAME=again; exec " + orbitkv_binary() + " \"$@\"");
  EXPECT_EQ(kept.upgrade({"--binary", path}), 1);
  EXPECT_NE(kept.said().find("with 48 blocks taken over, but it is not the successor"), std::string::npos)
      << kept.said();
}

TEST_F(Upgrade, AHangupOfTheManagerIsOneToo) {
  ::kill(pid, SIGHUP);
  expect_next_life(kBlocks);
}

// The keeper asks what stands at the path first, as orbitkv upgrade does.
TEST(UpgradeByHangup, OneThatCannotSayWhatItCouldGoOnWithIsRefused) {
  Directory directory;
  const std::string path = directory.path() + "/orbitkv";
  std::filesystem::copy_file(orbitkv_binary(), path);
  Kept kept;
  ASSERT_EQ(kept.upgrade({"--binary", path}), 0) << kept.said();
  const pid_t pid = kept.manager_pid();
  std::filesystem::remove(path);
  std::filesystem::copy_file("/bin/false", path);
  kept.keeper().signal(SIGHUP);
  EXPECT_TRUE(says(kept, "cannot say what it could go on with")) << kept.manager().log();
  EXPECT_EQ(kept.manager_pid(), pid) << "it serves on";
  std::filesystem::remove(path);
  EXPECT_EQ(kept.upgrade(), 1);
  EXPECT_NE(kept.said().find("No such file"), std::string::npos) << kept.said();
}

TEST_F(Upgrade, WhatIsNoOrbitkvIsNotAdvisedToComeWithoutBeingAsked) {
  EXPECT_EQ(kept.upgrade({"--binary", directory.path()}), 1);
  EXPECT_NE(kept.said().find("is a directory"), std::string::npos) << kept.said();
  for (const char* other : {"/bin/cat", "/bin/true"}) {
    EXPECT_EQ(kept.upgrade({"--binary", other}), 1);
    EXPECT_NE(kept.said().find("cannot say what it could go on with"), std::string::npos) << kept.said();
    EXPECT_NE(kept.said().find("Is it orbitkv?"), std::string::npos) << kept.said();
    EXPECT_EQ(kept.said().find("all the same"), std::string::npos) << kept.said();
  }
  EXPECT_EQ(kept.manager_pid(), pid) << "it serves on";
}

pid_t other_child(pid_t parent, pid_t known) {
  const std::string id = std::to_string(parent);
  std::ifstream children("/proc/" + id + "/task/" + id + "/children");
  for (pid_t child = 0; children >> child;)
    if (child != known) return child;
  return 0;
}

TEST_F(Upgrade, AStopOfTheKeeperEndsTheUpgradeThatItAskedFor) {
  ::kill(pid, SIGSTOP);
  kept.keeper().signal(SIGHUP);
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  pid_t asks = 0;
  for (; asks == 0 && monotonic_now() < deadline; ::usleep(1000))
    asks = other_child(kept.keeper().pid(), pid);
  ASSERT_GT(asks, 0);
  kept.keeper().signal(SIGTERM);
  while (::kill(asks, 0) == 0 && monotonic_now() < deadline) ::usleep(1000);
  ::kill(pid, SIGCONT);
  EXPECT_TRUE(kept.keeper().ended_within());
  EXPECT_EQ(kept.manager().log().find("orbitkv upgrade:"), std::string::npos) << kept.manager().log();
}

// Nobody else has the path in the gap, and whoever asks for something waits for the next one.
TEST_F(Upgrade, TheGapBelongsToTheKeeper) {
  const std::string slow = script(directory, "sleep 0.5; exec " + orbitkv_binary() + " \"$@\"");
  std::thread upgrades([&] { EXPECT_EQ(kept.upgrade({"--binary", slow}), 0) << kept.said(); });
  const TimePoint deadline = monotonic_now() + milliseconds(kUpgradedWithinMs);
  while (::kill(pid, 0) == 0 && monotonic_now() < deadline) ::usleep(1000);
  Process other(
      {orbitkv_binary(), "serve", "--pool-size", "64MiB", "--bootstrap-socket", kept.manager().socket()},
      {{}, directory.path() + "/other.log", 0});
  Process keeper({orbitkv_binary(), "serve", "--keep", "--keep-with", "keeper", "--pool-size", "64MiB",
                  "--bootstrap-socket", kept.manager().socket()},
                 {{}, directory.path() + "/other.log", 0});
  const std::string answer = directory.path() + "/answer";
  Process asks({orbitkv_binary(), "status", "--bootstrap-socket", kept.manager().socket()}, {{}, answer, 0});
  EXPECT_EQ(other.ended_within(), 1 << 8) << "it took the path of the keeper's";
  EXPECT_EQ(keeper.ended_within(), 1 << 8);
  ASSERT_TRUE(asks.ended_within());
  std::ifstream file(answer);
  const std::string why{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(why.empty() || why.find("its keeper (pid") != why.npos) << why;
  upgrades.join();
  expect_next_life(kBlocks);
}

TEST_F(Upgrade, WhatTheOperatorJustWantedOutlivesIt) {
  Process add({orbitkv_binary(), "pool", "add", "64MiB", "--bootstrap-socket", kept.manager().socket()},
              {{}, "/dev/null", 0});
  ASSERT_EQ(add.ended_within(), 0);
  ASSERT_EQ(kept.upgrade(), 0) << kept.said();
  EXPECT_EQ(kept.manager().status()["pool.wanted_slabs"], 2u);
  EXPECT_EQ(kept.manager().settle("pool.capacity", 128u << 20), 128u << 20);
  EXPECT_TRUE(says(kept, "with a pool of 128.0 MiB"));
}

// It has taken over what is kept by then, and written its own table.
TEST_F(Upgrade, OneThatFailsWhenItHasTakenOverLeavesAllOfIt) {
  EXPECT_EQ(kept.upgrade({"--binary", script(directory, serve_with("manager_not_ready:fail:1"))}), 1);
  expect_next_life(kBlocks);
  EXPECT_TRUE(says(kept, "does not serve"));
}

TEST_F(Upgrade, OneThatFindsThatItCannotGoOnLetsGoOfNothing) {
  EXPECT_EQ(kept.upgrade({"--binary", script(directory, serve_with("manager_kept_format:fail:*"))}), 1);
  expect_next_life(kBlocks);
  EXPECT_TRUE(says(kept, "cannot go on with what is kept: back to"));
}

// The file of the one that served is gone by then; its image is not.
TEST(UpgradeInPlace, OneThatCannotGoOnLetsGoOfNothing) {
  Directory directory;
  const std::string path = directory.path() + "/orbitkv";
  const auto put = [&](const std::string& program) {
    std::filesystem::copy_file(program, path + ".new");
    std::filesystem::rename(path + ".new", path);
  };
  Kept kept;
  Engine engine({.socket = kept.manager().socket(), .shape = {}});
  ASSERT_EQ(engine.connect().message, "");
  ASSERT_TRUE(engine.save(0, 1, kBlocks).success);
  ASSERT_EQ(kept.manager().settle("operations", 0), 0u);
  std::uint64_t incarnation = engine.client().health().incarnation;
  put(orbitkv_binary());
  ASSERT_EQ(kept.upgrade({"--binary", path}), 0);
  ASSERT_TRUE(attached_again(engine, incarnation)) << kept.manager().log();
  incarnation = engine.client().health().incarnation;
  put(script(directory, serve_with("manager_kept_format:fail:*"), "/script"));
  kept.keeper().signal(SIGHUP);
  ASSERT_TRUE(attached_again(engine, incarnation)) << kept.manager().log();
  const auto restored = engine.restore(0, 1, kBlocks);
  EXPECT_EQ(restored.hits, kBlocks) << kept.manager().log();
  EXPECT_EQ(restored.wrong, 0u);
  EXPECT_TRUE(says(kept, "cannot go on with what is kept: back to the image that served last"));
}

TEST_F(Upgrade, WithColdItStartsWithoutWhatIsKept) {
  const auto binary = script(directory, serve_with("manager_kept_format:fail:*"));
  EXPECT_EQ(kept.upgrade({"--cold", "--binary", binary}), 0);
  expect_next_life(0);
  EXPECT_TRUE(engine.save(0, 1, kBlocks).success);
}

// As after a kill for want of memory: what is kept does not get smaller by a death.
TEST_F(Upgrade, ALifeThatIsToBeSmallerGivesUpASlab) {
  const auto pool = [&](const std::string& verb, const std::string& amount) {
    Process process({orbitkv_binary(), "pool", verb, amount, "--bootstrap-socket", kept.manager().socket()},
                    {{}, "/dev/null", 0});
    return process.ended_within() == 0;
  };
  ASSERT_TRUE(pool("add", "64MiB"));
  ASSERT_EQ(kept.manager().settle("pool.capacity", 128u << 20), 128u << 20);
  const std::string smaller = "exec " + orbitkv_binary() + " $(echo \"$@\" | sed s/successor/smaller/)";
  ASSERT_EQ(kept.upgrade({"--binary", script(directory, smaller)}), 0);
  ASSERT_TRUE(attached_again(engine, incarnation));
  EXPECT_EQ(kept.manager().settle("pool.wanted_slabs", 1), 1u);
  EXPECT_EQ(kept.manager().settle("pool.capacity", 64u << 20), 64u << 20) << kept.manager().log();
}

// Engines still map what the last one had: they are told, and memory is waited for.
TEST_F(Upgrade, AColdStartWaitsForMemory) {
  const auto binary = script(directory, serve_with("manager_kept_format:fail:*,manager_no_memory:fail:1"));
  EXPECT_EQ(kept.upgrade({"--cold", "--binary", binary}), 0);
  expect_next_life(0);
  EXPECT_TRUE(says(kept, "waiting until engines have let go"));
  EXPECT_TRUE(engine.save(0, 1, kBlocks).success);
}

// Nobody waits for the keeper but who asked; and what was asked for does not stay.
TEST_F(Upgrade, AKeeperThatStandsStillHoldsUpNobodyAndUpgradesNothingLater) {
  kept.keeper().signal(SIGSTOP);
  ASSERT_TRUE(kept.keeper().stopped_within());
  std::atomic<int> code{0};
  std::thread asks([&] { code = kept.upgrade(); });
  for (std::uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(engine.save(0, 1000 + i * 16, 16).success);
  EXPECT_TRUE(engine.client().health().connected);
  asks.join();
  EXPECT_NE(code, 0);
  kept.keeper().signal(SIGCONT);
  EXPECT_EQ(kept.manager_pid(), pid);
  ::kill(pid, SIGTERM);
  const auto status = kept.keeper().ended_within();
  ASSERT_TRUE(status) << "a stop of the Manager was taken for its making place";
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0);
}

TEST_F(Upgrade, AStopOfTheJobDoesNotReachTheKeeper) {
  for (const int signal : {SIGTSTP, SIGTTIN, SIGTTOU}) kept.keeper().signal(signal);
  EXPECT_EQ(kept.upgrade(), 0);
  expect_next_life(kBlocks);
}

class UpgradeWithSsd : public Upgrade {
 protected:
  UpgradeWithSsd()
      : Upgrade({"--ssd-path", store.path() + "/store", "--ssd-size", "64MiB", "--ssd-segment-size", "1MiB",
                 "--ssd-write-policy", "all"}) {}
  static inline Directory store;
};

// The kernel keeps the lock of a process that has ended until its writes have.
TEST_F(UpgradeWithSsd, TheLockOfTheStoreIsWaitedFor) {
  kept.keeper().signal(SIGSTOP);
  ASSERT_TRUE(kept.keeper().stopped_within());
  ::kill(pid, SIGKILL);
  const UniqueFd file(::open((store.path() + "/store").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  ASSERT_EQ(::flock(file.get(), LOCK_EX), 0);
  kept.keeper().signal(SIGCONT);
  EXPECT_TRUE(says(kept, "in use by another process")) << kept.manager().log();
  ASSERT_EQ(::flock(file.get(), LOCK_UN), 0);
  expect_next_life(kBlocks);
}

// What the next life has not read yet is a miss: nothing is wrong, and in the end nothing is lost.
TEST_F(UpgradeWithSsd, UnderLoadBothTiersAreFoundAgain) {
  constexpr std::uint64_t kLists = 4;
  const auto first = [](std::uint64_t n) { return 1000 + n % kLists * kBlocks; };
  for (std::uint64_t n = 0; n < kLists; ++n) ASSERT_TRUE(engine.save(0, first(n), kBlocks).success);
  Engine reader{{.socket = kept.manager().socket(), .shape = {}, .instance = 2}};
  ASSERT_EQ(reader.connect().message, "");
  for (int life = 0; life < 4; ++life) {
    ASSERT_EQ(kept.manager().settle("ssd.opening.ready", 1), 1u);
    Process evict({orbitkv_binary(), "evict", "--wait", "--bootstrap-socket", kept.manager().socket()},
                  {{}, "/dev/null", 0});
    ASSERT_TRUE(evict.ended_within());
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> restored{0};
    std::uint64_t wrong = 0;
    std::thread reads([&] {
      for (std::uint64_t n = 0; !stop; ++n) {
        const auto one = reader.restore(0, first(n), kBlocks);
        if (!one.status.success) continue;
        wrong += one.wrong;
        restored += one.hits;
      }
    });
    for (int i = 0; i < 50'000 && restored == 0; ++i) ::usleep(200);
    EXPECT_GT(restored, 0u) << "there was no load";
    EXPECT_EQ(kept.upgrade(), 0) << kept.said();
    stop = true;
    reads.join();
    EXPECT_EQ(wrong, 0u);
    ASSERT_EQ(kept.manager().settle("ssd.opening.ready", 1), 1u);
    for (std::uint64_t n = 0; n < kLists; ++n) {
      const auto one = reader.restore(0, first(n), kBlocks);
      EXPECT_EQ(one.hits, kBlocks) << "list " << n << ": " << kept.manager().log();
      EXPECT_EQ(one.wrong, 0u);
    }
  }
}

}  // namespace
}  // namespace orbitkv::test
