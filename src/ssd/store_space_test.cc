// Reclaim: what is kept, what must be durable first, and what happens when nothing can be had.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/limits.h"
#include "ssd/store_rig.h"

namespace orbitkv::ssd::suite {
namespace {

std::uint64_t lost(const StoreBed& bed, Loss why) {
  return const_cast<StoreBed&>(bed).store().stats().lost[static_cast<std::size_t>(why)];
}
std::uint64_t refused(StoreBed& bed, Refusal why) {
  return bed.store().stats().refused[static_cast<std::size_t>(why)];
}

// Writes so many blocks that every segment has been used more than once.
void go_round(StoreBed& bed, SpaceIndex space, const SpaceShape& shape, std::uint64_t first,
              std::uint64_t count = 1500) {
  for (std::uint64_t n = first; n < first + count; n += 100) bed.write_blocks(space, shape, n, 100);
}

TEST(StoreSpaceTest, oldest_goes_first) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  go_round(bed, space, shape, 1, 3000);
  EXPECT_EQ(bed.readable(space, shape, 1, 1000), 0u);
  EXPECT_EQ(bed.readable(space, shape, 2600, 401), 401u);
  EXPECT_GT(lost(bed, Loss::kReclaimed), 2000u);
  EXPECT_EQ(bed.store().stats().reinserted, ByteCount());
  const std::uint64_t records = bed.store().stats().records;
  bed.kill();
  bed.start();
  EXPECT_GE(bed.store().stats().recovered, records);
  EXPECT_EQ(bed.readable(bed.space(shape), shape, 2600, 401), 401u);
}

TEST(StoreSpaceTest, what_is_used_stays) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = sharded_shape();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 10);
  for (std::uint64_t n = 1000; n < 2000; n += 10) {
    for (std::uint64_t hot = 1; hot <= 2; ++hot) bed.store().touch(bed.store().find(space, numbered(hot)));
    bed.write_blocks(space, shape, n, 10);
  }
  EXPECT_EQ(bed.readable(space, shape, 1, 2), 2u);
  EXPECT_EQ(bed.readable(space, shape, 3, 8), 0u);
  const StoreStats stats = bed.store().stats();
  EXPECT_GT(stats.reinserted, ByteCount());
  EXPECT_GT(stats.device_written, stats.written + stats.reinserted);
  bed.kill();
  bed.start();
  EXPECT_EQ(bed.readable(bed.space(shape), shape, 1, 2), 2u);
}

// Each life of the store ends when it has hardly begun a segment: those are used again, and what
// lies in them stays.
TEST(StoreSpaceTest, many_short_lives_fill_no_store) {
  StoreBed bed;
  const SpaceShape shape = small_shape();
  constexpr std::uint64_t kLives = 40, kEach = 3;
  for (std::uint64_t life = 0; life < kLives; ++life) {
    bed.start();
    EXPECT_EQ(bed.store().stats().recovered, life * kEach);
    bed.write_blocks(bed.space(shape), shape, 1 + life * kEach, kEach);
    bed.settle();
    life % 3 == 0 ? bed.close() : bed.kill();
  }
  bed.start();
  EXPECT_EQ(bed.readable(bed.space(shape), shape, 1, kLives * kEach), kLives * kEach);
}

TEST(StoreSpaceTest, no_more_is_kept_than_a_share) {
  StoreBed bed;
  bed.config.reinsert_percent = 25;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  for (std::uint64_t n = 1; n <= 3000; n += 100) {
    bed.write_blocks(space, shape, n, 100);
    for (std::uint64_t all = 1; all <= n + 99; ++all)
      bed.store().touch(bed.store().find(space, numbered(all)));
  }
  const StoreStats stats = bed.store().stats();
  EXPECT_GT(stats.reinserted, ByteCount());
  // A third at most of what users write: a quarter of each segment that is freed.
  EXPECT_LT(stats.reinserted.value, 3000 * kPageBytes / 3);
}

