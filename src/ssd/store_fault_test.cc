// Devices that fail: what stops, what goes on, and what is said.
#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "ssd/store_rig.h"

namespace orbitkv::ssd::suite {
namespace {

std::uint64_t refused(StoreBed& bed, Refusal why) {
  return bed.store().stats().refused[static_cast<std::size_t>(why)];
}
std::uint64_t lost(StoreBed& bed, Loss why) {
  return bed.store().stats().lost[static_cast<std::size_t>(why)];
}
bool in_segments(const IoRequest& request) {
  return request.offset >= kFirstSegment.value;
}

TEST(StoreFaultTest, enospc_reads_go_on) {
  for (const int error : {ENOSPC, EDQUOT, EROFS}) {
    StoreBed bed;
    bed.start();
    const SpaceShape shape = small_shape();
    const SpaceIndex space = bed.space(shape);
    bed.write_blocks(space, shape, 1, 20);
    bed.faults.pick = failing_op(IoOp::kWrite, error);
    const auto write = bed.write(space, shape, 21);
    ASSERT_TRUE(write.ok());
    const StoreEvent event = bed.await(*write);
    EXPECT_FALSE(event.ok);
    EXPECT_EQ(event.refusal, Refusal::kWriteStopped);
    const PathStatus path = bed.store().paths()[0];
    EXPECT_EQ(path.state, PathState::kWriteStopped);
    EXPECT_NE(path.why.find("ssd"), std::string::npos) << path.why;
    EXPECT_NE(path.why.find("every minute"), std::string::npos) << path.why;
    EXPECT_FALSE(bed.write(space, shape, 22).ok());
    EXPECT_EQ(refused(bed, Refusal::kWriteStopped), 2u);
    EXPECT_EQ(bed.readable(space, shape, 1, 22), 20u);
    // The probe after a minute fails, the one after the next does not.
    bed.pass(seconds(70));
    EXPECT_EQ(bed.store().paths()[0].state, PathState::kWriteStopped);
    bed.faults.pick = nullptr;
    bed.pass(seconds(70));
    EXPECT_EQ(bed.store().paths()[0].state, PathState::kOk);
    bed.write_blocks(space, shape, 23, 30);
    EXPECT_EQ(bed.readable(space, shape, 1, 52), 50u);
    ASSERT_TRUE(bed.flush_now());
    bed.crash({.seed = 1, .lost_percent = 100});
    bed.start();
    EXPECT_EQ(bed.readable(bed.space(shape), shape, 1, 52), 50u);
  }
}

TEST(StoreFaultTest, the_other_path_goes_on) {
  StoreBed::Options options;
  options.paths = {"a", "b"};
  StoreBed bed(options);
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  bed.faults.pick = [](const IoRequest& request) {
    return request.op == IoOp::kWrite && request.file == FileIndex(0) ? failing(ENOSPC) : IoFault{};
  };
  for (std::uint64_t n = 1; n <= 200; ++n) ASSERT_TRUE(bed.write(space, shape, n).ok());
  bed.settle();
  EXPECT_EQ(bed.store().paths()[0].state, PathState::kWriteStopped);
  EXPECT_EQ(bed.store().paths()[1].state, PathState::kOk);
  EXPECT_EQ(bed.readable(space, shape, 1, 200), 200u);
  bed.close();
  bed.faults.pick = nullptr;
  bed.start();
  EXPECT_EQ(bed.store().stats().recovered, 200u);
}

// A batch that failed leaves a hole; what was written behind it is durable and found.
TEST(StoreFaultTest, hole_after_eio_keeps_later_durable) {
  for (std::uint64_t which = 0; which < 6; ++which) {
    StoreBed bed;
    bed.start();
    const SpaceShape shape = small_shape();
    const SpaceIndex space = bed.space(shape);
    std::uint64_t batches = 0;
    std::set<std::uint64_t> ok;
    bed.on_written = [&](const StoreBed::Written& write, const StoreEvent& event) {
      if (event.ok) ok.insert(write.number);
      EXPECT_EQ(event.refusal, event.ok ? Refusal::kNone : Refusal::kDeviceError);
    };
    bed.faults.pick = [&](const IoRequest& request) {
      const bool batch = request.op == IoOp::kWrite && in_segments(request) && request.pieces.size() > 1;
      return batch && batches++ == which ? failing(EIO) : IoFault{};
    };
    for (std::uint64_t n = 1; n <= 60; ++n) {
      ASSERT_TRUE(bed.write(space, shape, n).ok());
      if (n % 5 != 0) continue;
      // Two batches on their way where the seed lets them.
      for (int i = 0; i < 110; ++i) bed.turn();
    }
    ASSERT_TRUE(bed.flush_now());
    EXPECT_LT(ok.size(), 60u);
    EXPECT_GE(ok.size(), 50u);
    EXPECT_EQ(bed.store().paths()[0].state, PathState::kOk);
    bed.crash({.seed = which, .lost_percent = 100});
    bed.faults.pick = nullptr;
    bed.start();
    const SpaceIndex again = bed.space(shape);
    for (std::uint64_t n = 1; n <= 60; ++n)
      EXPECT_EQ(bed.read_now(again, shape, n) != 0, ok.count(n) == 1) << n;
    EXPECT_EQ(bed.corrupt, 0u);
  }
}

TEST(StoreFaultTest, fsync_failure_stops_path) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 20);
  ASSERT_TRUE(bed.flush_now());
  bed.write_blocks(space, shape, 21, 20);
  bed.faults.pick = failing_op(IoOp::kSync, EIO);
  EXPECT_FALSE(bed.flush_now());
  EXPECT_EQ(bed.store().paths()[0].state, PathState::kWriteStopped);
  EXPECT_NE(bed.store().paths()[0].why.find("restart"), std::string::npos) << bed.store().paths()[0].why;
  // What was not durable is gone, the rest is read.
  EXPECT_EQ(bed.readable(space, shape, 1, 20), 20u);
  for (std::uint64_t n = 21; n <= 40; ++n) EXPECT_FALSE(bed.store().find(space, numbered(n)));
  EXPECT_EQ(lost(bed, Loss::kDeviceError), 20u);
  // No probe ends this.
  bed.faults.pick = nullptr;
  bed.pass(seconds(200));
  EXPECT_FALSE(bed.write(space, shape, 41).ok());
  bed.close();
  bed.start();
  EXPECT_EQ(bed.store().paths()[0].state, PathState::kOk);
  EXPECT_GE(bed.readable(bed.space(shape), shape, 1, 40), 20u);
  EXPECT_TRUE(bed.write_now(bed.space(shape), shape, 41).ok);
}

