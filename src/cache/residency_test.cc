#include "cache/residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/limits.h"

namespace orbitkv::cache {
namespace {

BlockKey key_of(std::uint64_t n, std::uint32_t name_space = 0, std::uint16_t group = 0) {
  BlockKey key{{}, NamespaceIndex(name_space), GroupId(group)};
  std::memcpy(key.hash.bytes.data(), &n, sizeof n);
  return key;
}

RecordId insert(Residency& table, const BlockKey& key) {
  RecordId record = kNoRecord;
  EXPECT_EQ(table.insert(key, record), Residency::Insert::kInserted);
  return record;
}

void erase(Residency& table, RecordId record) {
  table.unindex(record);
  table.free_record(record);
}

TEST(Residency, KeysDifferInHashNamespaceAndGroup) {
  Residency table({64, {1, 2}});
  const RecordId a = insert(table, key_of(7, 0, 0));
  const RecordId b = insert(table, key_of(7, 1, 0));
  const RecordId c = insert(table, key_of(7, 0, 1));
  EXPECT_EQ(table.find(key_of(7, 0, 0)), a);
  EXPECT_EQ(table.find(key_of(7, 1, 0)), b);
  EXPECT_EQ(table.find(key_of(7, 0, 1)), c);
  EXPECT_EQ(table.find(key_of(8, 0, 0)), kNoRecord);
  erase(table, b);
  EXPECT_EQ(table.find(key_of(7, 1, 0)), kNoRecord);
  EXPECT_EQ(table.find(key_of(7, 0, 0)), a);
}

TEST(Residency, FullTableRefusesAndReusesFreedRecords) {
  Residency table({8, {1, 2}});
  std::vector<RecordId> records;
  for (std::uint64_t i = 0; i < 8; ++i) records.push_back(insert(table, key_of(i)));
  RecordId none = kNoRecord;
  EXPECT_EQ(table.insert(key_of(100), none), Residency::Insert::kTableFull);
  erase(table, records[3]);
  EXPECT_EQ(insert(table, key_of(100)), records[3]);
  EXPECT_EQ(table.records(), 8u);
  EXPECT_EQ(table.high_water(), 8u);
}

// The table against a std::map under random inserts and erases at full load, where
// clusters are long and cells move back on every erase.
TEST(Residency, AgreesWithAMapUnderChurn) {
  constexpr std::uint32_t kCap = 500;
  Residency table({kCap, {3, 4}});
  std::map<std::uint64_t, RecordId> expected;
  std::mt19937_64 random(42);
  for (int step = 0; step < 60000; ++step) {
    const std::uint64_t n = random() % 1500;
    const auto it = expected.find(n);
    ASSERT_EQ(table.find(key_of(n)), it == expected.end() ? kNoRecord : it->second) << "step " << step;
    if (it != expected.end()) {
      erase(table, it->second);
      expected.erase(it);
    } else if (expected.size() < kCap) {
      RecordId r = kNoRecord;
      if (table.insert(key_of(n), r) == Residency::Insert::kInserted) expected.emplace(n, r);
    }
    if (step % 5000 != 0) continue;
    for (const auto& [value, record] : expected) ASSERT_EQ(table.find(key_of(value)), record);
  }
  EXPECT_GT(expected.size(), kCap / 2);
}

TEST(Residency, BatchAgreesWithSingleLookups) {
  Residency table({4000, {5, 6}});
  for (std::uint64_t i = 0; i < 4000; i += 2) insert(table, key_of(i, 3, 1));
  const KeySpace space = table.key_space(NamespaceIndex(3), GroupId(1));
  for (const std::size_t n : {0u, 1u, 7u, 12u, 13u, 24u, 25u, 4000u}) {
    std::vector<BlockHash> list;
    for (std::uint64_t i = 0; i < n; ++i) list.push_back(key_of(i).hash);
    std::vector<Lookup> out(n);
    table.find_batch(space, list, out);
    for (std::uint64_t i = 0; i < n; ++i)
      EXPECT_EQ(out[i].record, table.find(key_of(i, 3, 1))) << n << " " << i;
  }
}

// `count` keys with the home of key 1.
std::vector<BlockKey> colliding(const Residency& table, std::size_t count) {
  std::vector<BlockKey> out;
  for (std::uint64_t n = 2; out.size() < count; ++n) {
    if (table.home_of(key_of(n)) == table.home_of(key_of(1))) out.push_back(key_of(n));
  }
  return out;
}

TEST(Residency, FullWindowNamesItsRecordsAndOneFewerIsEnough) {
  Residency table({40, {1, 2}});
  const auto keys = colliding(table, limits::kProbeWindow);
  std::vector<RecordId> records;
  for (const BlockKey& key : keys) records.push_back(insert(table, key));
  std::array<RecordId, limits::kProbeWindow> cells;
  ASSERT_EQ(table.window(key_of(1), cells), limits::kProbeWindow);
  EXPECT_EQ(std::set(cells.begin(), cells.end()), std::set(records.begin(), records.end()));
  RecordId r = kNoRecord;
  EXPECT_EQ(table.insert(key_of(1), r), Residency::Insert::kWindowFull);
  for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(table.find(keys[i]), records[i]) << "nothing moved";
  erase(table, records[5]);
  EXPECT_EQ(table.insert(key_of(1), r), Residency::Insert::kInserted);
  EXPECT_EQ(table.find(key_of(1)), r);
}

// A key of an earlier home must not push another out of its window.
TEST(Residency, InsertNeverPushesAKeyOutOfItsWindow) {
  Residency table({40, {1, 2}});
  const auto keys = colliding(table, limits::kProbeWindow);
  for (const BlockKey& key : keys) insert(table, key);
  for (std::uint64_t n = 1'000'000; n < 1'000'200; ++n) {
    RecordId r = kNoRecord;
    const auto result = table.insert(key_of(n), r);
    if (result == Residency::Insert::kTableFull) break;
    for (const BlockKey& key : keys) ASSERT_NE(table.find(key), kNoRecord);
  }
  EXPECT_GT(table.records(), limits::kProbeWindow);
}

TEST(Residency, TableAtFullLoadRefusesNoKey) {
  constexpr std::uint32_t kCap = 200'000;
  Residency table({kCap, {9, 9}});
  for (std::uint64_t i = 0; i < kCap; ++i) ASSERT_NE(insert(table, key_of(i)), kNoRecord) << i;
}

// Among 200,000 x 1,000,000 pairs some 46 share the 32 bits of a cell's tag.
TEST(Residency, EqualTagsAreToldApart) {
  constexpr std::uint32_t kCap = 200'000;
  Residency table({kCap, {9, 9}});
  for (std::uint64_t i = 0; i < kCap; ++i) insert(table, key_of(i));
  const KeySpace space = table.key_space(NamespaceIndex(0), GroupId(0));
  std::vector<BlockHash> absent;
  for (std::uint64_t i = 0; i < 1'000'000; ++i) absent.push_back(key_of(kCap + i).hash);
  std::vector<Lookup> out(absent.size());
  table.find_batch(space, absent, out);
  for (const Lookup& l : out) ASSERT_EQ(l.record, kNoRecord);
}

// The lists of all classes against deques, the order of eviction against their concatenation.
class ListsTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kRecords = 48;
  void SetUp() override {
    for (std::uint64_t i = 0; i < kRecords; ++i) {
      out_.push_back(insert(table_, key_of(i)));
      table_.cold(out_.back()).total_units = static_cast<std::uint32_t>(i + 1);
    }
  }
  std::deque<RecordId>& of(EvictionClass c) { return expected_[static_cast<std::size_t>(c)]; }
  void push() {
    std::swap(out_[random_() % out_.size()], out_.back());
    const RecordId record = out_.back();
    out_.pop_back();
    const auto to = static_cast<EvictionClass>(random_() % kEvictionClasses);
    table_.set_class(record, to);
    const std::uint64_t where = random_() % 8;
    if (where < 5) {
      table_.push_recent(record);
      of(to).push_front(record);
    } else if (where == 5) {
      table_.push_unconsidered(record);
      const auto behind =
          std::find_if(of(to).begin(), of(to).end(), [&](RecordId r) { return considered_.contains(r); });
      of(to).insert(behind, record);
    } else {
      table_.push_least_recent(record);
      of(to).push_back(record);
      considered_.insert(record);
    }
  }
  void unlink() {
    for (auto& list : expected_) {
      if (list.empty()) continue;
      const auto it = list.begin() + static_cast<std::ptrdiff_t>(random_() % list.size());
      table_.unlink(*it);
      considered_.erase(*it);
      out_.push_back(*it);
      list.erase(it);
      return;
    }
  }
  void demote() {
    auto& retained = of(EvictionClass::kRetained);
    if (retained.empty()) return;
    Residency::Listed share = table_.listed(EvictionClass::kRetained);
    --share.records;
    table_.demote(share, 1);
    considered_.erase(retained.back());
    of(EvictionClass::kProbationary).push_front(retained.back());
    retained.pop_back();
  }
  void renew() {
    auto& from = expected_[random_() % kEvictionClasses];
    if (from.empty()) return;
    const auto it = from.begin() + static_cast<std::ptrdiff_t>(random_() % from.size());
    const RecordId record = *it;
    const auto to = static_cast<EvictionClass>(random_() % kEvictionClasses);
    table_.renew(record, to);
    considered_.erase(record);
    from.erase(it);
    of(to).push_front(record);
  }
  std::vector<RecordId> order() const {
    std::vector<RecordId> all;
    for (const auto& list : expected_) all.insert(all.end(), list.rbegin(), list.rend());
    return all;
  }
  // The first of each list that is not considered: none behind it is.
  RecordId next_unconsidered() const {
    for (const RecordId record : order())
      if (!considered_.contains(record)) return record;
    return kNoRecord;
  }
  void consider() {
    const RecordId next = table_.next_unconsidered();
    ASSERT_EQ(next, next_unconsidered());
    if (next == kNoRecord) return;
    table_.consider_next();
    considered_.insert(next);
  }
  void check() {
    std::vector<RecordId> walked;
    for (RecordId r = table_.least_recent(); r != kNoRecord; r = table_.more_recent(r)) walked.push_back(r);
    ASSERT_EQ(walked, order());
    std::uint64_t units = 0;
    for (const RecordId r : considered_) units += table_.cold(r).total_units;
    ASSERT_EQ(table_.considered_units(), units);
    for (std::size_t c = 0; c < kEvictionClasses; ++c) {
      const Residency::Listed& listed = table_.listed(static_cast<EvictionClass>(c));
      std::uint64_t in_class = 0;
      for (const RecordId r : expected_[c]) in_class += table_.cold(r).total_units;
      ASSERT_EQ(listed.records, expected_[c].size());
      ASSERT_EQ(listed.units, in_class);
    }
  }

