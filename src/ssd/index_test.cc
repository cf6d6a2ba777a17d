// The index against a plain map, at its bounds, and what a record of it costs.
#include "ssd/index.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <utility>

namespace orbitkv::ssd {
namespace {

BlockHash hash_of(std::uint64_t n) {
  std::mt19937_64 random(n);
  BlockHash out;
  for (std::size_t at = 0; at < out.bytes.size(); at += 8) {
    const std::uint64_t word = random();
    std::memcpy(out.bytes.data() + at, &word, sizeof word);
  }
  return out;
}

std::vector<ImageMark> marks_of(std::uint64_t n, std::uint16_t shards) {
  std::vector<ImageMark> out;
  for (std::uint16_t i = 0; i < shards; ++i) out.push_back({n * 100 + i, AllocationId(n * 1000 + i)});
  return out;
}

IndexRecord record(std::uint64_t n, std::uint64_t sequence, std::uint16_t shards = 1) {
  IndexRecord out;
  out.space = SpaceIndex(0);
  out.hash = hash_of(n);
  out.sequence = RecordSequence(sequence);
  out.segment = IndexSegment(static_cast<std::uint32_t>(n % 4));
  out.first_page = static_cast<std::uint32_t>(n);
  out.image_pages = 3;
  out.shards = shards;
  return out;
}

Index small(std::uint32_t records, std::uint32_t further = 64) {
  return Index({records, further, 4, 1});
}

TEST(IndexTest, finds_what_was_put) {
  Index index = small(8);
  IndexRecord in = record(1, 5, 3);
  in.flags = 2;
  const auto placed = index.put(in, marks_of(1, 3));
  EXPECT_EQ(placed.outcome, Index::Put::kNew);
  const StoredRef found = index.find(SpaceIndex(0), hash_of(1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found.id, placed.ref.id);
  EXPECT_TRUE(index.live(found));
  const IndexRecord out = index.at(found.id);
  EXPECT_EQ(out.hash, in.hash);
  EXPECT_EQ(out.sequence, RecordSequence(5));
  EXPECT_EQ(out.segment, IndexSegment(1));
  EXPECT_EQ(out.first_page, 1u);
  EXPECT_EQ(out.image_pages, 3u);
  EXPECT_EQ(out.shards, 3u);
  EXPECT_EQ(out.flags, 2u);
  std::vector<ImageMark> marks(3);
  index.marks(found.id, marks);
  for (std::uint16_t i = 0; i < 3; ++i) {
    EXPECT_EQ(marks[i].digest, 100u + i);
    EXPECT_EQ(marks[i].revision, AllocationId(1000u + i));
  }
  EXPECT_FALSE(index.find(SpaceIndex(1), hash_of(1)));
  EXPECT_FALSE(index.find(SpaceIndex(0), hash_of(2)));
}

TEST(IndexTest, highest_sequence_wins_in_any_order) {
  Index index = small(8);
  index.put(record(1, 5), marks_of(1, 1));
  EXPECT_EQ(index.put(record(1, 4), marks_of(2, 1)).outcome, Index::Put::kOlder);
  EXPECT_EQ(index.put(record(1, 5), marks_of(2, 1)).outcome, Index::Put::kOlder);
  EXPECT_EQ(index.first_mark(index.find(SpaceIndex(0), hash_of(1)).id).digest, 100u);
  const StoredRef old = index.find(SpaceIndex(0), hash_of(1));
  const auto placed = index.put(record(1, 6), marks_of(3, 1));
  EXPECT_EQ(placed.outcome, Index::Put::kReplaced);
  ASSERT_TRUE(placed.replaced);
  EXPECT_EQ(placed.replaced->sequence, RecordSequence(5));
  EXPECT_FALSE(index.live(old));
  EXPECT_EQ(index.size(), 1u);
  EXPECT_EQ(index.first_mark(placed.ref.id).digest, 300u);
}

TEST(IndexTest, full) {
  Index index = small(3);
  for (std::uint64_t n = 0; n < 3; ++n)
    EXPECT_EQ(index.put(record(n, 1), marks_of(n, 1)).outcome, Index::Put::kNew);
  EXPECT_EQ(index.put(record(9, 1), marks_of(9, 1)).outcome, Index::Put::kFull);
  EXPECT_EQ(index.size(), 3u);
  EXPECT_EQ(index.put(record(2, 2), marks_of(2, 1)).outcome, Index::Put::kReplaced);
  index.erase(index.find(SpaceIndex(0), hash_of(0)).id);
  EXPECT_EQ(index.put(record(9, 1), marks_of(9, 1)).outcome, Index::Put::kNew);
  EXPECT_FALSE(index.find(SpaceIndex(0), hash_of(0)));
}

// Marks of further shards have a bound of their own; a record gives back what it took.
TEST(IndexTest, full_of_marks) {
  Index index = small(100, 6);
  EXPECT_EQ(index.put(record(1, 1, 4), marks_of(1, 4)).outcome, Index::Put::kNew);
  EXPECT_EQ(index.put(record(2, 1, 5), marks_of(2, 5)).outcome, Index::Put::kFull);
  EXPECT_FALSE(index.find(SpaceIndex(0), hash_of(2)));
  EXPECT_EQ(index.put(record(2, 1, 4), marks_of(2, 4)).outcome, Index::Put::kNew);
  EXPECT_EQ(index.put(record(2, 2, 4), marks_of(3, 4)).outcome, Index::Put::kReplaced);
  EXPECT_EQ(index.put(record(2, 3, 5), marks_of(3, 5)).outcome, Index::Put::kFull);
  EXPECT_EQ(index.at(index.find(SpaceIndex(0), hash_of(2)).id).sequence, RecordSequence(2));
  index.erase(index.find(SpaceIndex(0), hash_of(1)).id);
  EXPECT_EQ(index.put(record(2, 3, 7), marks_of(3, 7)).outcome, Index::Put::kReplaced);
  std::vector<ImageMark> marks(7);
  index.marks(index.find(SpaceIndex(0), hash_of(2)).id, marks);
  EXPECT_EQ(marks[6].digest, 306u);
}

TEST(IndexTest, generation_fences_reused_id) {
  Index index = small(1);
  const StoredRef old = index.put(record(1, 1), marks_of(1, 1)).ref;
  index.erase(old.id);
  EXPECT_FALSE(index.live(old));
  const StoredRef fresh = index.put(record(2, 1), marks_of(2, 1)).ref;
  EXPECT_EQ(fresh.id, old.id);
  EXPECT_NE(fresh.generation, old.generation);
  EXPECT_FALSE(index.live(old));
  EXPECT_TRUE(index.live(fresh));
  EXPECT_FALSE(index.live({}));
}

TEST(IndexTest, relocated_record_keeps_its_name) {
  Index index = small(8);
  const StoredRef ref = index.put(record(1, 1), marks_of(1, 1)).ref;
  index.relocate(ref.id, IndexSegment(3), 77);
  EXPECT_TRUE(index.live(ref));
  EXPECT_EQ(index.at(ref.id).segment, IndexSegment(3));
  EXPECT_EQ(index.at(ref.id).first_page, 77u);
  EXPECT_EQ(index.count_in(IndexSegment(1)), 0u);
  EXPECT_EQ(index.first_in(IndexSegment(1)), kNotStored);
  EXPECT_EQ(index.first_in(IndexSegment(3)), ref.id);
  EXPECT_EQ(index.next_in(ref.id), kNotStored);
}

// ---- against a map ----

class Oracle {
 public:
  using Key = std::pair<std::uint32_t, BlockHash>;
  explicit Oracle(std::uint64_t seed) : random_(seed), index_({kRecords, kFurther, kSegments, seed}) {}

  void step() {
    switch (random_() % 8) {
      case 0: return erase();
      case 1: return relocate();
      default: return put();
    }
  }

  void check() {
    ASSERT_EQ(index_.size(), map_.size());
    for (std::uint32_t space = 0; space < kSpaces; ++space) check_space(space);
    for (std::uint32_t segment = 0; segment < kSegments; ++segment) check_list(segment);
  }

 private:
  static constexpr std::uint32_t kRecords = 700, kFurther = 500, kSegments = 9, kSpaces = 3, kKeys = 500;

  struct Held {
    IndexRecord record;
    std::vector<ImageMark> marks;
    StoredRef ref;
  };

  std::uint64_t further() const {
    std::uint64_t sum = 0;
    for (const auto& [key, held] : map_) sum += held.marks.size() - 1;
    return sum;
  }

  void put() {
    IndexRecord in = record(random_() % kKeys, random_() % 50, static_cast<std::uint16_t>(1 + random_() % 4));
    in.space = SpaceIndex(static_cast<std::uint32_t>(random_() % kSpaces));
    in.segment = IndexSegment(static_cast<std::uint32_t>(random_() % kSegments));
    const auto marks = marks_of(random_() % 1000, in.shards);
    const Key key{in.space.value, in.hash};
    const auto it = map_.find(key);
    const std::uint64_t freed = it == map_.end() ? 0 : it->second.marks.size() - 1;
    Index::Put wanted = it == map_.end() ? Index::Put::kNew : Index::Put::kReplaced;
    if (it == map_.end() && map_.size() == kRecords) wanted = Index::Put::kFull;
    if (further() - freed + in.shards - 1 > kFurther) wanted = Index::Put::kFull;
    if (it != map_.end() && it->second.record.sequence >= in.sequence) wanted = Index::Put::kOlder;
    const auto placed = index_.put(in, marks);
    ASSERT_EQ(placed.outcome, wanted);
    if (wanted == Index::Put::kNew || wanted == Index::Put::kReplaced) map_[key] = {in, marks, placed.ref};
  }

  Held* any() {
    if (map_.empty()) return nullptr;
    auto it = map_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random_() % map_.size()));
    return &it->second;
  }
  void erase() {
    const Held* held = any();
    if (held == nullptr) return;
    index_.erase(held->ref.id);
    EXPECT_FALSE(index_.live(held->ref));
    map_.erase({held->record.space.value, held->record.hash});
  }
  void relocate() {
    Held* held = any();
    if (held == nullptr) return;
    held->record.segment = IndexSegment(static_cast<std::uint32_t>(random_() % kSegments));
    held->record.first_page = static_cast<std::uint32_t>(random_());
    index_.relocate(held->ref.id, held->record.segment, held->record.first_page);
  }

