// Managers that die or are upgraded under `serve --keep`: blocks and mappings stay, no byte is
// wrong, and nothing that may still be written to is lent again.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "base/time.h"
#include "tests/native/engine.h"
#include "tests/native/kept.h"
#include "tests/native/processes.h"

namespace orbitkv::test {
namespace {

int kills() {
  const char* wanted = std::getenv("ORBITKV_KILLS");
  return wanted != nullptr ? std::max(1, std::atoi(wanted)) : 10;
}

// Where this process has slabs mapped.
std::set<std::string> slab_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> out;
  for (std::string line; std::getline(maps, line);)
    if (line.find("orbitkv-slab") != std::string::npos) out.insert(line.substr(0, line.find(' ')));
  return out;
}

std::size_t slab_descriptors(pid_t pid) {
  std::size_t n = 0;
  std::error_code gone;
  for (const auto& each : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone))
    n += std::filesystem::read_symlink(each.path(), gone).string().find("orbitkv-slab") != std::string::npos;
  return n;
}

// Saves and restores until it is told to stop; every operation ends, no restored byte is wrong.
void load(Engine& engine, std::uint64_t hash, const std::atomic<bool>& stop, std::uint64_t& wrong) {
  for (std::uint64_t round = 0; !stop; ++round) {
    (void)engine.save(0, hash + round % 20 * 16, 16);
    const auto restored = engine.restore(32, hash + round % 20 * 16, 16);
    if (restored.status.success) wrong += restored.wrong;
  }
}

constexpr std::uint32_t kBlocks = 48;

// Blocks that nobody touches meanwhile: of at least 99 % the next Manager knows, and what it
// gives back is right.
void expect_kept(Engine& engine, std::uint64_t hash) {
  const auto restored = engine.restore(0, hash, kBlocks);
  EXPECT_GE(restored.hits * 100, kBlocks * 99);
  EXPECT_TRUE(restored.status.success) << restored.status.message;
  EXPECT_EQ(restored.wrong, 0u);
}

// All capacity comes back, and the pool works.
void expect_whole(Kept& kept, Engine& engine, std::uint64_t hash) {
  EXPECT_EQ(kept.manager().settle("kept.old_grants", 0), 0u);
  EXPECT_EQ(kept.manager().settle("operations", 0), 0u);
  EXPECT_EQ(kept.manager().settle("pool.quarantined", 0), 0u) << kept.manager().log();
  const std::uint64_t configured = kept.manager().status()["pool.configured"];
  EXPECT_EQ(kept.manager().settle("pool.capacity", configured), configured);
  EXPECT_EQ(kept.manager().settle("pool.retired", 0), 0u);
  const auto saved = engine.save(0, hash, 8);
  EXPECT_TRUE(saved.success) << saved.message;
  kept.manager().settle("operations", 0);
  const auto restored = engine.restore(40, hash, 8);
  EXPECT_EQ(restored.hits, 8u);
  EXPECT_EQ(restored.wrong, 0u);
}

