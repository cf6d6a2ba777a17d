// A seeded caller that does everything at once, over faults, drops, reclaim, kills and clean
// stops, with an oracle in memory: every accepted transfer ends once, every byte that is
// read is compared, the newest record is found or none, and what was dropped is not.
#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <random>
#include <set>

#include "ssd/store_rig.h"

namespace orbitkv::ssd::suite {
namespace {

constexpr std::size_t kSpaces = 3;

class Everything {
 public:
  explicit Everything(std::uint64_t seed) : random_(seed), bed_(options_of(seed)) {
    shapes_ = {small_shape(0x51), sharded_shape(0x52), large_shape(0x53)};
    bed_.config.reinsert_percent = static_cast<std::uint32_t>(seed % 3 * 25);
    bed_.config.scrub_per_second = seed % 2 * 20 * kMiB;
    bed_.config.write_queue = 512 * kKiB;
    bed_.on_written = [this](const StoreBed::Written& write, const StoreEvent& event) {
      const Key key{space_number(write.space), write.number};
      if (event.ok) newest_[key] = std::max(newest_[key], write.revision);
      if (event.refusal == Refusal::kDropped) ++dropped_writes;
    };
    start();
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) step();
    close();
  }

  std::uint64_t reads = 0, lives = 0, dropped_writes = 0, failed = 0, reinserted = 0, reclaimed = 0;

 private:
  using Key = std::pair<std::size_t, std::uint64_t>;

  static StoreBed::Options options_of(std::uint64_t seed) {
    StoreBed::Options options;
    options.seed = seed;
    options.segments = 10;
    options.flush = milliseconds(20);
    if (seed % 3 != 0) options.paths = {"a", "b"};
    return options;
  }

  std::size_t space_number(SpaceIndex space) const {
    for (std::size_t i = 0; i < kSpaces; ++i) {
      if (spaces_[i] == space) return i;
    }
    return kSpaces;
  }

  void start() {
    faults_ = false;
    bed_.faults.pick = [this](const IoRequest& request) {
      const std::uint64_t dice = random_() % 400;
      IoFault out;
      if (!faults_) return out;
      if (request.op == IoOp::kSync) return dice < 2 ? failing(EIO) : out;
      if (dice == 0) return failing(EIO);
      if (dice == 1 && request.op == IoOp::kWrite) return failing(ENOSPC);
      if (dice < 20) out.kind = IoFault::Kind::kShort, out.bytes = random_() % 3 * 512;
      if (dice == 20) out.kind = IoFault::Kind::kDelay, out.delay = milliseconds(30);
      return out;
    };
    bed_.start();
    ++lives;
    for (std::size_t i = 0; i < kSpaces; ++i) spaces_[i] = bed_.space(shapes_[i]);
    see_what_is_there();
    faults_ = true;
  }

  // After a restart any version that was not dropped may be the newest.
  void see_what_is_there() {
    newest_.clear();
    for (const Key& key : keys_) {
      const std::uint64_t revision = bed_.read_now(spaces_[key.first], shapes_[key.first], key.second);
      if (revision == 0) continue;
      EXPECT_EQ(written_[key].count(revision), 1u) << "never written";
      EXPECT_GT(revision, dropped_[key.first]) << "dropped";
      newest_[key] = revision;
    }
  }

