// Drops by namespace and age, eviction classes through queries, and what publishes do.
#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

WorldOptions options_of(std::uint32_t protected_percent = 50) {
  WorldOptions options;
  options.core.protected_percent = protected_percent;
  options.core.eviction_batch = ByteCount(1);
  return options;
}

class CoreDropTest : public ::testing::Test {
 protected:
  explicit CoreDropTest(const WorldOptions& options = options_of()) : w(options), e(w) {}
  void wait(Duration d) {
    w.now = w.now + d;
    w.core->tick(w.now);
  }
  void save(std::uint64_t first, std::uint64_t count) {
    w.store(e.worker, e.registration, hashes(first, count));
  }
  void use(std::uint64_t first, std::uint64_t count) {
    const QueryAnswer answer = w.read(e.scheduler, hashes(first, count), "use");
    ASSERT_TRUE(w.core->release(e.scheduler, answer.lease).ok());
  }
  std::uint32_t there(std::uint64_t first, std::uint64_t count) {
    return w.discover(e.scheduler, hashes(first, count));
  }
  std::uint64_t dropped(Duration unused, DropRun run = DropRun::kDrop) {
    std::uint64_t blocks = 0;
    for (const NamespaceBlocks& each : w.drop({{}, unused}, run)) blocks += each.blocks;
    return blocks;
  }

  World w;
  Engine e;
};

TEST_F(CoreDropTest, ByNamespaceWithTextsAndBytes) {
  Engine other(w, {.instance = 2, .name_space = "other"});
  save(0, 3);
  w.store(other.worker, other.registration, hashes(0, 2));
  std::vector<NamespaceBlocks> all = w.core->namespaces();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].text, "model-a");
  EXPECT_EQ(all[1].text, "other");
  const auto counted = w.drop({{&all[0].digest, 1}, {}}, DropRun::kCount);
  ASSERT_EQ(counted.size(), 1u);
  EXPECT_EQ(counted[0].blocks, 3u);
  EXPECT_EQ(there(0, 3), 3u) << "counting takes nothing";
  const auto gone = w.drop({{&all[0].digest, 1}, {}});
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].bytes, 3 * slot_bytes());
  EXPECT_EQ(there(0, 3), 0u);
  EXPECT_EQ(w.used(), 2 * slot_bytes());
}

// A namespace that no engine uses any more ends with its last block, and is still named.
TEST_F(CoreDropTest, AnEndedEnginesNamespaceIsNamedAsItGoes) {
  save(0, 2);
  w.core->close_session(e.worker, w.now);
  w.core->close_session(e.scheduler, w.now);
  ASSERT_EQ(w.core->namespaces().size(), 1u);
  const auto gone = w.drop({});
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].text, "model-a");
  EXPECT_TRUE(w.core->namespaces().empty());
}

TEST_F(CoreDropTest, ByAgeOnlyWhatNobodyUsedForThatLong) {
  save(0, 4);
  wait(seconds(3600));
  save(10, 1);
  use(0, 1);
  EXPECT_EQ(there(0, 4), 4u) << "discovery is no use";
  wait(seconds(3600));
  EXPECT_EQ(dropped(seconds(3 * 3600), DropRun::kCount), 0u);
  EXPECT_EQ(dropped(seconds(90 * 60), DropRun::kCount), 3u);
  EXPECT_EQ(dropped(seconds(90 * 60)), 3u);
  EXPECT_EQ(there(0, 4), 1u);
  EXPECT_EQ(there(10, 1), 1u);
}

// Never earlier than was said, whatever the second within a minute.
TEST_F(CoreDropTest, AgesAreRoundedUpToWholeMinutes) {
  for (int second = 0; second < 60; second += 7) {
    save(0, 1);
    wait(seconds(119));
    EXPECT_EQ(dropped(seconds(120), DropRun::kCount), 0u) << second;
    wait(seconds(120));
    EXPECT_EQ(dropped(seconds(120)), 1u) << second;
    wait(seconds(7));
  }
}

TEST_F(CoreDropTest, PinnedBlocksAreInUseForAnAgeAndOutOfSightForANamespace) {
  save(0, 2);
  const LeaseId lease = w.read(e.scheduler, hashes(0, 2), "r").lease;
  wait(seconds(300));  // less than the lease's term
  EXPECT_EQ(dropped(seconds(60)), 0u);
  const auto digest = model::namespace_digest(rank_of({}));
  EXPECT_EQ(w.drop({{&digest, 1}, {}})[0].blocks, 2u);
  EXPECT_EQ(there(0, 2), 0u);
  EXPECT_EQ(w.used(), 2 * slot_bytes());
  ASSERT_TRUE(w.core->release(e.scheduler, lease).ok());
  EXPECT_EQ(w.used(), ByteCount());
}

TEST_F(CoreDropTest, ASaveThatHasBegunStillSeals) {
  const OperationKey op = w.next_op(e.worker);
  ASSERT_TRUE(w.publish(op, e.registration, hashes(0, 2)).ok());
  EXPECT_EQ(dropped({}), 0u);
  w.commit(op);
  EXPECT_EQ(there(0, 2), 2u);
}

// ---- over turns ----

class CoreLargeDropTest : public CoreDropTest {
 protected:
  static constexpr std::uint64_t kMany = 2 * limits::kDropsPerTurn + 100;
  static WorldOptions large() {
    WorldOptions options = options_of();
    options.pool = 256 * kMiB;
    return options;
  }
  CoreLargeDropTest() : CoreDropTest(large()) {
    for (std::uint64_t at = 0; at < kMany; at += 4000) save(at, std::min<std::uint64_t>(4000, kMany - at));
  }
  DropId begin(DropRun run = DropRun::kDrop) { return w.core->begin_drop({}, run, w.now); }
};

