// SIGKILL of the Manager under load and its restart: every wait of a client ends, the
// client attaches and registers again by itself, and saves and restores work as before.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/time.h"
#include "tests/native/engine.h"
#include "tests/native/processes.h"

namespace orbitkv::test {
namespace {

constexpr int kMoments = 20;

// A session of the current incarnation: the death of the last one may still be news.
bool attached_again(Engine& engine, std::uint64_t old_incarnation) {
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  while (monotonic_now() < deadline) {
    const auto health = engine.client().health();
    if (health.connected && health.incarnation != old_incarnation) return true;
    ::usleep(2000);
  }
  return false;
}

// Starts saves and restores until the Manager is gone; all of them must end.
void load(Engine& engine, std::uint64_t hash, std::atomic<bool>& stop, std::uint32_t& unfinished) {
  std::vector<client::OperationHandle> open;
  for (std::uint64_t round = 0; !stop && round < 400; ++round) {
    const auto hashes = hashes_of(hash + round % 20 * 16, 16);
    const auto blocks = blocks_of(static_cast<std::uint32_t>(round % 2) * 16, 16);
    client::OperationHandle handle;
    if (engine.start_save(blocks, hashes, handle).ok()) open.push_back(handle);
    client::Ready ready;
    if (!engine.lease(hash, 16, ready).ok() || !ready.lease) continue;
    const auto targets = blocks_of(32, ready.hit_blocks);
    const client::Load request{ready.lease, 0, targets};
    if (engine.client().start_restore(engine.registration(), {&request, 1}, {}, handle).ok())
      open.push_back(handle);
  }
  for (const auto handle : open) {
    unfinished += !engine.client().wait(handle, kDoneWithinMs).done;
    engine.client().drop(handle);
  }
}

TEST(Restart, KilledUnderLoadAtSeededMoments) {
  Manager manager({"--pool-size", "32MiB"});
  Engine one({.socket = manager.socket(), .shape = {}, .instance = 1});
  Engine two({.socket = manager.socket(), .shape = {}, .instance = 2, .inline_copies = false});
  ASSERT_EQ(one.connect().message, "");
  ASSERT_EQ(two.connect().message, "");
  std::mt19937_64 random(20263);
  std::uint64_t hash = 1;
  for (int moment = 0; moment < kMoments; ++moment) {
    SCOPED_TRACE("moment " + std::to_string(moment));
    const auto incarnation = one.client().health().incarnation;
    std::atomic<bool> stop{false};
    std::uint32_t unfinished[2] = {};
    std::thread first([&] { load(one, hash, stop, unfinished[0]); });
    std::thread second([&] { load(two, hash + 160, stop, unfinished[1]); });
    ::usleep(static_cast<useconds_t>(random() % 15'000));
    manager.process().signal(SIGKILL);
    ASSERT_TRUE(manager.process().ended_within());
    stop = true;
    first.join();
    second.join();
    EXPECT_EQ(unfinished[0] + unfinished[1], 0u);
    manager.start();
    for (Engine* engine : {&one, &two}) {
      ASSERT_TRUE(attached_again(*engine, incarnation)) << engine->client().health().message;
      const auto saved = engine->save(0, hash + 5000, 8);
      ASSERT_TRUE(saved.success) << saved.message;
      manager.settle("operations", 0);
      const auto restored = engine->restore(40, hash + 5000, 8);
      EXPECT_EQ(restored.hits, 8u);
      EXPECT_TRUE(restored.status.success) << restored.status.message;
      EXPECT_EQ(restored.wrong, 0u);
    }
    hash += 10'000;
  }
  EXPECT_EQ(one.client().health().reconnects, std::uint64_t{kMoments});
}

// A copy that was claimed ends on the client's own mapping.
TEST(Restart, AClaimedCopyEndsAndTheRestFails) {
  Manager manager;
  ASSERT_TRUE(manager.alive());
  auto engine = start_helper({"engine", "socket=" + manager.socket()}, "client_mid_copy:stop:1");
  ASSERT_EQ(engine.line(), "ready ");
  engine.say("save 0 1 12");
  ASSERT_TRUE(engine.stopped_within());
  manager.process().signal(SIGKILL);
  ASSERT_TRUE(manager.process().ended_within());
  engine.signal(SIGCONT);
  const auto answer = engine.line();
  ASSERT_TRUE(answer && answer->starts_with("saved ")) << *answer;
  manager.start();
  ASSERT_EQ(manager.settle_sessions(1), 1u);
  std::optional<std::string> saved;
  for (int i = 0; i < 100 && !(saved && saved->starts_with("saved 1 12 ")); ++i) {
    engine.say("save 0 1 12");
    saved = engine.line();
    ::usleep(20'000);
  }
  EXPECT_EQ(saved, "saved 1 12 0 0 ");
}

TEST(Restart, AClientThatComesFirstAttachesWhenTheManagerComes) {
  Directory directory;
  const std::string socket = directory.path() + "/s/manager.sock";
  Engine engine({.socket = socket, .shape = {}});
  EXPECT_FALSE(engine.client().health().connected);
  EXPECT_NE(engine.client().health().message.find("orbitkv serve"), std::string::npos);
  client::RegistrationHandle early;
  ASSERT_TRUE(engine.client().register_rank(engine.description(), early).ok());
  Process manager({orbitkv_binary(), "serve", "--bootstrap-socket", socket, "--pool-size", "16MiB"},
                  {{}, "/dev/null", 0});
  ASSERT_TRUE(engine.client().wait_connected(kDoneWithinMs).ok());
  const auto blocks = blocks_of(0, 4);
  const auto hashes = hashes_of(1, 4);
  const client::SaveGroup group{0, blocks, hashes};
  client::OperationHandle handle;
  ASSERT_EQ(engine.client().start_save(early, {&group, 1}, {}, handle).message, "");
  EXPECT_TRUE(engine.client().wait(handle, kDoneWithinMs).success);
}

// A lease of the old Manager is told as such: recompute, not a wrong block.
TEST(Restart, LeasesDoNotOutliveTheManager) {
  Manager manager;
  Engine engine({.socket = manager.socket(), .shape = {}});
  ASSERT_EQ(engine.connect().message, "");
  ASSERT_TRUE(engine.save(0, 1, 4).success);
  manager.settle("blocks", 4);
  client::Ready ready;
  ASSERT_TRUE(engine.lease(1, 4, ready).ok());
  const auto incarnation = engine.client().health().incarnation;
  manager.process().signal(SIGKILL);
  ASSERT_TRUE(manager.process().ended_within());
  manager.start();
  ASSERT_TRUE(attached_again(engine, incarnation));
  const auto blocks = blocks_of(8, 4);
  const client::Load load{ready.lease, 0, blocks};
  client::OperationHandle handle;
  EXPECT_EQ(engine.client().start_restore(engine.registration(), {&load, 1}, {}, handle).action,
            client::Action::kRecompute);
  EXPECT_EQ(engine.restore(8, 1, 4).hits, 0u);
}

// A Manager that hangs costs each call its timeout, and its late answers do no harm.
TEST(Restart, AHangingManagerTimesOutAndGoesOn) {
  Manager manager;
  Engine engine({.socket = manager.socket(), .shape = {}, .timeout_ms = 300});
  ASSERT_EQ(engine.connect().message, "");
  manager.process().signal(SIGSTOP);
  const TimePoint start = monotonic_now();
  EXPECT_EQ(engine.client().ping().action, client::Action::kReconnect);
  EXPECT_FALSE(engine.save(0, 1, 4).success);
  EXPECT_FALSE(engine.save(0, 1, 4).success);
  EXPECT_LT((monotonic_now() - start).ns, seconds(5).ns);
  manager.process().signal(SIGCONT);
  // The late commands name operations that were taken back: nothing is granted twice.
  const auto saved = engine.save(0, 1, 4);
  EXPECT_TRUE(saved.success) << saved.message;
  ASSERT_EQ(manager.settle("blocks", 4), 4u);
  EXPECT_EQ(engine.restore(8, 1, 4).wrong, 0u);
  EXPECT_EQ(manager.settle("operations", 0), 0u);
  EXPECT_EQ(manager.status().sessions(), 1u);
}

}  // namespace
}  // namespace orbitkv::test
