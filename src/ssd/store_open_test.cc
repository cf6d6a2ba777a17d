// A store that serves while it is opened: what it answers meanwhile, what holds for what it
// finds later, and that it can end at any step of it.
#include <gtest/gtest.h>

#include <set>

#include "base/limits.h"
#include "ssd/store_rig.h"
#include "ssd/unused_drop.h"

namespace orbitkv::ssd::suite {
namespace {

constexpr std::uint64_t kBlocks = 60;

class StoreOpenTest : public testing::Test {
 protected:
  StoreOpenTest() { bed_.config.recovered_a_step = 4; }

  // Sealed and unsealed segments, tombstones, an earlier drop of a namespace.
  void fill() {
    bed_.start();
    const SpaceIndex large = bed_.space(large_), small = bed_.space(small_);
    const SpaceShape third = small_shape(0x31);
    bed_.write_blocks(bed_.space(third), third, 900, 5);
    bed_.write_blocks(large, large_, 1, kBlocks);
    bed_.write_blocks(small, small_, 1, kBlocks);
    const auto dropped = bed_.store().drop_space(third.digest);
    ASSERT_TRUE(dropped.ok());
    EXPECT_TRUE(bed_.await(dropped->flushed).ok);
    bed_.settle();
    bed_.kill();
  }
  std::uint64_t found(const SpaceShape& shape) { return bed_.readable(bed_.space(shape), shape, 1, kBlocks); }
  // So many turns of an opening; false: it was ready before.
  bool turns(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      if (bed_.store().ready()) return false;
      bed_.turn();
    }
    return !bed_.store().ready();
  }
  std::uint64_t refused() const {
    return bed_.store().stats().refused[static_cast<std::size_t>(Refusal::kOpening)];
  }

