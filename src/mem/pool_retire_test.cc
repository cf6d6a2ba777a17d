// Slabs that come and go while the pool is in use.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "base/limits.h"
#include "mem/mapped_slab.h"
#include "mem/pool.h"

namespace orbitkv::mem {
namespace {

std::unique_ptr<Pool> sparse_pool(ByteCount bytes) {
  PoolConfig config;
  config.bytes = bytes;
  config.prefault = false;
  auto pool = Pool::create(config).value();
  pool->collect_offered();
  return pool;
}

TEST(PoolRetire, NothingIsLentFromARetiringSlabAndTheRestGoesOn) {
  const auto pool = sparse_pool(512 * kMiB);
  auto kept = pool->allocate(kMiB);
  auto bad = pool->allocate(kMiB);
  ASSERT_TRUE(kept && bad && kept->slab() == bad->slab());
  const SlabSlot slot = kept->slab();
  pool->begin_retire(slot);
  EXPECT_EQ(pool->slab(slot).state, SlabState::kRetiring);
  EXPECT_EQ(pool->stats().capacity, 256 * kMiB);
  EXPECT_EQ(pool->stats().retiring, 256 * kMiB);
  EXPECT_EQ(pool->free_bytes(), 256 * kMiB);
  EXPECT_EQ(pool->stats().used, 2 * kMiB);
  std::vector<Extent> all;
  while (auto extent = pool->allocate(kMiB)) {
    EXPECT_NE(extent->slab(), slot);
    all.push_back(std::move(*extent));
  }
  EXPECT_EQ(all.size(), 256u);
  pool->release(std::move(*kept));
  EXPECT_FALSE(pool->allocate(kMiB)) << "what comes back to a retiring slab is not lent again";
  pool->quarantine(std::move(*bad));
  pool->abandon(slot);
  EXPECT_EQ(pool->slab(slot).state, SlabState::kGone);
  EXPECT_FALSE(pool->slab_memory(slot).valid());
  EXPECT_EQ(pool->stats().quarantined, ByteCount(0));
  EXPECT_EQ(pool->stats().retiring, ByteCount(0));
  EXPECT_EQ(pool->stats().used, 256 * kMiB);
  for (Extent& extent : all) pool->release(std::move(extent));
  EXPECT_EQ(pool->free_bytes(), 256 * kMiB);
}

TEST(PoolRetire, ASlotIsUsedAgainAndANameIsNot) {
  const auto pool = sparse_pool(4 * kMiB);
  std::set<std::uint32_t> names{pool->slab(SlabSlot(0)).id.value};
  std::uint64_t last = 0;
  for (int i = 0; i < 10000; ++i) {
    auto extent = pool->allocate(kMiB);
    ASSERT_TRUE(extent);
    ASSERT_GT(extent->allocation().value, last);
    last = extent->allocation().value;
    pool->quarantine(std::move(*extent));
    pool->begin_retire(SlabSlot(0));
    EXPECT_FALSE(pool->allocate(ByteCount(64)));
    pool->abandon(SlabSlot(0));
    const auto name = pool->add(4 * kMiB);
    ASSERT_TRUE(name.ok()) << name.error().message();
    ASSERT_TRUE(names.insert(name->value).second);
    const auto offered = pool->collect_offered();
    ASSERT_EQ(offered.size(), 1u);
    EXPECT_EQ(offered[0].slot, SlabSlot(0));
    EXPECT_EQ(offered[0].id, *name);
  }
  EXPECT_EQ(pool->slabs().size(), 1u);
  EXPECT_EQ(pool->stats().used, ByteCount(0));
}

TEST(PoolRetire, WhoeverMapsAnAbandonedSlabKeepsItsBytes) {
  const auto pool = sparse_pool(4 * kMiB);
  const SlabInfo old = pool->slabs()[0];
  const MappedSlab mapped = MappedSlab::map(pool->slab_memory(old.slot), old.id, old.bytes).value();
  mapped.base()[100] = std::byte{7};
  pool->begin_retire(old.slot);
  pool->abandon(old.slot);
  ASSERT_TRUE(pool->add(4 * kMiB).ok());
  const SlabInfo fresh = pool->collect_offered().at(0);
  const MappedSlab other = MappedSlab::map(pool->slab_memory(fresh.slot), fresh.id, fresh.bytes).value();
  mapped.base()[101] = std::byte{8};
  EXPECT_EQ(mapped.base()[100], std::byte{7});
  EXPECT_EQ(other.base()[100], std::byte{0});
  EXPECT_EQ(other.base()[101], std::byte{0});
}

TEST(PoolRetire, AddedSlabsAreBuiltInTheBackgroundOneAtATime) {
  PoolConfig config;
  config.bytes = 4 * kMiB;
  const auto pool = Pool::create(config).value();
  const auto wait_offered = [&] {
    std::vector<SlabInfo> offered;
    while (offered.empty()) {
      pollfd ready{pool->ready_fd(), POLLIN, 0};
      EXPECT_EQ(::poll(&ready, 1, 30'000), 1);
      offered = pool->collect_offered();
    }
    return offered;
  };
  ASSERT_EQ(pool->add(4 * kMiB).error().code(), Code::kBusy);
  wait_offered();
  ASSERT_TRUE(pool->add(6 * kMiB).ok());
  EXPECT_TRUE(pool->building());
  EXPECT_EQ(pool->stats().building, 6 * kMiB);
  EXPECT_EQ(pool->add(4 * kMiB).error().code(), Code::kBusy);
  const auto offered = wait_offered();
  ASSERT_EQ(offered.size(), 1u);
  EXPECT_EQ(offered[0].id, SlabId(1));
  EXPECT_EQ(pool->stats().capacity, 10 * kMiB);
  EXPECT_FALSE(pool->building());
}

TEST(PoolRetire, WhatCannotBeAddedIsSaid) {
  const auto pool = sparse_pool(4 * kMiB);
  EXPECT_EQ(pool->add(ByteCount(0)).error().code(), Code::kReject);
  EXPECT_EQ(pool->add(ByteCount(100)).error().code(), Code::kReject);
  EXPECT_EQ(pool->add(limits::kSlabBytes + ByteCount(4096)).error().code(), Code::kReject);
  while (pool->slabs().size() < limits::kSlabs) ASSERT_TRUE(pool->add(ByteCount(4096)).ok());
  EXPECT_EQ(pool->add(ByteCount(4096)).error().code(), Code::kBusy);
  pool->collect_offered();
  pool->begin_retire(SlabSlot(17));
  pool->abandon(SlabSlot(17));
  EXPECT_TRUE(pool->add(ByteCount(4096)).ok());
}

TEST(PoolRetireDeathTest, AnExtentThatMayComeBackKeepsItsSlab) {
  const auto pool = sparse_pool(4 * kMiB);
  auto extent = pool->allocate(kMiB);
  EXPECT_DEATH(pool->abandon(SlabSlot(0)), "retires once|extents that may come back");
  pool->begin_retire(SlabSlot(0));
  EXPECT_DEATH(pool->begin_retire(SlabSlot(0)), "retires once");
  EXPECT_DEATH(pool->abandon(SlabSlot(0)), "extents that may come back");
  pool->release(std::move(*extent));
  pool->abandon(SlabSlot(0));
}

// Lends, returns, quarantines, retires, abandons and adds at random, and recounts.
TEST(PoolRetire, RandomSchedulesAddUp) {
  const auto pool = sparse_pool(512 * kMiB);
  std::mt19937_64 random(11);
  std::vector<Extent> lent;
  std::vector<std::uint64_t> quarantined(limits::kSlabs);
  for (int i = 0; i < 60000; ++i) {
    const auto what = random() % 1000;
    if (what < 600) {
      if (auto e = pool->allocate(ByteCount(64 + random() % (4 * kMiB.value)))) lent.push_back(std::move(*e));
    } else if (what < 990) {
      if (lent.empty()) continue;
      std::swap(lent[random() % lent.size()], lent.back());
      if (random() % 50 == 0) {
        quarantined[lent.back().slab().value] += lent.back().bytes().value;
        pool->quarantine(std::move(lent.back()));
      } else {
        pool->release(std::move(lent.back()));
      }
      lent.pop_back();
    } else if (what < 996) {
      const SlabSlot slot(static_cast<std::uint32_t>(random() % pool->slabs().size()));
      if (pool->slab(slot).state == SlabState::kOffered) pool->begin_retire(slot);
    } else if (what < 998) {
      if (pool->stats().capacity < 512 * kMiB) (void)pool->add(64 * kMiB);
      pool->collect_offered();
    } else {
      for (const SlabInfo& slab : pool->slabs()) {
        if (slab.state != SlabState::kRetiring || slab.used != slab.quarantined) continue;
        pool->abandon(slab.slot);
        quarantined[slab.slot.value] = 0;
      }
    }
    if (i % 500 != 0) continue;
    ByteCount used, bad, capacity, open_used;
    for (const Extent& e : lent) {
      used += e.bytes();
      if (pool->slab(e.slab()).state == SlabState::kOffered) open_used += e.bytes();
    }
    for (const SlabInfo& slab : pool->slabs()) {
      const ByteCount q(quarantined[slab.slot.value]);
      bad += q;
      if (slab.state != SlabState::kOffered) continue;
      capacity += slab.bytes;
      open_used += q;
    }
    const PoolStats stats = pool->stats();
    ASSERT_EQ(stats.used, used + bad);
    ASSERT_EQ(stats.quarantined, bad);
    ASSERT_EQ(stats.capacity, capacity);
    ASSERT_EQ(pool->free_bytes(), capacity - open_used);
  }
  for (Extent& e : lent) pool->release(std::move(e));
}

}  // namespace
}  // namespace orbitkv::mem
