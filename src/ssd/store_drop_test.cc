// What goes: namespaces, and blocks whose bytes are wrong. Gone now, gone after a restart.
#include <gtest/gtest.h>

#include <cstring>

#include "base/limits.h"
#include "ssd/store_rig.h"
#include "ssd/unused_drop.h"

namespace orbitkv::ssd::suite {
namespace {

// Flips one bit of the newest image with these bytes on the disk; false: it is not there.
bool flip_on_disk(StoreBed& bed, const SpaceShape& shape, std::uint64_t number, std::uint64_t revision,
                  std::uint64_t at) {
  const WrittenImage image = written_image(shape, numbered(number), ShardId(0), AllocationId(revision));
  std::vector<std::byte> page(kPageBytes);
  for (std::uint64_t offset = kFirstSegment.value; offset < bed.disk.size("ssd").value;
       offset += kPageBytes) {
    bed.disk.peek("ssd", offset, page);
    if (std::memcmp(page.data(), image.bytes.data(), 512) != 0) continue;
    std::byte byte;
    bed.disk.peek("ssd", offset + at, std::span(&byte, 1));
    byte ^= std::byte{4};
    bed.disk.poke("ssd", offset + at, std::span(&byte, 1));
    return true;
  }
  return false;
}

ImageMark mark_of(const SpaceShape& shape, std::uint64_t number, std::uint64_t revision) {
  return written_image(shape, numbered(number), ShardId(0), AllocationId(revision)).mark;
}

std::uint64_t lost(StoreBed& bed, Loss why) {
  return bed.store().stats().lost[static_cast<std::size_t>(why)];
}

struct Done {
  UnusedDrop::Told told;
  std::vector<TransferId> flushes;
};
Done drop_unused(StoreBed& bed, std::span<const model::NamespaceDigest> digests, Duration least,
                 UnusedRun run) {
  UnusedDrop drop = bed.store().begin_unused(digests, least, run);
  while (!bed.store().go_on(drop)) continue;
  EXPECT_TRUE(drop.over());
  return {drop.told(), drop.take_flushes()};
}

TEST(StoreDropTest, spaces_list_drop_release) {
  StoreBed bed;
  bed.start();
  const SpaceShape a = small_shape(0x31), b = sharded_shape(0x32);
  const SpaceIndex space_a = bed.space(a), space_b = bed.space(b);
  bed.write_blocks(space_a, a, 1, 30);
  bed.write_blocks(space_b, b, 1, 20);
  bed.close();
  bed.start();
  std::vector<SpaceStatus> list = bed.store().spaces();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].digest, a.digest);
  EXPECT_EQ(list[0].text, a.text);
  EXPECT_EQ(list[0].records, 30u);
  EXPECT_EQ(list[0].bytes, ByteCount(30 * kPageBytes));
  EXPECT_FALSE(list[0].asked);
  EXPECT_EQ(list[1].records, 20u);
  bed.space(a);
  EXPECT_TRUE(bed.store().spaces()[0].asked);
  const auto dropped = bed.store().drop_space(b.digest);
  ASSERT_TRUE(dropped.ok());
  EXPECT_EQ(dropped->records, 20u);
  EXPECT_TRUE(bed.await(dropped->flushed).ok);
  list = bed.store().spaces();
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].digest, a.digest);
  EXPECT_EQ(lost(bed, Loss::kNamespace), 20u);
  bed.crash({.seed = 1, .lost_percent = 100});
  bed.start();
  ASSERT_EQ(bed.store().spaces().size(), 1u);
  EXPECT_EQ(bed.store().stats().recovered, 30u);
  // Without uses and records nothing is left of a namespace.
  const SpaceIndex again = bed.space(b);
  EXPECT_EQ(bed.store().spaces().size(), 2u);
  bed.store().release(again);
  EXPECT_EQ(bed.store().spaces().size(), 1u);
}

