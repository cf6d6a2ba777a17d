// Images on their way from the tier and to it, without the core.
#include <array>

#include "cache/core_world_test.h"
#include "cache/images.h"

namespace orbitkv::cache {
namespace {

using testing::hash_of;

constexpr ByteCount kSlot{256};
constexpr TimePoint kNow{1};

struct Fixture {
  Fixture() : pool(make_pool()), images({{64, {1, 2}}, ByteCount(1)}, *pool, namespaces) {
    name_space = *namespaces.intern(model::NamespaceDigest{});
  }
  static std::unique_ptr<mem::Pool> make_pool() {
    mem::PoolConfig config;
    config.bytes = ByteCount(64 * 1024);
    config.huge_pages = mem::HugePages::kOff;
    config.prefault = false;
    auto pool = mem::Pool::create(config).value();
    pool->collect_offered();
    return pool;
  }
  BlockKey key(std::uint64_t n) const { return {hash_of(n), name_space, GroupId(0)}; }
  std::optional<RecordId> load(std::uint64_t n, std::uint16_t shards = 1) {
    return images.lend_all({key(n), shards, kSlot});
  }
  RecordId seal(std::uint64_t n) {
    const auto slot = images.lend({key(n), ShardId(0), 1, kSlot, OperationIndex(7)});
    EXPECT_TRUE(slot.has_value());
    images.commit(*slot, n, kNow);
    return slot->record;
  }
  ByteCount used() const { return pool->stats().used; }