  Residency table_{{kRecords, {1, 2}}};
  std::array<std::deque<RecordId>, kEvictionClasses> expected_;  // most recent first
  std::set<RecordId> considered_;
  std::vector<RecordId> out_;
  std::mt19937_64 random_{7};
};

TEST_F(ListsTest, AgreeWithDequesAndTheirCursors) {
  for (int step = 0; step < 6000; ++step) {
    SCOPED_TRACE(step);
    const std::uint64_t what = random_() % 10;
    if (what == 8) {
      demote();
    } else if (what == 9) {
      renew();
    } else if (what < 4 && !out_.empty()) {
      push();
    } else if (what < 7) {
      unlink();
    } else {
      consider();
    }
    check();
    if (HasFatalFailure()) return;
  }
}

TEST_F(ListsTest, TheClassLeavesItsNeighboursAlone) {
  const RecordId record = out_.front();
  EXPECT_EQ(table_.class_of(record), EvictionClass::kProbationary) << "of a new record";
  constexpr std::uint32_t kMost = (1u << 24) - 1;
  ColdRecord& cold = table_.cold(record);
  cold.considered = cold.was_read = true;
  cold.units = kMost;
  for (const auto c : {EvictionClass::kReclaimable, EvictionClass::kRetained, EvictionClass::kProbationary}) {
    table_.set_class(record, c);
    EXPECT_EQ(table_.class_of(record), c);
    EXPECT_TRUE(cold.considered && cold.was_read);
    EXPECT_EQ(cold.units, kMost);
  }
}

// The bar: hot, cold and two index cells a block.
TEST(Residency, BytesPerBlock) {
  EXPECT_EQ(sizeof(HotRecord) + sizeof(ColdRecord) + 2 * 8, 120u);
}

}  // namespace
}  // namespace orbitkv::cache
