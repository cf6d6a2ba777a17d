#include "mem/kept_scan.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "mem/kept_layout.h"

namespace orbitkv::mem {
namespace {

constexpr ByteCount kSlabSize = kMiB;

// A table with two slabs, one namespace, and what a test puts there.
class Scanned : public ::testing::Test {
 protected:
  Scanned() {
    put(0, 10);
    put(1, 11);
    table_.put_name_space(NamespaceIndex(0), std::array<std::byte, 32>{});
    table_.name_given(SlabId(12));
  }
  void put(std::uint32_t slot, std::uint32_t name, KeptSlabState state = KeptSlabState::kLive) {
    table_.put_slab(SlabSlot(slot), {SlabId(name), kSlabSize, {}, kAnyNode, state});
    auto made = make_slab_memory(SlabId(name), kSlabSize, PageSource::kShared);
    memories_.push_back({SlabId(name), std::move(made).value()});
  }
  static KeptImage image(std::uint32_t name, std::uint64_t offset, ByteCount bytes = ByteCount(4096)) {
    KeptImage out;
    out.place = {SlabId(name), offset, bytes};
    out.revision = AllocationId(100);
    out.hash[0] = static_cast<std::byte>(offset >> 12);
    out.hash[1] = static_cast<std::byte>(name);
    return out;
  }
  static KeptLent lent(std::uint32_t name, std::uint64_t offset, ByteCount bytes = ByteCount(4096)) {
    return {{SlabId(name), offset, bytes}, {Epoch(5), RecordIndex(1), OperationId(9)}};
  }
  void seal(const KeptImage& image) { table_.seal({KeptRegion::kFirst, next_++}, image); }
  void lend(const KeptLent& lent) { table_.lend({KeptRegion::kFirst, next_++}, lent); }
  static TimePoint minute(std::int64_t n) { return TimePoint{} + seconds(60 * n + 59); }
  void use(std::uint64_t revision, KeptUse use) {
    KeptImage one = image(10, revision * 4096);
    one.revision = AllocationId(revision);
    seal(one);
    table_.note_use(next_ - 1, use);
  }
  KeptPool scan(std::uint32_t unit = 64, TimePoint now = monotonic_now()) {
    auto out = scan_kept(table_, memories_, unit, {}, now);
    EXPECT_TRUE(out.ok()) << out.error().message();
    return out.ok() ? std::move(out).value() : KeptPool{};
  }

