// Publishes through the whole core: filtering, waiting, sealing, eviction, bank space.
#include "cache/core_world_test.h"
#include "model/slot_image.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

TEST(CorePublish, GrantSealsAndBecomesVisible) {
  World w;
  Engine e(w);
  const OperationKey op = w.next_op(e.worker);
  const auto answer = w.publish(op, e.registration, hashes(0, 5));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->accepted, 5u);
  const model::Plan& plan = w.ports.granted.at(op);
  EXPECT_EQ(plan.kind, model::PlanKind::kSave);
  EXPECT_EQ(plan.slot_bytes, slot_bytes().value);
  ASSERT_EQ(plan.entries.size(), 5u);
  EXPECT_EQ(plan.entries[3].block, 3u);
  EXPECT_EQ(plan.entries[3].digest, 0u);
  EXPECT_EQ(w.used(), 5 * slot_bytes()) << "extents are lent before the grant can be claimed";
  EXPECT_EQ(w.discover(e.scheduler, hashes(0, 5)), 0u) << "in flight is not visible";
  w.commit(op);
  EXPECT_TRUE(w.ports.reaped.contains(op));
  EXPECT_EQ(w.discover(e.scheduler, hashes(0, 6)), 5u);
  EXPECT_EQ(w.core->stats().published, 5u);
  EXPECT_EQ(w.core->stats().published_bytes, 5 * slot_bytes().value);
  EXPECT_EQ(w.core->stats().operations, 0u);
}

// A Manager that has just started: whoever saves at once must not lose it.
TEST(CorePublish, WaitsForThePoolsFirstMemory) {
  WorldOptions options;
  options.being_made = true;
  World w(options);
  Engine e(w);
  const OperationKey op = w.next_op(e.worker);
  const auto answer = w.publish(op, e.registration, hashes(0, 3));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->waiting, 3u);
  EXPECT_EQ(answer->accepted + answer->dropped, 0u);
  w.core->tick(w.now);
  EXPECT_FALSE(w.ports.granted.contains(op) || w.ports.reaped.contains(op));
  w.have_memory();
  w.core->tick(w.now);
  ASSERT_TRUE(w.ports.granted.contains(op));
  EXPECT_EQ(w.ports.dropped.at(op).blocks, 0u);
  w.commit(op);
  EXPECT_EQ(w.discover(e.scheduler, hashes(0, 3)), 3u);
  EXPECT_EQ(w.core->stats().dropped, 0u);
}

TEST(CorePublish, WhatWaitsForMemoryTooLongIsDroppedAndTold) {
  WorldOptions options;
  options.being_made = true;
  World w(options);
  Engine e(w);
  const OperationKey op = w.next_op(e.worker);
  ASSERT_TRUE(w.publish(op, e.registration, hashes(0, 3)).ok());
  w.now = w.now + CoreConfig().publish_wait;
  w.core->tick(w.now);
  EXPECT_TRUE(w.ports.reaped.contains(op));
  EXPECT_EQ(w.ports.dropped.at(op).blocks, 3u);
  EXPECT_TRUE(w.ports.dropped.at(op).being_made);
  EXPECT_EQ(w.core->stats().operations, 0u);
}

TEST(CorePublish, ASaveIsToldHowManyBlocksFoundNoRoom) {
  WorldOptions options;
  options.pool = kMiB;
  World w(options);
  Engine e(w);
  const auto fit = static_cast<std::uint32_t>(kMiB.value / slot_bytes().value);
  const OperationKey op = w.next_op(e.worker), next = w.next_op(e.worker);
  ASSERT_TRUE(w.publish(op, e.registration, hashes(0, fit + 2)).ok());
  EXPECT_EQ(w.ports.granted.at(op).entries.size(), fit);
  EXPECT_EQ(w.ports.dropped.at(op).blocks, 2u);
  EXPECT_FALSE(w.ports.dropped.at(op).being_made);
  ASSERT_TRUE(w.publish(next, e.registration, hashes(1000, 1)).ok());
  EXPECT_TRUE(w.ports.reaped.contains(next));
  EXPECT_EQ(w.ports.dropped.at(next).blocks, 1u);
}