TEST(Keep, KilledUnderLoadTheBlocksStayAndSoDoMappings) {
  Kept kept;
  Engine reader({.socket = kept.manager().socket(), .shape = {}, .instance = 1});
  Engine one({.socket = kept.manager().socket(), .shape = {}, .instance = 2});
  Engine two({.socket = kept.manager().socket(), .shape = {}, .instance = 3, .inline_copies = false});
  for (Engine* each : {&reader, &one, &two}) ASSERT_EQ(each->connect().message, "");
  ASSERT_TRUE(reader.save(0, 1'000'000, kBlocks).success);
  ASSERT_EQ(kept.manager().settle("operations", 0), 0u);
  const auto mapped = slab_mappings();
  ASSERT_EQ(mapped.size(), 3u);
  std::mt19937_64 random(20264);
  const int n = kills();
  for (int i = 0; i < n; ++i) {
    SCOPED_TRACE("kill " + std::to_string(i));
    std::uint64_t incarnations[3] = {}, wrong[2] = {};
    Engine* const engines[] = {&reader, &one, &two};
    for (int e = 0; e < 3; ++e) incarnations[e] = engines[e]->client().health().incarnation;
    const pid_t before = kept.manager_pid();
    ASSERT_GT(before, 0);
    std::atomic<bool> stop{false};
    std::thread first([&] { load(one, 1000, stop, wrong[0]); });
    std::thread second([&] { load(two, 5000, stop, wrong[1]); });
    ::usleep(static_cast<useconds_t>(random() % 40'000));
    ::kill(before, SIGKILL);
    const bool again = attached_again(reader, incarnations[0]);
    stop = true;
    first.join();
    second.join();
    ASSERT_TRUE(again) << kept.manager().log();
    EXPECT_EQ(wrong[0] + wrong[1], 0u);
    expect_kept(reader, 1'000'000);
    for (int e = 1; e < 3; ++e) ASSERT_TRUE(attached_again(*engines[e], incarnations[e]));
  }
  EXPECT_EQ(slab_mappings(), mapped) << "an engine has mapped a slab anew";
  EXPECT_TRUE(kept.keeper().running());
  expect_whole(kept, reader, 9'000'000);
}

// At every place where kept memory and the rest could disagree.
TEST(Keep, KilledAtEveryPointNothingIsWrongAndAllComesBack) {
  struct Point {
    const char* name;
    int hit;
  };
  const Point points[] = {{"manager_lent", 70},     {"manager_before_grant", 5},
                          {"manager_sealed", 70},   {"manager_before_reap", 7},
                          {"manager_unsealed", 20}, {"manager_retire_marked", 1},
                          {"manager_adopted", 1}};
  for (const Point& point : points) {
    SCOPED_TRACE(point.name);
    // Small, so that eviction unseals.
    Kept kept(Environment{{"ORBITKV_FAULT", std::string(point.name) + ":kill:" + std::to_string(point.hit)}},
              {"--pool-size", "2MiB"});
    Engine engine({.socket = kept.manager().socket(), .shape = {}, .instance = 1});
    Engine reader({.socket = kept.manager().socket(), .shape = {}, .instance = 2});
    ASSERT_EQ(engine.connect().message, "");
    ASSERT_EQ(reader.connect().message, "");
    const pid_t before = kept.manager_pid();
    const std::string name = point.name;
    std::uint64_t wrong = 0;
    std::atomic<bool> stop{false};
    std::thread loading([&] { load(engine, 1000, stop, wrong); });
    if (name == "manager_adopted") {
      ::usleep(20'000);
      kept.kill();
    }
    if (name == "manager_retire_marked") {
      auto dies = start_helper({"engine", "socket=" + kept.manager().socket(), "instance=9"},
                               "client_mid_copy:kill:1");
      ASSERT_EQ(dies.line(), "ready ");
      dies.say("save 0 77000 12");
      ASSERT_TRUE(dies.ended_within());
    }
    EXPECT_TRUE(kept.lives_again(before)) << kept.manager().log();
    ::usleep(300'000);  // the fault may strike a second time
    stop = true;
    loading.join();
    EXPECT_EQ(wrong, 0u);
    const TimePoint deadline = monotonic_now() + seconds(20);
    while (kept.manager_pid() == 0 && monotonic_now() < deadline) ::usleep(5000);
    ASSERT_TRUE(reader.client().wait_connected(kDoneWithinMs).ok());
    ASSERT_TRUE(engine.client().wait_connected(kDoneWithinMs).ok());
    expect_whole(kept, reader, 9'000'000);
  }
}

// A copy that was claimed from the Manager that died goes on; until its receipt stands, its
// extents are nobody's, and then they are free.
TEST(Keep, ACopyUnderWayIsWaitedFor) {
  Kept kept;
  Engine witness({.socket = kept.manager().socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(witness.connect().message, "");
  ASSERT_TRUE(witness.save(0, 500, 12).success);
  auto stopped =
      start_helper({"engine", "socket=" + kept.manager().socket(), "instance=3"}, "client_mid_copy:stop:1");
  ASSERT_EQ(stopped.line(), "ready ");
  stopped.say("save 0 1 12");
  ASSERT_TRUE(stopped.stopped_within());
  const pid_t before = kept.manager_pid();
  kept.kill();
  ASSERT_TRUE(kept.lives_again(before));
  EXPECT_EQ(kept.manager().status()["kept.old_grants"], 12u);
  EXPECT_EQ(kept.manager().status()["kept.blocks"], 12u);
  ASSERT_TRUE(witness.client().wait_connected(kDoneWithinMs).ok());
  EXPECT_EQ(witness.restore(16, 500, 12).hits, 12u);
  stopped.signal(SIGCONT);
  EXPECT_EQ(kept.manager().settle("kept.old_grants", 0), 0u);
  EXPECT_EQ(kept.manager().status()["pool.retired_slabs"], 0u);
  ASSERT_TRUE(stopped.line());
  expect_whole(kept, witness, 900);
}

TEST(Keep, AnEngineThatDiesInACopyWhileThereIsNoManagerCostsItsSlab) {
  Kept kept;
  Engine witness({.socket = kept.manager().socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(witness.connect().message, "");
  auto stopped =
      start_helper({"engine", "socket=" + kept.manager().socket(), "instance=3"}, "client_mid_copy:stop:1");
  ASSERT_EQ(stopped.line(), "ready ");
  stopped.say("save 0 1 12");
  ASSERT_TRUE(stopped.stopped_within());
  const pid_t before = kept.manager_pid();
  kept.kill();
  stopped.signal(SIGKILL);
  ASSERT_TRUE(stopped.ended_within());
  ASSERT_TRUE(kept.lives_again(before));
  EXPECT_EQ(kept.manager().settle("pool.retired_slabs", 1), 1u) << kept.manager().log();
  ASSERT_TRUE(witness.client().wait_connected(kDoneWithinMs).ok());
  expect_whole(kept, witness, 900);
  EXPECT_EQ(slab_descriptors(kept.keeper().pid()), 1u) << "an abandoned slab is held by nobody";
}

// What nobody had claimed is taken back at once.
TEST(Keep, AGrantThatWasNotClaimedIsTakenBack) {
  Kept kept;
  auto stopped =
      start_helper({"engine", "socket=" + kept.manager().socket(), "instance=3"}, "client_granted:stop:1");
  ASSERT_EQ(stopped.line(), "ready ");
  stopped.say("save 0 1 12");
  ASSERT_TRUE(stopped.stopped_within());
  const pid_t before = kept.manager_pid();
  kept.kill();
  ASSERT_TRUE(kept.lives_again(before));
  EXPECT_EQ(kept.manager().settle("kept.old_grants", 0), 0u);
  EXPECT_EQ(kept.manager().status()["pool.used"], 0u);
  stopped.signal(SIGCONT);
  EXPECT_TRUE(stopped.line());
}

TEST(Keep, UpgradesByCommandAndBySignal) {
  Kept kept;
  Engine engine({.socket = kept.manager().socket(), .shape = {}});
  ASSERT_EQ(engine.connect().message, "");
  ASSERT_TRUE(engine.save(0, 1, kBlocks).success);
  kept.manager().settle("operations", 0);
  const auto mapped = slab_mappings();
  for (int i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    const auto incarnation = engine.client().health().incarnation;
    if (i == 0) {
      EXPECT_EQ(kept.upgrade(), 0);
    } else if (i == 1) {
      EXPECT_EQ(kept.upgrade({"--binary", orbitkv_binary()}), 0);
    } else {
      kept.keeper().signal(SIGHUP);
    }
    ASSERT_TRUE(attached_again(engine, incarnation)) << kept.manager().log();
    expect_kept(engine, 1);
  }
  EXPECT_EQ(slab_mappings(), mapped);
  const pid_t pid = kept.manager_pid();
  EXPECT_NE(kept.upgrade({"--binary", "/no/such/orbitkv"}), 0);
  EXPECT_NE(kept.upgrade({"--binary", "orbitkv"}), 0);
  EXPECT_EQ(kept.manager_pid(), pid) << "it serves on";
}

// What was read before is not what makes place first, though it is the oldest.
TEST(Keep, HotBlocksStayHotOverAnUpgradeAndAKill) {
  constexpr std::uint32_t kHot = 12, kCold = 48;
  Kept kept({}, {"--pool-size", "32MiB"});  // of several batches of eviction
  Engine engine({.socket = kept.manager().socket(), .shape = {}});
  ASSERT_EQ(engine.connect().message, "");
  ASSERT_TRUE(engine.save(0, 500, kHot).success);
  ASSERT_EQ(engine.restore(16, 500, kHot).hits, kHot);
  EXPECT_EQ(kept.manager().settle("eviction.retained.blocks", kHot), kHot);
  ASSERT_TRUE(engine.save(0, 1000, kCold).success);
  kept.manager().settle("operations", 0);
  for (const bool upgrade : {true, false}) {
    SCOPED_TRACE(upgrade ? "upgrade" : "kill");
    const auto incarnation = engine.client().health().incarnation;
    if (upgrade) {
      ASSERT_EQ(kept.upgrade(), 0) << kept.said();
    } else {
      kept.kill();
    }
    ASSERT_TRUE(attached_again(engine, incarnation)) << kept.manager().log();
    EXPECT_EQ(kept.manager().status()["eviction.retained.blocks"], kHot);
    for (std::uint64_t round = 0; round < 60; ++round)
      ASSERT_TRUE(engine.save(0, 10'000 + 100 * round, kCold).success);
    EXPECT_GT(kept.manager().status()["evicted"], 500u);
    EXPECT_EQ(engine.restore(0, 1000, kCold).hits, 0u);
    const auto hot = engine.restore(16, 500, kHot);
    EXPECT_EQ(hot.hits, kHot);
    EXPECT_EQ(hot.wrong, 0u);
  }
}

TEST(Keep, AnotherFormatStartsColdAndLetsGoOfAll) {
  Kept kept(Environment{{"ORBITKV_FAULT", "manager_kept_format:fail:*"}});
  Engine engine({.socket = kept.manager().socket(), .shape = {}});
  ASSERT_EQ(engine.connect().message, "");
  ASSERT_TRUE(engine.save(0, 1, 12).success);
  kept.manager().settle("operations", 0);
  const auto incarnation = engine.client().health().incarnation;
  kept.kill();
  ASSERT_TRUE(attached_again(engine, incarnation));
  EXPECT_EQ(engine.restore(16, 1, 12).hits, 0u);
  EXPECT_NE(kept.manager().log().find("cold start: the kept memory counts as of another format"),
            std::string::npos);
  expect_whole(kept, engine, 900);
  EXPECT_EQ(slab_descriptors(kept.keeper().pid()), 1u);
}

TEST(Keep, WithoutItsKeeperTheManagerGoesOn) {
  Kept kept;
  Engine engine({.socket = kept.manager().socket(), .shape = {}});
  ASSERT_EQ(engine.connect().message, "");
  kept.keeper().signal(SIGKILL);
  ASSERT_TRUE(kept.keeper().ended_within());
  const auto said = [&](const char* text) {
    const TimePoint deadline = monotonic_now() + seconds(10);
    while (kept.manager().log().find(text) == std::string::npos && monotonic_now() < deadline) ::usleep(5000);
    return kept.manager().log().find(text) != std::string::npos;
  };
  EXPECT_TRUE(said("the keeper is gone"));
  ::kill(kept.manager_pid(), SIGHUP);
  EXPECT_TRUE(said("it stays"));
  ASSERT_TRUE(engine.save(0, 1, 12).success);
  EXPECT_EQ(engine.restore(16, 1, 12).wrong, 0u);
  EXPECT_NE(kept.upgrade(), 0);
}

TEST(Keep, AStopEndsBoth) {
  Kept kept;
  const pid_t manager = kept.manager_pid();
  kept.keeper().signal(SIGTERM);
  const auto status = kept.keeper().ended_within();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0);
  EXPECT_NE(::kill(manager, 0), 0);
}

// Whatever was kept goes with the keeper; that is said.
TEST(Keep, AStopBetweenTwoManagersSaysWhatGoes) {
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM}) {
    SCOPED_TRACE(signal);
    Kept kept;
    kept.keeper().signal(SIGSTOP);
    ASSERT_TRUE(kept.keeper().stopped_within());
    const pid_t manager = kept.manager_pid();
    ::kill(manager, SIGKILL);
    // Somebody else has the lock of the socket, so that the next one has to wait.
    const UniqueFd lock(::open((kept.manager().socket() + ".lock").c_str(), O_RDWR | O_CLOEXEC));
    const TimePoint deadline = monotonic_now() + seconds(20);
    while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && monotonic_now() < deadline) ::usleep(1000);
    kept.keeper().signal(SIGCONT);
    const auto said = [&](const char* text) { return kept.manager().log().find(text) != std::string::npos; };
    while (!said("cannot start now") && monotonic_now() < deadline) ::usleep(1000);
    ASSERT_TRUE(said("cannot start now")) << kept.manager().log();
    kept.keeper().signal(signal);
    EXPECT_TRUE(kept.keeper().ended_within());
    EXPECT_TRUE(said("were kept in memory are let go of")) << kept.manager().log();
  }
}

TEST(Keep, StatusSaysWhoKeepsAndThatTheKeeperHasEnded) {
  Kept kept;
  Directory directory;
  const auto status = [&] {
    const std::string out = directory.path() + "/out";
    Process process(
        {"/bin/sh", "-c",
         orbitkv_binary() + " status --bootstrap-socket " + kept.manager().socket() + " > " + out},
        {{}, "/dev/null", 0});
    EXPECT_EQ(process.ended_within(), 0);
    std::ifstream file(out);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != text.npos;
  };
  EXPECT_TRUE(has(status(), "kept      by the keeper (pid " + std::to_string(kept.keeper().pid()) + ")"));
  kept.keeper().signal(SIGKILL);
  ASSERT_TRUE(kept.keeper().ended_within());
  kept.manager().settle("kept.keeper", 0);
  EXPECT_TRUE(has(status(), "kept      NOTHING: the keeper has ended")) << status();
}

// A wrong option is said once, and not tried again.
TEST(Keep, AManagerThatNeverServedIsNotStartedAgain) {
  Directory directory;
  Process process(
      {orbitkv_binary(), "serve", "--bootstrap-socket", directory.path() + "/s/m.sock", "--pool-size",
       "16MiB", "--keep", "--keep-with", "keeper", "--ssd-path", "/no/such/directory/store"},
      {{}, "/dev/null", 0});
  const auto status = process.ended_within();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 1);
}

}  // namespace
}  // namespace orbitkv::test
