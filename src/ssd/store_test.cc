// The store through its header: records come back with their bytes, over restarts of all
// kinds, and what goes stays gone.
#include "ssd/store.h"

#include <gtest/gtest.h>

#include "ssd/store_bed.h"

namespace orbitkv::ssd::suite {
namespace {

class StoreTest : public testing::Test {
 protected:
  // Blocks with these numbers, each written and found.
  void write_blocks(StoreBed& bed, SpaceIndex space, const SpaceShape& shape, std::uint64_t first,
                    std::uint64_t count) {
    for (std::uint64_t n = first; n < first + count; ++n) {
      const auto transfer = bed.write(space, shape, n);
      ASSERT_TRUE(transfer.ok()) << transfer.error().message();
    }
    bed.settle();
  }
};

TEST_F(StoreTest, write_find_read) {
  StoreBed bed;
  bed.start();
  for (const SpaceShape& shape : {small_shape(), sharded_shape(), large_shape()}) {
    const SpaceIndex space = bed.space(shape);
    EXPECT_FALSE(bed.store().find(space, numbered(1)));
    write_blocks(bed, space, shape, 1, 40);
    for (std::uint64_t n = 1; n <= 40; ++n) EXPECT_NE(bed.read_now(space, shape, n), 0u) << n;
    EXPECT_FALSE(bed.store().find(space, numbered(41)));
  }
  const StoreStats stats = bed.store().stats();
  EXPECT_EQ(stats.records, 120u);
  EXPECT_EQ(stats.writes, 120u);
  EXPECT_EQ(stats.reads, 120u);
}

TEST_F(StoreTest, replace_newer_wins) {
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

TEST_F(StoreTest, clean_restart) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = sharded_shape();
  write_blocks(bed, bed.space(shape), shape, 1, 100);
  bed.close();
  bed.start();
  EXPECT_EQ(bed.store().stats().recovered, 100u);
  EXPECT_EQ(bed.store().stats().damaged_batches, 0u);
  const SpaceIndex space = bed.space(shape);
  for (std::uint64_t n = 1; n <= 100; ++n) EXPECT_NE(bed.read_now(space, shape, n), 0u) << n;
}

TEST_F(StoreTest, kill_restart) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  write_blocks(bed, bed.space(shape), shape, 1, 150);
  bed.kill();
  bed.start();
  const SpaceIndex space = bed.space(shape);
  for (std::uint64_t n = 1; n <= 150; ++n) EXPECT_NE(bed.read_now(space, shape, n), 0u) << n;
  write_blocks(bed, space, shape, 151, 10);
  bed.kill();
  bed.start();
  EXPECT_EQ(bed.store().stats().recovered, 160u);
}

TEST_F(StoreTest, close_flushes) {
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

}  // namespace
}  // namespace orbitkv::ssd::suite
