// Slabs that retire under a core in use: what stands on them in every state, and that
// nothing waits for an engine that never answers.
#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

constexpr SlabSlot kFirst{0};

// Two slabs; extents come from the first until it is full, then from the second.
struct Slabs {
  explicit Slabs(WorldOptions options = {}) : w(with_pool(options, &tier)) {}
  ~Slabs() { tier.under_way.clear(); }
  static WorldOptions with_pool(WorldOptions options, ScriptedTier* tier) {
    options.pool = kMiB;
    options.tier = tier;
    return options;
  }
  void add_slab() {
    EXPECT_TRUE(w.pool->add(kMiB).ok());
    w.pool->collect_offered();
  }
  void turns() {
    while (w.core->retire_turn(w.now)) {
    }
  }
  void retire(SlabSlot slab = kFirst) {
    const Status begun = w.core->retire_slab(slab, w.now);
    ASSERT_TRUE(begun.ok()) << begun.error().message();
    turns();
  }
  void wait(Duration d) {
    w.now = w.now + d;
    w.core->tick(w.now);
    turns();
  }
  RetireState state() const { return w.core->retiring().state; }
  // As many blocks as the first slab has left room for.
  std::uint64_t room() const { return w.pool->free_bytes().value / slot_bytes().value; }

  ScriptedTier tier;
  World w;
};

std::vector<std::uint32_t> targets(std::uint32_t n) {
  return blocks(100, n);
}

TEST(CoreRetire, ImagesGoOutOfSightAndTheSlabDrains) {
  Slabs s;
  Engine e(s.w);
  s.w.store(e.worker, e.registration, hashes(1, 20));
  s.add_slab();
  s.retire();
  EXPECT_EQ(s.state(), RetireState::kDrained);
  EXPECT_EQ(s.w.discover(e.scheduler, hashes(1, 20)), 0u);
  EXPECT_EQ(s.w.core->retire_stats().images, 20u);
  EXPECT_EQ(s.w.used(), ByteCount(0));
  EXPECT_EQ(s.w.core->retire_slab(SlabSlot(1), s.w.now).error().code(), Code::kBusy);
  s.w.core->abandon_slab();
  EXPECT_EQ(s.state(), RetireState::kIdle);
  EXPECT_EQ(s.w.core->retire_slab(kFirst, s.w.now).error().code(), Code::kReject);
  s.w.store(e.worker, e.registration, hashes(1, 20));
  EXPECT_EQ(s.w.discover(e.scheduler, hashes(1, 20)), 20u);
}

TEST(CoreRetire, WhatIsWorthStoringIsStoredFirst) {
  Slabs s;
  s.tier.at_leave = Tier::Answer::kStore;
  s.tier.most_stores = 4;
  Engine e(s.w);
  s.w.store(e.worker, e.registration, hashes(1, 6));
  s.retire();
  EXPECT_EQ(s.state(), RetireState::kImages) << "the tier takes no more now";
  EXPECT_EQ(s.tier.count(false), 4u);
  while (const auto id = s.tier.oldest(false)) {
    s.tier.end(*id, true);
    s.w.core->stored(*id, true, s.w.now);
    s.turns();
  }
  EXPECT_EQ(s.state(), RetireState::kDrained);
  EXPECT_EQ(s.tier.records.size(), 6u);
  EXPECT_EQ(s.w.used(), ByteCount(0));
}

TEST(CoreRetire, ATierThatTakesNothingIsNotWaitedForLong) {
  Slabs s;
  s.tier.at_leave = Tier::Answer::kStore;
  s.tier.most_stores = 2;
  Engine e(s.w);
  s.w.store(e.worker, e.registration, hashes(1, 6));
  s.retire();
  s.wait(seconds(1));
  EXPECT_EQ(s.state(), RetireState::kImages);
  s.wait(seconds(2));
  EXPECT_EQ(s.state(), RetireState::kDevice) << "what the device reads keeps its place";
  EXPECT_EQ(s.w.used(), 2 * slot_bytes());
  while (const auto id = s.tier.oldest(false)) {
    s.tier.end(*id, true);
    s.w.core->stored(*id, true, s.w.now);
  }
  s.turns();
  EXPECT_EQ(s.state(), RetireState::kDrained);
}

