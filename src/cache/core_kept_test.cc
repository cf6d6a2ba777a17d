// What the next life of the core goes on with.
#include "cache/core_kept_test.h"

#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

struct Kept {
  explicit Kept(Tier* tier = nullptr) : w({.core = small(), .tier = tier, .kept = true}) {}
  static CoreConfig small() {
    CoreConfig config;
    config.max_blocks = 1000;
    return config;
  }
  World w;
};

TEST(CoreKept, SealedBlocksAreHitsAndRestoreTheirBytes) {
  Kept k;
  Engine e(k.w);
  k.w.store(e.worker, e.registration, hashes(1, 20));
  NextLife next(k.w);
  EXPECT_EQ(next.blocks, 20u);
  EXPECT_EQ(next.resident(hashes(1, 20)), 20u);
  const auto lease = next.world.read(next.scheduler, hashes(1, 20), "r");
  ASSERT_TRUE(lease.lease);
  // Its plan names the same places, revisions and digests as the last life's would.
  const auto before = k.w.read(e.scheduler, hashes(1, 20), "r");
  const OperationKey old = k.w.next_op(e.worker);
  ASSERT_TRUE(k.w.restore(old, e.registration, before.lease, blocks(100, 20)).ok());
  const model::Plan& expected = k.w.ports.granted.at(old);
  const mem::KeptPool again = scan(next.world);
  ASSERT_EQ(again.images.size(), expected.entries.size());
  for (std::size_t i = 0; i < expected.entries.size(); ++i) {
    const auto it = std::find_if(again.images.begin(), again.images.end(), [&](const auto& each) {
      return each.slot.place.offset == expected.entries[i].offset;
    });
    ASSERT_NE(it, again.images.end());
    EXPECT_EQ(it->slot.digest, expected.entries[i].digest);
    EXPECT_EQ(it->slot.revision, expected.entries[i].revision);
    EXPECT_EQ(it->slot.place.slab, expected.entries[i].slab);
  }
}

TEST(CoreKept, LentExtentsAreNotLentAgain) {
  Kept k;
  Engine e(k.w);
  k.w.store(e.worker, e.registration, hashes(1, 4));
  const OperationKey op = k.w.next_op(e.worker);
  ASSERT_TRUE(k.w.publish(op, e.registration, hashes(100, 6)).ok());
  NextLife next(k.w);
  EXPECT_EQ(next.blocks, 4u);
  EXPECT_EQ(next.lent.size(), 6u);
  EXPECT_EQ(next.resident(hashes(100, 6)), 0u);
  EXPECT_EQ(next.world.used(), 10 * slot_bytes());
}

TEST(CoreKept, ADroppedOrEvictedBlockIsAbsent) {
  Kept k;
  Engine e(k.w);
  k.w.store(e.worker, e.registration, hashes(1, 4));
  const auto lease = k.w.read(e.scheduler, hashes(1, 2), "r");
  const OperationKey op = k.w.next_op(e.worker);
  ASSERT_TRUE(k.w.restore(op, e.registration, lease.lease, blocks(100, 2)).ok());
  k.w.drain_failed(op, {0b10});
  EXPECT_EQ(NextLife(k.w).blocks, 3u) << "the one that did not verify";
  k.w.core->evict(ByteCount(1), k.w.now);
  EXPECT_LT(NextLife(k.w).blocks, 3u);
}

TEST(CoreKept, AnImageOfManyShardsIsThereWhenAllAre) {
  Kept k;
  const SessionId scheduler = k.w.open(), a = k.w.open(), b = k.w.open();
  (void)scheduler;
  const RegistrationId ra = k.w.join(a, {.rank = 0, .world = 2, .shards = 2});
  const RegistrationId rb = k.w.join(b, {.rank = 1, .world = 2, .shards = 2});
  k.w.store(a, ra, hashes(1, 3));
  {
    NextLife next(k.w, 2);
    EXPECT_EQ(next.blocks, 0u);
    EXPECT_EQ(next.kept.counts.incomplete, 3u);
  }
  k.w.store(b, rb, hashes(1, 2));
  NextLife next(k.w, 2);
  EXPECT_EQ(next.blocks, 2u);
  EXPECT_EQ(next.resident(hashes(1, 3)), 2u);
}