// The newer version of a record is not durable yet, on another path: the segment of the older
// one must not be written over before.
TEST(StoreSpaceTest, reclaim_waits_for_flush) {
  StoreBed::Options options;
  options.paths = {"small", "large"};
  options.segments = limits::kPathSegmentsLeast;
  options.flush = seconds(1'000'000);
  StoreBed bed(options);
  bed.config.paths[1].bytes = kFirstSegment + 40 * options.segment;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  // What is written goes to the large path, where more is free, but while two batches of that
  // are on their way.
  std::uint64_t plugs = 10'000;
  const auto plug = [&](Duration delay) {
    bed.faults.pick = [delay](const IoRequest& request) {
      IoFault out;
      const bool batch =
          request.op == IoOp::kWrite && request.file == FileIndex(1) && request.pieces.size() > 1;
      if (batch) out.kind = IoFault::Kind::kDelay, out.delay = delay;
      return out;
    };
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(bed.write(space, shape, plugs++).ok());
      bed.pass(milliseconds(5));
    }
  };
  const auto write_all = [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t n = first; n <= last; ++n) {
      const auto write = bed.write(space, shape, n);
      ASSERT_TRUE(write.ok());
      if (n % 20 == 0) {
        EXPECT_TRUE(bed.await(*write).ok);
      }
    }
  };
  plug(seconds(1));
  write_all(1, 20);
  const std::uint64_t older = bed.last_written();
  bed.pass(seconds(2));
  ASSERT_TRUE(bed.flush_now());
  write_all(1, 20);
  EXPECT_EQ(bed.store().paths()[1].records, 22u);
  plug(seconds(100'000));
  write_all(101, 1500);
  EXPECT_GT(lost(bed, Loss::kReclaimed), 500u);
  bed.crash({.seed = 1, .lost_percent = 100});
  bed.start();
  const SpaceIndex again = bed.space(shape);
  for (std::uint64_t n = 1; n <= 20; ++n) EXPECT_GT(bed.read_now(again, shape, n), older);
}

TEST(StoreSpaceTest, reclaim_skips_reads) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 40);
  // Reads of the first records last until the end.
  bed.faults.pick = [](const IoRequest& request) {
    IoFault out;
    if (request.op == IoOp::kRead && request.offset < (kFirstSegment + 256 * kKiB).value) {
      out.kind = IoFault::Kind::kDelay;
      out.delay = seconds(3000);
    }
    return out;
  };
  std::vector<TransferId> reads;
  for (std::uint64_t n = 1; n <= 20; ++n) {
    const auto transfer = bed.read(space, shape, n);
    ASSERT_TRUE(transfer.ok());
    reads.push_back(*transfer);
  }
  for (std::uint64_t n = 100; n < 3000; ++n) {
    const auto transfer = bed.write(space, shape, n);
    ASSERT_TRUE(transfer.ok()) << transfer.error().message();
    if (n % 50 == 0) bed.await(*transfer);
  }
  EXPECT_GT(lost(bed, Loss::kReclaimed), 1500u);
  bed.io().advance(seconds(3000));
  for (const TransferId read : reads) EXPECT_TRUE(bed.await(read).ok);
}

TEST(StoreSpaceTest, full_with_all_read_refuses) {
  StoreBed::Options options;
  options.segments = limits::kPathSegmentsLeast;
  StoreBed bed(options);
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  std::uint64_t n = 1;
  bed.faults.pick = [](const IoRequest& request) {
    IoFault out;
    if (request.op == IoOp::kRead) out.kind = IoFault::Kind::kDelay, out.delay = seconds(3000);
    return out;
  };
  // A read of every block that is written: sooner or later of every segment.
  std::vector<TransferId> reads;
  for (; n < 2000 && refused(bed, Refusal::kNoSpace) == 0; ++n) {
    const auto transfer = bed.write(space, shape, n);
    ASSERT_TRUE(transfer.ok());
    if (!bed.await(*transfer).ok) continue;
    const auto read = bed.read(space, shape, n);
    ASSERT_TRUE(read.ok());
    reads.push_back(*read);
  }
  EXPECT_GT(refused(bed, Refusal::kNoSpace), 0u);
  EXPECT_GT(n, 100u);
  bed.faults.pick = nullptr;
  bed.io().advance(seconds(3000));
  for (const TransferId read : reads) EXPECT_TRUE(bed.await(read).ok);
  bed.settle();
  EXPECT_TRUE(bed.write_now(space, shape, 5000).ok);
}

// Tombstones find room where users' writes find none.
TEST(StoreSpaceTest, reserve_allows_tombstone_when_full) {
  StoreBed::Options options;
  options.segments = limits::kPathSegmentsLeast;
  StoreBed bed(options);
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  std::vector<TransferId> reads;
  const auto delay = [](const IoRequest& request) {
    IoFault out;
    if (request.op == IoOp::kRead) out.kind = IoFault::Kind::kDelay, out.delay = seconds(3000);
    return out;
  };
  bed.faults.pick = delay;
  std::uint64_t n = 1;
  for (; n < 2000 && refused(bed, Refusal::kNoSpace) == 0; ++n) {
    const auto transfer = bed.write(space, shape, n);
    ASSERT_TRUE(transfer.ok());
    if (bed.await(*transfer).ok) {
      ASSERT_TRUE(bed.read(space, shape, n).ok());
    }
  }
  bed.faults.pick = nullptr;
  // Two reads that fail end a record, after a restart too.
  bed.faults.pick = failing_op(IoOp::kRead, EIO);
  EXPECT_EQ(bed.read_now(space, shape, n - 5), 0u);
  EXPECT_EQ(bed.read_now(space, shape, n - 5), 0u);
  bed.faults.pick = nullptr;
  EXPECT_FALSE(bed.store().find(space, numbered(n - 5)));
  ASSERT_TRUE(bed.flush_now());
  bed.crash({.seed = 3, .lost_percent = 100});
  bed.start();
  EXPECT_FALSE(bed.store().find(bed.space(shape), numbered(n - 5)));
  EXPECT_TRUE(bed.store().find(bed.space(shape), numbered(n - 6)));
}