TEST(CorePublish, SeedBindsKeyShardAndRevision) {
  World w;
  Engine e(w);
  const OperationKey op = w.next_op(e.worker);
  ASSERT_TRUE(w.publish(op, e.registration, hashes(10, 1)).ok());
  const model::PlanEntry entry = w.ports.granted.at(op).entries[0];
  const model::SlotKey key{model::namespace_digest(rank_of({})), GroupId(0), hash_of(10), ShardId(0),
                           entry.revision};
  EXPECT_EQ(entry.seed, model::slot_seed(key));
}

TEST(CorePublish, FailedDrainReturnsExtentsAndHidesTheImage) {
  World w;
  Engine e(w);
  const OperationKey op = w.next_op(e.worker);
  ASSERT_TRUE(w.publish(op, e.registration, hashes(0, 3)).ok());
  w.drain_failed(op);
  EXPECT_EQ(w.used(), ByteCount(0));
  EXPECT_EQ(w.core->stats().inflight_images, 0u);
  EXPECT_EQ(w.discover(e.scheduler, hashes(0, 3)), 0u);
}

TEST(CorePublish, ReceiptWithTheWrongNumberOfDigestsIsAFailure) {
  World w;
  Engine e(w);
  const OperationKey op = w.next_op(e.worker);
  ASSERT_TRUE(w.publish(op, e.registration, hashes(0, 3)).ok());
  const std::vector<std::uint64_t> two{1, 2};
  DrainReport report;
  report.success = true;
  report.digests = two;
  w.core->drained(op, report, w.now);
  EXPECT_EQ(w.used(), ByteCount(0));
  EXPECT_TRUE(w.ports.reaped.contains(op));
}

TEST(CorePublish, ResidentAndRepeatedBlocksAreFiltered) {
  World w;
  Engine e(w);
  w.store(e.worker, e.registration, hashes(0, 4));
  auto list = hashes(2, 4);    // 2, 3 resident; 4, 5 new
  list.push_back(hash_of(4));  // repeated
  const OperationKey op = w.next_op(e.worker);
  const auto answer = w.publish(op, e.registration, list);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->resident, 3u);
  EXPECT_EQ(answer->accepted, 2u);
  ASSERT_EQ(w.ports.granted.at(op).entries.size(), 2u);
  EXPECT_EQ(w.ports.granted.at(op).entries[0].block, 2u) << "the first of a repeated pair is copied";
  EXPECT_EQ(w.core->stats().filtered, 3u);
}

TEST(CorePublish, NothingToCopyIsReapedAtOnce) {
  World w;
  Engine e(w);
  w.store(e.worker, e.registration, hashes(0, 2));
  const OperationKey op = w.next_op(e.worker);
  const auto answer = w.publish(op, e.registration, hashes(0, 2));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->resident, 2u);
  EXPECT_TRUE(w.ports.reaped.contains(op));
  EXPECT_EQ(w.core->stats().operations, 0u);
}

TEST(CorePublish, NonWriterHasNothingToCopy) {
  World w;
  const SessionId a = w.open(), b = w.open();
  w.join(a, {.rank = 0, .world = 2});
  const RegistrationId second = w.join(b, {.rank = 1, .world = 2});  // replicated, rank 0 writes
  const OperationKey op = w.next_op(b);
  const auto answer = w.publish(op, second, hashes(0, 3));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->resident, 3u);
  EXPECT_TRUE(w.ports.reaped.contains(op));
}

TEST(CorePublish, WaitsForAnotherPublisherHoldingNothing) {
  World w;
  Engine a(w), b(w, {.instance = 2});
  const OperationKey first = w.next_op(a.worker), second = w.next_op(b.worker);
  ASSERT_TRUE(w.publish(first, a.registration, hashes(0, 2)).ok());
  const ByteCount before = w.used();
  const auto answer = w.publish(second, b.registration, hashes(1, 3));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->waiting, 1u);
  EXPECT_EQ(answer->accepted, 2u);
  EXPECT_EQ(w.used(), before);
  EXPECT_FALSE(w.ports.granted.contains(second));
  w.commit(first);
  ASSERT_TRUE(w.ports.granted.contains(second)) << "goes on as soon as the other has ended";
  EXPECT_EQ(w.ports.granted.at(second).entries.size(), 2u) << "block 1 is resident by now";
}