TEST(CoreKept, ASlabThatRetiresIsAbsentFromItsFirstMoment) {
  Kept k;
  Engine e(k.w);
  k.w.store(e.worker, e.registration, hashes(1, 4));
  ASSERT_TRUE(k.w.pool->add(kMiB).ok());
  for (const mem::SlabInfo& slab : k.w.pool->collect_offered())
    k.w.kept->put_slab(slab.slot, {slab.id, slab.bytes, {}, kAnyNode, mem::KeptSlabState::kLive});
  ASSERT_TRUE(k.w.core->retire_slab(SlabSlot(0), k.w.now).ok());
  const mem::KeptPool next = scan(k.w);
  ASSERT_EQ(next.slabs.size(), 1u);
  EXPECT_EQ(next.slabs[0].name, SlabId(1));
  EXPECT_TRUE(next.images.empty());
}

// What a device may write to is lent to nobody, and nobody can say when it has ended.
TEST(CoreKept, ALoadUnderWayIsLentToTheDevice) {
  ScriptedTier tier;
  Kept k(&tier);
  Engine e(k.w);
  tier.put(1);
  tier.put(2);
  k.w.read(e.scheduler, hashes(1, 2), "r");
  ASSERT_EQ(tier.count(true), 2u);
  const mem::KeptPool during = scan(k.w);
  ASSERT_EQ(during.lent.size(), 2u);
  EXPECT_EQ(during.lent[0].lent.writer.operation, OperationId(0));
  while (const auto id = tier.oldest(true)) {
    tier.end(*id, true);
    k.w.core->loaded(*id, true, k.w.now);
  }
  EXPECT_EQ(scan(k.w).images.size(), 2u);
  EXPECT_TRUE(scan(k.w).lent.empty());
}

// Somebody reads there who cannot be called back.
TEST(CoreKept, WhatARestoreReadsStaysUntilItHasEnded) {
  Kept k;
  Engine e(k.w);
  k.w.store(e.worker, e.registration, hashes(1, 6));
  std::vector<mem::KeptRead> reads;
  constexpr mem::KeptReader kOne{1}, kTwo{2};
  const mem::KeptPool now = scan(k.w);
  for (const mem::KeptSlot& each : now.images) {
    if (each.slot.hash == hash_of(1).bytes || each.slot.hash == hash_of(2).bytes)
      reads.push_back({kOne, each.slot.place.slab, each.slot.place.offset, each.slot.revision});
    if (each.slot.hash == hash_of(2).bytes)
      reads.push_back({kTwo, each.slot.place.slab, each.slot.place.offset, each.slot.revision});
    // Another image by now, and a place where there is none.
    if (each.slot.hash == hash_of(3).bytes)
      reads.push_back({kTwo, each.slot.place.slab, each.slot.place.offset, AllocationId(1)});
  }
  reads.push_back({kTwo, SlabId(77), 64, AllocationId(1)});
  ASSERT_EQ(reads.size(), 5u);
  NextLife next(k.w, 1, reads);
  Core& core = *next.world.core;
  EXPECT_EQ(core.census().pins, 3u);
  EXPECT_EQ(core.census().pinned, 3u);
  core.evict(ByteCount(~std::uint64_t{0}), next.world.now);
  EXPECT_EQ(next.resident(hashes(1, 6)), 2u);
  core.end_kept_read(kOne);
  core.end_kept_read(kOne);
  core.evict(ByteCount(~std::uint64_t{0}), next.world.now);
  EXPECT_EQ(next.resident(hashes(2, 1)), 1u) << "the other reads it yet";
  EXPECT_EQ(next.resident(hashes(1, 1)), 0u);
  core.end_kept_read(kTwo);
  core.evict(ByteCount(~std::uint64_t{0}), next.world.now);
  EXPECT_EQ(next.resident(hashes(1, 6)), 0u);
  EXPECT_EQ(core.census().pins, 0u);
}

// So that they can be dropped by their scope, and by what is in it.
TEST(CoreKept, TheTextOfANamespaceIsKnownBeforeItsEngineRegisters) {
  Kept k;
  Engine e(k.w);
  k.w.store(e.worker, e.registration, hashes(1, 4));
  NextLife next(k.w, 0);
  const auto names = next.world.core->namespaces();
  ASSERT_EQ(names.size(), 1u);
  EXPECT_EQ(names[0].text, "model-a");
  EXPECT_EQ(NextLife(next.world, 0).world.core->namespaces()[0].text, "model-a");
}

