// The store through its header: records come back with their bytes, over restarts of all
// kinds, and what goes stays gone.
#include "ssd/store.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/limits.h"
#include "ssd/store_rig.h"

namespace orbitkv::ssd::suite {
namespace {

TEST(StoreTest, write_find_read) {
  StoreBed bed;
  bed.start();
  for (const SpaceShape& shape : {small_shape(), sharded_shape(), large_shape()}) {
    const SpaceIndex space = bed.space(shape);
    EXPECT_FALSE(bed.store().find(space, numbered(1)));
    bed.write_blocks(space, shape, 1, 40);
    for (std::uint64_t n = 1; n <= 40; ++n) EXPECT_NE(bed.read_now(space, shape, n), 0u) << n;
    EXPECT_FALSE(bed.store().find(space, numbered(41)));
  }
  const StoreStats stats = bed.store().stats();
  EXPECT_EQ(stats.records, 120u);
  EXPECT_EQ(stats.writes, 120u);
  EXPECT_EQ(stats.reads, 120u);
}

TEST(StoreTest, replace_newer_wins) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(bed.write(space, shape, 7).ok());
  const std::uint64_t newest = bed.last_written();
  bed.settle();
  EXPECT_EQ(bed.read_now(space, shape, 7), newest);
  EXPECT_EQ(bed.store().stats().records, 1u);
  bed.kill();
  bed.start();
  EXPECT_EQ(bed.read_now(bed.space(shape), shape, 7), newest);
}

TEST(StoreTest, clean_restart) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = sharded_shape();
  bed.write_blocks(bed.space(shape), shape, 1, 100);
  bed.close();
  bed.start();
  EXPECT_EQ(bed.store().stats().recovered, 100u);
  EXPECT_EQ(bed.store().stats().damaged_batches, 0u);
  const SpaceIndex space = bed.space(shape);
  for (std::uint64_t n = 1; n <= 100; ++n) EXPECT_NE(bed.read_now(space, shape, n), 0u) << n;
}

TEST(StoreTest, kill_restart) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  bed.write_blocks(bed.space(shape), shape, 1, 150);
  bed.kill();
  bed.start();
  const SpaceIndex space = bed.space(shape);
  for (std::uint64_t n = 1; n <= 150; ++n) EXPECT_NE(bed.read_now(space, shape, n), 0u) << n;
  bed.write_blocks(space, shape, 151, 10);
  bed.kill();
  bed.start();
  EXPECT_EQ(bed.store().stats().recovered, 160u);
}

// What a kill left unsealed is sealed at the next start, so that the one after it reads footers.
TEST(StoreTest, unsealed_segments_are_sealed_at_open) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  bed.write_blocks(bed.space(shape), shape, 1, 30);
  bed.kill();
  bed.start();
  const ByteCount unsealed = bed.io().stats().read;
  bed.crash({.seed = 1, .lost_percent = 100});
  bed.start();
  EXPECT_LT(2 * bed.io().stats().read.value, unsealed.value);
  EXPECT_EQ(bed.store().stats().recovered, 30u);
}

TEST(StoreTest, close_flushes) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  for (std::uint64_t n = 1; n <= 30; ++n) ASSERT_TRUE(bed.write(space, shape, n).ok());
  bed.close();
  bed.disk = bed.disk.after_crash({.seed = 5, .lost_percent = 100});
  bed.start();
  EXPECT_EQ(bed.store().stats().recovered, 30u);
}

TEST(StoreTest, too_large_said_at_intern) {
  StoreBed bed;
  bed.start();
  const auto refused = bed.store().intern(shape_of({{0, 0, 0, 300 * 1024}}));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kReject);
  EXPECT_NE(refused.error().message().find("262144"), std::string::npos) << refused.error().message();
  EXPECT_NE(refused.error().message().find("311296"), std::string::npos) << refused.error().message();
}

