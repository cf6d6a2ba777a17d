// Classes and ages of images over the death of the Manager: eviction goes on as it would have.
#include <fcntl.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "cache/core_kept_test.h"
#include "cache/images.h"

namespace orbitkv::cache {
namespace {

using testing::hash_of;

constexpr ByteCount kSlot{4096};
constexpr ByteCount kPool{64 * 4096};
constexpr auto kReclaimable = EvictionClass::kReclaimable;
constexpr auto kProbationary = EvictionClass::kProbationary;
constexpr auto kRetained = EvictionClass::kRetained;
constexpr std::uint32_t kPercent = 25;  // 16 of 64 slots

struct LifeOptions {
  std::uint32_t percent = kPercent, blocks = 256;
};

// One life of the images of a pool.
class Life {
 public:
  explicit Life(const LifeOptions& options = {}, mem::KeptPool* kept = nullptr) {
    mem::PoolConfig config;
    config.bytes = kPool;
    config.huge_pages = mem::HugePages::kOff;
    config.prefault = false;
    config.numa = false;
    config.kept = kept;
    pool_ = mem::Pool::create(config).value();
    table_.emplace(mem::KeptTable::create({pool_->id(), 64, options.blocks, 256, 16}).value());
    pool_->keep_in(*table_);
    pool_->collect_offered();
    for (const mem::SlabInfo& slab : pool_->slabs())
      table_->put_slab(slab.slot, {slab.id, slab.bytes, {}, kAnyNode, mem::KeptSlabState::kLive});
    table_->put_name_space(NamespaceIndex(0), std::array<std::byte, 32>{});
    images_ = std::make_unique<Images>(
        Images::Config{{options.blocks, {1, 2}}, ByteCount(1), options.percent}, *pool_, namespaces_);
    images_->keep_in(*table_);
  }
  // What a Manager that is killed now leaves.
  mem::KeptPool left(TimePoint now) const {
    std::vector<mem::KeptMemory> memories;
    for (const mem::SlabInfo& slab : pool_->slabs())
      memories.push_back({slab.id, UniqueFd(::fcntl(pool_->slab_fd(slab.slot), F_DUPFD_CLOEXEC, 0))});
    return mem::scan_kept(*table_, memories, 64, {}, now).value();
  }
  void adopt(const mem::KeptPool& kept) {
    for (const std::uint32_t i : kept.oldest_first)
      images_->adopt(std::span(kept.images).subspan(i, kept.images[i].slot.shards), name_space_);
  }
  RecordId seal(std::uint64_t n, ByteCount bytes = kSlot, std::uint16_t shards = 1) {
    RecordId record = kNoRecord;
    for (std::uint16_t s = 0; s < shards; ++s) {
      const auto slot = images_->lend({key(n), ShardId(s), shards, bytes, OperationIndex(7)});
      EXPECT_TRUE(slot.has_value());
      record = slot->record;
      images_->commit(*slot, n, {});
    }
    return record;
  }
  RecordId load(std::uint64_t n, Use use) {
    const auto record = images_->lend_all({key(n), 1, kSlot, nullptr, use});
    EXPECT_TRUE(record.has_value());
    images_->load_done(*record);
    return *record;
  }
  void read(RecordId r, Use use = Use::kForeground) {
    images_->pin({&r, 1});
    images_->unpin({&r, 1}, use);
  }
  RecordId find(std::uint64_t n) const { return images_->table().find(key(n)); }
  // Keys in the order in which they would go.
  std::vector<std::uint64_t> order() const {
    std::vector<std::uint64_t> out;
    const Residency& table = images_->table();
    for (RecordId r = table.least_recent(); r != kNoRecord; r = table.more_recent(r))
      out.push_back(number_of(table.hot(r).hash));
    return out;
  }
  std::vector<std::uint64_t> of(EvictionClass eviction) const {
    std::vector<std::uint64_t> out;
    for (const std::uint64_t n : order())
      if (images_->table().class_of(find(n)) == eviction) out.push_back(n);
    return out;
  }
  Images& images() { return *images_; }
  const mem::KeptTable& table() const { return *table_; }

 private:
  static std::uint64_t number_of(const BlockHash& hash) {
    std::uint64_t n = 0;
    std::memcpy(&n, hash.bytes.data() + 8, sizeof n);
    return n;
  }
  BlockKey key(std::uint64_t n) const { return {hash_of(n), name_space_, GroupId(0)}; }

