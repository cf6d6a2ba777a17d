// Eviction classes: who is promoted, who is demoted, who goes first.
#include <array>

#include "base/limits.h"
#include "cache/core_world_test.h"
#include "cache/images.h"

namespace orbitkv::cache {
namespace {

using testing::hash_of;

constexpr ByteCount kSlot{4096};
constexpr ByteCount kPool{64 * 4096};
constexpr TimePoint kNow{1};
constexpr auto kReclaimable = EvictionClass::kReclaimable;
constexpr auto kProbationary = EvictionClass::kProbationary;
constexpr auto kRetained = EvictionClass::kRetained;

class ImagesClassTest : public ::testing::Test {
 protected:
  void make(std::uint32_t protected_percent, std::uint32_t max_blocks = 256) {
    mem::PoolConfig config;
    config.bytes = kPool;
    config.huge_pages = mem::HugePages::kOff;
    config.prefault = false;
    pool_ = mem::Pool::create(config).value();
    pool_->collect_offered();
    images_ = std::make_unique<Images>(Images::Config{{max_blocks, {1, 2}}, ByteCount(1), protected_percent},
                                       *pool_, namespaces_);
  }
  BlockKey key(std::uint64_t n) const { return {hash_of(n), name_space_, GroupId(0)}; }
  RecordId seal(std::uint64_t n, ByteCount bytes = kSlot) {
    const auto slot = images_->lend({key(n), ShardId(0), 1, bytes, OperationIndex(7)});
    EXPECT_TRUE(slot.has_value());
    images_->commit(*slot, n, kNow);
    return slot->record;
  }
  RecordId load(std::uint64_t n, Use use) {
    const auto record = images_->lend_all({key(n), 1, kSlot, nullptr, use});
    EXPECT_TRUE(record.has_value());
    return *record;
  }
  void pin(RecordId r) { images_->pin({&r, 1}); }
  void unpin(RecordId r, Use use = Use::kForeground) { images_->unpin({&r, 1}, use); }
  void read(RecordId r) {
    pin(r);
    unpin(r);
  }
  EvictionClass class_of(RecordId r) const { return images_->table().class_of(r); }
  bool there(std::uint64_t n) const { return images_->table().find(key(n)) != kNoRecord; }
  // The key that goes next, of those below `end`.
  std::uint64_t evicted(std::uint64_t end) {
    std::vector<bool> before(end);
    for (std::uint64_t n = 0; n < end; ++n) before[n] = there(n);
    images_->evict(ByteCount(1));
    for (std::uint64_t n = 0; n < end; ++n)
      if (before[n] && !there(n)) return n;
    return end;
  }