  Namespaces namespaces;
  NamespaceIndex name_space;
  std::unique_ptr<mem::Pool> pool;
  Images images;
};

TEST(ImagesIo, load_lends_every_shard_and_seals_at_once) {
  Fixture f;
  const RecordId r = *f.load(1, 3);
  EXPECT_EQ(f.used(), 3 * kSlot);
  EXPECT_EQ(f.images.view(r, ShardId(2)).state, SlotState::kLoading);
  for (std::uint16_t s = 0; s < 3; ++s) {
    f.images.mark(f.images.slot_of(r, ShardId(s)), 100u + s, AllocationId(200u + s));
  }
  f.images.pin({&r, 1});
  EXPECT_EQ(f.images.stats().pinned, ByteCount(0));
  f.images.load_done(r);
  EXPECT_EQ(f.images.stats().pinned, 3 * kSlot);
  EXPECT_EQ(f.images.bytes(r), 3 * kSlot);
  for (std::uint16_t s = 0; s < 3; ++s) {
    const SlotWords w = f.images.words(f.images.slot_of(r, ShardId(s)));
    EXPECT_EQ(w.digest, 100u + s);
    EXPECT_EQ(w.revision, AllocationId(200u + s));
    EXPECT_NE(w.revision, w.extent.allocation);
  }
  f.images.unpin({&r, 1});
  EXPECT_EQ(f.images.stats().pinned, ByteCount(0));
  f.images.evict(kMiB);
  EXPECT_EQ(f.used(), ByteCount(0));
}

TEST(ImagesIo, failed_load_keeps_record_until_unpin) {
  Fixture f;
  const RecordId r = *f.load(1, 2);
  f.images.pin({&r, 1});
  f.images.load_failed(r);
  EXPECT_EQ(f.used(), ByteCount(0)) << "its slots are free";
  EXPECT_EQ(f.images.table().find(f.key(1)), kNoRecord) << "and nobody finds it";
  for (std::uint64_t n = 1; n < 20; ++n) EXPECT_NE(f.seal(n), r) << "but its place is taken";
  f.images.unpin({&r, 1});
  EXPECT_EQ(f.images.stats().pinned_images, 0u);
  EXPECT_EQ(*f.load(40), r);
}

TEST(ImagesIo, load_takes_all_or_nothing) {
  Fixture f;
  std::array<RecordId, 62> pinned;
  for (std::uint64_t n = 0; n < pinned.size(); ++n) pinned[n] = f.seal(n);
  f.images.pin(pinned);
  const auto many = f.images.lend_all({f.key(100), 64, ByteCount(4096)});
  EXPECT_FALSE(many.has_value()) << "no memory";
  EXPECT_EQ(f.used(), pinned.size() * kSlot);
  ASSERT_TRUE(f.load(101).has_value());
  ASSERT_TRUE(f.load(102).has_value());
  EXPECT_FALSE(f.load(103).has_value()) << "no record, and those that load are not evicted for one";
  EXPECT_EQ(f.used(), (pinned.size() + 2) * kSlot);
}

TEST(ImagesIo, held_image_keeps_its_place_and_is_passed_over) {
  Fixture f;
  const RecordId a = f.seal(1);
  f.seal(2);
  f.images.hold_for_io(a);
  EXPECT_EQ(f.images.evict(kSlot), kSlot);
  EXPECT_TRUE(f.images.sealed(a));
  EXPECT_EQ(f.images.evict(kSlot), ByteCount(0));
  f.seal(3);
  f.images.end_io(a, true);
  EXPECT_EQ(f.images.evict(kSlot), kSlot);
  EXPECT_EQ(f.images.table().find(f.key(1)), kNoRecord) << "least recent, as before";
  EXPECT_NE(f.images.table().find(f.key(3)), kNoRecord);
}

TEST(ImagesIo, dropped_image_stays_while_it_is_held_or_pinned) {
  for (const bool io_first : {true, false}) {
    Fixture f;
    const RecordId a = f.seal(1);
    f.images.pin({&a, 1});
    f.images.hold_for_io(a);
    f.images.drop(a);
    if (io_first) f.images.end_io(a, true);
    f.images.unpin({&a, 1});
    EXPECT_EQ(f.used(), io_first ? ByteCount(0) : kSlot);
    if (!io_first) f.images.end_io(a, false);
    EXPECT_EQ(f.used(), ByteCount(0));
  }
}

TEST(ImagesIo, considered_window_counts_bytes) {
  Fixture f;
  const RecordId a = f.seal(1), b = f.seal(2), c = f.seal(3);
  EXPECT_EQ(f.images.next_unconsidered(), a);
  f.images.consider_next();
  f.images.consider_next();
  EXPECT_EQ(f.images.considered(), 2 * kSlot);
  EXPECT_EQ(f.images.next_unconsidered(), c);
  f.images.pin({&b, 1});
  f.images.unpin({&b, 1});  // the cursor's own becomes recent
  EXPECT_EQ(f.images.considered(), kSlot);
  EXPECT_EQ(f.images.next_unconsidered(), c);
  f.images.evict(kSlot);  // a, the last one behind the cursor
  EXPECT_EQ(f.images.considered(), ByteCount(0));
  EXPECT_EQ(f.images.next_unconsidered(), c);
  f.images.consider_next();
  EXPECT_EQ(f.images.next_unconsidered(), b);
  f.images.consider_next();
  EXPECT_EQ(f.images.next_unconsidered(), kNoRecord);
}

TEST(ImagesIo, core_ends_with_transfers) {
  auto f = std::make_unique<Fixture>();
  ASSERT_TRUE(f->load(1, 2).has_value());
  f->images.hold_for_io(f->seal(2));
  f->seal(3);
  std::unique_ptr<mem::Pool> pool = std::move(f->pool);
  f.reset();
  EXPECT_EQ(pool->stats().quarantined, 3 * kSlot);
  EXPECT_EQ(pool->stats().used, 3 * kSlot);
}

TEST(ImagesIoDeathTest, what_loads_ends_by_the_tier_alone) {
  Fixture f;
  const RecordId r = *f.load(1);
  EXPECT_DEATH(f.images.commit({r, 0}, 1, kNow), "not lent");
  EXPECT_DEATH(f.images.hold_for_io(r), "sealed image");
}

}  // namespace
}  // namespace orbitkv::cache