TEST(StoreDropTest, what_nobody_used_goes_for_good) {
  StoreBed bed;
  bed.start();
  const SpaceShape a = small_shape(0x31), b = sharded_shape(0x32);
  const SpaceIndex space_a = bed.space(a), space_b = bed.space(b);
  const model::NamespaceDigest both[] = {a.digest, b.digest};
  const auto unused = [&](std::int64_t minutes, UnusedRun run) {
    return drop_unused(bed, both, seconds(60 * minutes), run);
  };
  bed.write_blocks(space_a, a, 1, 10);
  bed.write_blocks(space_b, b, 1, 5);
  bed.pass(seconds(600));
  bed.write_blocks(space_a, a, 11, 2);
  ASSERT_NE(bed.read_now(space_a, a, 1), 0u);
  bed.pass(seconds(600));
  EXPECT_EQ(unused(25, UnusedRun::kCount).told.of[0].records, 0u);
  const Done counted = unused(15, UnusedRun::kCount);
  EXPECT_EQ(counted.told.of[0].records, 9u);
  EXPECT_EQ(counted.told.of[0].bytes, ByteCount(9 * kPageBytes));
  EXPECT_EQ(counted.told.of[1].records, 5u);
  EXPECT_EQ(bed.store().stats().records, 17u) << "counting takes nothing";
  const Done dropped = unused(15, UnusedRun::kDrop);
  EXPECT_EQ(dropped.told.of[0].records, 9u);
  EXPECT_EQ(dropped.told.left, 0u);
  ASSERT_EQ(dropped.flushes.size(), 2u) << "one namespace as a whole, the other record by record";
  for (const TransferId flushed : dropped.flushes) EXPECT_TRUE(bed.await(flushed).ok);
  EXPECT_EQ(lost(bed, Loss::kUnused), 9u);
  EXPECT_EQ(lost(bed, Loss::kNamespace), 5u);
  bed.crash({.seed = 1, .lost_percent = 100});
  bed.start();
  const SpaceIndex again = bed.space(a);
  EXPECT_EQ(bed.readable(again, a, 1, 12), 3u);
}

// A walk takes as many calls as its bound says, and sees what becomes of records meanwhile.
TEST(StoreDropTest, a_drop_by_age_goes_over_turns_and_takes_nothing_that_is_used_meanwhile) {
  StoreBed bed;
  bed.config.unused_looks = 4;
  bed.config.unused_ends = 3;
  bed.start();
  const SpaceShape a = small_shape(0x31), b = sharded_shape(0x32);
  const SpaceIndex space_a = bed.space(a), space_b = bed.space(b);
  const model::NamespaceDigest both[] = {a.digest, b.digest};
  bed.write_blocks(space_a, a, 1, 20);
  bed.write_blocks(space_b, b, 1, 10);
  bed.pass(seconds(1200));
  UnusedDrop drop = bed.store().begin_unused(both, seconds(600), UnusedRun::kDrop);
  int walks = 0;
  for (; drop.walks(); ++walks) {
    EXPECT_EQ(bed.store().stats().records, walks < 7 ? 30u : 31u) << "the walk takes nothing";
    ASSERT_FALSE(bed.store().go_on(drop));
    if (walks == 5) {  // found, and read since
      ASSERT_NE(bed.read_now(space_a, a, 1), 0u);
    }
    if (walks == 6) bed.write_blocks(space_a, a, 21, 1);  // has no part in it
  }
  EXPECT_GE(walks, 7) << "30 records, 4 a call";
  int ends = 1;
  for (std::uint64_t left = bed.store().stats().records; !bed.store().go_on(drop); ++ends) {
    const std::uint64_t now = bed.store().stats().records;
    EXPECT_LE(left - now, 3u);
    left = now;
  }
  EXPECT_GE(ends, 6) << "19 records, 3 a call";
  EXPECT_EQ(drop.told().of[0].records, 19u) << "one by one: not all of the namespace is unused";
  EXPECT_EQ(drop.told().of[1].records, 10u) << "as a whole";
  EXPECT_EQ(drop.told().left, 0u);
  EXPECT_EQ(lost(bed, Loss::kUnused), 19u);
  for (const TransferId flushed : drop.take_flushes()) EXPECT_TRUE(bed.await(flushed).ok);
  bed.crash({.seed = 1, .lost_percent = 100});
  bed.start();
  EXPECT_EQ(bed.readable(bed.space(a), a, 1, 21), 2u);
  EXPECT_EQ(bed.readable(bed.space(b), b, 1, 10), 0u);
}