  mutable StoreBed bed_;
  const SpaceShape large_ = large_shape(), small_ = small_shape();
};

TEST_F(StoreOpenTest, nothing_is_found_or_written_before_it_is_ready_and_all_of_it_after) {
  fill();
  bed_.begin_start();
  const SpaceIndex space = bed_.space(small_);
  std::uint64_t turns_taken = 0, refusals = 0, records = 0;
  for (; !bed_.store().ready(); ++turns_taken) {
    EXPECT_FALSE(bed_.store().find(space, numbered(1)));
    std::vector<BlockHash> hashes{numbered(1), numbered(2)};
    std::vector<StoredRef> refs(2, StoredRef{StoredId(7), 7});
    bed_.store().find_batch(space, hashes, refs);
    EXPECT_FALSE(refs[0] || refs[1]);
    refusals += bed_.write(space, small_, 1).ok() ? 0 : 1;
    EXPECT_TRUE(bed_.store().active());
    const OpenProgress progress = bed_.store().opening();
    EXPECT_LE(progress.segments_read, progress.segments);
    EXPECT_LE(progress.records, records + bed_.config.recovered_a_step) << "more than a step";
    records = progress.records;
    bed_.turn();
    ASSERT_LT(turns_taken, 100'000u);
  }
  EXPECT_GT(turns_taken, 2 * kBlocks / bed_.config.recovered_a_step) << "it was not taken in steps";
  EXPECT_EQ(refusals, turns_taken);
  EXPECT_EQ(refused(), refusals);
  const OpenProgress at_end = bed_.store().opening();
  EXPECT_EQ(at_end.state, OpenState::kReady);
  EXPECT_EQ(at_end.segments_read, at_end.segments);
  EXPECT_EQ(bed_.store().stats().recovered, 2 * kBlocks);
  EXPECT_EQ(found(small_), kBlocks);
  EXPECT_EQ(found(large_), kBlocks);
  EXPECT_FALSE(bed_.store().find(bed_.space(small_shape(0x31)), numbered(900)));
  EXPECT_TRUE(bed_.write_now(space, small_, kBlocks + 1).ok);
}

// At every step of an opening.
TEST_F(StoreOpenTest, a_namespace_that_is_dropped_meanwhile_stays_dropped) {
  fill();
  const MemoryDisk before = bed_.disk;
  for (std::uint64_t step = 0;; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    bed_.end();
    bed_.disk = before;
    bed_.begin_start();
    const bool opens = turns(step);
    const auto dropped = bed_.store().drop_space(small_.digest);
    ASSERT_TRUE(dropped.ok());
    EXPECT_TRUE(bed_.await(dropped->flushed).ok);
    // It has been told: no death brings one back, wherever the opening was.
    const MemoryDisk after = bed_.disk.after_crash({.killed_only = false});
    bed_.finish_start();
    EXPECT_EQ(found(small_), 0u);
    EXPECT_EQ(found(large_), kBlocks);
    EXPECT_EQ(bed_.store().stats().records, kBlocks);
    // Not what is written after it.
    EXPECT_TRUE(bed_.write_now(bed_.space(small_), small_, 1).ok);
    EXPECT_EQ(found(small_), 1u);
    bed_.end();
    bed_.disk = after;
    bed_.start();
    EXPECT_EQ(found(small_), 0u);
    EXPECT_EQ(found(large_), kBlocks);
    if (!opens) {
      EXPECT_GT(step, 30u);
      break;
    }
  }
}

// The superblocks have no room for it, so that the log takes it, when there is one to write to.
TEST_F(StoreOpenTest, a_drop_that_the_log_takes_is_told_when_it_is_ready) {
  fill();
  bed_.start();
  for (std::uint32_t i = 0; i < limits::kSpaceDrops; ++i) {
    const auto listed = bed_.store().drop_space(digest(static_cast<std::uint8_t>(0x80 + i)));
    ASSERT_TRUE(listed.ok());
    EXPECT_TRUE(bed_.await(listed->flushed).ok);
  }
  bed_.kill();
  bed_.begin_start();
  ASSERT_TRUE(turns(3));
  const auto dropped = bed_.store().drop_space(small_.digest);
  ASSERT_TRUE(dropped.ok());
  while (!bed_.store().ready()) {
    EXPECT_EQ(bed_.ended.count(dropped->flushed.value), 0u);
    bed_.turn();
  }
  EXPECT_TRUE(bed_.await(dropped->flushed).ok);
  EXPECT_EQ(found(small_), 0u);
  bed_.crash({.killed_only = false});
  bed_.start();
  EXPECT_EQ(found(small_), 0u);
  EXPECT_EQ(found(large_), kBlocks);
}

TEST_F(StoreOpenTest, it_can_die_at_every_step) {
  fill();
  for (std::uint64_t step = 0;; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    bed_.begin_start();
    const bool opens = turns(step);
    bed_.crash({.seed = step, .killed_only = step % 2 == 0});
    if (!opens) break;
    ASSERT_LT(step, 10'000u);
  }
  bed_.start();
  EXPECT_EQ(found(small_), kBlocks);
  EXPECT_EQ(found(large_), kBlocks);
}

// A stop comes: it ends with its reads, and what it had found lies as it lay.
TEST_F(StoreOpenTest, it_can_be_closed_at_every_step) {
  fill();
  for (std::uint64_t step = 0;; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    bed_.begin_start();
    turns(step);
    const OpenState state = bed_.store().opening().state;
    bed_.store().begin_close();
    EXPECT_FALSE(bed_.store().drop_space(small_.digest).ok());
    for (int i = 0; i < 2000 && !bed_.store().closed(); ++i) bed_.turn();
    ASSERT_TRUE(bed_.store().closed());
    EXPECT_FALSE(bed_.store().active());
    EXPECT_EQ(bed_.store().opening().state,
              state == OpenState::kReading ? OpenState::kGivenUp : OpenState::kReady);
    bed_.end();
    if (state == OpenState::kReady) break;
    ASSERT_LT(step, 10'000u);
  }
  bed_.start();
  EXPECT_EQ(found(small_), kBlocks);
  EXPECT_EQ(found(large_), kBlocks);
}

// As at the start it is the first that was asked for, whenever the others are found.
TEST_F(StoreOpenTest, another_shape_under_a_name_that_is_asked_for_goes) {
  fill();
  const MemoryDisk before = bed_.disk;
  SpaceShape other = sharded_shape();
  other.digest = small_.digest;
  for (std::uint64_t step = 0;; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    bed_.end();
    bed_.disk = before;
    bed_.begin_start();
    const bool opens = turns(step);
    const SpaceIndex asked = bed_.space(other);
    bed_.finish_start();
    EXPECT_EQ(bed_.store().stats().records, kBlocks) << "those of the large shape";
    EXPECT_TRUE(bed_.write_now(asked, other, 1).ok);
    EXPECT_EQ(bed_.readable(asked, other, 1, 1), 1u);
    if (!opens) break;
  }
}

// An engine may come and go, and a drop may end all of a space, while its segment is in hand.
TEST_F(StoreOpenTest, spaces_come_and_go_meanwhile) {
  fill();
  bed_.begin_start();
  for (int i = 0; !bed_.store().ready(); ++i) {
    bed_.store().release(bed_.space(small_));
    const SpaceShape passing = small_shape(static_cast<std::uint8_t>(0x40 + i % 16));
    bed_.store().release(bed_.space(passing));
    if (i == 5) {
      ASSERT_TRUE(bed_.store().drop_space(small_.digest).ok());
    }
    bed_.turn();
  }
  EXPECT_EQ(found(small_), 0u);
  EXPECT_EQ(found(large_), kBlocks);
}

TEST_F(StoreOpenTest, a_read_that_fails_once_costs_nothing) {
  fill();
  std::set<std::pair<std::uint64_t, std::size_t>> failed;
  bed_.begin_start();
  bed_.faults.pick = [&failed](const IoRequest& request) {
    const bool first =
        request.op == IoOp::kRead && failed.emplace(request.offset, request.pieces[0].size()).second;
    return first ? failing(EIO) : IoFault{};
  };
  bed_.finish_start();
  bed_.faults.pick = nullptr;
  EXPECT_GT(failed.size(), 16u);
  EXPECT_EQ(bed_.store().stats().damaged_batches, 0u);
  EXPECT_EQ(found(small_), kBlocks);
  EXPECT_EQ(found(large_), kBlocks);
}

// What was found has been used by nobody in this life.
TEST_F(StoreOpenTest, ages_begin_with_this_life) {
  fill();
  bed_.begin_start();
  bed_.pass(seconds(600));
  ASSERT_TRUE(bed_.store().ready());
  const std::vector digests{small_.digest};
  const auto unused = [&](Duration least) {
    UnusedDrop count = bed_.store().begin_unused(digests, least, UnusedRun::kCount);
    while (!bed_.store().go_on(count)) {
    }
    return count.told().of[0].records;
  };
  EXPECT_EQ(unused(seconds(300)), kBlocks);
  EXPECT_EQ(unused(seconds(1200)), 0u);
}

// A sync fails before anything is made of what was found: reads go on, writes do not.
TEST_F(StoreOpenTest, a_sync_that_fails_stops_writes_until_the_next_start) {
  fill();
  bed_.begin_start();
  bed_.faults.pick = failing_op(IoOp::kSync, EIO);
  bed_.finish_start();
  bed_.faults.pick = nullptr;
  EXPECT_EQ(bed_.store().paths()[0].state, PathState::kWriteStopped);
  EXPECT_EQ(found(small_), kBlocks);
  bed_.kill();
  bed_.start();
  EXPECT_EQ(bed_.store().paths()[0].state, PathState::kOk);
  EXPECT_EQ(found(small_), kBlocks);
}

}  // namespace
}  // namespace orbitkv::ssd::suite
