// Several processes and ranks on one Manager: shards, one writer, duplicates, eviction.
#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/native/engine.h"
#include "tests/native/processes.h"

namespace orbitkv::test {
namespace {

std::string hex(const LeaseId& lease) {
  std::string text;
  for (std::byte b : lease.bytes) text += format_text("%02x", static_cast<unsigned>(b));
  return text;
}

Process rank_of(const Manager& manager, int rank, const std::string& more) {
  return start_helper({"engine", "socket=" + manager.socket(), "world=2", "instance=7",
                       "rank=" + std::to_string(rank), more,
                       rank == 1 && more == "shards=1" ? "writer=0" : "writer=1",
                       "shard=" + std::to_string(more == "shards=2" ? rank : 0)});
}

client::Outcome query(Engine& engine, std::uint32_t count, client::Ready& ready) {
  static int request = 0;
  return engine.client().query_prefetch(instance_of(7), hashes_of(50, count), "t" + std::to_string(request++),
                                        0, ready);
}

TEST(Sharing, ABlockIsVisibleWhenBothShardsHaveCommitted) {
  Manager manager;
  Engine scheduler({.socket = manager.socket(), .shape = {}, .instance = 7});
  ASSERT_TRUE(scheduler.client().wait_connected(kDoneWithinMs).ok());
  client::Ready ready;
  auto first = rank_of(manager, 0, "shards=2");
  ASSERT_EQ(first.line(), "ready ");
  const auto early = query(scheduler, 6, ready);
  EXPECT_EQ(early.action, client::Action::kRetry) << early.message;  // one rank of two
  auto second = rank_of(manager, 1, "shards=2");
  ASSERT_EQ(second.line(), "ready ");

  first.say("save 0 50 6");
  ASSERT_EQ(first.line(), "saved 1 6 0 0 ");
  ASSERT_EQ(manager.settle("published", 6), 6u);
  ASSERT_TRUE(query(scheduler, 6, ready).ok());
  EXPECT_EQ(ready.hit_blocks, 0u);
  second.say("save 0 50 4");
  ASSERT_EQ(second.line(), "saved 1 4 0 0 ");
  ASSERT_EQ(manager.settle("blocks", 4), 4u);
  ASSERT_TRUE(query(scheduler, 6, ready).ok());
  ASSERT_EQ(ready.hit_blocks, 4u);

  // Each rank takes its shard from the one lease.
  for (auto* rank : {&first, &second}) {
    rank->say("lease " + hex(ready.lease) + " 30 50 4");
    EXPECT_EQ(rank->line(), "restored 1 4 4 0 ");
  }
  first.say("lease " + hex(ready.lease) + " 30 50 4");
  const auto again = first.line();
  EXPECT_TRUE(again && again->starts_with("restored 0 0 ")) << *again;  // a rank takes its shard once
  EXPECT_EQ(manager.settle("leases", 0), 0u);
}

TEST(Sharing, AReplicatedGroupIsWrittenByItsWriterAndReadByAll) {
  Manager manager;
  Engine scheduler({.socket = manager.socket(), .shape = {}, .instance = 7});
  ASSERT_TRUE(scheduler.client().wait_connected(kDoneWithinMs).ok());
  auto writer = rank_of(manager, 0, "shards=1"), reader = rank_of(manager, 1, "shards=1");
  ASSERT_EQ(writer.line(), "ready ");
  ASSERT_EQ(reader.line(), "ready ");
  reader.say("save 0 50 4");
  EXPECT_EQ(reader.line(), "saved 1 0 0 0 ");
  client::Ready ready;
  ASSERT_TRUE(query(scheduler, 4, ready).ok());
  EXPECT_EQ(ready.hit_blocks, 0u);
  writer.say("save 0 50 4");
  EXPECT_EQ(writer.line(), "saved 1 4 0 0 ");
  ASSERT_EQ(manager.settle("blocks", 4), 4u);
  ASSERT_TRUE(query(scheduler, 4, ready).ok());
  for (auto* rank : {&writer, &reader}) {
    rank->say("lease " + hex(ready.lease) + " 30 50 4");
    EXPECT_EQ(rank->line(), "restored 1 4 4 0 ");
  }
}

TEST(Sharing, WhatAnotherInstancePublishedIsFilteredBeforeAnyCopy) {
  Manager manager;
  Engine one({.socket = manager.socket(), .shape = {}, .instance = 1});
  Engine two({.socket = manager.socket(), .shape = {}, .instance = 2});
  Engine other({.socket = manager.socket(), .shape = {}, .instance = 3, .name_space = "another model"});
  for (auto* engine : {&one, &two, &other}) ASSERT_EQ(engine->connect().message, "");
  ASSERT_EQ(one.save(0, 1, 10).blocks, 10u);
  ASSERT_EQ(manager.settle("blocks", 10), 10u);
  const auto used = manager.status()["pool.used"];
  const auto again = two.save(0, 1, 12);  // ten of twelve are there
  EXPECT_TRUE(again.success);
  EXPECT_EQ(again.blocks, 2u);
  ASSERT_EQ(manager.settle("blocks", 12), 12u);
  EXPECT_EQ(manager.status()["filtered"], 10u);
  EXPECT_EQ(manager.status()["pool.used"], used / 10 * 12);
  EXPECT_EQ(two.restore(30, 1, 12).wrong, 0u);
  // Equal hashes of another namespace are other bytes.
  EXPECT_EQ(other.restore(30, 1, 12).hits, 0u);
}

TEST(Sharing, APoolSmallerThanTheWorkingSetEvictsTheLeastRecentAndNeverALease) {
  Manager manager({"--pool-size", "16MiB"});
  const Shape shape{.layers = 4, .row_bytes = 16384, .blocks = 256};  // 256 blocks do not fit
  Engine engine({.socket = manager.socket(), .shape = shape});
  ASSERT_EQ(engine.connect().message, "");
  ASSERT_TRUE(engine.save(0, 1, 16).success);
  ASSERT_EQ(manager.settle("blocks", 16), 16u);
  client::Ready ready;
  ASSERT_TRUE(engine.lease(1, 16, ready).ok());
  ASSERT_EQ(ready.hit_blocks, 16u);
  for (std::uint32_t round = 0; round < 12; ++round) {
    const auto saved = engine.save(32, 1000 + round * 64, 64);
    ASSERT_TRUE(saved.success) << saved.message;
    ASSERT_EQ(saved.blocks, 64u) << "round " << round;
  }
  ASSERT_EQ(manager.settle("published", 16 + 12 * 64), 16u + 12 * 64);
  EXPECT_GT(manager.status()["evicted"], 500u);
  EXPECT_EQ(engine.restore(32, 1000, 64).hits, 0u);            // the oldest
  const auto newest = engine.restore(32, 1000 + 11 * 64, 64);  // the newest
  EXPECT_EQ(newest.hits, 64u);
  EXPECT_EQ(newest.wrong, 0u);
  const auto blocks = blocks_of(200, 16);
  engine.wipe();
  const auto kept = engine.restore_from(ready.lease, blocks);
  ASSERT_TRUE(kept.success) << kept.message;
  for (std::uint32_t i = 0; i < 16; ++i) EXPECT_EQ(engine.wrong_bytes(blocks[i], hash_of(1 + i)), 0u);
}

// Leases may take the whole pool: a save then copies nothing, and says so by its count.
TEST(Sharing, ASaveIntoAPoolFullOfLeasesIsDroppedNotFailed) {
  Manager manager({"--pool-size", "4MiB"});
  const Shape shape{.layers = 4, .row_bytes = 16384, .blocks = 128};
  Engine engine({.socket = manager.socket(), .shape = shape});
  ASSERT_EQ(engine.connect().message, "");
  ASSERT_TRUE(engine.save(0, 1, 64).success);
  const auto stored =
      static_cast<std::uint32_t>(manager.settle("operations", 0) + manager.status()["blocks"]);
  ASSERT_GT(stored, 50u);
  client::Ready ready;
  ASSERT_TRUE(engine.lease(1, 64, ready).ok());
  ASSERT_EQ(ready.hit_blocks, stored);
  const auto more = engine.save(64, 500, 8);
  EXPECT_TRUE(more.success) << more.message;
  EXPECT_EQ(more.blocks, 0u);
  EXPECT_GE(manager.status()["dropped"], 8u);
  ASSERT_TRUE(engine.client().release(ready.lease).ok());
  EXPECT_EQ(engine.save(64, 500, 8).blocks, 8u);
}

}  // namespace
}  // namespace orbitkv::test