// A write that has been accepted is a use, before it is a record.
TEST(StoreDropTest, a_drop_by_age_ends_no_write_that_waits) {
  for (const bool before : {true, false}) {
    SCOPED_TRACE(before);
    StoreBed bed;
    bed.config.unused_looks = 4;
    bed.start();
    const SpaceShape a = small_shape(0x31);
    const SpaceIndex space = bed.space(a);
    bed.write_blocks(space, a, 1, 10);
    bed.pass(seconds(1200));
    Result<TransferId> write = busy("not yet");
    if (before) write = bed.write(space, a, 50);
    UnusedDrop drop = bed.store().begin_unused({&a.digest, 1}, seconds(600), UnusedRun::kDrop);
    ASSERT_FALSE(bed.store().go_on(drop));
    if (!before) write = bed.write(space, a, 50);
    while (!bed.store().go_on(drop)) continue;
    ASSERT_TRUE(write.ok());
    EXPECT_TRUE(bed.await(*write).ok);
    EXPECT_EQ(drop.told().of[0].records, 10u);
    EXPECT_EQ(bed.readable(space, a, 1, 50), 1u);
  }
}

// What had gone may come back, for nobody was told that it is gone; nothing else may be missing.
TEST(StoreDropTest, a_crash_in_the_middle_of_a_drop_by_age_takes_nothing_that_was_not_meant) {
  for (int calls = 0; calls < 14; ++calls) {
    SCOPED_TRACE(calls);
    StoreBed bed;
    bed.config.unused_looks = 4;
    bed.config.unused_ends = 3;
    bed.start();
    const SpaceShape a = small_shape(0x31);
    const SpaceIndex space = bed.space(a);
    bed.write_blocks(space, a, 1, 20);
    bed.pass(seconds(1200));
    bed.write_blocks(space, a, 21, 5);
    ASSERT_TRUE(bed.flush_now());
    UnusedDrop drop = bed.store().begin_unused({&a.digest, 1}, seconds(600), UnusedRun::kDrop);
    for (int i = 0; i < calls; ++i)
      if (bed.store().go_on(drop)) break;
    const bool over = drop.over();
    if (over) {
      for (const TransferId flushed : drop.take_flushes()) EXPECT_TRUE(bed.await(flushed).ok);
    }
    const std::uint64_t records = bed.store().stats().records;
    bed.crash({.seed = static_cast<std::uint64_t>(calls), .lost_percent = 50});
    bed.start();
    const SpaceIndex again = bed.space(a);
    EXPECT_EQ(bed.readable(again, a, 21, 5), 5u);
    const std::uint64_t left = bed.readable(again, a, 1, 20);
    EXPECT_GE(left + 5, records);
    if (over) {
      EXPECT_EQ(left, 0u);
    }
  }
}

// Each end of a single record is kept until no older segment may hold it: a bound, and an answer.
TEST(StoreDropTest, more_unused_records_than_ends_are_kept_are_left) {
  StoreBed bed;
  bed.config.tombstones = 5;
  bed.start();
  const SpaceShape a = small_shape(0x31);
  const SpaceIndex space = bed.space(a);
  bed.write_blocks(space, a, 1, 8);
  bed.pass(seconds(600));
  bed.write_blocks(space, a, 9, 1);
  const Done dropped = drop_unused(bed, {&a.digest, 1}, seconds(300), UnusedRun::kDrop);
  EXPECT_EQ(dropped.told.of[0].records, 5u);
  EXPECT_EQ(dropped.told.left, 3u);
  EXPECT_NE(dropped.told.why_left, "");
  for (const TransferId flushed : dropped.flushes) EXPECT_TRUE(bed.await(flushed).ok);
  bed.crash({.seed = 1, .lost_percent = 100});
  bed.start();
  EXPECT_EQ(bed.readable(bed.space(a), a, 1, 9), 4u);
}

// Nobody knows what was used in an earlier life: ages count from the start.
TEST(StoreDropTest, what_was_found_at_the_start_counts_as_used_then) {
  StoreBed bed;
  bed.start();
  const SpaceShape a = small_shape(0x31);
  const model::NamespaceDigest digest = a.digest;
  bed.write_blocks(bed.space(a), a, 1, 10);
  bed.close();
  bed.start();
  const auto unused = [&] {
    return drop_unused(bed, {&digest, 1}, seconds(120), UnusedRun::kCount).told.of[0].records;
  };
  EXPECT_EQ(unused(), 0u);
  bed.pass(seconds(110));
  EXPECT_EQ(unused(), 0u);
  bed.pass(seconds(120));
  EXPECT_EQ(unused(), 10u);
}