  KeptTable table_ = KeptTable::create({7, 64, 10'000, 1000, 100}).value();
  std::vector<KeptMemory> memories_;
  std::uint32_t next_ = 0;
};

// Who watches the start sees that it goes on.
TEST(ScannedLong, SaysNowAndThenThatItGoesOn) {
  KeptTable table = KeptTable::create({7, 64, 100'000, 1000, 100}).value();
  std::vector<KeptMemory> memories;
  const SlabId name(10);
  const ByteCount bytes = 64 * kMiB;
  table.put_slab(SlabSlot(0), {name, bytes, {}, kAnyNode, KeptSlabState::kLive});
  memories.push_back({name, make_slab_memory(name, bytes, PageSource::kShared).value()});
  table.put_name_space(NamespaceIndex(0), std::array<std::byte, 32>{});
  table.name_given(SlabId(11));
  KeptImage image;
  for (std::uint32_t i = 0; i < 100'000; ++i) {
    image.place = {name, std::uint64_t{(i * 7919) % 100'000} * 640, ByteCount(640)};
    image.revision = AllocationId(i ^ 0x5555);
    std::memcpy(image.hash.data(), &i, sizeof i);
    table.seal({KeptRegion::kFirst, i}, image);
  }
  int signs = 0;
  ASSERT_EQ(scan_kept(table, memories, 64, [&] { ++signs; })->images.size(), 100'000u);
  EXPECT_GT(signs, 1);
}

TEST_F(Scanned, SlabsImagesAndLentExtentsAreTakenOver) {
  seal(image(10, 0));
  seal(image(11, 8192));
  lend(lent(10, 4096));
  const KeptPool pool = scan();
  EXPECT_EQ(pool.id, 7u);
  EXPECT_EQ(pool.next_name, 12u);
  ASSERT_EQ(pool.slabs.size(), 2u);
  EXPECT_TRUE(pool.slabs[0].memory.valid());
  EXPECT_FALSE(pool.slabs[0].tainted);
  EXPECT_EQ(pool.slabs[0].used, (std::vector<UsedRun>{{0, 64}, {64, 64}}));
  EXPECT_EQ(pool.slabs[1].used, (std::vector<UsedRun>{{128, 64}}));
  EXPECT_EQ(pool.images.size(), 2u);
  ASSERT_EQ(pool.lent.size(), 1u);
  EXPECT_EQ(pool.lent[0].lent.writer.operation, OperationId(9));
  EXPECT_TRUE(memories_.empty());
}

TEST_F(Scanned, TheOldestComesFirst) {
  for (const std::uint64_t revision : {5u, 3u, 9u}) {
    KeptImage one = image(10, revision * 4096);
    one.revision = AllocationId(revision);
    seal(one);
  }
  const KeptPool pool = scan();
  ASSERT_EQ(pool.images.size(), 3u);
  ASSERT_EQ(pool.oldest_first.size(), 3u);
  EXPECT_EQ(pool.images[pool.oldest_first[0]].slot.revision.value, 3u);
  EXPECT_EQ(pool.images[pool.oldest_first[2]].slot.revision.value, 9u);
}

// By class, then by minute, then by revision: what was read goes from the end of its prefix.
TEST_F(Scanned, TheOrderIsThatOfEviction) {
  struct Use {
    KeptClass eviction;
    int minute;
    std::uint64_t revision;
  };
  constexpr auto kReclaimable = KeptClass::kReclaimable, kNew = KeptClass::kProbationary,
                 kRetained = KeptClass::kRetained, kDemoted = KeptClass::kDemoted,
                 kUnknown = KeptClass::kUnknown;
  constexpr int kNow = 2 * 65536 + 10;  // the minutes wrap in between
  const std::vector<Use> expected{
      {kReclaimable, kNow - 1, 9}, {kReclaimable, kNow, 2},   {kNew, kNow - 60000, 8},
      {kNew, kNow - 11, 3},        {kNew, kNow - 11, 7},      {kDemoted, kNow - 11, 14},
      {kDemoted, kNow - 11, 6},    {kNew, kNow - 10, 1},      {kUnknown, kNow - 500, 12},
      {kDemoted, kNow, 13},        {kRetained, kNow - 3, 11}, {kRetained, kNow - 3, 10},
      {kRetained, kNow, 4}};
  std::vector<Use> shuffled = expected;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(3));
  for (const Use& each : shuffled)
    use(each.revision, {each.eviction, static_cast<std::uint16_t>(each.minute)});
  const KeptPool pool = scan(64, minute(kNow));
  ASSERT_EQ(pool.oldest_first.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const KeptImage& image = pool.images[pool.oldest_first[i]].slot;
    EXPECT_EQ(image.revision.value, expected[i].revision) << i;
    const int when = expected[i].eviction == kUnknown ? kNow : expected[i].minute;
    EXPECT_EQ(image.use.minute, static_cast<std::uint16_t>(when)) << i;
  }
}

// No image is older than the clock: that would be one of a moment to come, or damage.
TEST_F(Scanned, AMinuteFromBeforeTheClockBeganIsNow) {
  use(1, {KeptClass::kProbationary, 0});
  use(2, {KeptClass::kProbationary, 8});
  use(3, {KeptClass::kProbationary, 0x8003});
  use(4, {KeptClass::kProbationary, 3});
  const KeptPool pool = scan(64, minute(7));
  std::vector<std::pair<std::uint64_t, int>> found;
  for (const std::uint32_t i : pool.oldest_first)
    found.emplace_back(pool.images[i].slot.revision.value, pool.images[i].slot.use.minute);
  EXPECT_EQ(found, (std::vector<std::pair<std::uint64_t, int>>{{1, 0}, {4, 3}, {2, 7}, {3, 7}}));
}

TEST_F(Scanned, OutOfBoundsIsAbsent) {
  seal(image(10, kSlabSize.value));
  seal(image(10, kSlabSize.value - 64));
  seal(image(10, 0, ByteCount(0)));
  seal(image(10, 0, kSlabSize + ByteCount(64)));
  seal(image(12, 0));  // no such slab
  KeptImage last = image(11, kSlabSize.value - 4096);
  seal(last);
  const KeptPool pool = scan();
  EXPECT_EQ(pool.images.size(), 1u);
  EXPECT_EQ(pool.counts.misplaced, 5u);
  EXPECT_FALSE(pool.slabs[0].tainted);
}

TEST_F(Scanned, OfImagesThatOverlapNoneIsKept) {
  seal(image(10, 0, ByteCount(40960)));
  seal(image(10, 4096));
  seal(image(10, 8192));
  seal(image(10, 40960));
  seal(image(11, 0));
  seal(image(11, 0));
  const KeptPool pool = scan();
  ASSERT_EQ(pool.images.size(), 1u);
  EXPECT_EQ(pool.images[0].slot.place.offset, 40960u);
  EXPECT_EQ(pool.counts.overlapping, 5u);
}

// Which of the two is written to nobody knows: the slab lends nothing more.
TEST_F(Scanned, ALentExtentThatOverlapsTaintsItsSlab) {
  lend(lent(10, 0));
  seal(image(10, 2048));
  seal(image(10, 65536));
  const KeptPool pool = scan();
  EXPECT_TRUE(pool.slabs[0].tainted);
  EXPECT_FALSE(pool.slabs[1].tainted);
  EXPECT_EQ(pool.images.size(), 1u);
  EXPECT_TRUE(pool.lent.empty());
}

TEST_F(Scanned, ADamagedRecordThatMayHaveBeenLentTaintsEverySlab) {
  lend(lent(10, 0));
  void* const at = ::mmap(nullptr, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, table_.memory().get(), 0);
  ASSERT_NE(at, MAP_FAILED);
  auto* const words = static_cast<std::uint64_t*>(at);
  std::size_t record = kept::kRecordsAt / 8;
  ASSERT_NE(words[record], 0u);
  words[record + 7] ^= 1;
  ::munmap(at, 2 << 20);
  const KeptPool pool = scan();
  EXPECT_TRUE(pool.slabs[0].tainted && pool.slabs[1].tainted);
  EXPECT_EQ(pool.counts.wrong, 1u);
}

TEST_F(Scanned, TaintedSlabsKeepTheirImagesAndRetiringOnesAreAbsent) {
  seal(image(10, 0));
  seal(image(11, 0));
  lend(lent(11, 8192));
  table_.taint_slab(SlabSlot(0));
  table_.retire_slab(SlabSlot(1));
  const KeptPool pool = scan();
  ASSERT_EQ(pool.slabs.size(), 1u);
  EXPECT_TRUE(pool.slabs[0].tainted);
  EXPECT_EQ(pool.images.size(), 1u);
  EXPECT_TRUE(pool.lent.empty());
  ASSERT_EQ(memories_.size(), 1u);  // to be let go of
  EXPECT_EQ(memories_[0].name, SlabId(11));
  ASSERT_EQ(pool.retired.size(), 1u) << "who maps it has its bytes yet";
  EXPECT_EQ(pool.retired[0].name, SlabId(11));
  EXPECT_EQ(pool.retired[0].bytes, kSlabSize);
}

TEST_F(Scanned, ASlabWithoutItsMemoryIsAbsent) {
  seal(image(10, 0));
  memories_.erase(memories_.begin());
  const KeptPool pool = scan();
  EXPECT_TRUE(pool.images.empty());
  ASSERT_EQ(pool.retired.size(), 1u) << "who maps it has its bytes yet";
  EXPECT_EQ(pool.retired[0].name, SlabId(10));
}

// The last one retires: the next life has its bytes to count, and its name not to give again.
TEST_F(Scanned, WithoutASlabTheAccountsGoOn) {
  lend(lent(11, 8192));
  table_.retire_slab(SlabSlot(0));
  table_.retire_slab(SlabSlot(1));
  const KeptPool pool = scan();
  EXPECT_TRUE(pool.slabs.empty());
  EXPECT_EQ(pool.retired.size(), 2u);
  EXPECT_EQ(pool.next_name, 12u);
  EXPECT_TRUE(pool.lent.empty());
  table_.drop_slab(SlabSlot(0));
  table_.drop_slab(SlabSlot(1));
  EXPECT_FALSE(scan_kept(table_, memories_, 64).ok()) << "nothing is there at all";
}

TEST_F(Scanned, MemoryOfAnotherSizeOrKindIsNotTaken) {
  memories_[0].fd = std::move(make_slab_memory(SlabId(10), 2 * kMiB, PageSource::kShared)).value();
  memories_[1].fd = UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const KeptPool pool = scan();
  EXPECT_TRUE(pool.slabs.empty());
  EXPECT_EQ(pool.retired.size(), 2u);
}

TEST_F(Scanned, AnImageWithAShardMissingIsAbsent) {
  const auto shard = [&](std::uint16_t n, std::uint64_t offset, std::uint8_t hash) {
    KeptImage one = image(10, offset);
    one.hash = {};
    one.hash[0] = static_cast<std::byte>(hash);
    one.shards = 2;
    one.shard = ShardId(n);
    seal(one);
  };
  shard(0, 0, 1);
  shard(1, 4096, 1);
  shard(0, 8192, 2);
  shard(1, 12288, 3);
  shard(1, 16384, 3);
  shard(2, 20480, 4);  // no such shard
  const KeptPool pool = scan();
  ASSERT_EQ(pool.images.size(), 2u);
  EXPECT_EQ(pool.images[0].slot.shard, ShardId(0));
  EXPECT_EQ(pool.images[1].slot.shard, ShardId(1));
  EXPECT_EQ(pool.counts.incomplete, 3u);
  EXPECT_EQ(pool.counts.misplaced, 1u);
}

TEST_F(Scanned, AnImageOfANamespaceThatIsNotThereIsAbsent) {
  KeptImage one = image(10, 0);
  one.name_space = NamespaceIndex(1);
  seal(one);
  one = image(10, 4096);
  one.name_space = NamespaceIndex(limits::kNamespaces);
  seal(one);
  const KeptPool pool = scan();
  EXPECT_TRUE(pool.images.empty());
  EXPECT_EQ(pool.counts.nameless, 2u);
}

TEST_F(Scanned, ExtentsOfASmallerUnitCannotBeGoneOnWith) {
  seal(image(10, 64));
  EXPECT_FALSE(scan_kept(table_, memories_, 4096).ok());
}

// Whatever stands in the records: no two extents overlap, all lie inside their slabs.
TEST_F(Scanned, HostileRecordsNeverMakeABadPool) {
  std::mt19937_64 random(20);
  for (int round = 0; round < 50; ++round) {
    for (std::uint32_t i = 0; i < 300; ++i) {
      const KeptAt at{KeptRegion::kFirst, i};
      const std::uint64_t offset = random() % (random() % 4 == 0 ? ~0ull : kSlabSize.value) / 64 * 64;
      const ByteCount bytes(random() % (random() % 8 == 0 ? ~0ull : 20'000) / 64 * 64);
      const auto name = static_cast<std::uint32_t>(9 + random() % 4);
      KeptImage one = image(name, offset, bytes);
      one.hash[0] = static_cast<std::byte>(random());
      one.shards = static_cast<std::uint16_t>(random() % 8 == 0 ? random() : 1 + random() % 2);
      one.shard = ShardId(static_cast<std::uint16_t>(random() % 8 == 0 ? random() : random() % 2));
      random() % 8 == 0 ? table_.lend(at, lent(name, offset, bytes)) : table_.seal(at, one);
      if (random() % 2 == 0)
        table_.note_use(i, {static_cast<KeptClass>(random()), static_cast<std::uint16_t>(random())});
    }
    const KeptPool pool = scan();
    for (const KeptPool::Slab& slab : pool.slabs) {
      std::uint32_t end = 0;
      for (const UsedRun& run : slab.used) {
        ASSERT_GE(run.begin, end);
        end = run.begin + run.units;
        ASSERT_LE(std::uint64_t{end} * 64, slab.bytes.value);
      }
    }
    for (std::size_t i = 0; i < pool.images.size(); i += pool.images[i].slot.shards)
      for (std::uint16_t s = 0; s < pool.images[i].slot.shards; ++s)
        ASSERT_EQ(pool.images.at(i + s).slot.shard.value, s);
    memories_.clear();
    put(0, 10);
    put(1, 11);
  }
}

}  // namespace
}  // namespace orbitkv::mem
