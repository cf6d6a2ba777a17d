#include "cache/images.h"

#include <algorithm>
#include <array>
#include <deque>
#include <random>

#include "base/limits.h"
#include "cache/core_world_test.h"
#include "cache/scratch_set.h"

namespace orbitkv::cache {
namespace {

using testing::hash_of;

constexpr ByteCount kSlot{256};
constexpr TimePoint kNow{1};

struct Fixture {
  Fixture(std::uint32_t max_blocks, ByteCount pool_bytes, std::uint32_t protected_percent = 0)
      : pool(make_pool(pool_bytes)),
        images({{max_blocks, {1, 2}}, ByteCount(1), protected_percent}, *pool, namespaces) {
    name_space = *namespaces.intern(model::NamespaceDigest{});
  }
  static std::unique_ptr<mem::Pool> make_pool(ByteCount bytes) {
    mem::PoolConfig config;
    config.bytes = bytes;
    config.huge_pages = mem::HugePages::kOff;
    config.prefault = false;
    auto pool = mem::Pool::create(config).value();
    pool->collect_offered();
    return pool;
  }
  BlockKey key(std::uint64_t n) const { return {hash_of(n), name_space, GroupId(0)}; }
  std::optional<ImageSlot> lend(std::uint64_t n, std::uint16_t shard = 0, std::uint16_t shards = 1) {
    return images.lend({key(n), ShardId(shard), shards, kSlot, OperationIndex(7)});
  }
  RecordId seal(std::uint64_t n) {
    const auto slot = lend(n);
    EXPECT_TRUE(slot.has_value());
    images.commit(*slot, n, kNow);
    return slot->record;
  }
  bool there(std::uint64_t n) const { return images.table().find(key(n)) != kNoRecord; }

  Namespaces namespaces;
  NamespaceIndex name_space;
  std::unique_ptr<mem::Pool> pool;
  Images images;
};

TEST(Images, LentSlotNamesItsOwnerAndKeepsItsWords) {
  Fixture f(16, kMiB);
  const auto slot = f.lend(1);
  const Images::SlotView view = f.images.view(slot->record, ShardId(0));
  EXPECT_EQ(view.state, SlotState::kLent);
  EXPECT_EQ(view.owner, OperationIndex(7));
  const SlotWords lent = f.images.words(*slot);
  EXPECT_EQ(lent.extent.bytes, kSlot);
  f.images.commit(*slot, 99, kNow);
  const SlotWords sealed = f.images.words(f.images.slot_of(slot->record, ShardId(0)));
  EXPECT_EQ(sealed.digest, 99u);
  EXPECT_EQ(sealed.extent.offset, lent.extent.offset);
  EXPECT_EQ(sealed.extent.allocation, lent.extent.allocation);
}

// Eviction takes exactly the least recently sealed or unpinned image that has no pin.
TEST(Images, EvictionOrderAgreesWithADeque) {
  Fixture f(200, kMiB);
  std::deque<std::uint64_t> recency;            // evictable, most recent first
  std::map<std::uint64_t, std::uint32_t> pins;  // of living images
  std::map<std::uint64_t, RecordId> records;
  std::mt19937_64 random(3);
  std::uint64_t next = 0;
  for (int step = 0; step < 20000; ++step) {
    const std::uint64_t what = random() % 10;
    if (what < 3 && records.size() < 150) {
      records[next] = f.seal(next);
      pins[next] = 0;
      recency.push_front(next++);
      continue;
    }
    if (records.empty()) continue;
    auto it = records.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random() % records.size()));
    const std::uint64_t n = it->first;
    if (what < 6) {
      if (pins[n]++ == 0) std::erase(recency, n);
      f.images.pin({&it->second, 1});
    } else if (what < 9 && pins[n] > 0) {
      if (--pins[n] == 0) recency.push_front(n);
      f.images.unpin({&it->second, 1});
    } else if (what == 9) {
      const ByteCount freed = f.images.evict(ByteCount(1));
      ASSERT_EQ(freed, recency.empty() ? ByteCount(0) : kSlot);
      if (recency.empty()) continue;
      ASSERT_FALSE(f.there(recency.back())) << "step " << step;
      records.erase(recency.back());
      pins.erase(recency.back());
      recency.pop_back();
    }
    ASSERT_EQ(f.images.stats().sealed, records.size());
    const auto pinned = static_cast<std::uint64_t>(
        std::count_if(pins.begin(), pins.end(), [](const auto& p) { return p.second > 0; }));
    ASSERT_EQ(f.images.stats().pinned, pinned * kSlot);
  }
  for (const auto& [n, record] : records) EXPECT_TRUE(f.there(n));
}