TEST(CorePublish, WaiterTakesOverWhatTheFirstPublisherFailed) {
  for (const bool dies : {false, true}) {
    World w;
    Engine a(w), b(w, {.instance = 2});
    const OperationKey first = w.next_op(a.worker), second = w.next_op(b.worker);
    ASSERT_TRUE(w.publish(first, a.registration, hashes(0, 2)).ok());
    ASSERT_TRUE(w.publish(second, b.registration, hashes(1, 3)).ok());
    if (dies) {
      w.ports.claimed.insert(first);
      w.core->process_ended(a.worker, w.now);
    } else {
      w.drain_failed(first);
    }
    ASSERT_TRUE(w.ports.granted.contains(second));
    EXPECT_EQ(w.ports.granted.at(second).entries.size(), 3u);
    w.commit(second);
    EXPECT_EQ(w.discover(b.scheduler, hashes(1, 3), 2), 3u);
  }
}

TEST(CorePublish, OldestWaiterTakesOverAndTheNextWaitsForIt) {
  World w;
  Engine a(w), b(w, {.instance = 2}), c(w, {.instance = 3});
  const OperationKey first = w.next_op(a.worker), second = w.next_op(b.worker), third = w.next_op(c.worker);
  ASSERT_TRUE(w.publish(first, a.registration, hashes(0, 1)).ok());
  ASSERT_TRUE(w.publish(second, b.registration, hashes(0, 1)).ok());
  ASSERT_TRUE(w.publish(third, c.registration, hashes(0, 1)).ok());
  w.drain_failed(first);
  EXPECT_TRUE(w.ports.granted.contains(second));
  EXPECT_FALSE(w.ports.granted.contains(third));
  w.commit(second);
  EXPECT_TRUE(w.ports.reaped.contains(third)) << "resident by now: nothing to copy";
}

TEST(CorePublish, WaitingEndsAtItsDeadlineWithoutTheBlocks) {
  World w;
  Engine a(w), b(w, {.instance = 2});
  const OperationKey first = w.next_op(a.worker), second = w.next_op(b.worker), third = w.next_op(b.worker);
  ASSERT_TRUE(w.publish(first, a.registration, hashes(0, 2)).ok());
  ASSERT_TRUE(w.publish(second, b.registration, hashes(1, 3)).ok());
  ASSERT_TRUE(w.publish(third, b.registration, hashes(0, 2)).ok());
  w.now = w.now + milliseconds(1999);
  w.core->tick(w.now);
  EXPECT_FALSE(w.ports.granted.contains(second));
  w.now = w.now + milliseconds(1);
  w.core->tick(w.now);
  ASSERT_TRUE(w.ports.granted.contains(second));
  EXPECT_EQ(w.ports.granted.at(second).entries.size(), 2u);
  EXPECT_TRUE(w.ports.reaped.contains(third)) << "nothing but others' blocks";
  w.commit(first);  // wakes nobody any more
  EXPECT_EQ(w.core->stats().waits, 2u);
}

TEST(CorePublish, CrossedPublishesDoNotWaitForEachOther) {
  World w;
  Engine a(w), b(w, {.instance = 2});
  const OperationKey x = w.next_op(a.worker), y = w.next_op(b.worker), back = w.next_op(a.worker);
  ASSERT_TRUE(w.publish(x, a.registration, hashes(0, 2)).ok());
  ASSERT_TRUE(w.publish(y, b.registration, hashes(1, 3)).ok());     // waits for x, holds nothing
  ASSERT_TRUE(w.publish(back, a.registration, hashes(3, 1)).ok());  // not in flight: granted at once
  EXPECT_TRUE(w.ports.granted.contains(back));
}