  // One by one and as a batch: the same.
  void check_space(std::uint32_t space) {
    std::vector<BlockHash> hashes;
    for (std::uint64_t n = 0; n < kKeys + 5; ++n) hashes.push_back(hash_of(n));
    std::vector<StoredRef> batch(hashes.size());
    index_.find_batch(SpaceIndex(space), hashes, batch);
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const StoredRef one = index_.find(SpaceIndex(space), hashes[i]);
      EXPECT_EQ(one.id, batch[i].id);
      EXPECT_EQ(one.generation, batch[i].generation);
      const auto it = map_.find({space, hashes[i]});
      ASSERT_EQ(static_cast<bool>(one), it != map_.end());
      if (one) check_record(it->second, one);
    }
  }
  void check_record(const Held& held, StoredRef ref) {
    EXPECT_EQ(ref.id, held.ref.id);
    EXPECT_EQ(ref.generation, held.ref.generation);
    const IndexRecord out = index_.at(ref.id);
    EXPECT_EQ(out.sequence, held.record.sequence);
    EXPECT_EQ(out.segment, held.record.segment);
    EXPECT_EQ(out.first_page, held.record.first_page);
    std::vector<ImageMark> marks(out.shards);
    index_.marks(ref.id, marks);
    const auto same = [](const ImageMark& a, const ImageMark& b) {
      return a.digest == b.digest && a.revision == b.revision;
    };
    EXPECT_TRUE(std::ranges::equal(marks, held.marks, same));
  }
  void check_list(std::uint32_t segment) {
    std::set<std::uint32_t> listed, wanted;
    const IndexSegment of(segment);
    for (StoredId id = index_.first_in(of); id != kNotStored; id = index_.next_in(id))
      listed.insert(id.value);
    for (const auto& [key, held] : map_)
      if (held.record.segment == of) wanted.insert(held.ref.id.value);
    EXPECT_EQ(listed, wanted);
    EXPECT_EQ(index_.count_in(of), wanted.size());
  }