TEST(StoreDropTest, drop_vs_write_in_flight) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    StoreBed::Options options;
    options.seed = seed;
    StoreBed bed(options);
    bed.start();
    const SpaceShape shape = small_shape();
    const SpaceIndex space = bed.space(shape);
    for (std::uint64_t n = 1; n <= 40; ++n) ASSERT_TRUE(bed.write(space, shape, n).ok());
    for (std::uint64_t i = 0; i < seed; ++i) bed.turn();
    const auto dropped = bed.store().drop_space(shape.digest);
    ASSERT_TRUE(dropped.ok());
    for (std::uint64_t n = 1; n <= 40; ++n) EXPECT_FALSE(bed.store().find(space, numbered(n)));
    bed.settle();
    EXPECT_EQ(bed.under_way(), 0u);
    EXPECT_TRUE(bed.ended.at(dropped->flushed.value).ok);
    EXPECT_EQ(bed.store().stats().records, 0u);
    const StoreStats stats = bed.store().stats();
    EXPECT_EQ(stats.refused[static_cast<std::size_t>(Refusal::kDropped)] + dropped->records, 40u) << seed;
    bed.kill();
    bed.start();
    EXPECT_EQ(bed.store().stats().recovered, 0u);
  }
}

TEST(StoreDropTest, drop_vs_read_in_flight) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 1);
  const auto read = bed.read(space, shape, 1);
  ASSERT_TRUE(read.ok());
  ASSERT_TRUE(bed.store().drop_space(shape.digest).ok());
  const StoreEvent event = bed.await(*read);
  EXPECT_FALSE(event.ok);
  EXPECT_EQ(event.loss, Loss::kNamespace);
}

TEST(StoreDropTest, drop_space_then_reuse) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 40);
  const auto dropped = bed.store().drop_space(shape.digest);
  ASSERT_TRUE(dropped.ok());
  // At once, before anything of the drop is durable.
  bed.write_blocks(space, shape, 21, 40);
  EXPECT_TRUE(bed.await(dropped->flushed).ok);
  EXPECT_EQ(bed.readable(space, shape, 1, 60), 40u);
  ASSERT_TRUE(bed.flush_now());
  bed.crash({.seed = 1, .lost_percent = 100});
  bed.start();
  EXPECT_EQ(bed.store().stats().recovered, 40u);
  EXPECT_EQ(bed.readable(bed.space(shape), shape, 21, 40), 40u);
}

TEST(StoreDropTest, every_reason_why_something_is_left_is_told) {
  StoreBed bed;
  bed.config.tombstones = 5;
  bed.start();
  const SpaceShape a = small_shape(0x31);
  const SpaceIndex space = bed.space(a);
  bed.write_blocks(space, a, 1, 8);
  bed.pass(seconds(600));
  bed.write_blocks(space, a, 9, 1);  // so that it cannot go whole
  while (bed.store().flush().ok()) continue;
  const Done dropped = drop_unused(bed, {&a.digest, 1}, seconds(300), UnusedRun::kDrop);
  EXPECT_EQ(dropped.told.left, 3u);
  EXPECT_TRUE(dropped.flushes.empty());
  EXPECT_NE(dropped.told.why_left.find("no more ends"), std::string::npos) << dropped.told.why_left;
  EXPECT_NE(dropped.told.why_left.find("; and what went is not durably gone yet"), std::string::npos)
      << dropped.told.why_left;
}

// More namespaces than the superblock lists: the log takes the rest, until their blocks have gone.
TEST(StoreDropTest, more_drops_than_the_superblock_lists) {
  StoreBed bed;
  bed.start();
  const SpaceShape kept = small_shape();
  const SpaceIndex space = bed.space(kept);
  const auto nth = [](std::uint32_t i) {
    SpaceShape shape = small_shape();
    shape.digest.bytes[5] = static_cast<std::byte>(i);
    shape.digest.bytes[6] = std::byte{0xEE};
    return shape;
  };
  constexpr std::uint32_t kMany = limits::kSpaceDrops + 40;
  for (std::uint32_t i = 0; i < kMany; ++i) bed.write_blocks(bed.space(nth(i)), nth(i), 1, 2);
  bed.write_blocks(space, kept, 1, 10);
  for (std::uint32_t i = 0; i < kMany; ++i) {
    const auto dropped = bed.store().drop_space(nth(i).digest);
    ASSERT_TRUE(dropped.ok()) << dropped.error().message();
    EXPECT_EQ(dropped->records, 2u);
    EXPECT_TRUE(bed.await(dropped->flushed).ok);
  }
  // One of the log's is used again.
  bed.write_blocks(bed.space(nth(kMany - 1)), nth(kMany - 1), 2, 1);
  ASSERT_TRUE(bed.flush_now());
  for (int life = 0; life < 2; ++life) {
    bed.crash({.seed = 1, .lost_percent = 100});
    bed.start();
    EXPECT_EQ(bed.store().stats().recovered, 11u);
    EXPECT_EQ(bed.readable(bed.space(kept), kept, 1, 10), 10u);
    EXPECT_EQ(bed.readable(bed.space(nth(kMany - 1)), nth(kMany - 1), 1, 2), 1u);
  }
  // When the segments of that time have gone the list has room again.
  const SpaceIndex filler = bed.space(kept);
  for (std::uint64_t n = 100; n < 2500; n += 100) bed.write_blocks(filler, kept, n, 100);
  const auto last = bed.store().drop_space(digest(0x77));
  ASSERT_TRUE(last.ok());
  EXPECT_TRUE(bed.await(last->flushed).ok);
  bed.kill();
  bed.start();
  EXPECT_EQ(bed.readable(bed.space(nth(kMany - 1)), nth(kMany - 1), 1, 2), 0u);
}