TEST(CoreKept, BlocksGoToTheTierBeforeTheirEngineRegisters) {
  ScriptedTier tier;
  Kept k(&tier);
  Engine e(k.w);
  k.w.store(e.worker, e.registration, hashes(1, 4));
  tier.at_leave = Tier::Answer::kStore;
  {
    NextLife next(k.w, 0, {}, &tier);
    ASSERT_EQ(tier.reopened.size(), 1u);
    EXPECT_EQ(tier.reopened[0].shards, 1u);
    EXPECT_EQ(tier.reopened[0].bytes, slot_bytes());
    EXPECT_FALSE(next.world.core->lacks_spaces());
    EXPECT_EQ(tier.open.count(1), 2u) << "the other life's, too";
    next.world.core->evict(ByteCount(~std::uint64_t{0}), next.world.now);
    EXPECT_EQ(tier.count(false), 4u);
    while (const auto id = tier.oldest(false)) {
      tier.end(*id, true);
      next.world.core->stored(*id, true, next.world.now);
    }
    const SessionId worker = next.world.open();
    next.world.join(worker, {});
    EXPECT_EQ(tier.open.count(1), 2u) << "asked for, and no longer by the blocks alone";
  }
  EXPECT_EQ(tier.open.count(1), 1u);
}

TEST(CoreKept, ATierThatStillReadsWhatItHoldsIsAskedAgain) {
  ScriptedTier tier;
  Kept k(&tier);
  Engine e(k.w);
  k.w.store(e.worker, e.registration, hashes(1, 4));
  tier.at_leave = Tier::Answer::kStore;
  tier.opening = true;
  NextLife next(k.w, 0, {}, &tier);
  EXPECT_TRUE(next.world.core->lacks_spaces());
  next.world.core->tier_opened(next.world.now);
  EXPECT_TRUE(next.world.core->lacks_spaces());
  tier.opening = false;
  next.world.core->tier_opened(next.world.now);
  EXPECT_FALSE(next.world.core->lacks_spaces());
  EXPECT_EQ(tier.open.count(1), 2u) << "the other life's, too";
  next.world.core->tier_opened(next.world.now);
  EXPECT_EQ(tier.open.count(1), 2u);
  next.world.core->evict(ByteCount(~std::uint64_t{0}), next.world.now);
  EXPECT_EQ(tier.count(false), 4u);
  while (const auto id = tier.oldest(false)) {
    tier.end(*id, true);
    next.world.core->stored(*id, true, next.world.now);
  }
}

TEST(CoreKept, ATierThatKnowsNothingOfThemIsLackedUntilTheyRegister) {
  Kept k;
  Engine e(k.w);
  k.w.store(e.worker, e.registration, hashes(1, 4));
  ScriptedTier tier;
  NextLife next(k.w, 0, {}, &tier);
  EXPECT_TRUE(next.world.core->lacks_spaces());
  next.world.join(next.world.open(), {});
  EXPECT_FALSE(next.world.core->lacks_spaces());
}

// A smaller table than before: the newest stay.
TEST(CoreKept, MoreThanTheTableTakesGoesOldestFirst) {
  Kept k;
  Engine e(k.w);
  for (std::uint64_t i = 0; i < 20; ++i) k.w.store(e.worker, e.registration, hashes(i, 1));
  mem::KeptPool kept = scan(k.w);
  World next;
  mem::PoolConfig config;
  config.bytes = k.w.pool->capacity();
  config.prefault = false;
  config.kept = &kept;
  CoreConfig core;
  core.max_blocks = 8;
  next.core.reset();
  next.pool = std::move(mem::Pool::create(config)).value();
  next.core = std::make_unique<Core>(core, *next.pool, next.ports, nullptr);
  EXPECT_EQ(next.core->adopt(kept, next.now), 8u);
  Engine reader(next);
  EXPECT_EQ(resident(next, reader.scheduler, hashes(12, 8)), 8u);
  EXPECT_EQ(next.used(), 8 * slot_bytes());
}

}  // namespace
}  // namespace orbitkv::cache