  std::mt19937_64 random_;
  Index index_;
  std::map<Key, Held> map_;
};

TEST(IndexTest, batch_lookup_equals_single_lookup_and_both_a_map) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Oracle oracle(seed);
    for (int round = 0; round < 12; ++round) {
      for (int i = 0; i < 300; ++i) oracle.step();
      oracle.check();
      if (HasFailure()) FAIL() << "seed " << seed;
    }
  }
}

// ---- size ----

std::uint64_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long total = 0, resident = 0;
  const int read = file == nullptr ? 0 : std::fscanf(file, "%lu %lu", &total, &resident);
  if (file != nullptr) std::fclose(file);
  return read == 2 ? resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

// Made for sixteen times as many records: what is not used takes nothing.
TEST(IndexTest, bytes_per_record) {
  constexpr std::uint32_t kRecords = 1'000'000;
  constexpr std::uint32_t kSegments = 16384;
  [[maybe_unused]] const std::uint64_t before = resident_bytes();
  Index index({1u << 24, 1u << 24, kSegments, 1});
  std::mt19937_64 random(1);
  IndexRecord in = record(0, 1);
  const ImageMark mark{1, AllocationId(2)};
  for (std::uint32_t i = 0; i < kRecords; ++i) {
    for (std::size_t at = 0; at < in.hash.bytes.size(); at += 8) {
      const std::uint64_t word = random();
      std::memcpy(in.hash.bytes.data() + at, &word, sizeof word);
    }
    in.segment = IndexSegment(i / 62);
    ASSERT_EQ(index.put(in, std::span(&mark, 1)).outcome, Index::Put::kNew);
  }
  EXPECT_LE(index.memory().value, 120ull * kRecords);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose shadow is resident too
  const std::uint64_t after = resident_bytes();
  ASSERT_GT(before, 0u);
  const double each = static_cast<double>(after - before) / kRecords;
  RecordProperty("resident_bytes_per_record", std::to_string(each));
  std::printf("%.1f bytes of resident memory a record, %.1f counted\n", each,
              static_cast<double>(index.memory().value) / kRecords);
  EXPECT_LE(each, 120.0);
  EXPECT_GE(each, 64.0);
#endif
}

}  // namespace
}  // namespace orbitkv::ssd