TEST(CoreRetire, ALeaseKeepsRecordsAndNoBytes) {
  Slabs s;
  Engine e(s.w);
  s.w.store(e.worker, e.registration, hashes(1, 8));
  const LeaseId lease = s.w.read(e.scheduler, hashes(1, 8), "a").lease;
  ASSERT_TRUE(lease);
  s.add_slab();
  s.retire();
  EXPECT_EQ(s.state(), RetireState::kDrained);
  EXPECT_EQ(s.w.core->stats().leased, ByteCount(0));
  s.w.core->abandon_slab();
  // Its place is taken, and the old lease finds none of the new bytes.
  s.w.store(e.worker, e.registration, hashes(1, 8));
  const OperationKey op = s.w.next_op(e.worker);
  EXPECT_EQ(code_of(s.w.restore(op, e.registration, lease, targets(8))), Code::kRecompute);
  const LeaseId again = s.w.read(e.scheduler, hashes(1, 8), "b").lease;
  EXPECT_EQ(code_of(s.w.restore(s.w.next_op(e.worker), e.registration, again, targets(8))), Code::kOk);
  EXPECT_TRUE(s.w.core->release(e.scheduler, lease).ok());
}

// A save and a restore of one engine, both granted, on the only slab.
struct Copies {
  explicit Copies(Slabs& s) : e(s.w), save(s.w.next_op(e.worker)), load(s.w.next_op(e.worker)) {
    s.w.store(e.worker, e.registration, hashes(1, 4));
    const LeaseId lease = s.w.read(e.scheduler, hashes(1, 4), "a").lease;
    EXPECT_TRUE(s.w.publish(save, e.registration, hashes(50, 4)).ok());
    EXPECT_TRUE(s.w.restore(load, e.registration, lease, targets(4)).ok());
  }
  Engine e;
  OperationKey save, load;
};

TEST(CoreRetire, AnEngineThatComesWhileNoSlabIsInUseFindsMemoryWhenOneIs) {
  Slabs s;
  s.retire();
  Engine e(s.w);
  s.w.store(e.worker, e.registration, hashes(1, 4));
  EXPECT_EQ(s.w.discover(e.scheduler, hashes(1, 4)), 0u);
  s.add_slab();
  s.w.store(e.worker, e.registration, hashes(1, 4));
  EXPECT_EQ(s.w.discover(e.scheduler, hashes(1, 4)), 4u);
}

TEST(CoreRetire, HowLargeBlocksMayBeFollowsTheSlabsThatAreThere) {
  Slabs s;
  const SessionId worker = s.w.open();
  const auto large = rank_of({.fragment_bytes = kMiB.value});
  EXPECT_EQ(code_of(s.w.core->register_rank(worker, large, s.w.now)), Code::kReject);
  EXPECT_TRUE(s.w.pool->add(4 * kMiB).ok());
  s.w.pool->collect_offered();
  EXPECT_TRUE(s.w.core->register_rank(worker, large, s.w.now).ok());
}

TEST(CoreRetire, AnUnclaimedGrantIsRevoked) {
  Slabs s;
  const Copies c(s);
  s.retire();
  EXPECT_EQ(s.state(), RetireState::kDrained);
  EXPECT_EQ(s.w.ports.revoked.at(c.save), Code::kRecompute);
  EXPECT_EQ(s.w.ports.revoked.at(c.load), Code::kRecompute);
  EXPECT_EQ(s.w.core->retire_stats().revoked, 2u);
  EXPECT_EQ(s.w.core->stats().operations, 0u);
}