  Namespaces namespaces_;
  NamespaceIndex name_space_ = *namespaces_.intern(model::NamespaceDigest{});
  std::unique_ptr<mem::Pool> pool_;
  std::optional<mem::KeptTable> table_;
  std::unique_ptr<Images> images_;
};

class ImagesKept : public ::testing::Test {
 protected:
  // A minute is over.
  void go_on(Life& life) {
    now_ = now_ + seconds(60);
    life.images().set_clock(now_);
  }
  std::unique_ptr<Life> next(const Life& life, const LifeOptions& options = {}) {
    mem::KeptPool kept = life.left(now_);
    EXPECT_EQ(kept.counts.wrong + kept.counts.overlapping, 0u);
    auto made = std::make_unique<Life>(options, &kept);
    made->images().set_clock(now_);
    made->adopt(kept);
    return made;
  }
  // One of each class that goes after the other: 2, 0 (was read too long ago), 1, 3.
  void fill(Life& life) {
    life.images().set_clock(now_);
    for (const std::uint64_t n : {0, 1}) life.seal(n);
    go_on(life);
    life.load(2, Use::kSpeculative);
    go_on(life);
    life.read(life.seal(3));
  }
  TimePoint now_ = TimePoint{} + seconds(60 * 65530);  // its minutes wrap soon
};

TEST_F(ImagesKept, ClassesSurvive) {
  Life life;
  fill(life);
  const auto after = next(life);
  EXPECT_EQ(after->of(kReclaimable), (std::vector<std::uint64_t>{2}));
  EXPECT_EQ(after->of(kProbationary), (std::vector<std::uint64_t>{0, 1}));
  EXPECT_EQ(after->of(kRetained), (std::vector<std::uint64_t>{3}));
}

// Everything that changes the order, a minute each, and lives that end in between.
TEST_F(ImagesKept, TheOrderIsThatOfALifeThatWentOn) {
  std::mt19937_64 random(17);
  auto life = std::make_unique<Life>();
  life->images().set_clock(now_);
  std::uint64_t fresh = 0;
  int demoted = 0;
  for (int step = 0; step < 3000; ++step) {
    SCOPED_TRACE(step);
    go_on(*life);
    const auto retained = life->of(kRetained);
    const auto order = life->order();
    const std::uint64_t what = random() % 16;
    if (order.empty() || what < 3) {
      life->seal(fresh++);
    } else if (what == 3) {
      life->seal(fresh++, ByteCount(kSlot.value / 2), 2);
    } else if (what == 4) {
      life->load(fresh++, Use::kSpeculative);
    } else if (what == 5) {
      life->load(fresh++, Use::kForeground);
    } else if (what == 6) {
      life->images().evict(ByteCount(1));
    } else if (what == 7) {
      life->images().drop(life->find(order[random() % order.size()]));
    } else {
      const auto use = what == 8 ? Use::kSpeculative : Use::kForeground;
      life->read(life->find(order[random() % order.size()]), use);
    }
    const auto lower = life->of(kProbationary);
    demoted += static_cast<int>(std::count_if(retained.begin(), retained.end(), [&](std::uint64_t n) {
      return std::find(lower.begin(), lower.end(), n) != lower.end();
    }));
    if (step % 7 != 0) continue;
    auto after = next(*life);
    ASSERT_EQ(after->order(), life->order());
    for (const auto eviction : {kReclaimable, kProbationary, kRetained})
      ASSERT_EQ(after->of(eviction), life->of(eviction));
    if (step % 21 == 0) life = std::move(after);
  }
  EXPECT_GT(demoted, 100);
  EXPECT_GT(life->of(kRetained).size(), 5u);
}

// The head of a prefix was saved first, and outlives its tail.
TEST_F(ImagesKept, AReadOfAMinuteGoesFromItsEnd) {
  Life life({.percent = 50});
  life.images().set_clock(now_);
  std::vector<RecordId> prefix;
  for (std::uint64_t n = 0; n < 8; ++n) prefix.push_back(life.seal(n));
  life.images().pin(prefix);
  life.images().unpin(prefix);
  EXPECT_EQ(next(life, {.percent = 50})->order(), life.order());
  EXPECT_EQ(life.order().front(), 7u);
}

// So do those that such a read demotes, all at once.
TEST_F(ImagesKept, WhatAReadDemotesGoesFromItsEnd) {
  Life life;
  life.images().set_clock(now_);
  for (std::uint64_t prefix = 0; prefix < 4; ++prefix) {
    std::vector<RecordId> records;
    for (std::uint64_t n = 0; n < 8; ++n) records.push_back(life.seal(100 * prefix + n));
    go_on(life);
    life.images().pin(records);
    life.images().unpin(records);
    go_on(life);
  }
  life.seal(500);
  EXPECT_EQ(life.of(kProbationary).front(), 7u);
  const auto after = next(life);
  EXPECT_EQ(after->of(kRetained), life.of(kRetained));
  EXPECT_EQ(after->order(), life.order());
  EXPECT_EQ(next(*after)->order(), life.order());
}

TEST_F(ImagesKept, AgesSurvive) {
  Life life;
  life.images().set_clock(now_);
  const RecordId read = life.seal(0);
  life.seal(1);
  for (int minute = 0; minute < 100; ++minute) {
    go_on(life);
    if (minute == 89) life.read(read);
  }
  const auto dropped = [](Life& of, std::int64_t minutes) {
    Images::Tally tally(limits::kNamespaces);
    Images::Filter unused{std::vector<bool>(limits::kNamespaces, true), seconds(60 * minutes)};
    of.images().count_some({0, of.images().table().high_water()}, unused, tally);
    return tally[0].images;
  };
  const auto after = next(life);
  for (const std::int64_t minutes : {5, 9, 10, 11, 50, 99, 100, 101})
    EXPECT_EQ(dropped(*after, minutes), dropped(life, minutes)) << minutes;
  EXPECT_EQ(dropped(*after, 9), 2u);
  EXPECT_EQ(dropped(*after, 50), 1u);
}

// A block that is retained, and read again and again, writes there once a minute; else nothing does.
TEST_F(ImagesKept, AReadOfWhatIsRetainedWritesNothingWithinItsMinute) {
  Life life;
  life.images().set_clock(now_);
  const RecordId record = life.seal(0);
  life.read(record);
  const mem::KeptAt at{mem::KeptRegion::kFirst, record.value};
  auto& table = const_cast<mem::KeptTable&>(life.table());
  table.note_use(record.value, {mem::KeptClass::kReclaimable, 1});  // seen if it is written over
  const auto noted = [&] {
    mem::KeptLent lent;
    mem::KeptImage image;
    EXPECT_EQ(table.read(at, lent, image), mem::KeptTable::Found::kSealed);
    return image.use.eviction;
  };
  life.read(record);
  life.read(record, Use::kSpeculative);
  EXPECT_EQ(noted(), mem::KeptClass::kReclaimable);
  go_on(life);
  life.read(record, Use::kSpeculative);
  EXPECT_EQ(noted(), mem::KeptClass::kReclaimable);
  life.read(record);
  EXPECT_EQ(noted(), mem::KeptClass::kRetained);
}

// The least recent retained ones become the most recent probationary ones, as ever.
TEST_F(ImagesKept, ASmallerShareHoldsAfterwards) {
  Life life;
  life.images().set_clock(now_);
  life.seal(100);
  for (std::uint64_t n = 0; n < 16; ++n) {
    go_on(life);
    life.read(life.seal(n));
  }
  EXPECT_EQ(life.of(kRetained).size(), 16u);
  go_on(life);
  const LifeOptions less{.percent = 10};
  const auto after = next(life, less);  // 6 of 64 slots
  EXPECT_EQ(after->order(), life.order()) << "nobody overtakes";
  EXPECT_EQ(after->of(kRetained), (std::vector<std::uint64_t>{10, 11, 12, 13, 14, 15}));
  EXPECT_LE(after->images().listed(kRetained).units * Images::kUnitBytes, after->images().protected_share());
  EXPECT_EQ(next(*after, less)->of(kRetained), after->of(kRetained));
  EXPECT_TRUE(next(life, {.percent = 0})->of(kRetained).empty());
  const auto small = next(life, {.percent = 25, .blocks = 20});  // the table is a share, too
  EXPECT_EQ(small->of(kRetained), (std::vector<std::uint64_t>{11, 12, 13, 14, 15}));
}

TEST_F(ImagesKept, LargerThanTheShareIsNotRetained) {
  Life life({.percent = 50});
  life.images().set_clock(now_);
  life.read(life.seal(0, 20 * kSlot));
  life.read(life.seal(1));
  const auto after = next(life);
  EXPECT_EQ(after->of(kProbationary), (std::vector<std::uint64_t>{0}));
  EXPECT_EQ(after->of(kRetained), (std::vector<std::uint64_t>{1}));
}

// A table with less room keeps what would have gone last.
TEST_F(ImagesKept, WhatHasNoRoomIsWhatWouldHaveGoneFirst) {
  Life life({.percent = 100});
  fill(life);
  const auto after = next(life, {.percent = 100, .blocks = 2});
  EXPECT_EQ(after->order(), (std::vector<std::uint64_t>{1, 3}));
}

TEST_F(ImagesKept, OfAnUnknownClassIsProbationaryAndUsedJustNow) {
  Life life;
  fill(life);
  auto& table = const_cast<mem::KeptTable&>(life.table());
  for (std::uint32_t i = 0; i < 4; ++i) table.note_use(i, {mem::KeptClass::kUnknown, 77});
  const auto after = next(life);
  EXPECT_EQ(after->of(kProbationary), (std::vector<std::uint64_t>{0, 1, 2, 3})) << "by their revisions";
  mem::KeptLent lent;
  mem::KeptImage image;
  ASSERT_EQ(after->table().read({mem::KeptRegion::kFirst, 0}, lent, image), mem::KeptTable::Found::kSealed);
  EXPECT_EQ(image.use.eviction, mem::KeptClass::kProbationary);
  EXPECT_EQ(image.use.minute, static_cast<std::uint16_t>(now_.ns / seconds(60).ns));
}

}  // namespace
}  // namespace orbitkv::cache