// A batch that was on its way when the sync failed: no sync will ever cover it.
TEST(StoreFaultTest, batch_in_flight_at_a_failed_sync_is_no_record) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 5);
  bed.faults.pick = [](const IoRequest& request) {
    IoFault out;
    if (request.op == IoOp::kWrite) out.kind = IoFault::Kind::kDelay, out.delay = seconds(2);
    return request.op == IoOp::kSync ? failing(EIO) : out;
  };
  const auto write = bed.write(space, shape, 6);
  ASSERT_TRUE(write.ok());
  const StoreEvent event = bed.await(*write);
  EXPECT_FALSE(event.ok);
  EXPECT_EQ(event.refusal, Refusal::kWriteStopped);
  EXPECT_FALSE(bed.store().find(space, numbered(6)));
}

// The end of a record that no path takes is not durable, and a flush says so.
TEST(StoreFaultTest, flush_with_an_end_that_cannot_be_written) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 5);
  ASSERT_TRUE(bed.flush_now());
  bed.faults.pick = [](const IoRequest& request) {
    if (request.op == IoOp::kSync) return IoFault{};
    return failing(request.op == IoOp::kRead ? EIO : ENOSPC);
  };
  bed.read_now(space, shape, 3);
  bed.read_now(space, shape, 3);
  EXPECT_FALSE(bed.store().find(space, numbered(3)));
  bed.pass(milliseconds(10));
  ASSERT_EQ(bed.store().paths()[0].state, PathState::kWriteStopped);
  EXPECT_FALSE(bed.flush_now());
  bed.faults.pick = nullptr;
  bed.pass(seconds(70));
  EXPECT_EQ(bed.store().paths()[0].state, PathState::kOk) << bed.store().paths()[0].why;
  EXPECT_TRUE(bed.flush_now());
  bed.crash({.seed = 1, .lost_percent = 100});
  bed.start();
  EXPECT_EQ(bed.store().stats().recovered, 4u);
}