TEST(CoreRetire, AGrantThatWaitsForTheBankFails) {
  Slabs s;
  s.w.ports.bank_plans = 1;
  Engine e(s.w);
  const OperationKey first = s.w.next_op(e.worker), second = s.w.next_op(e.worker);
  ASSERT_TRUE(s.w.publish(first, e.registration, hashes(1, 4)).ok());
  ASSERT_TRUE(s.w.publish(second, e.registration, hashes(50, 4)).ok());
  s.w.ports.claimed.insert(first);
  s.retire();
  EXPECT_EQ(s.w.ports.failed.at(second), Code::kRecompute);
  EXPECT_EQ(s.state(), RetireState::kClaims);
  s.w.commit(first);
  s.turns();
  EXPECT_EQ(s.state(), RetireState::kDrained);
}

TEST(CoreRetire, AClaimedCopyThatEndsInTimeIsNotMissed) {
  Slabs s;
  const Copies c(s);
  s.w.ports.claimed = {c.save, c.load};
  s.retire();
  EXPECT_EQ(s.state(), RetireState::kClaims);
  EXPECT_EQ(s.w.core->retiring_claims(c.e.worker), 2u);
  EXPECT_EQ(s.w.core->retiring_claims(c.e.scheduler), 0u);
  s.w.verified(c.load);
  s.turns();
  EXPECT_EQ(s.w.core->stats().restored, 4u);
  EXPECT_EQ(s.state(), RetireState::kClaims);
  s.w.commit(c.save);
  s.turns();
  EXPECT_EQ(s.state(), RetireState::kDrained);
  EXPECT_EQ(s.w.discover(c.e.scheduler, hashes(50, 4)), 0u) << "nothing commits on a slab that retires";
  EXPECT_EQ(s.w.core->stats().quarantined, ByteCount(0));
}

TEST(CoreRetire, AReceiptThatWasOnItsWayDoesNotSealThere) {
  Slabs s;
  Engine e(s.w);
  const OperationKey save = s.w.next_op(e.worker);
  ASSERT_TRUE(s.w.publish(save, e.registration, hashes(50, 4)).ok());
  s.w.ports.claimed.insert(save);
  ASSERT_TRUE(s.w.core->retire_slab(kFirst, s.w.now).ok());
  s.w.commit(save);
  EXPECT_EQ(s.w.discover(e.scheduler, hashes(50, 4)), 0u);
  s.turns();
  EXPECT_EQ(s.state(), RetireState::kDrained);
}

TEST(CoreRetire, ASaveThatNeverEndsIsLeftAloneAndQuarantined) {
  Slabs s;
  Engine e(s.w), other(s.w, {.instance = 2});
  const OperationKey save = s.w.next_op(e.worker);
  ASSERT_TRUE(s.w.publish(save, e.registration, hashes(1, 4)).ok());
  s.w.ports.claimed.insert(save);
  s.add_slab();
  s.retire();
  s.wait(seconds(1));
  EXPECT_EQ(s.state(), RetireState::kClaims);
  // Whoever waits for these blocks may save them as soon as the slab goes on without the claim.
  const OperationKey waits = s.w.next_op(other.worker);
  ASSERT_EQ(s.w.publish(waits, other.registration, hashes(1, 4))->waiting, 4u);
  s.wait(milliseconds(1100));
  EXPECT_EQ(s.state(), RetireState::kDrained);
  EXPECT_EQ(s.w.core->stats().quarantined, 4 * slot_bytes());
  EXPECT_TRUE(s.w.ports.granted.contains(waits));
  s.w.core->abandon_slab();
  EXPECT_EQ(s.w.core->stats().quarantined, ByteCount(0));
  s.w.commit(waits);
  EXPECT_EQ(s.w.discover(e.scheduler, hashes(1, 4)), 4u);
  // It wakes up: its receipt keeps nothing and harms nothing.
  s.w.commit(save);
  EXPECT_TRUE(s.w.ports.reaped.contains(save));
  EXPECT_EQ(s.w.core->stats().published, 4u);
  EXPECT_EQ(s.w.core->stats().operations, 0u);
}