  void close() {
    faults_ = false;
    bed_.store().begin_close();
    for (int i = 0; i < 200'000 && !bed_.store().closed(); ++i) bed_.turn();
    EXPECT_TRUE(bed_.store().closed());
    finish_life();
    bed_.end();
    EXPECT_EQ(bed_.corrupt, 0u);
  }

  void finish_life() {
    EXPECT_EQ(bed_.under_way(), 0u);
    std::uint64_t ended = 0;
    for (const auto& [transfer, event] : bed_.ended) {
      ended += event.kind != StoreEvent::Kind::kFlushed ? 1 : 0;
      failed += event.ok ? 0 : 1;
    }
    EXPECT_EQ(ended, bed_.accepted()) << "an accepted transfer without an event";
    const StoreStats stats = bed_.store().stats();
    reinserted += stats.reinserted.value;
    reclaimed += stats.lost[static_cast<std::size_t>(Loss::kReclaimed)];
    std::uint64_t records = 0;
    for (const PathStatus& path : bed_.store().paths()) records += path.records;
    EXPECT_EQ(records, stats.records);
  }

  void step() {
    const std::uint64_t what = random_() % 1000;
    const std::size_t s = random_() % kSpaces;
    const Key key{s, 1 + (random_() % 3 == 0 ? random_() % 20 : random_() % 300)};
    if (what < 400) {
      write(key);
    } else if (what < 700) {
      read(key);
    } else if (what < 720) {
      bed_.store().touch(bed_.store().find(spaces_[s], numbered(key.second)));
    } else if (what < 730) {
      suspect(key);
    } else if (what < 733) {
      drop(s);
    } else if (what < 736) {
      const bool taken = bed_.store().flush().ok();
      EXPECT_TRUE(taken);
    } else if (what == 736) {
      restart();
    }
    if (random_() % 3 != 0) bed_.turn();
  }

  void write(const Key& key) {
    if (!bed_.write(spaces_[key.first], shapes_[key.first], key.second).ok()) return;
    keys_.insert(key);
    written_[key].insert(bed_.last_written());
  }

  void read(const Key& key) {
    const auto transfer = bed_.read(spaces_[key.first], shapes_[key.first], key.second);
    if (!transfer.ok()) return;
    ++reads;
    EXPECT_EQ(bed_.last_read_revision, newest_[key]) << "not the newest";
    EXPECT_GT(bed_.last_read_revision, dropped_[key.first]);
  }

  void suspect(const Key& key) {
    const std::uint64_t revision = newest_[key];
    const auto image =
        written_image(shapes_[key.first], numbered(key.second), ShardId(0), AllocationId(revision));
    bed_.store().suspect(spaces_[key.first], numbered(key.second), image.mark);
  }

  void drop(std::size_t space) {
    const std::uint64_t last = bed_.last_written();
    const auto dropped = bed_.store().drop_space(shapes_[space].digest);
    if (!dropped.ok()) return;
    // Across restarts only what was reported counts; within this life the drop counts at once.
    EXPECT_FALSE(bed_.store().find(spaces_[space], numbered(1)));
    faults_ = false;
    const bool durable = bed_.await(dropped->flushed).ok;
    faults_ = true;
    if (durable) dropped_[space] = last;
  }

  void restart() {
    if (random_() % 2 == 0) {
      close();
    } else if (random_() % 2 == 0) {
      bed_.kill();
    } else {
      bed_.crash({.seed = random_(), .lost_percent = static_cast<std::uint32_t>(random_() % 101)});
    }
    start();
  }

  std::mt19937_64 random_;
  StoreBed bed_;
  std::array<SpaceShape, kSpaces> shapes_;
  std::array<SpaceIndex, kSpaces> spaces_;
  bool faults_ = false;
  std::set<Key> keys_;
  std::map<Key, std::set<std::uint64_t>> written_;
  std::map<Key, std::uint64_t> newest_;  // of writes that ended well in this life
  std::map<std::size_t, std::uint64_t> dropped_;
};

TEST(StoreRandomTest, events_exactly_once) {
  std::uint64_t reads = 0, lives = 0, dropped = 0, failed = 0, reinserted = 0, reclaimed = 0;
  for (std::uint64_t seed = 1; seed <= 12 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Everything everything(seed);
    everything.run(4000);
    reads += everything.reads;
    lives += everything.lives;
    dropped += everything.dropped_writes;
    failed += everything.failed;
    reinserted += everything.reinserted;
    reclaimed += everything.reclaimed;
  }
  EXPECT_GT(reads, 2500u);
  EXPECT_GT(lives, 30u);
  EXPECT_GT(dropped, 10u);
  EXPECT_GT(failed, 100u);
  EXPECT_GT(reinserted, 0u);
  EXPECT_GT(reclaimed, 500u);
}

}  // namespace
}  // namespace orbitkv::ssd::suite