TEST_F(CoreLargeDropTest, GoesOnOverTurnsAndOthersAreServedMeanwhile) {
  ASSERT_EQ(w.core->stats().blocks, kMany);
  const DropId drop = begin();
  EXPECT_EQ(w.core->stats().blocks, kMany) << "nothing before its turn";
  ASSERT_TRUE(w.core->turn(w.now));
  EXPECT_EQ(w.core->stats().blocks, kMany - limits::kDropsPerTurn);
  EXPECT_FALSE(w.core->take_dropped(drop).has_value());
  use(kMany - 2, 2);
  int turns = 1;
  while (w.core->turn(w.now)) ++turns;
  EXPECT_EQ(turns, 2);
  EXPECT_EQ(w.core->stats().blocks, 0u);
  EXPECT_EQ(w.core->take_dropped(drop)->at(0).blocks, kMany);
  EXPECT_FALSE(w.core->turn(w.now));
}

TEST_F(CoreLargeDropTest, SeveralAreToldOneByOne) {
  const DropId counted = begin(DropRun::kCount), first = begin(), second = begin();
  while (w.core->turn(w.now)) continue;
  EXPECT_TRUE(w.core->take_dropped(second)->empty());
  EXPECT_EQ(w.core->take_dropped(counted)->at(0).blocks, kMany);
  EXPECT_EQ(w.core->take_dropped(first)->at(0).blocks, kMany);
}

// Whoever asks for drops knows their bound and answers that it is reached; cache/drops.h.
TEST_F(CoreDropTest, NoMoreThanTheirBoundWaitToBeTaken) {
  const auto begin = [&] { return w.core->begin_drop({}, DropRun::kCount, w.now); };
  const DropId first = begin();
  for (std::uint32_t i = 1; i < limits::kControlsWaiting; ++i) begin();
  while (w.core->turn(w.now)) continue;
  EXPECT_DEATH((void)begin(), "more drops than may wait");
  EXPECT_TRUE(w.core->take_dropped(first).has_value());
  begin();
}

TEST_F(CoreLargeDropTest, TheCoreMayEndBeforeTheDrop) {
  begin();
  w.core->turn(w.now);
  w.core.reset();
}

// ---- classes ----

TEST_F(CoreDropTest, AReadRetainsAndADiscoveryDoesNot) {
  save(0, 4);
  there(0, 4);
  EXPECT_EQ(w.core->stats().probationary.blocks, 4u);
  use(0, 2);
  const CoreStats stats = w.core->stats();
  EXPECT_EQ(stats.retained.blocks, 2u);
  EXPECT_EQ(stats.retained.bytes, 2 * slot_bytes());
  EXPECT_EQ(stats.probationary.blocks, 2u);
  EXPECT_EQ(stats.protected_share, 8 * kMiB);
  w.core->evict(2 * slot_bytes(), w.now);
  EXPECT_EQ(there(0, 4), 2u);
  EXPECT_EQ(w.core->stats().probationary.evicted, 2u);
}

class CoreClassesOffTest : public CoreDropTest {
 protected:
  CoreClassesOffTest() : CoreDropTest(options_of(0)) {}
};
TEST_F(CoreClassesOffTest, NothingIsRetained) {
  save(0, 4);
  use(0, 2);
  EXPECT_EQ(w.core->stats().retained.blocks, 0u);
  EXPECT_EQ(w.core->stats().probationary.blocks, 4u);
}

// ---- what publishes do ----

TEST_F(CoreDropTest, ActivityOfPublishesByInstance) {
  Engine other(w, {.instance = 2});
  const auto of = [&](int n) { return w.core->publish_activity(instance_id(n), w.now).value(); };
  EXPECT_FALSE(w.core->publish_activity(instance_id(9), w.now).has_value());
  const OperationKey first = w.next_op(e.worker), second = w.next_op(other.worker);
  ASSERT_TRUE(w.publish(first, e.registration, hashes(0, 3)).ok());
  wait(seconds(1));
  ASSERT_TRUE(w.publish(second, other.registration, hashes(0, 2)).ok());
  EXPECT_EQ(of(1).open, 1u);
  EXPECT_EQ(of(1).lent, 3 * slot_bytes());
  EXPECT_EQ(of(1).oldest, seconds(1));
  EXPECT_EQ(of(2).open, 0u);
  EXPECT_EQ(of(2).waiting, 1u);
  EXPECT_EQ(of(2).lent, ByteCount());
  w.commit(first);
  EXPECT_EQ(of(1).open, 0u);
  EXPECT_EQ(of(1).oldest, Duration());
  EXPECT_EQ(of(2).waiting, 0u) << "they are there now";
}

TEST_F(CoreDropTest, ActivityCountsWhatFoundNoMemory) {
  const std::uint64_t room = w.pool->free_bytes().value / slot_bytes().value;
  const OperationKey op = w.next_op(e.worker);
  const auto answer = w.publish(op, e.registration, hashes(0, room + 5));
  ASSERT_TRUE(answer.ok());
  ASSERT_GE(answer->dropped, 5u);
  EXPECT_EQ(w.core->publish_activity(instance_id(1), w.now)->dropped, answer->dropped);
}

}  // namespace
}  // namespace orbitkv::cache