TEST(CoreRetire, AnOrphanEndsWithItsProcess) {
  for (const std::uint32_t at_once : {limits::kUnpinsPerTurn, 1u}) {
    SCOPED_TRACE(at_once);
    WorldOptions options;
    options.core.turn_unpins = at_once;
    Slabs s(options);
    const Copies c(s);
    s.w.ports.claimed = {c.save, c.load};
    s.retire();
    s.wait(seconds(3));
    ASSERT_EQ(s.state(), RetireState::kDrained);
    s.w.core->abandon_slab();
    s.w.core->close_session(c.e.worker, s.w.now);
    EXPECT_FALSE(s.w.core->session_gone(c.e.worker));
    s.w.core->process_ended(c.e.worker, s.w.now);
    for (int turns = 0; s.w.core->turn(s.w.now) && turns < 100; ++turns) continue;
    EXPECT_TRUE(s.w.core->session_gone(c.e.worker));
    EXPECT_EQ(s.w.used(), ByteCount(0));
  }
}

TEST(CoreRetire, OnlyWhatLiesOnTheSlabIsTakenFromAClaimedSave) {
  Slabs s;
  Engine e(s.w);
  const std::uint64_t fill = s.room() - 2;
  s.w.store(e.worker, e.registration, hashes(1000, fill));
  s.add_slab();
  const OperationKey save = s.w.next_op(e.worker);
  ASSERT_TRUE(s.w.publish(save, e.registration, hashes(1, 6)).ok());
  std::set<std::uint32_t> names;
  for (const auto& entry : s.w.ports.granted.at(save).entries) names.insert(entry.slab.value);
  ASSERT_EQ(names.size(), 2u);
  s.w.ports.claimed.insert(save);
  s.retire();
  s.wait(seconds(3));
  ASSERT_EQ(s.state(), RetireState::kDrained);
  const ByteCount lost = s.w.core->stats().quarantined;
  EXPECT_GT(lost, ByteCount(0));
  EXPECT_LT(lost, 6 * slot_bytes());
  s.w.core->abandon_slab();
  s.w.commit(save);
  EXPECT_EQ(s.w.core->stats().blocks, 6 - lost.value / slot_bytes().value);
  EXPECT_EQ(s.w.core->stats().quarantined, ByteCount(0));
}

TEST(CoreRetire, SourcesOnOtherSlabsStayPinnedForAClaimedRestore) {
  Slabs s;
  Engine e(s.w);
  const std::uint64_t fill = s.room() - 2;
  s.w.store(e.worker, e.registration, hashes(1000, fill));
  s.add_slab();
  s.w.store(e.worker, e.registration, hashes(1, 6));
  const LeaseId lease = s.w.read(e.scheduler, hashes(1, 6), "a").lease;
  const OperationKey load = s.w.next_op(e.worker);
  ASSERT_TRUE(s.w.restore(load, e.registration, lease, targets(6)).ok());
  s.w.ports.claimed.insert(load);
  s.retire();
  s.wait(seconds(3));
  ASSERT_EQ(s.state(), RetireState::kDrained);
  const ByteCount pinned = s.w.core->stats().leased;
  EXPECT_GT(pinned, ByteCount(0));
  EXPECT_LT(pinned, 6 * slot_bytes());
  s.w.core->abandon_slab();
  // What did not verify on the slab that has gone is nobody's image any more.
  s.w.drain_failed(load, {0b111111});
  EXPECT_EQ(s.w.core->stats().leased, ByteCount(0));
  EXPECT_EQ(s.w.used(), ByteCount(0));
}

TEST(CoreRetire, CreditsOfOrphansCountNoMore) {
  Slabs s;
  Engine e(s.w);
  s.w.store(e.worker, e.registration, hashes(1, 1));
  for (std::uint32_t i = 0; i < limits::kRestoresPerDevice; ++i) {
    const LeaseId lease = s.w.read(e.scheduler, hashes(1, 1), "r" + std::to_string(i)).lease;
    const OperationKey op = s.w.next_op(e.worker);
    ASSERT_TRUE(s.w.restore(op, e.registration, lease, targets(1)).ok());
    s.w.ports.claimed.insert(op);
  }
  s.add_slab();
  s.retire();
  s.wait(seconds(3));
  ASSERT_EQ(s.state(), RetireState::kDrained);
  s.w.core->abandon_slab();
  s.w.store(e.worker, e.registration, hashes(1, 1));
  const LeaseId lease = s.w.read(e.scheduler, hashes(1, 1), "fresh").lease;
  EXPECT_EQ(code_of(s.w.restore(s.w.next_op(e.worker), e.registration, lease, targets(1))), Code::kOk);
}