TEST(StoreTest, index_full) {
  StoreBed bed;
  bed.config.max_records = 100;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  std::uint64_t refused = 0;
  for (std::uint64_t n = 1; n <= 400; ++n) {
    const auto transfer = bed.write(space, shape, n);
    EXPECT_TRUE(transfer.ok() || transfer.error().code() == Code::kBusy);
    refused += transfer.ok() ? 0 : 1;
    if (n % 50 == 0) bed.settle();
  }
  bed.settle();
  const StoreStats stats = bed.store().stats();
  EXPECT_LE(stats.records, 100u);
  EXPECT_GT(stats.records, 0u);
  EXPECT_GT(stats.refused[static_cast<std::size_t>(Refusal::kIndexFull)], 0u);
  // Reclaim makes room, so that it is not full for ever.
  EXPECT_GT(stats.lost[static_cast<std::size_t>(Loss::kReclaimed)], 0u);
  EXPECT_LT(refused, 300u);
}

TEST(StoreTest, queue_is_bounded) {
  StoreBed bed;
  bed.config.write_queue = 64 * kKiB;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  std::uint64_t taken = 0;
  for (std::uint64_t n = 1; n <= 100; ++n) taken += bed.write(space, shape, n).ok() ? 1 : 0;
  EXPECT_EQ(taken, 64 * kKiB.value / 2560);  // slots of 2,304 bytes in units of 512
  EXPECT_EQ(bed.store().stats().refused[static_cast<std::size_t>(Refusal::kQueueFull)], 100 - taken);
  bed.settle();
  EXPECT_TRUE(bed.write(space, shape, 101).ok());
  bed.settle();
  EXPECT_EQ(bed.store().stats().records, taken + 1);
}

// The marks of further shards have a table of their own, which fills first.
TEST(StoreTest, marks_of_shards_full) {
  StoreBed bed;
  bed.config.max_records = 100;
  bed.start();
  SpaceShape shape = shape_of({{0, 0, 0, 512}}, 9);
  const SpaceIndex space = bed.space(shape);
  for (std::uint64_t n = 1; n <= 300; ++n) {
    const auto transfer = bed.write(space, shape, n);
    if (transfer.ok() && n % 5 == 0) bed.await(*transfer);
  }
  bed.settle();
  const StoreStats stats = bed.store().stats();
  EXPECT_GT(stats.records, 20u);
  EXPECT_LE(stats.records, 50u);
  EXPECT_GT(stats.lost[static_cast<std::size_t>(Loss::kReclaimed)], 50u);
}

TEST(StoreTest, numbers_of_transfers_are_bounded) {
  StoreBed bed;
  bed.config.write_queue = kGiB;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 100);
  BlockMemory memory(shape, bed.store().unit());
  for (std::uint32_t i = 0; i < limits::kStoreReads; ++i) {
    ASSERT_TRUE(bed.store().read(bed.store().find(space, numbered(1 + i % 100)), memory.slots()).ok());
  }
  EXPECT_EQ(bed.store().read(bed.store().find(space, numbered(1)), memory.slots()).error().code(),
            Code::kBusy);
  memory.fill(shape, numbered(500), AllocationId(1));
  for (std::uint32_t i = 0; i < limits::kStoreWrites; ++i) {
    ASSERT_TRUE(bed.store().write(space, numbered(500), memory.slots()).ok());
  }
  EXPECT_EQ(bed.store().write(space, numbered(500), memory.slots()).error().code(), Code::kBusy);
  for (std::uint32_t i = 0; i < limits::kStoreFlushes; ++i) ASSERT_TRUE(bed.store().flush().ok());
  EXPECT_EQ(bed.store().flush().error().code(), Code::kBusy);
  bed.end();
}

TEST(StoreTest, reads_at_once_may_be_fewer) {
  StoreBed bed;
  bed.config.reads = 2;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 3);
  BlockMemory memory(shape, bed.store().unit());
  const auto read = [&](std::uint32_t block) {
    return bed.store().read(bed.store().find(space, numbered(block)), memory.slots());
  };
  ASSERT_TRUE(read(1).ok());
  ASSERT_TRUE(read(2).ok());
  EXPECT_EQ(read(3).error().code(), Code::kBusy);
  bed.end();
}