struct TwoShards {
  explicit TwoShards(const WorldOptions& options = {}) : w(options) {}
  World w;
  SessionId s0 = w.open(), s1 = w.open(), scheduler = w.open();
  RegistrationId r0 = w.join(s0, {.rank = 0, .world = 2, .shards = 2});
  RegistrationId r1 = w.join(s1, {.rank = 1, .world = 2, .shards = 2});
};

TEST(CorePublish, ABlockSealsWhenEveryShardHasCommitted) {
  TwoShards t;
  const OperationKey a = t.w.next_op(t.s0), b = t.w.next_op(t.s1);
  ASSERT_TRUE(t.w.publish(a, t.r0, hashes(0, 2)).ok());
  ASSERT_TRUE(t.w.publish(b, t.r1, hashes(0, 2)).ok());
  ASSERT_TRUE(t.w.ports.granted.contains(b)) << "another shard is not another publisher";
  EXPECT_NE(t.w.ports.granted.at(a).entries[0].revision, t.w.ports.granted.at(b).entries[0].revision);
  t.w.commit(b);
  EXPECT_EQ(t.w.discover(t.scheduler, hashes(0, 2)), 0u);
  t.w.commit(a);
  EXPECT_EQ(t.w.discover(t.scheduler, hashes(0, 2)), 2u);
  EXPECT_EQ(t.w.core->stats().blocks, 2u);
  EXPECT_EQ(t.w.used(), 4 * slot_bytes());
  t.w.core->evict(kGiB, t.w.now);
  EXPECT_EQ(t.w.used(), ByteCount(0)) << "all shards go together";
}

TEST(CorePublish, ACommittedShardIsResidentForItsPublisherAndTheOtherMayComeFromAnyInstance) {
  TwoShards t;
  t.w.store(t.s0, t.r0, hashes(0, 1));
  const OperationKey again = t.w.next_op(t.s0);
  const auto answer = t.w.publish(again, t.r0, hashes(0, 1));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->resident, 1u) << "committed, though the image is incomplete";
  // Another instance of the same namespace brings the missing shard.
  const SessionId u0 = t.w.open(), u1 = t.w.open();
  t.w.join(u0, {.instance = 2, .rank = 0, .world = 2, .shards = 2});
  const RegistrationId q1 = t.w.join(u1, {.instance = 2, .rank = 1, .world = 2, .shards = 2});
  t.w.store(u1, q1, hashes(0, 1));
  EXPECT_EQ(t.w.discover(t.scheduler, hashes(0, 1)), 1u);
}

TEST(CorePublish, IncompleteImagesAreAbandonedAfterTheirTime) {
  TwoShards t;
  t.w.store(t.s0, t.r0, hashes(0, 2));
  t.w.now = t.w.now + seconds(30);
  t.w.store(t.s0, t.r0, hashes(2, 1));
  const OperationKey open = t.w.next_op(t.s1);
  ASSERT_TRUE(t.w.publish(open, t.r1, hashes(1, 1)).ok());  // block 1 has an open grant
  t.w.now = t.w.now + seconds(31);
  t.w.core->tick(t.w.now);
  EXPECT_EQ(t.w.core->stats().abandoned, 1u) << "block 0 alone: 1 has a grant, 2 is young";
  EXPECT_EQ(t.w.used(), 3 * slot_bytes());
  t.w.commit(open);
  EXPECT_EQ(t.w.discover(t.scheduler, hashes(1, 1)), 1u);
}

TEST(CorePublish, FailedShardLeavesWhatOthersCommitted) {
  TwoShards t;
  t.w.store(t.s0, t.r0, hashes(0, 1));
  const OperationKey op = t.w.next_op(t.s1);
  ASSERT_TRUE(t.w.publish(op, t.r1, hashes(0, 1)).ok());
  t.w.drain_failed(op);
  EXPECT_EQ(t.w.used(), slot_bytes());
  t.w.store(t.s1, t.r1, hashes(0, 1));
  EXPECT_EQ(t.w.discover(t.scheduler, hashes(0, 1)), 1u);
}

WorldOptions small_pool(std::uint64_t slots) {
  WorldOptions o;
  o.pool = 4 * kMiB;
  o.core.eviction_batch = ByteCount(1);
  o.core.max_blocks = static_cast<std::uint32_t>(slots);
  return o;
}