  Namespaces namespaces_;
  NamespaceIndex name_space_ = *namespaces_.intern(model::NamespaceDigest{});
  std::unique_ptr<mem::Pool> pool_;
  std::unique_ptr<Images> images_;
};

TEST_F(ImagesClassTest, GoesByClassThenByRecency) {
  make(50);
  for (std::uint64_t n = 0; n < 3; ++n) read(seal(n));
  for (std::uint64_t n = 3; n < 6; ++n) seal(n);
  for (std::uint64_t n = 6; n < 9; ++n) images_->load_done(load(n, Use::kSpeculative));
  EXPECT_EQ(images_->listed(kReclaimable).records, 3u);
  EXPECT_EQ(images_->listed(kProbationary).records, 3u);
  EXPECT_EQ(images_->listed(kRetained).records, 3u);
  for (const std::uint64_t n : {6, 7, 8, 3, 4, 5, 0, 1, 2}) EXPECT_EQ(evicted(9), n);
  EXPECT_EQ(images_->stats().evicted_of, (std::array<std::uint64_t, 3>{3, 3, 3}));
}

TEST_F(ImagesClassTest, WithoutAShareAReadIsRecencyAlone) {
  make(0);
  const RecordId first = seal(0);
  seal(1);
  const RecordId warmed = load(2, Use::kSpeculative);
  images_->load_done(warmed);
  read(first);
  read(warmed);
  EXPECT_EQ(class_of(first), kProbationary);
  EXPECT_EQ(class_of(warmed), kProbationary) << "somebody has asked for it";
  for (const std::uint64_t n : {1, 0, 2}) EXPECT_EQ(evicted(3), n);
}

TEST_F(ImagesClassTest, SpeculativePinsLeaveClassAndPlace) {
  make(50);
  const RecordId retained = seal(0);
  read(retained);
  const RecordId first = seal(1);
  seal(2);
  for (const RecordId r : {retained, first}) {
    pin(r);
    unpin(r, Use::kSpeculative);
  }
  EXPECT_EQ(class_of(retained), kRetained);
  for (const std::uint64_t n : {1, 2, 0}) EXPECT_EQ(evicted(3), n);
}

// Eviction takes what it meets pinned out of its list; unpinned it is listed again.
TEST_F(ImagesClassTest, ASpeculativePinThatEvictionMetIsListedInItsClass) {
  make(50);
  const RecordId warmed = load(0, Use::kSpeculative);
  pin(warmed);
  images_->load_done(warmed);
  EXPECT_EQ(images_->evict(kSlot), ByteCount());
  EXPECT_FALSE(images_->table().listed(warmed));
  unpin(warmed, Use::kSpeculative);
  EXPECT_EQ(images_->listed(kReclaimable).records, 1u);
  seal(1);
  EXPECT_EQ(evicted(2), 0u);
}

// Speculation refreshes nothing: it stands where it would have stood.
TEST_F(ImagesClassTest, ASpeculativePinThatEvictionMetIsAmongTheNextToGo) {
  make(50);
  const RecordId first = seal(0);
  for (std::uint64_t n = 1; n < 4; ++n) seal(n);
  pin(first);
  EXPECT_EQ(evicted(4), 1u);
  unpin(first, Use::kSpeculative);
  for (const std::uint64_t n : {0, 2, 3}) EXPECT_EQ(evicted(4), n);
}

TEST_F(ImagesClassTest, AForegroundReadOfWhatIsBeingWarmedRetainsIt) {
  make(50);
  const RecordId warmed = load(0, Use::kSpeculative);
  pin(warmed);
  pin(warmed);
  images_->load_done(warmed);
  unpin(warmed);
  EXPECT_EQ(class_of(warmed), kReclaimable) << "while it is pinned nothing is decided";
  unpin(warmed, Use::kSpeculative);
  EXPECT_EQ(class_of(warmed), kRetained);
}

TEST_F(ImagesClassTest, APinIsWhatItIsWhenItEnds) {
  make(50);
  const RecordId prepared = load(0, Use::kSpeculative);
  pin(prepared);
  images_->load_done(prepared);
  unpin(prepared);
  EXPECT_EQ(class_of(prepared), kRetained) << "somebody has claimed it meanwhile";
  pin(prepared);
  unpin(prepared, Use::kSpeculative);
  EXPECT_EQ(class_of(prepared), kRetained) << "the mark went with the read";
}

TEST_F(ImagesClassTest, BeyondTheShareTheOldestIsDemotedAsTheMostRecentProbationary) {
  make(25);  // 16 of 64 slots
  for (std::uint64_t n = 0; n < 17; ++n) read(seal(n));
  const RecordId fresh = seal(17);
  EXPECT_EQ(images_->listed(kRetained).records, 16u);
  EXPECT_LE(images_->listed(kRetained).units * ByteCount(64), images_->protected_share());
  EXPECT_EQ(evicted(18), 0u) << "demoted before the new one came";
  read(fresh);
  EXPECT_EQ(evicted(18), 1u);
}

TEST_F(ImagesClassTest, TheTableIsAShareToo) {
  make(25, 16);
  for (std::uint64_t n = 0; n < 8; ++n) read(seal(n));
  EXPECT_EQ(images_->listed(kRetained).records, 4u);
  EXPECT_EQ(images_->listed(kProbationary).records, 4u);
}

TEST_F(ImagesClassTest, LargerThanTheShareIsNotRetained) {
  make(25);
  const RecordId large = seal(0, 17 * kSlot);
  const RecordId fits = seal(1, 16 * kSlot);
  read(large);
  EXPECT_EQ(class_of(large), kProbationary);
  read(fits);
  EXPECT_EQ(class_of(fits), kRetained);
}

TEST_F(ImagesClassTest, AWindowPrefersTheLowerClass) {
  make(50);
  std::vector<std::uint64_t> same_home;
  for (std::uint64_t n = 1; same_home.size() <= limits::kProbeWindow; ++n) {
    if (images_->table().home_of(key(n)) == images_->table().home_of(key(1))) same_home.push_back(n);
  }
  const std::uint64_t newest = same_home.back();
  same_home.pop_back();
  for (const std::uint64_t n : same_home) {
    const RecordId r = seal(n, ByteCount(256));
    if (n != same_home[20]) read(r);
  }
  seal(newest, ByteCount(256));
  EXPECT_FALSE(there(same_home[20]));
}

}  // namespace
}  // namespace orbitkv::cache