// The same store through devices that want other alignments.
TEST(StoreTest, unit_change_512_to_4096) {
  StoreBed bed;
  const SpaceShape shape = shape_of({{0, 0, 0, 4096}, {0, 1, 0, 8}}, 3);  // 4,352 bytes: nine units of 512
  std::uint64_t written = 0;
  for (const std::uint32_t unit : {512, 4096, 1024, 512}) {
    bed.alignment = unit;
    bed.start();
    EXPECT_EQ(bed.store().unit(), unit);
    const SpaceIndex space = bed.space(shape);
    EXPECT_EQ(bed.readable(space, shape, 1, written), written);
    bed.write_blocks(space, shape, written + 1, 20);
    written += 20;
    EXPECT_EQ(bed.readable(space, shape, 1, written), written);
    bed.close();
  }
  bed.alignment = 8192;
  EXPECT_EQ(bed.try_start().error().code(), Code::kReject);
}

TEST(StoreTest, several_paths_fill_alike) {
  StoreBed::Options options;
  options.paths = {"a", "b", "c"};
  StoreBed bed(options);
  bed.start();
  const SpaceShape shape = small_shape();
  bed.write_blocks(bed.space(shape), shape, 1, 1200);
  for (const PathStatus& path : bed.store().paths()) {
    EXPECT_GT(path.records, 300u) << path.path;
    EXPECT_LT(path.records, 500u) << path.path;
  }
  bed.kill();
  bed.start();
  EXPECT_EQ(bed.store().stats().recovered, 1200u);
  EXPECT_EQ(bed.readable(bed.space(shape), shape, 1, 1200), 1200u);
}

// While only the device can help nobody is asked to poll, so that the caller may sleep.
TEST(StoreTest, nothing_is_due_while_the_device_works) {
  for (const std::uint64_t scrub : {0, 1}) {
    StoreBed bed;
    bed.config.scrub_per_second = scrub * kMiB;
    bed.start();
    const SpaceShape shape = small_shape();
    const SpaceIndex space = bed.space(shape);
    bed.write_blocks(space, shape, 1, 5);
    bed.faults.pick = [](const IoRequest&) {
      IoFault out;
      out.kind = IoFault::Kind::kDelay;
      out.delay = seconds(10);
      return out;
    };
    for (std::uint64_t n = 100; n < 200; ++n) ASSERT_TRUE(bed.write(space, shape, n).ok());
    ASSERT_TRUE(bed.store().drop_space(digest(0x66)).ok());
    ASSERT_TRUE(bed.store().flush().ok());
    std::uint64_t polls = 0, at_once = 0;
    std::vector<StoreEvent> events;
    const TimePoint end = bed.io().now() + seconds(9);
    while (bed.io().now() < end) {
      bed.store().poll(bed.io().now(), events);
      ++polls;
      const Duration wait = bed.store().due() - bed.io().now();
      at_once += wait <= Duration{} ? 1 : 0;
      bed.io().advance(std::clamp(wait, microseconds(1), milliseconds(500)));
    }
    EXPECT_LT(polls, 120u) << scrub;  // ten a second where there is nothing to scrub
    EXPECT_LT(at_once, 10u) << scrub;
    bed.end();
  }
}

TEST(StoreTest, memory_is_used_until_the_event) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  BlockMemory memory(shape, bed.store().unit());
  memory.fill(shape, numbered(1), AllocationId(9));
  const auto range = memory.slots()[0].memory;
  EXPECT_FALSE(bed.store().uses(range));
  const auto transfer = bed.store().write(space, numbered(1), memory.slots());
  ASSERT_TRUE(transfer.ok());
  std::vector<StoreEvent> events;
  for (int i = 0; i < 10'000 && events.empty(); ++i) {
    EXPECT_TRUE(bed.store().uses(range.subspan(100, 1)));
    bed.store().poll(bed.io().now(), events);
    bed.io().advance(microseconds(50));
  }
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(events[0].ok);
  EXPECT_FALSE(bed.store().uses(range));
}

}  // namespace
}  // namespace orbitkv::ssd::suite