TEST(CorePublish, FullPoolEvictsTheLeastRecent) {
  WorldOptions o;
  o.pool = 4 * kMiB;
  o.core.eviction_batch = ByteCount(1);
  World w(o);
  Engine e(w);
  const std::uint64_t fit = o.pool.value / slot_bytes().value;
  for (std::uint64_t i = 0; i < fit; ++i) w.store(e.worker, e.registration, hashes(i, 1));
  EXPECT_EQ(w.core->stats().evicted, 0u);
  EXPECT_EQ(w.discover(e.scheduler, hashes(0, 1)), 1u);  // discovery refreshes nothing
  const QueryAnswer touched = w.read(e.scheduler, hashes(1, 1), "r");
  ASSERT_TRUE(w.core->release(e.scheduler, touched.lease).ok());
  w.store(e.worker, e.registration, hashes(fit, 2));
  EXPECT_EQ(w.core->stats().evicted, 2u);
  EXPECT_EQ(w.discover(e.scheduler, hashes(0, 1)), 0u);
  EXPECT_EQ(w.discover(e.scheduler, hashes(1, 1)), 1u) << "a read made it recent";
  EXPECT_EQ(w.discover(e.scheduler, hashes(2, 1)), 0u);
}

TEST(CorePublish, FullTableEvictsToo) {
  World w(small_pool(4));
  Engine e(w);
  w.store(e.worker, e.registration, hashes(0, 4));
  w.store(e.worker, e.registration, hashes(4, 2));
  EXPECT_EQ(w.core->stats().blocks, 4u);
  // The tail of the first prefix went before its head.
  EXPECT_EQ(w.discover(e.scheduler, hashes(0, 4)), 2u);
}

// Lending evicts several images at once, and they may be resident blocks of the same
// request whose records nobody has taken again.
TEST(CorePublish, BlocksOfARequestThatItsOwnLendingEvictsAreLeftOut) {
  WorldOptions o;
  o.pool = 4 * kMiB;
  o.core.eviction_batch = 16 * slot_bytes();
  TwoShards t(o);
  const std::uint64_t fit = o.pool.value / slot_bytes().value / 2;
  t.w.store(t.s0, t.r0, hashes(0, fit));
  t.w.store(t.s1, t.r1, hashes(0, fit));
  const std::uint64_t resident = t.w.core->stats().blocks;
  auto list = hashes(1000, 4);
  for (const BlockHash& old : hashes(0, fit)) list.push_back(old);
  const OperationKey op = t.w.next_op(t.s1);
  const auto answer = t.w.publish(op, t.r1, list);
  ASSERT_TRUE(answer.ok());
  EXPECT_GT(t.w.core->stats().evicted, 4u) << "the case needs records that are free";
  EXPECT_EQ(answer->resident, resident);
  ASSERT_EQ(t.w.ports.granted.at(op).entries.size(), 4u);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(t.w.ports.granted.at(op).entries[i].block, i);
  t.w.commit(op);
  t.w.store(t.s0, t.r0, hashes(1000, 4));
  EXPECT_EQ(t.w.discover(t.scheduler, hashes(1000, 4)), 4u);
}

TEST(CorePublish, BlocksAreDroppedWhenNothingCanBeEvicted) {
  World w(small_pool(4));
  Engine e(w);
  w.store(e.worker, e.registration, hashes(0, 3));
  const QueryAnswer lease = w.read(e.scheduler, hashes(0, 3), "r");
  ASSERT_EQ(lease.hit_blocks, 3u);
  const OperationKey op = w.next_op(e.worker);
  const auto answer = w.publish(op, e.registration, hashes(10, 3));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->accepted, 1u);
  EXPECT_EQ(answer->dropped, 2u);
  EXPECT_EQ(w.ports.granted.at(op).entries.size(), 1u);
  EXPECT_EQ(w.discover(e.scheduler, hashes(0, 3)), 3u);
}

