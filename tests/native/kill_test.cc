// SIGKILL of an engine at every fault point: nothing that it may still be writing is
// reused, everything else comes back at once, and no wrong byte is ever restored.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <random>

#include "model/geometry.h"
#include "tests/native/engine.h"
#include "tests/native/processes.h"

namespace orbitkv::test {
namespace {

constexpr std::uint64_t kSlotBytes = 128 + 4 * 4096;  // of shape 0

struct Point {
  const char* name;
  bool claimed;  // the engine dies holding a claim without a receipt
};
constexpr Point kPoints[] = {{"client_submitted", false},    {"client_granted", false},
                             {"client_claimed", true},       {"client_mid_copy", true},
                             {"client_digest", true},        {"client_before_drained", true},
                             {"client_after_drained", false}};

struct Moment {
  const Point* point;
  std::uint32_t hit;
  std::uint32_t batch;  // blocks an operation: 3 run in the caller, 12 in the executor
};

std::vector<Moment> moments_of(std::uint64_t seed, int of_each, bool save) {
  std::mt19937_64 random(seed);
  std::vector<Moment> out;
  for (const Point& point : kPoints) {
    const std::string name = point.name;
    if (!save && name == "client_digest") continue;
    for (int i = 0; i < of_each; ++i) {
      const bool large = name == "client_mid_copy" || random() % 2;
      out.push_back({&point, static_cast<std::uint32_t>(1 + random() % 6), large ? 12u : 3u});
    }
  }
  return out;
}

std::string fault_of(const Moment& moment) {
  return std::string(moment.point->name) + ":kill:" + std::to_string(moment.hit);
}

// Drives the engine until the fault kills it; returns the operations that it reported.
std::uint32_t run_to_death(Process& engine, const std::string& verb, std::uint64_t hash,
                           const Moment& moment) {
  std::uint32_t reported = 0;
  for (std::uint32_t i = 0; i < 40; ++i) {
    const std::uint64_t first = verb == "save" ? hash + i * moment.batch : hash;
    engine.say(verb + " 0 " + std::to_string(first) + " " + std::to_string(moment.batch));
    if (!engine.line()) break;
    ++reported;
  }
  const auto status = engine.ended_within();
  EXPECT_TRUE(status && WIFSIGNALED(*status) && WTERMSIG(*status) == SIGKILL);
  return reported;
}

void expect_accounted(const Manager& manager) {
  const auto status = manager.status();
  EXPECT_EQ(status["pool.used"], status["blocks"] * kSlotBytes + status["pool.quarantined"]);
  EXPECT_EQ(status["inflight_images"], 0u);
}

TEST(Kill, PublisherAtEveryPoint) {
  Manager manager;
  Engine witness({.socket = manager.socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(witness.connect().message, "");
  std::uint64_t hash = 1, quarantined = 0;
  const auto moments = moments_of(20261, 3, true);
  ASSERT_GE(moments.size(), 20u);
  for (const Moment& moment : moments) {
    SCOPED_TRACE(fault_of(moment) + " batch " + std::to_string(moment.batch));
    auto engine = start_helper({"engine", "socket=" + manager.socket()}, fault_of(moment));
    ASSERT_EQ(engine.line(), "ready ");
    const auto reported = run_to_death(engine, "save", hash, moment);
    ASSERT_EQ(manager.settle_sessions(1), 1u);
    ASSERT_EQ(manager.settle("operations", 0), 0u);
    if (moment.point->claimed) quarantined += moment.batch * kSlotBytes;
    EXPECT_EQ(manager.status()["pool.quarantined"], quarantined);
    expect_accounted(manager);
    // What was reported is there, the rest is complete or missing; never wrong.
    const std::uint32_t done = reported * moment.batch;
    const auto restored = witness.restore(0, hash, std::min(done + moment.batch, 64u));
    EXPECT_GE(restored.hits, std::min(done, 64u));
    EXPECT_TRUE(restored.hits == 0 || restored.status.success) << restored.status.message;
    EXPECT_EQ(restored.wrong, 0u);
    // The blocks of the dead save can be published by the next at once.
    const auto again = witness.save(0, hash + done, moment.batch);
    EXPECT_TRUE(again.success) << again.message;
    EXPECT_EQ(witness.restore(32, hash + done, moment.batch).wrong, 0u);
    hash += 1000;
  }
  EXPECT_TRUE(manager.alive());
  EXPECT_EQ(manager.status()["quarantined_extents"] * kSlotBytes, quarantined);
}

TEST(Kill, RestorerAtEveryPoint) {
  Manager manager;
  Engine witness({.socket = manager.socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(witness.connect().message, "");
  ASSERT_EQ(witness.save(0, 1, 12).blocks, 12u);
  ASSERT_EQ(manager.settle("blocks", 12), 12u);
  const auto moments = moments_of(20262, 4, false);
  ASSERT_GE(moments.size(), 20u);
  for (const Moment& moment : moments) {
    SCOPED_TRACE(fault_of(moment) + " batch " + std::to_string(moment.batch));
    auto engine = start_helper({"engine", "socket=" + manager.socket()}, fault_of(moment));
    ASSERT_EQ(engine.line(), "ready ");
    run_to_death(engine, "restore", 1, moment);
    ASSERT_EQ(manager.settle_sessions(1), 1u);
    EXPECT_EQ(manager.settle("operations", 0), 0u);
    EXPECT_EQ(manager.settle("pool.leased", 0), 0u);
    EXPECT_EQ(manager.status()["leases"], 0u);
    EXPECT_EQ(manager.status()["pool.quarantined"], 0u);
    expect_accounted(manager);
  }
  const auto restored = witness.restore(0, 1, 12);
  EXPECT_EQ(restored.hits, 12u);
  EXPECT_EQ(restored.wrong, 0u);
}

// A restore that an engine holds claimed keeps its sources, whatever is published, until
// the process has ended; then they can be evicted.
TEST(Kill, SourcesOfAClaimedRestoreAreHeldUntilTheProcessEnds) {
  Manager manager({"--pool-size", "4MiB"});
  Engine witness({.socket = manager.socket(), .shape = {.blocks = 256}, .instance = 2});
  ASSERT_EQ(witness.connect().message, "");
  ASSERT_EQ(witness.save(0, 1, 12).blocks, 12u);
  manager.settle("blocks", 12);
  auto engine = start_helper({"engine", "socket=" + manager.socket()}, "client_claimed:stop:1");
  ASSERT_EQ(engine.line(), "ready ");
  engine.say("restore 0 1 12");
  ASSERT_TRUE(engine.stopped_within());
  for (int round = 0; round < 4; ++round) ASSERT_TRUE(witness.save(0, 1000 + round * 200, 200).success);
  EXPECT_EQ(manager.status()["pool.leased"], 12 * kSlotBytes);
  EXPECT_EQ(witness.restore(0, 1, 12).hits, 12u);
  engine.signal(SIGKILL);
  EXPECT_EQ(manager.settle("pool.leased", 0), 0u);
  for (int round = 0; round < 4; ++round) ASSERT_TRUE(witness.save(0, 9000 + round * 200, 200).success);
  EXPECT_EQ(witness.restore(0, 1, 12).hits, 0u);
}

// Who was filtered learns when the first publisher dies: it copies the blocks itself.
TEST(Kill, AWaitingPublisherTakesOver) {
  for (const char* point : {"client_granted", "client_claimed", "client_before_drained"}) {
    SCOPED_TRACE(point);
    Manager manager;
    auto first = start_helper({"engine", "socket=" + manager.socket()}, std::string(point) + ":stop:1");
    ASSERT_EQ(first.line(), "ready ");
    first.say("save 0 1 8");
    ASSERT_TRUE(first.stopped_within());
    Engine second({.socket = manager.socket(), .shape = {}, .instance = 2});
    ASSERT_EQ(second.connect().message, "");
    const auto hashes = hashes_of(1, 10);
    const auto blocks = blocks_of(0, 10);
    for (std::uint32_t i = 0; i < 10; ++i) second.compute(i, hashes[i]);
    client::OperationHandle handle;
    ASSERT_TRUE(second.start_save(blocks, hashes, handle).ok());
    EXPECT_FALSE(second.client().wait(handle, 100).done);
    EXPECT_EQ(manager.status()["waits"], 1u);
    first.signal(SIGKILL);
    const auto status = second.client().wait(handle, kDoneWithinMs);
    ASSERT_TRUE(status.success) << status.message;
    EXPECT_EQ(status.blocks, 10u);
    ASSERT_EQ(manager.settle("blocks", 10), 10u);
    EXPECT_EQ(second.restore(20, 1, 10).wrong, 0u);
    expect_accounted(manager);
  }
}

// A publisher that hangs but lives delays others by the publish wait and no more.
TEST(Kill, AWaitingPublisherGivesUpOnAHangingOne) {
  Manager manager({"--publish-wait", "300"});
  auto first = start_helper({"engine", "socket=" + manager.socket()}, "client_claimed:stop:1");
  ASSERT_EQ(first.line(), "ready ");
  first.say("save 0 1 8");
  ASSERT_TRUE(first.stopped_within());
  Engine second({.socket = manager.socket(), .shape = {}, .instance = 2});
  ASSERT_EQ(second.connect().message, "");
  const auto status = second.save(0, 1, 10);
  EXPECT_TRUE(status.success) << status.message;
  EXPECT_EQ(status.blocks, 2u);
  first.signal(SIGCONT);
  EXPECT_EQ(first.line(), "saved 1 8 0 0 ");
  ASSERT_EQ(manager.settle("blocks", 10), 10u);
  EXPECT_EQ(second.restore(20, 1, 10).wrong, 0u);
}

}  // namespace
}  // namespace orbitkv::test