TEST(StoreDropTest, another_shape_under_the_same_name) {
  StoreBed bed;
  bed.start();
  const SpaceShape before = small_shape(0x44);
  bed.write_blocks(bed.space(before), before, 1, 10);
  bed.kill();
  bed.start();
  SpaceShape after = shape_of({{0, 0, 0, 1024}});
  after.digest = before.digest;
  const SpaceIndex space = bed.space(after);
  for (std::uint64_t n = 1; n <= 10; ++n) EXPECT_FALSE(bed.store().find(space, numbered(n)));
  bed.settle();
  EXPECT_EQ(bed.store().stats().records, 0u);
  bed.write_blocks(space, after, 1, 5);
  bed.kill();
  bed.start();
  EXPECT_EQ(bed.readable(bed.space(after), after, 1, 10), 5u);
}

TEST(StoreDropTest, suspect_keeps_good_record) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = sharded_shape();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 10);
  bed.store().suspect(space, numbered(3), mark_of(shape, 3, 3));
  bed.settle();
  EXPECT_NE(bed.read_now(space, shape, 3), 0u);
  EXPECT_EQ(bed.store().stats().scrubbed, 1u);
  EXPECT_EQ(bed.store().stats().scrub_errors, 0u);
}

TEST(StoreDropTest, suspect_drops_bad_record) {
  for (const std::uint64_t at : {std::uint64_t{700}, std::uint64_t{2000}}) {
    StoreBed bed;
    bed.start();
    const SpaceShape shape = small_shape();
    const SpaceIndex space = bed.space(shape);
    bed.write_blocks(space, shape, 1, 10);
    ASSERT_TRUE(flip_on_disk(bed, shape, 3, 3, at));
    // Another version is not meant.
    bed.store().suspect(space, numbered(3), mark_of(shape, 3, 99));
    bed.settle();
    EXPECT_TRUE(bed.store().find(space, numbered(3)));
    bed.store().suspect(space, numbered(3), mark_of(shape, 3, 3));
    bed.settle();
    EXPECT_FALSE(bed.store().find(space, numbered(3)));
    EXPECT_EQ(bed.store().stats().scrub_errors, 1u);
    EXPECT_EQ(lost(bed, Loss::kCorrupt), 1u);
    EXPECT_EQ(bed.readable(space, shape, 1, 10), 9u);
    ASSERT_TRUE(bed.flush_now());
    bed.close();
    bed.start();
    EXPECT_EQ(bed.readable(bed.space(shape), shape, 1, 10), 9u);
  }
}

TEST(StoreDropTest, wrong_header_is_found_when_it_lands) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 10);
  ASSERT_TRUE(flip_on_disk(bed, shape, 4, 4, 33));
  const auto read = bed.read(space, shape, 4);
  ASSERT_TRUE(read.ok());
  const StoreEvent event = bed.await(*read);
  EXPECT_FALSE(event.ok);
  EXPECT_EQ(event.loss, Loss::kCorrupt);
  bed.settle();
  EXPECT_FALSE(bed.store().find(space, numbered(4)));
}