TEST(Images, FullProbeWindowEvictsInsideItButNothingPinned) {
  Fixture f(64, kMiB);
  std::vector<std::uint64_t> same_home;
  for (std::uint64_t n = 1; same_home.size() <= limits::kProbeWindow; ++n) {
    if (f.images.table().home_of(f.key(n)) == f.images.table().home_of(f.key(1))) same_home.push_back(n);
  }
  std::vector<RecordId> records;
  for (std::size_t i = 0; i < limits::kProbeWindow; ++i) records.push_back(f.seal(same_home[i]));
  const std::span<const RecordId> all_but_one = std::span(records).subspan(1);
  f.images.pin(all_but_one);
  ASSERT_TRUE(f.lend(same_home.back()).has_value());
  EXPECT_FALSE(f.there(same_home[0]));
  EXPECT_EQ(f.images.stats().evicted, 1u);
  f.images.unpin(all_but_one);
}

TEST(Images, FullProbeWindowOfPinnedImagesIsAnAnswer) {
  Fixture f(64, kMiB);
  std::vector<RecordId> records;
  std::uint64_t n = 1;
  const auto next_same = [&] {
    while (f.images.table().home_of(f.key(++n)) != f.images.table().home_of(f.key(1))) {
    }
    return n;
  };
  for (std::size_t i = 0; i < limits::kProbeWindow; ++i) records.push_back(f.seal(next_same()));
  f.images.pin(records);
  const ByteCount used = f.pool->stats().used;
  EXPECT_FALSE(f.lend(next_same()).has_value());
  EXPECT_EQ(f.pool->stats().used, used) << "the extent went back";
  f.images.unpin(records);
}

TEST(Images, InflightLimitIsAnAnswer) {
  Fixture f(2 * limits::kInflightImages, 32 * kMiB);
  std::vector<ImageSlot> slots;
  for (std::uint32_t i = 0; i < limits::kInflightImages; ++i) {
    const auto slot = f.lend(i);
    ASSERT_TRUE(slot.has_value()) << i;
    slots.push_back(*slot);
  }
  EXPECT_FALSE(f.lend(1u << 30).has_value());
  f.images.commit(slots.back(), 0, kNow);
  EXPECT_TRUE(f.lend(1u << 30).has_value());
}

TEST(Images, FurtherSlotsThatRunOutAreAnAnswer) {
  Fixture f(2, kMiB);
  for (std::uint16_t s = 1; s <= 2 * kFurtherSlotsPerBlock; ++s) ASSERT_TRUE(f.lend(1, s, 64).has_value());
  const ByteCount used = f.pool->stats().used;
  EXPECT_FALSE(f.lend(1, 40, 64).has_value());
  EXPECT_EQ(f.pool->stats().used, used);
}

TEST(Images, ShardsOfAnImageEndInAnyOrder) {
  Fixture f(16, kMiB);
  std::vector<ImageSlot> slots;
  for (std::uint16_t s = 0; s < 4; ++s) slots.push_back(*f.lend(1, s, 4));
  f.images.commit(slots[2], 2, kNow);
  f.images.give_back(slots[1], kNow);
  f.images.quarantine(slots[3], kNow);
  f.images.commit(slots[0], 0, kNow);
  EXPECT_EQ(f.images.view(slots[0].record, ShardId(1)).state, SlotState::kAbsent);
  EXPECT_EQ(f.images.view(slots[0].record, ShardId(2)).state, SlotState::kCommitted);
  for (const std::uint16_t s : std::array<std::uint16_t, 2>{1, 3}) f.images.commit(*f.lend(1, s, 4), s, kNow);
  ASSERT_TRUE(f.images.sealed(slots[0].record));
  for (std::uint16_t s = 0; s < 4; ++s) {
    EXPECT_EQ(f.images.words(f.images.slot_of(slots[0].record, ShardId(s))).digest, s);
  }
  EXPECT_EQ(f.images.evict(kGiB), 4 * kSlot);
  EXPECT_EQ(f.pool->stats().used, kSlot) << "the quarantined one";
}

TEST(Images, RecordsHoldTheirNamespace) {
  Fixture f(16, kMiB);
  f.seal(1);
  EXPECT_EQ(f.namespaces.uses(f.name_space), 2u);
  f.images.evict(kGiB);
  EXPECT_EQ(f.namespaces.uses(f.name_space), 1u);
}

TEST(ImagesDeathTest, MisuseStops) {
  Fixture f(16, kMiB);
  const RecordId sealed = f.seal(1);
  EXPECT_DEATH(f.images.unpin({&sealed, 1}), "unpin without a pin");
  const auto slot = f.lend(2);
  f.images.give_back(*slot, kNow);
  const auto other = f.lend(3);
  f.images.commit(*other, 1, kNow);
  EXPECT_DEATH(f.lend(3), "image is complete already");
  ASSERT_TRUE(f.lend(4, 0, 2).has_value());
  EXPECT_DEATH(f.lend(4, 0, 2), "slot is there already");
}

TEST(ScratchSet, FindsRepeatsAndForgets) {
  ScratchSet set;
  std::set<std::uint64_t> expected;
  std::mt19937_64 random(1);
  for (int round = 0; round < 50; ++round) {
    const std::size_t n = random() % 200;
    set.begin(n);
    expected.clear();
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint64_t v = random() % 150;
      ASSERT_EQ(set.insert(v), expected.insert(v).second);
    }
  }
}

}  // namespace
}  // namespace orbitkv::cache