TEST(CoreRetire, LoadsFailAtOnceOrWhenTheDeviceIsDone) {
  Slabs s;
  s.tier.most_loads = 2;
  Engine e(s.w);
  for (std::uint64_t b = 1; b <= 5; ++b) s.tier.put(b);
  ASSERT_TRUE(s.w.core->query(e.scheduler, s.w.part(hashes(1, 5), "a"), s.w.now)->loading);
  ASSERT_EQ(s.tier.count(true), 2u);
  s.retire();
  EXPECT_EQ(s.state(), RetireState::kDevice);
  EXPECT_EQ(s.w.core->stats().loading, 2u);
  while (const auto id = s.tier.oldest(true)) {
    s.tier.end(*id, true);
    s.w.core->loaded(*id, true, s.w.now);
  }
  s.turns();
  EXPECT_EQ(s.state(), RetireState::kDrained);
  EXPECT_EQ(s.w.core->stats().blocks, 0u) << "what lands on a slab that retires is not kept";
  EXPECT_EQ(s.w.core->stats().load_failures, 2u);
}

TEST(CoreRetire, ARestoreThatAwaitsOthersIsNotGrantedWithASourceThatWent) {
  Slabs s;
  Engine e(s.w);
  for (std::uint64_t b = 1; b <= 8; ++b) s.tier.put(b);
  QueryPart part = s.w.part(hashes(1, 8), "a");
  const auto list = hashes(1, 8);
  part.hashes = list;
  part.early_lease = true;
  ASSERT_TRUE(s.w.core->query(e.scheduler, part, s.w.now)->loading);
  s.add_slab();
  for (std::uint64_t b = 1; b <= 6; ++b) {
    const auto id = s.tier.of_block(b);
    s.tier.end(*id, true);
    s.w.core->loaded(*id, true, s.w.now);
  }
  const LeaseId lease = s.w.core->query(e.scheduler, part, s.w.now)->lease;
  ASSERT_TRUE(lease);
  const OperationKey op = s.w.next_op(e.worker);
  ASSERT_TRUE(s.w.restore(op, e.registration, lease, targets(8)).ok());
  s.retire();
  EXPECT_EQ(s.w.ports.failed.at(op), Code::kRecompute);
  EXPECT_EQ(s.state(), RetireState::kDevice);
  while (const auto id = s.tier.oldest(true)) {
    s.tier.end(*id, true);
    s.w.core->loaded(*id, true, s.w.now);
  }
  s.turns();
  EXPECT_EQ(s.state(), RetireState::kDrained);
  EXPECT_FALSE(s.w.ports.granted.contains(op));
}

TEST(CoreRetire, AShardThatWasCommittedThereIsSavedAgain) {
  Slabs s;
  const RankOptions zero{.rank = 0, .world = 2, .shards = 2}, one{.rank = 1, .world = 2, .shards = 2};
  const SessionId scheduler = s.w.open(), a = s.w.open(), b = s.w.open();
  const RegistrationId ra = s.w.join(a, zero), rb = s.w.join(b, one);
  s.w.store(a, ra, hashes(1, 3));  // shard 0, on the first slab
  s.add_slab();
  const OperationKey op = s.w.next_op(b);
  ASSERT_TRUE(s.w.publish(op, rb, hashes(1, 3)).ok());
  s.w.ports.claimed.insert(op);
  s.retire();
  s.wait(seconds(3));
  ASSERT_EQ(s.state(), RetireState::kDrained);
  s.w.core->abandon_slab();
  s.w.commit(op);
  EXPECT_EQ(s.w.discover(scheduler, hashes(1, 3)), 0u);
  s.w.store(a, ra, hashes(1, 3));
  s.w.store(b, rb, hashes(1, 3));
  EXPECT_EQ(s.w.discover(scheduler, hashes(1, 3)), 3u);
}

}  // namespace
}  // namespace orbitkv::cache
