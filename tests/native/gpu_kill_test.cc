// Engines on a GPU that end in every way: killed at every fault point and while copies
// stand on the device's queues, by a lost context, by an exit without close. Nothing that
// may still be written is reused, all else comes back at once, no wrong byte is restored.
// A witness with pages in CPU memory restores what the GPU published.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <sstream>

#include "tests/native/gpu_bed.h"

namespace orbitkv::test {
namespace {

constexpr std::uint64_t kSlotBytes = 128 + 4 * 4096;  // of shape 0

struct Point {
  const char* name;
  bool claimed;  // the engine dies holding a claim without a receipt
};
constexpr Point kPoints[] = {{"client_submitted", false},     {"client_granted", false},
                             {"client_claimed", true},        {"client_digest", true},
                             {"client_before_drained", true}, {"client_after_drained", false}};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// With true, no slab can be registered: everything goes through the bounce buffer.
class GpuKill : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    keep_windows_in(directory_.path());
    ASSERT_EQ(witness_.connect().message, "");
  }
  std::vector<std::string> arguments(const std::string& more = {}) const {
    std::vector<std::string> out = {"socket=" + manager_.socket()};
    if (GetParam()) out.emplace_back("bounce=1");
    if (!more.empty()) out.push_back(more);
    return out;
  }
  Process start(const std::string& fault = {}, const std::string& more = {}) {
    Process engine = start_gpu_helper(arguments(more), fault, log());
    const auto first = engine.line();
    EXPECT_EQ(first, "ready ");
    return engine;
  }
  std::string log() const { return directory_.path() + "/engine.log"; }
  // Copies stand on the queues behind a stream that nobody lets go. Through the bounce
  // buffer a save's stand there, a restore's payload does not.
  void begin(Process& engine, const std::string& what) {
    engine.say("begin " + what);
    const auto begun = engine.line(60'000);
    if (begun != "begun ") {
      EXPECT_TRUE(GetParam() && begun && begun->find("wait again") != std::string::npos)
          << begun.value_or("-");
    }
  }
  void expect_ended_engine(std::uint64_t quarantined_slots) {
    ASSERT_EQ(manager_.settle_sessions(1), 1u);
    EXPECT_EQ(manager_.settle("operations", 0), 0u);
    EXPECT_EQ(manager_.settle("pool.leased", 0), 0u);
    const auto status = manager_.status();
    EXPECT_EQ(status["pool.quarantined"], quarantined_slots * kSlotBytes);
    EXPECT_EQ(status["pool.used"], status["blocks"] * kSlotBytes + status["pool.quarantined"]);
    EXPECT_EQ(status["inflight_images"], 0u);
    EXPECT_EQ(status["leases"], 0u);
  }
  // Until the fault kills it; the operations that it reported.
  std::uint32_t run_to_death(Process& engine, const std::string& verb, std::uint64_t hash,
                             std::uint32_t step) {
    std::uint32_t reported = 0;
    for (std::uint32_t i = 0; i < 40; ++i) {
      engine.say(verb + " 0 " + std::to_string(hash + i * step) + " 12");
      if (!engine.line()) break;
      ++reported;
    }
    const auto status = engine.ended_within();
    EXPECT_TRUE(status && WIFSIGNALED(*status) && WTERMSIG(*status) == SIGKILL);
    return reported;
  }

  Directory directory_;
  Manager manager_{{"--pool-size", "32MiB"}};  // one piece of a registration
  Engine witness_{{.socket = manager_.socket(), .shape = {}, .instance = 2}};
};
INSTANTIATE_TEST_SUITE_P(Paths, GpuKill, testing::Bool(),
                         [](const auto& path) { return path.param ? "bounced" : "registered"; });

TEST_P(GpuKill, PublisherAtEveryPoint) {
  std::uint64_t hash = 1, quarantined = 0;
  for (const Point& point : kPoints) {
    for (const std::uint32_t hit : {1u, 3u}) {
      SCOPED_TRACE(std::string(point.name) + " " + std::to_string(hit));
      Process engine = start(std::string(point.name) + ":kill:" + std::to_string(hit));
      const std::uint32_t done = run_to_death(engine, "save", hash, 12) * 12;
      if (point.claimed) quarantined += 12;
      expect_ended_engine(quarantined);
      // What was reported is there, the rest is complete or missing.
      const auto restored = witness_.restore(0, hash, std::min(done + 12, 64u));
      EXPECT_GE(restored.hits, done);
      EXPECT_TRUE(restored.hits == 0 || restored.status.success) << restored.status.message;
      EXPECT_EQ(restored.wrong, 0u);
      const auto again = witness_.save(0, hash + done, 12);
      EXPECT_TRUE(again.success) << again.message;
      hash += 1000;
    }
  }
}

TEST_P(GpuKill, RestorerAtEveryPoint) {
  ASSERT_EQ(witness_.save(0, 1, 12).blocks, 12u);
  ASSERT_EQ(manager_.settle("blocks", 12), 12u);
  for (const Point& point : kPoints) {
    if (std::string(point.name) == "client_digest") continue;
    for (const std::uint32_t hit : {1u, 3u}) {
      SCOPED_TRACE(std::string(point.name) + " " + std::to_string(hit));
      Process engine = start(std::string(point.name) + ":kill:" + std::to_string(hit));
      run_to_death(engine, "restore", 1, 0);
      expect_ended_engine(0);
    }
  }
  const auto restored = witness_.restore(0, 1, 12);
  EXPECT_EQ(restored.hits, 12u);
  EXPECT_EQ(restored.wrong, 0u);
}

TEST_P(GpuKill, WhileCopiesStandOnTheQueues) {
  ASSERT_EQ(witness_.save(0, 1, 12).blocks, 12u);
  ASSERT_EQ(manager_.settle("blocks", 12), 12u);
  for (const char* what : {"save 0 500 12", "restore 0 1 12"}) {
    SCOPED_TRACE(what);
    Process engine = start({}, "timeout=300");
    begin(engine, what);
    EXPECT_EQ(manager_.status()["operations"], 1u);
    engine.signal(SIGKILL);
    expect_ended_engine(12);
  }
  EXPECT_EQ(witness_.restore(0, 1, 12).wrong, 0u);
  EXPECT_EQ(witness_.restore(0, 500, 12).hits, 0u);
}

// Nobody can say which copies still run: the process ends and says why, and what they may
// write is out of use for good.
TEST_P(GpuKill, ALostContextEndsTheProcess) {
  ASSERT_EQ(witness_.save(0, 1, 12).blocks, 12u);
  ASSERT_EQ(manager_.settle("blocks", 12), 12u);
  Process other = start({}, "instance=3");
  for (const char* what : {"restore 0 1 12", "save 0 500 12"}) {
    SCOPED_TRACE(what);
    Process engine = start({}, "timeout=300");
    begin(engine, what);
    engine.say("lose");
    const auto status = engine.ended_within();
    EXPECT_TRUE(status && WIFSIGNALED(*status) && WTERMSIG(*status) == SIGABRT);
    EXPECT_NE(read_file(log()).find("ILLEGAL_ADDRESS"), std::string::npos) << read_file(log());
  }
  // The other engine on the device goes on.
  other.say("restore 20 1 12");
  EXPECT_EQ(other.line(), "restored 1 12 12 0 ");
  other.signal(SIGKILL);
  expect_ended_engine(12);
}

// With nothing under way the lost device refuses what is new.
TEST_P(GpuKill, ALostContextRefusesWhatIsNew) {
  Process engine = start({}, "timeout=300");
  engine.say("lose");
  ASSERT_EQ(engine.line(), "lose ");
  engine.say("save 0 1 4");
  const auto answer = engine.line();
  ASSERT_TRUE(!answer || answer->starts_with("saved 0 ")) << *answer;
  if (answer) engine.signal(SIGKILL);
  ASSERT_TRUE(engine.ended_within());
  expect_ended_engine(answer ? 0 : 4);
}

TEST_P(GpuKill, AnExitWithoutCloseEndsWhateverRuns) {
  for (const char* what : {"", "save 0 500 12"}) {
    SCOPED_TRACE(what);
    Process engine = start({}, "timeout=300");
    if (*what) begin(engine, what);
    engine.say("exit");
    const auto status = engine.ended_within();
    ASSERT_TRUE(status) << "it hangs";
    EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *status;
    expect_ended_engine(*what ? 12 : 0);
  }
}

// The driver's own exit handler comes first, and the client's end after it.
TEST_P(GpuKill, AnEndAfterTheDriverHasGone) {
  for (const char* what : {"", "save 0 500 12"}) {
    SCOPED_TRACE(what);
    Process engine = start({}, "timeout=300");
    if (*what) begin(engine, what);
    engine.say("deinit");
    ASSERT_EQ(engine.line(), "deinit ");
    engine.say("quit");
    const auto status = engine.ended_within();
    ASSERT_TRUE(status) << "it hangs";
    EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *status << read_file(log());
    expect_ended_engine(*what ? 12 : 0);
  }
}

// The client is closed by its destructor while its copies stand behind a stream that
// nobody will ever let go.
TEST_P(GpuKill, ACloseThatCannotDrainIsBounded) {
  Process engine = start({}, "timeout=300");
  begin(engine, "save 0 500 12");
  engine.say("quit");
  const auto status = engine.ended_within();
  ASSERT_TRUE(status) << "it hangs";
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *status;
  expect_ended_engine(12);
}

TEST_P(GpuKill, AForkedChildHarmsNobody) {
  Process engine = start();
  engine.say("save 0 1 12");
  ASSERT_EQ(engine.line(), "saved 1 12 0 0 ");
  begin(engine, "save 12 100 12");
  engine.say("fork");
  EXPECT_EQ(engine.line(), "forked ");
  engine.say("release");
  EXPECT_EQ(engine.line(), "release ");
  engine.say("wait");
  EXPECT_EQ(engine.line(), "waited 1 12 0 0 ");
  engine.say("restore 30 100 12");
  EXPECT_EQ(engine.line(), "restored 1 12 12 0 ");
  EXPECT_EQ(witness_.restore(0, 100, 12).wrong, 0u);
  engine.say("quit");
  const auto status = engine.ended_within();
  EXPECT_TRUE(status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0);
  expect_ended_engine(0);
}

// Two engines publish the same blocks; the one that dies hands them over to the other.
TEST_P(GpuKill, AWaitingEngineOnTheSameDeviceTakesOver) {
  Process first = start();
  begin(first, "save 0 1 12");
  Process second = start({}, "instance=3");
  second.say("save 0 1 12");
  EXPECT_EQ(second.line(100), std::nullopt);
  first.signal(SIGKILL);
  EXPECT_EQ(second.line(), "saved 1 12 0 0 ");
  second.say("restore 30 1 12");
  EXPECT_EQ(second.line(), "restored 1 12 12 0 ");
  EXPECT_EQ(witness_.restore(0, 1, 12).wrong, 0u);
  second.signal(SIGKILL);
  expect_ended_engine(12);
}

TEST_P(GpuKill, AtAnyMomentUnderLoad) {
  std::mt19937_64 random(20264);
  std::uint64_t hash = 1;
  std::uint32_t found = 0;
  for (int moment = 0; moment < 12; ++moment, hash += 100'000) {
    SCOPED_TRACE(moment);
    Process engine = start();
    engine.say("load " + std::to_string(hash));
    ::usleep(static_cast<useconds_t>(5000 + random() % 40'000));
    engine.signal(SIGKILL);
    ASSERT_EQ(manager_.settle_sessions(1), 1u);
    EXPECT_EQ(manager_.settle("operations", 0), 0u);
    EXPECT_EQ(manager_.settle("pool.leased", 0), 0u);
    const auto status = manager_.status();
    EXPECT_EQ(status["pool.used"], status["blocks"] * kSlotBytes + status["pool.quarantined"]);
    EXPECT_LE(status["pool.quarantined"], (moment + 1) * 16 * kSlotBytes);
    for (std::uint64_t first = hash; first < hash + 64 * 1000; first += 64) {
      const auto restored = witness_.restore(0, first, 64);
      EXPECT_TRUE(restored.hits == 0 || restored.status.success) << restored.status.message;
      EXPECT_EQ(restored.wrong, 0u);
      found += restored.hits;
      if (restored.hits < 64) break;
    }
  }
  EXPECT_GT(found, 0u) << "the loads did nothing";
}

// The engine stands at a fault point while the Manager dies and comes back.
TEST_P(GpuKill, TheManagerWhileTheEngineStandsStill) {
  int hash = 1;
  for (const char* point : {"client_granted", "client_claimed", "client_before_drained"}) {
    SCOPED_TRACE(point);
    const std::string blocks = std::to_string(hash += 100) + " 12";
    Process engine = start(std::string(point) + ":stop:2");
    engine.say("save 0 " + blocks);
    ASSERT_EQ(engine.line(), "saved 1 12 0 0 ");
    engine.say("restore 30 " + blocks);
    ASSERT_TRUE(engine.stopped_within());
    manager_.process().signal(SIGKILL);
    ASSERT_TRUE(manager_.process().ended_within());
    manager_.start();
    engine.signal(SIGCONT);
    const auto restored = engine.line();
    ASSERT_TRUE(restored && restored->starts_with("restored ")) << restored.value_or("it ended");
    // A claimed restore ends on the engine's own mapping, with the right bytes or not at all.
    if (restored->starts_with("restored 1")) {
      EXPECT_EQ(restored, "restored 1 12 12 0 ");
    }
    std::optional<std::string> saved;
    for (int i = 0; i < 500 && !(saved && saved->starts_with("saved 1 12 ")); ++i) {
      engine.say("save 0 " + blocks);
      saved = engine.line();
      ::usleep(20'000);
    }
    EXPECT_EQ(saved, "saved 1 12 0 0 ");
    engine.say("restore 30 " + blocks);
    EXPECT_EQ(engine.line(), "restored 1 12 12 0 ");
    engine.signal(SIGKILL);
    ASSERT_TRUE(engine.ended_within());
  }
}

TEST_P(GpuKill, TheManagerUnderRunningCopies) {
  Process engine = start();
  begin(engine, "save 0 1 12");
  manager_.process().signal(SIGKILL);
  ASSERT_TRUE(manager_.process().ended_within());
  engine.say("release");
  ASSERT_EQ(engine.line(), "release ");
  engine.say("wait");
  const auto waited = engine.line();
  // A success if the copies ended before the client knew of the Manager's end.
  EXPECT_TRUE(waited == "waited 1 12 0 0 " || (waited && waited->starts_with("waited 0 ")))
      << waited.value_or("it ended");
  manager_.start();
  std::optional<std::string> saved;
  for (int i = 0; i < 500 && !(saved && saved->starts_with("saved 1 12 ")); ++i) {
    engine.say("save 0 1 12");
    saved = engine.line();
    ::usleep(20'000);
  }
  EXPECT_EQ(saved, "saved 1 12 0 0 ");
  engine.say("restore 30 1 12");
  EXPECT_EQ(engine.line(), "restored 1 12 12 0 ");
}

}  // namespace
}  // namespace orbitkv::test