TEST(CorePublish, BankFullWaitsInOrder) {
  World w;
  w.ports.bank_plans = 1;
  Engine e(w);
  const OperationKey a = w.next_op(e.worker), b = w.next_op(e.worker), c = w.next_op(e.worker);
  ASSERT_TRUE(w.publish(a, e.registration, hashes(0, 1)).ok());
  ASSERT_TRUE(w.publish(b, e.registration, hashes(1, 1)).ok());
  w.ports.bank_plans = 2;
  ASSERT_TRUE(w.publish(c, e.registration, hashes(2, 1)).ok());
  EXPECT_FALSE(w.ports.granted.contains(c)) << "an older operation waits";
  w.ports.bank_plans = 1;
  w.commit(a);
  w.core->bank_freed(e.worker, w.now);
  EXPECT_TRUE(w.ports.granted.contains(b));
  EXPECT_FALSE(w.ports.granted.contains(c));
  w.commit(b);
  w.core->bank_freed(e.worker, w.now);
  EXPECT_TRUE(w.ports.granted.contains(c));
  EXPECT_EQ(w.core->stats().waits, 2u);
}

TEST(CorePublish, WrongInputIsRefusedAndHoldsNothing) {
  World w;
  Engine e(w), other(w, {.instance = 2});
  const auto list = hashes(0, 2);
  const std::vector<std::uint32_t> outside{0, 10000};
  const OperationKey op = w.next_op(e.worker);
  EXPECT_EQ(code_of(w.core->publish({op, e.registration, GroupId(0), outside, list}, w.now)), Code::kReject);
  EXPECT_EQ(code_of(w.core->publish({op, e.registration, GroupId(0), blocks(0, 1), list}, w.now)),
            Code::kReject);
  EXPECT_EQ(code_of(w.core->publish({op, e.registration, GroupId(9), blocks(0, 2), list}, w.now)),
            Code::kReject);
  EXPECT_EQ(code_of(w.publish(op, other.registration, list)), Code::kReject)
      << "another session's registration";
  EXPECT_EQ(code_of(w.publish(op, e.registration, hashes(0, 8193))), Code::kReject);
  const OperationKey beyond{e.worker, RecordIndex(1024), OperationId(1)};
  EXPECT_EQ(code_of(w.publish(beyond, e.registration, list)), Code::kReject);
  ASSERT_TRUE(w.publish(op, e.registration, list).ok());
  EXPECT_EQ(code_of(w.publish({op.session, op.record, OperationId(99)}, e.registration, hashes(5, 1))),
            Code::kReject)
      << "the record holds an open operation";
  w.drain_failed(op);
  EXPECT_EQ(w.core->stats().operations, 0u);
  EXPECT_EQ(w.used(), ByteCount(0));
  EXPECT_TRUE(w.ports.failed.empty()) << "the caller ends the record of a refused command";
}

TEST(CorePublish, SessionMetadataIsBounded) {
  World w;
  w.ports.bank_plans = 0;
  Engine e(w), other(w, {.instance = 2});
  w.store(other.worker, other.registration, hashes(0, 0));
  Result<PublishAnswer> last = PublishAnswer{};
  int accepted = 0;
  const auto list = hashes(0, 8192);  // 288 KiB of list each; the pool holds a part of them
  while (accepted < 1024 && (last = w.publish(w.next_op(e.worker), e.registration, list)).ok()) ++accepted;
  EXPECT_EQ(code_of(last), Code::kBusy);
  EXPECT_EQ(accepted, 64 * 1024 * 1024 / (36 * 8192));
  EXPECT_TRUE(w.publish(w.next_op(other.worker), other.registration, hashes(0, 1)).ok()) << "per session";
}

TEST(CorePublish, UnknownReceiptChangesNothing) {
  World w;
  Engine e(w);
  const OperationKey op = w.next_op(e.worker);
  ASSERT_TRUE(w.publish(op, e.registration, hashes(0, 1)).ok());
  w.drain_failed({op.session, op.record, OperationId(77)});
  w.drain_failed({SessionId(63), RecordIndex(5), OperationId(1)});
  EXPECT_TRUE(w.ports.granted.contains(op));
  EXPECT_EQ(w.core->stats().operations, 1u);
}

}  // namespace
}  // namespace orbitkv::cache
