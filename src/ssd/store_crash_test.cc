// Losses of power at any moment: writes that no sync covered are there, missing or torn, in
// any combination. What a flush had reported is found with its bytes, what a drop had
// reported is not found, and nothing is found that was never written.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "base/limits.h"
#include "ssd/store_rig.h"

namespace orbitkv::ssd::suite {
namespace {

constexpr std::uint64_t kNumbers = 24;

// What the caller of the store knows: which revisions of which block can be there.
class Oracle {
 public:
  void accepted(std::uint8_t space, std::uint64_t number, std::uint64_t revision) {
    accepted_[{space, number}].push_back(revision);
  }
  void written(std::uint8_t space, std::uint64_t number, std::uint64_t revision) {
    auto& newest = written_[{space, number}];
    newest = std::max(newest, revision);
  }
  // The caller flushes: all that has been accepted by now is meant.
  std::map<std::pair<std::uint8_t, std::uint64_t>, std::uint64_t> flush_begins() const {
    return last_accepted();
  }
  void flush_ended(const std::map<std::pair<std::uint8_t, std::uint64_t>, std::uint64_t>& covered) {
    for (const auto& [key, last] : covered) {
      std::uint64_t& least = durable_[key];
      for (const std::uint64_t revision : accepted_[key]) {
        if (revision <= last && ok_.count(revision) != 0) least = std::max(least, revision);
      }
    }
  }
  void ok(std::uint64_t revision) { ok_.insert(revision); }
  // Returns what drop_ended() wants.
  std::uint64_t drop_begins(std::uint8_t space, std::uint64_t last_revision) {
    for (auto& [key, least] : durable_) {
      if (key.first == space) least = 0;  // until the drop has ended it may be there or not
    }
    for (auto& [key, revisions] : accepted_) {
      if (key.first != space) continue;
      for (const std::uint64_t revision : revisions) ok_.erase(revision);
    }
    return last_revision;
  }
  void drop_ended(std::uint8_t space, std::uint64_t last_revision) {
    dropped_[space] = std::max(dropped_[space], last_revision);
  }

  // 0: not found.
  void check(std::uint8_t space, std::uint64_t number, std::uint64_t revision,
             const std::string& when) const {
    const auto durable = durable_.find({space, number});
    const std::uint64_t least = durable == durable_.end() ? 0 : durable->second;
    EXPECT_GE(revision, least) << when << ": block " << number << " was durable";
    if (revision == 0) return;
    const auto known = accepted_.find({space, number});
    ASSERT_NE(known, accepted_.end()) << when << ": block " << number << " was never written";
    const auto& all = known->second;
    EXPECT_NE(std::find(all.begin(), all.end(), revision), all.end()) << when;
    const auto dropped = dropped_.find(space);
    if (dropped == dropped_.end()) return;
    EXPECT_GT(revision, dropped->second) << when << ": block " << number << " was dropped";
  }
  std::uint64_t durable() const {
    std::uint64_t out = 0;
    for (const auto& [key, least] : durable_) out += least != 0 ? 1 : 0;
    return out;
  }

 private:
  using Key = std::pair<std::uint8_t, std::uint64_t>;
  std::map<Key, std::uint64_t> last_accepted() const {
    std::map<Key, std::uint64_t> out;
    for (const auto& [key, revisions] : accepted_) out[key] = revisions.back();
    return out;
  }
  std::map<Key, std::vector<std::uint64_t>> accepted_;
  std::map<Key, std::uint64_t> written_, durable_;
  std::set<std::uint64_t> ok_;  // revisions of ended writes that no drop has met
  std::map<std::uint8_t, std::uint64_t> dropped_;
};

// A seeded run of a caller over two namespaces, up to a moment of the seed's choice.
class Caller {
 public:
  explicit Caller(std::uint64_t seed) : random_(seed), bed(options_of(seed)) {
    shapes_[0] = small_shape(0x41);
    shapes_[1] = shape_of({{0, 0, 0, 1024}, {1, 0, 0, 3072}}, 2);
    shapes_[1].digest = digest(0x42);
    bed.config.max_records = 200;
    bed.start();
    enter();
    bed.on_written = [this](const StoreBed::Written& write, const StoreEvent& event) {
      if (!event.ok) return;
      oracle.ok(write.revision);
      oracle.written(write.space == spaces_[0] ? 0 : 1, write.number, write.revision);
    };
    const std::uint64_t turns = random_() % 300;
    for (std::uint64_t i = 0; i < turns; ++i) act();
  }

  void check(const std::string& when) {
    for (std::uint8_t s = 0; s < 2; ++s) {
      for (std::uint64_t n = 1; n <= kNumbers; ++n)
        oracle.check(s, n, bed.read_now(spaces_[s], shapes_[s], n), when);
    }
  }
  void enter() {
    for (std::uint8_t s = 0; s < 2; ++s) spaces_[s] = bed.space(shapes_[s]);
  }

