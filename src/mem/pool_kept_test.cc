// Pools that go on with what an earlier life left.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

#include "mem/kept_scan.h"
#include "mem/kept_table.h"
#include "mem/pool.h"
#include "mem/pool_size.h"

namespace orbitkv::mem {
namespace {

PoolConfig sparse(ByteCount bytes) {
  PoolConfig config;
  config.bytes = bytes;
  config.prefault = false;
  config.numa = false;
  return config;
}

KeptPool::Slab slab_of(std::uint32_t name, ByteCount bytes, std::vector<UsedRun> used) {
  KeptPool::Slab slab;
  slab.name = SlabId(name);
  slab.bytes = bytes;
  slab.used = std::move(used);
  slab.memory = std::move(make_slab_memory(SlabId(name), bytes, PageSource::kShared)).value();
  return slab;
}

KeptPool kept_of(std::vector<KeptPool::Slab> slabs) {
  KeptPool kept;
  kept.id = 99;
  kept.next_name = 50;
  kept.allocations = AllocationId(std::uint64_t{1} << 62);
  kept.slabs = std::move(slabs);
  return kept;
}

TEST(PoolKept, SlabsNamesAndIdsGoOn) {
  std::vector<KeptPool::Slab> slabs;
  slabs.push_back(slab_of(7, 4 * kMiB, {{0, 64}, {128, 64}}));
  KeptPool kept = kept_of(std::move(slabs));
  PoolConfig config = sparse(4 * kMiB);
  config.kept = &kept;
  const auto pool = std::move(Pool::create(config)).value();
  EXPECT_EQ(pool->id(), 99u);
  EXPECT_FALSE(pool->building());
  const auto offered = pool->collect_offered();
  ASSERT_EQ(offered.size(), 1u);
  EXPECT_EQ(offered[0].id, SlabId(7));
  std::vector<Extent> open;
  open.push_back(pool->adopt(SlabSlot(0), 0, ByteCount(4096)));
  open.push_back(pool->adopt(SlabSlot(0), 8192, ByteCount(4096)));
  EXPECT_GT(open[0].allocation().value, std::uint64_t{1} << 62);
  EXPECT_EQ(pool->stats().used, ByteCount(8192));
  // What is free is exactly what is not used.
  ByteCount free;
  while (auto extent = pool->allocate(ByteCount(4096))) {
    EXPECT_NE(extent->offset(), 0u);
    EXPECT_NE(extent->offset(), 8192u);
    free += extent->bytes();
    open.push_back(std::move(*extent));
  }
  EXPECT_EQ(free, 4 * kMiB - ByteCount(8192));
  for (Extent& extent : open) pool->release(std::move(extent));
  EXPECT_EQ(pool->stats().largest_free, 4 * kMiB) << "what was adopted merges with the rest";
  EXPECT_EQ(pool->add(kMiB).value(), SlabId(50));
}

TEST(PoolKept, ATaintedSlabLendsNothingAndMayBeAbandoned) {
  std::vector<KeptPool::Slab> slabs;
  slabs.push_back(slab_of(7, 4 * kMiB, {{64, 64}}));
  slabs[0].tainted = true;
  KeptPool kept = kept_of(std::move(slabs));
  PoolConfig config = sparse(4 * kMiB);
  config.kept = &kept;
  const auto pool = std::move(Pool::create(config)).value();
  pool->collect_offered();
  Extent image = pool->adopt(SlabSlot(0), 4096, ByteCount(4096));
  EXPECT_EQ(pool->stats().quarantined, 4 * kMiB - ByteCount(4096));
  EXPECT_EQ(pool->stats().used, 4 * kMiB);
  EXPECT_FALSE(pool->allocate(ByteCount(64)));
  pool->begin_retire(SlabSlot(0));
  pool->release(std::move(image));
  pool->abandon(SlabSlot(0));
  EXPECT_EQ(pool->stats().used, ByteCount(0));
  EXPECT_EQ(pool->stats().quarantined, ByteCount(0));
}

TEST(PoolKept, WhatIsMissingIsBuilt) {
  const auto left = [](ByteCount bytes, std::vector<ByteCount> have) {
    KeptPool kept;
    for (const ByteCount each : have) kept.slabs.emplace_back().bytes = each;
    auto sizes = slab_sizes(bytes);
    const ByteCount sum = leave_out(kept, sizes);
    return std::pair(sum, sizes.size());
  };
  EXPECT_EQ(left(4 * kGiB, {}), std::pair(4 * kGiB, std::size_t{4}));
  EXPECT_EQ(left(4 * kGiB, {kGiB, kGiB}), std::pair(2 * kGiB, std::size_t{2}));
  EXPECT_EQ(left(4 * kGiB, {kGiB, kGiB, kGiB, kGiB, kGiB}).second, 0u);
  // Slabs of another size stand for as much.
  EXPECT_EQ(left(4 * kGiB, {512 * kMiB, 512 * kMiB, 512 * kMiB}), std::pair(3 * kGiB, std::size_t{3}));
  EXPECT_EQ(left(kGiB, {kGiB}), std::pair(ByteCount(0), std::size_t{0}));
}

TEST(PoolKept, NoMoreIsBuiltThanWasWantedAndThanThereIsRoomFor) {
  const auto left = [](std::size_t have, std::uint32_t wanted, std::uint32_t retired) {
    KeptPool kept;
    for (std::size_t i = 0; i < have; ++i) kept.slabs.emplace_back().bytes = kGiB;
    for (std::uint32_t i = 0; i < retired; ++i) kept.retired.push_back({SlabId(i), kGiB});
    kept.wanted = wanted;
    auto sizes = slab_sizes(4 * kGiB);
    leave_out(kept, sizes);
    return sizes.size();
  };
  constexpr std::uint32_t kOfFour = 4;
  EXPECT_EQ(left(2, 2 << 16 | kOfFour, 0), 0u);
  EXPECT_EQ(left(2, 3 << 16 | kOfFour, 0), 1u);
  EXPECT_EQ(left(3, 2 << 16 | kOfFour, 0), 0u);
  EXPECT_EQ(left(2, 2 << 16 | 3, 0), 2u) << "the operator has changed the size";
  EXPECT_EQ(left(2, 6 << 16 | kOfFour, 0), 2u) << "who wants more adds it";
  EXPECT_EQ(left(2, 0, 1), 1u) << "somebody maps what is gone";
  EXPECT_EQ(left(2, 0, 5), 0u);
}

TEST(PoolKept, MarksAreWrittenAheadAndEndsOfSlabsFirst) {
  KeptTable table = std::move(KeptTable::create({1, 64, 8, 8, 8})).value();
  const auto pool = std::move(Pool::create(sparse(2 * kMiB))).value();
  pool->keep_in(table);
  pool->collect_offered();
  EXPECT_EQ(table.next_name(), 1u);
  auto extent = pool->allocate(ByteCount(64));
  ASSERT_TRUE(extent);
  EXPECT_GE(table.allocations(), extent->allocation());
  pool->release(std::move(*extent));
  table.put_slab(SlabSlot(0), {SlabId(0), 2 * kMiB, {}, kAnyNode, KeptSlabState::kLive});
  ASSERT_TRUE(pool->add(kMiB).ok());
  EXPECT_EQ(table.next_name(), 2u);
  pool->begin_retire(SlabSlot(0));
  EXPECT_EQ(table.slab(SlabSlot(0)).state, KeptSlabState::kRetiring);
  pool->abandon(SlabSlot(0));
  EXPECT_EQ(table.slab(SlabSlot(0)).state, KeptSlabState::kAbsent);
}

// Random lending, with a new life every now and then: nothing is lent twice, nothing is lost.
TEST(PoolKept, LivesFollowEachOther) {
  struct Live {
    ByteCount bytes;
    Extent extent;
  };
  constexpr ByteCount kBytes = 8 * kMiB;
  std::mt19937_64 random(3);
  auto pool = std::move(Pool::create(sparse(kBytes))).value();
  pool->collect_offered();
  std::map<std::uint64_t, Live> lent;  // by offset
  for (int life = 0; life < 30; ++life) {
    for (int i = 0; i < 300; ++i) {
      if (random() % 3 == 0 && !lent.empty()) {
        auto it = std::next(lent.begin(), static_cast<std::ptrdiff_t>(random() % lent.size()));
        pool->release(std::move(it->second.extent));
        lent.erase(it);
        continue;
      }
      auto extent = pool->allocate(ByteCount(64 + random() % 100'000));
      if (!extent) continue;
      const std::uint64_t at = extent->offset();
      const ByteCount bytes = extent->bytes();
      auto next = lent.lower_bound(at);
      ASSERT_TRUE(next == lent.end() || at + bytes.value <= next->first);
      ASSERT_TRUE(next == lent.begin() || std::prev(next)->first + std::prev(next)->second.bytes.value <= at);
      lent.emplace(at, Live{bytes, std::move(*extent)});
    }
    std::vector<UsedRun> used;
    for (auto& [at, live] : lent) {
      live.extent.dissolve();
      used.push_back({static_cast<std::uint32_t>(at / 64),
                      static_cast<std::uint32_t>(ExtentAllocator::footprint(live.bytes).value / 64)});
    }
    std::vector<KeptPool::Slab> slabs;
    slabs.push_back(slab_of(static_cast<std::uint32_t>(life), kBytes, std::move(used)));
    KeptPool kept = kept_of(std::move(slabs));
    PoolConfig config = sparse(kBytes);
    config.kept = &kept;
    pool = std::move(Pool::create(config)).value();
    pool->collect_offered();
    for (auto& [at, live] : lent) live.extent = pool->adopt(SlabSlot(0), at, live.bytes);
  }
  for (auto& [at, live] : lent) pool->release(std::move(live.extent));
  EXPECT_EQ(pool->stats().largest_free, kBytes);
  EXPECT_EQ(pool->stats().used, ByteCount(0));
}

}  // namespace
}  // namespace orbitkv::mem