TEST(StoreFaultTest, second_failed_read_ends_the_record) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 10);
  bed.faults.pick = failing_op(IoOp::kRead, EIO);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(bed.store().find(space, numbered(5)));
    const auto read = bed.read(space, shape, 5);
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(bed.await(*read).loss, Loss::kDeviceError);
  }
  EXPECT_FALSE(bed.store().find(space, numbered(5)));
  bed.faults.pick = nullptr;
  EXPECT_EQ(bed.readable(space, shape, 1, 10), 9u);
}

// Segments whose header cannot be written are left alone; where that goes on the path stops.
TEST(StoreFaultTest, bad_headers) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  std::uint64_t left = 3;
  bed.faults.pick = [&](const IoRequest& request) {
    const bool header = request.op == IoOp::kWrite && in_segments(request) &&
                        (request.offset - kFirstSegment.value) % (256 * kKiB.value) == 0;
    if (!header || left == 0) return IoFault{};
    --left;
    return failing(EIO);
  };
  bed.write_blocks(space, shape, 1, 20);
  EXPECT_EQ(left, 0u);
  EXPECT_EQ(bed.readable(space, shape, 1, 20), 20u);
  EXPECT_EQ(bed.store().paths()[0].state, PathState::kOk);
  bed.faults.pick = failing_op(IoOp::kWrite, EIO);
  for (int i = 0; i < 20; ++i) {
    if (bed.write(space, shape, 100).ok()) bed.settle();
  }
  EXPECT_EQ(bed.store().paths()[0].state, PathState::kWriteStopped);
  EXPECT_EQ(bed.readable(space, shape, 1, 20), 20u);
}

TEST(StoreFaultTest, short_transfers_and_delays) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = sharded_shape();
  const SpaceIndex space = bed.space(shape);
  std::mt19937_64 random(7);
  bed.faults.pick = [&](const IoRequest&) {
    IoFault out;
    if (random() % 3 == 0) {
      out.kind = IoFault::Kind::kShort;
      out.bytes = random() % 4 * 512;
    } else if (random() % 5 == 0) {
      out.kind = IoFault::Kind::kDelay;
      out.delay = milliseconds(static_cast<std::int64_t>(random() % 20));
    }
    return out;
  };
  bed.write_blocks(space, shape, 1, 100);
  EXPECT_EQ(bed.readable(space, shape, 1, 100), 100u);
  bed.close();
  bed.faults.pick = nullptr;
  bed.start();
  EXPECT_EQ(bed.readable(bed.space(shape), shape, 1, 100), 100u);
}

// With a device that takes nothing more the store still closes, and every transfer ends.
TEST(StoreFaultTest, close_on_a_stopped_path) {
  for (const int error : {ENOSPC, EIO}) {
    for (const IoOp op : {IoOp::kWrite, IoOp::kSync}) {
      StoreBed bed;
      bed.start();
      const SpaceShape shape = small_shape();
      const SpaceIndex space = bed.space(shape);
      bed.write_blocks(space, shape, 1, 20);
      ASSERT_TRUE(bed.flush_now());
      bed.faults.pick = failing_op(op, error);
      for (std::uint64_t n = 21; n <= 60; ++n) ASSERT_TRUE(bed.write(space, shape, n).ok());
      bed.store().begin_close();
      for (int i = 0; i < 100'000 && !bed.store().closed(); ++i) bed.turn();
      EXPECT_TRUE(bed.store().closed());
      EXPECT_EQ(bed.under_way(), 0u);
      bed.crash({.seed = 1, .lost_percent = 100});
      bed.faults.pick = nullptr;
      bed.start();
      EXPECT_EQ(bed.readable(bed.space(shape), shape, 1, 60), 20u);
    }
  }
}

}  // namespace
}  // namespace orbitkv::ssd::suite