 private:
  static StoreBed::Options options_of(std::uint64_t seed) {
    StoreBed::Options options;
    options.seed = seed;
    options.segments = 10;
    options.flush = milliseconds(static_cast<std::int64_t>(1 + seed % 20));
    return options;
  }
  void act() {
    const std::uint64_t what = random_() % 100;
    if (what < 30) {
      const auto s = static_cast<std::uint8_t>(random_() % 2);
      const std::uint64_t number = 1 + random_() % kNumbers;
      if (bed.write(spaces_[s], shapes_[s], number).ok()) oracle.accepted(s, number, bed.last_written());
    } else if (what < 33 && !flush_) {
      const auto covered = oracle.flush_begins();
      const auto transfer = bed.store().flush();
      if (transfer.ok()) flush_ = {*transfer, covered};
    } else if (what < 34 && !drop_) {
      const auto s = static_cast<std::uint8_t>(random_() % 2);
      const auto dropped = bed.store().drop_space(shapes_[s].digest);
      if (dropped.ok()) drop_ = {dropped->flushed, s, oracle.drop_begins(s, bed.last_written())};
      flush_.reset();
    }
    bed.turn();
    if (flush_ && bed.ended.count(flush_->transfer.value) != 0) {
      oracle.flush_ended(flush_->covered);
      flush_.reset();
    }
    if (drop_ && bed.ended.count(drop_->transfer.value) != 0) {
      oracle.drop_ended(drop_->space, drop_->last);
      drop_.reset();
    }
  }

  struct Flush {
    TransferId transfer;
    std::map<std::pair<std::uint8_t, std::uint64_t>, std::uint64_t> covered;
  };
  struct Drop {
    TransferId transfer;
    std::uint8_t space = 0;
    std::uint64_t last = 0;
  };
  std::mt19937_64 random_;
  SpaceShape shapes_[2];
  SpaceIndex spaces_[2];
  std::optional<Flush> flush_;
  std::optional<Drop> drop_;

 public:
  StoreBed bed;
  Oracle oracle;
};

CrashRules rules_of(std::uint64_t seed) {
  CrashRules rules;
  rules.seed = seed;
  rules.lost_percent = static_cast<std::uint32_t>(seed % 4 == 0 ? 100 : seed % 101);
  rules.torn_percent = static_cast<std::uint32_t>(seed % 5 * 20);
  rules.sector = ByteCount(seed % 2 == 0 ? 512 : 4096);
  return rules;
}

TEST(StoreCrashTest, crash_replay_reordered_truncated) {
  std::uint64_t durable = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    Caller run(seed);
    durable += run.oracle.durable();
    run.bed.crash(rules_of(seed));
    run.bed.start();
    run.enter();
    run.check("seed " + std::to_string(seed));
    EXPECT_EQ(run.bed.corrupt, 0u) << "seed " << seed;
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(durable, 5000u);
}

// Power is lost again while the store is being opened, at any write of that, and again.
TEST(StoreCrashTest, crash_during_recovery_twice) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Caller run(seed * 7919);
    run.bed.crash(rules_of(seed));
    std::mt19937_64 random(seed);
    for (int i = 0; i < 2; ++i) {
      run.bed.start();
      const std::size_t events = run.bed.disk.events();
      MemoryDisk cut = run.bed.disk.after_crash(rules_of(seed + 1), random() % (events + 1));
      run.bed.end();
      run.bed.disk = std::move(cut);
    }
    run.bed.start();
    run.enter();
    run.check("seed " + std::to_string(seed));
    EXPECT_EQ(run.bed.corrupt, 0u) << "seed " << seed;
    if (testing::Test::HasFailure()) break;
  }
}

// Segments that are used again while power is lost: what the older life said of them is not
// believed.
TEST(StoreCrashTest, crash_while_segments_are_used_again) {
  std::uint64_t found = 0;
  for (std::uint64_t seed = 1; seed <= 100 && !testing::Test::HasFailure(); ++seed) {
    StoreBed::Options options;
    options.seed = seed;
    options.segments = limits::kPathSegmentsLeast;
    options.flush = milliseconds(static_cast<std::int64_t>(1 + seed % 20));
    StoreBed bed(options);
    bed.config.max_records = 2000;
    bed.start();
    const SpaceShape shape = small_shape();
    const SpaceIndex space = bed.space(shape);
    std::uint64_t n = 1;
    for (; n <= 600; n += 50) bed.write_blocks(space, shape, n, 50);
    std::mt19937_64 random(seed);
    const std::uint64_t writes = random() % 120;
    for (std::uint64_t i = 0; i < writes; ++i, ++n) {
      ASSERT_TRUE(bed.write(space, shape, n).ok());
      for (std::uint64_t turns = random() % 8; turns > 0; --turns) bed.turn();
    }
    bed.crash(rules_of(seed));
    bed.start();
    found += bed.readable(bed.space(shape), shape, 1, n);
    EXPECT_EQ(bed.corrupt, 0u) << seed;
    EXPECT_GT(bed.store().stats().records, 150u) << seed;
  }
  EXPECT_GT(found, 15'000u);
}

}  // namespace
}  // namespace orbitkv::ssd::suite