// The end of a record is copied forward until no older content can hold the record.
TEST(StoreSpaceTest, tombstone_survives_until_oldest_gone) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 200);
  // The segment of block 150 is read all the time, so that it outlives younger ones.
  bed.faults.pick = failing_op(IoOp::kRead, EIO);
  bed.read_now(space, shape, 150);
  bed.read_now(space, shape, 150);
  bed.faults.pick = nullptr;
  ASSERT_FALSE(bed.store().find(space, numbered(150)));
  bed.faults.pick = [](const IoRequest& request) {
    IoFault out;
    if (request.op == IoOp::kRead) out.kind = IoFault::Kind::kDelay, out.delay = seconds(100'000);
    return out;
  };
  ASSERT_TRUE(bed.read(space, shape, 149).ok());
  bed.faults.pick = nullptr;
  for (std::uint64_t n = 1000; n < 6000; ++n) {
    const auto transfer = bed.write(space, shape, n);
    ASSERT_TRUE(transfer.ok());
    if (n % 100 == 0) bed.await(*transfer);
  }
  ASSERT_TRUE(bed.flush_now());
  bed.crash({.seed = 3, .lost_percent = 100});
  bed.start();
  EXPECT_TRUE(bed.store().find(bed.space(shape), numbered(149))) << "its segment was to outlive the others";
  EXPECT_FALSE(bed.store().find(bed.space(shape), numbered(150)));
}

// Copies forward on their way while their keys are written again: the newest is found, now
// and after a kill.
TEST(StoreSpaceTest, forward_copy_vs_overwrite) {
  std::uint64_t reinserted = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    StoreBed::Options options;
    options.seed = seed * 100;
    StoreBed bed(options);
    bed.start();
    const SpaceShape shape = small_shape();
    const SpaceIndex space = bed.space(shape);
    std::mt19937_64 random(seed);
    std::map<std::uint64_t, std::uint64_t> newest;
    bed.on_written = [&](const StoreBed::Written& write, const StoreEvent& event) {
      if (event.ok) newest[write.number] = std::max(newest[write.number], write.revision);
    };
    std::uint64_t cold = 1000;
    for (int i = 0; i < 2500; ++i) {
      const std::uint64_t number = random() % 8 == 0 ? 1 + random() % 50 : cold++;
      ASSERT_TRUE(bed.write(space, shape, number).ok());
      for (std::uint64_t hot = 1; hot <= 50; ++hot) bed.store().touch(bed.store().find(space, numbered(hot)));
      if (random() % 4 == 0) bed.turn();
    }
    bed.settle();
    reinserted += bed.store().stats().reinserted.value;
    std::set<std::uint64_t> kept;
    for (std::uint64_t hot = 1; hot <= 50; ++hot) {
      const std::uint64_t revision = bed.read_now(space, shape, hot);
      EXPECT_TRUE(revision == 0 || revision == newest[hot]) << seed << ": " << hot;
      if (revision != 0) kept.insert(hot);
    }
    EXPECT_GT(kept.size(), 16u);
    bed.kill();
    bed.start();
    const SpaceIndex again = bed.space(shape);
    for (const std::uint64_t hot : kept) EXPECT_EQ(bed.read_now(again, shape, hot), newest[hot]) << seed;
  }
  EXPECT_GT(reinserted, 100 * kPageBytes);
}

// Copies forward on their way while their namespace goes: none comes back.
TEST(StoreSpaceTest, forward_copy_vs_drop) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    StoreBed::Options options;
    options.seed = seed * 100;
    StoreBed bed(options);
    bed.start();
    const SpaceShape kept = small_shape(0x31), dropped = small_shape(0x32);
    const SpaceIndex kept_space = bed.space(kept), dropped_space = bed.space(dropped);
    bed.write_blocks(dropped_space, dropped, 1, 50);
    std::mt19937_64 random(seed);
    std::uint64_t n = 1;
    for (int i = 0; i < 900; ++i) {
      ASSERT_TRUE(bed.write(kept_space, kept, n++).ok());
      for (std::uint64_t hot = 1; hot <= 50; ++hot)
        bed.store().touch(bed.store().find(dropped_space, numbered(hot)));
      if (random() % 4 == 0) bed.turn();
      if (bed.store().paths()[0].free_segments <= limits::kReservedSegments + 1 && random() % 3 == 0) break;
    }
    const auto gone = bed.store().drop_space(dropped.digest);
    ASSERT_TRUE(gone.ok());
    EXPECT_TRUE(bed.await(gone->flushed).ok);
    for (std::uint64_t hot = 1; hot <= 50; ++hot)
      EXPECT_FALSE(bed.store().find(dropped_space, numbered(hot)));
    bed.settle();
    EXPECT_EQ(bed.store().stats().records, bed.readable(kept_space, kept, 1, n));
    bed.crash({.seed = seed});
    bed.start();
    const SpaceIndex again = bed.space(dropped);
    for (std::uint64_t hot = 1; hot <= 50; ++hot)
      EXPECT_FALSE(bed.store().find(again, numbered(hot))) << seed;
  }
}

}  // namespace
}  // namespace orbitkv::ssd::suite