TEST(StoreDropTest, suspect_fences_writes_under_way) {
  for (std::uint64_t turns = 0; turns < 200; turns += 4) {
    StoreBed bed;
    bed.start();
    const SpaceShape shape = small_shape();
    const SpaceIndex space = bed.space(shape);
    const auto write = bed.write(space, shape, 1);
    ASSERT_TRUE(write.ok());
    for (std::uint64_t i = 0; i < turns && bed.under_way() > 0; ++i) bed.turn();
    if (bed.under_way() == 0) break;
    bed.store().suspect(space, numbered(1), mark_of(shape, 1, 1));
    const StoreEvent event = bed.await(*write);
    EXPECT_FALSE(event.ok);
    EXPECT_EQ(event.refusal, Refusal::kDropped);
    EXPECT_FALSE(bed.store().find(space, numbered(1)));
    ASSERT_TRUE(bed.flush_now());
    bed.kill();
    bed.start();
    EXPECT_EQ(bed.store().stats().recovered, 0u) << turns;
  }
}

// With 300 blocks.
SpaceIndex start_scrubbed(StoreBed& bed, const SpaceShape& shape) {
  bed.config.scrub_per_second = 64 * kMiB;
  bed.start();
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 300);
  return space;
}

TEST(StoreDropTest, scrub_finds_flip_and_drops) {
  StoreBed bed;
  const SpaceShape shape = small_shape();
  const SpaceIndex space = start_scrubbed(bed, shape);
  ASSERT_TRUE(flip_on_disk(bed, shape, 10, 10, 1500));
  for (int i = 0; i < 3000 && bed.store().stats().scrub_errors == 0; ++i)
    bed.turn(), bed.io().advance(milliseconds(1));
  EXPECT_EQ(bed.store().stats().scrub_errors, 1u);
  EXPECT_FALSE(bed.store().find(space, numbered(10)));
  EXPECT_EQ(bed.readable(space, shape, 1, 300), 299u);
}

// A file that was cut has very many.
TEST(StoreDropTest, what_is_damaged_is_said_once_a_minute) {
  StoreBed bed;
  const SpaceShape shape = small_shape();
  start_scrubbed(bed, shape);
  const auto scrubbed = [&](std::uint64_t errors) {
    for (int i = 0; i < 3000 && bed.store().stats().scrub_errors < errors; ++i)
      bed.turn(), bed.io().advance(milliseconds(1));
    EXPECT_EQ(bed.store().stats().scrub_errors, errors);
  };
  const auto times_said = [](const std::string& log) {
    std::size_t times = 0;
    for (std::size_t at = 0; (at = log.find("is not what was written", at)) != log.npos; ++at) ++times;
    return times;
  };
  for (std::uint32_t block = 10; block < 15; ++block)
    ASSERT_TRUE(flip_on_disk(bed, shape, block, block, 1500));
  ::testing::internal::CaptureStderr();
  scrubbed(5);
  EXPECT_EQ(times_said(::testing::internal::GetCapturedStderr()), 1u);
  ASSERT_TRUE(flip_on_disk(bed, shape, 20, 20, 1500));
  bed.io().advance(seconds(61));
  ::testing::internal::CaptureStderr();
  scrubbed(6);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(times_said(log), 1u);
  EXPECT_NE(log.find("as were 4 others"), log.npos) << log;
}

// A rate in bytes a second, and never more than a slice between two polls.
TEST(StoreDropTest, scrub_rate_and_slices) {
  StoreBed::Options options;
  options.segment = 4 * kMiB;
  StoreBed bed(options);
  bed.config.scrub_per_second = kMiB;
  bed.start();
  const SpaceShape shape = shape_of({{0, 0, 0, 1536 * 1024}});
  const SpaceIndex space = bed.space(shape);
  bed.write_blocks(space, shape, 1, 8);
  std::uint64_t largest = 0, read = 0;
  bed.faults.pick = [&](const IoRequest& request) {
    if (request.op == IoOp::kRead)
      largest = std::max<std::uint64_t>(largest, request.pieces[0].size()), read += request.pieces[0].size();
    return IoFault{};
  };
  const TimePoint begin = bed.io().now();
  for (int i = 0; i < 4000; ++i) {
    const std::uint64_t before = read;
    bed.turn();
    EXPECT_LE(read - before, 256 * kKiB.value);
    bed.io().advance(milliseconds(2));
  }
  const double seconds_passed = static_cast<double>((bed.io().now() - begin).ns) * 1e-9;
  EXPECT_LE(largest, 256 * kKiB.value);
  EXPECT_LE(static_cast<double>(read), (seconds_passed + 2) * static_cast<double>(kMiB.value));
  EXPECT_GE(static_cast<double>(read), (seconds_passed - 2) * static_cast<double>(kMiB.value) / 2);
}

}  // namespace
}  // namespace orbitkv::ssd::suite
