// What the scan at open finds in whole paths, and that it changes nothing.
#include "ssd/scan.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "ssd/scan_rig.h"

namespace orbitkv::ssd::suite {
namespace {

TEST_F(ScanTest, conditions_of_segments) {
  WrittenSegment sealed = open(0);
  const auto a = write_batch(sealed, 3), b = write_batch(sealed, 2);
  sealed.seal();
  WrittenSegment unsealed = open(1);
  const auto c = write_batch(unsealed, 2);
  WrittenSegment header_only = open(2);
  Collect found = scanned();
  EXPECT_EQ(found.at(0).segment.condition, SegmentCondition::kSealed);
  expect_keys(found.at(0), {a, b});
  EXPECT_EQ(found.at(0).segment.end, b.head.pages.end());
  EXPECT_EQ(found.at(0).segment.created, 1700000000u);
  EXPECT_EQ(found.at(1).segment.condition, SegmentCondition::kUnsealed);
  expect_keys(found.at(1), {c});
  EXPECT_EQ(found.at(1).segment.end, c.head.pages.end());
  EXPECT_EQ(found.at(1).segment.segment.life.sequence.value, first_sequence(kEpoch) + 2);
  EXPECT_EQ(found.at(2).segment.end, 1u);
  EXPECT_EQ(found.at(3).segment.condition, SegmentCondition::kFree);
  EXPECT_EQ(totals_.records, 7u);
  EXPECT_EQ(totals_.sealed, 1u);
  EXPECT_EQ(totals_.unsealed, 2u);
  EXPECT_EQ(totals_.damaged, 0u);
}

TEST_F(ScanTest, header_of_nobody_frees_the_segment) {
  WrittenSegment segment = open(0);
  write_batch(segment, 2);
  flip(segment.offset_of(0) + 100);
  Collect found = scanned();
  EXPECT_EQ(found.at(0).segment.condition, SegmentCondition::kFree);
  EXPECT_EQ(found.at(0).segment.damaged, 1u);
  EXPECT_TRUE(found.at(0).list.records.empty());
  // Bytes of somebody else are no damage.
  disk_.poke(kPath, segment.offset_of(0), Buffer(kPageBytes, std::byte{0x5A}));
  EXPECT_EQ(scanned().at(0).segment.damaged, 0u);
}

// A footer longer than what the scan reads at once, and a long descriptor.
TEST_F(ScanTest, long_lists) {
  superblock_ = superblock_of(kSegments, 16 * kMiB);
  disk_.resize(kPath, ByteCount(segment_offset(superblock_, kSegments)));
  disk_.poke(kPath, 0, both_superblocks(superblock_));
  const SpaceShape small = shape_of({{0, 0, 0, 8}});
  std::set<BlockHash> keys;
  for (const std::uint32_t number : {0u, 1u}) {
    WrittenSegment segment = open(number);
    for (Fit fit = Fit::kYes; fit != Fit::kSegmentFull;) {
      fit = segment.add(SpaceIndex(0), small, numbered(next_), sequence(next_));
      if (fit == Fit::kYes && number == 0) keys.insert(numbered(next_));
      next_ += fit == Fit::kYes ? 1 : 0;
      if (fit != Fit::kYes) segment.close();
    }
    EXPECT_GT(segment.builder().seal_pages(), 70u);
    if (number == 0) segment.seal();
  }
  Collect found = scanned();
  EXPECT_EQ(found.at(0).segment.condition, SegmentCondition::kSealed);
  EXPECT_EQ(found.at(0).keys(), keys);
  EXPECT_EQ(found.at(1).segment.condition, SegmentCondition::kUnsealed);
  EXPECT_EQ(found.at(1).list.records.size(), keys.size());
}

// The scan writes nothing, so one that a crash cuts short changes nothing for the next.
TEST_F(ScanTest, crash_during_recovery_twice) {
  WrittenSegment sealed = open(0), torn = open(1);
  write_batch(sealed, 3);
  sealed.seal();
  const auto whole = write_batch(torn, 2);
  write_batch(torn, 2, WrittenSegment::Write::kDescriptorOnly);
  Buffer before(segment_offset(superblock_, kSegments)), after(before.size());
  disk_.peek(kPath, 0, before);
  for (int round = 0; round < 3; ++round) {
    Collect found = scanned();
    expect_keys(found.at(1), {whole});
    EXPECT_EQ(found.at(1).segment.damaged, 2u);
    EXPECT_EQ(disk_.events(), 0u);  // no write and no sync
    disk_.peek(kPath, 0, after);
    EXPECT_EQ(before, after);
  }
}

// A recovered segment that is sealed says by its footer what its batches said.
TEST_F(ScanTest, recovered_segment_can_be_sealed) {
  WrittenSegment segment = open(0);
  const auto a = write_batch(segment, 3);
  write_batch(segment, 2, WrittenSegment::Write::kDescriptorOnly);
  const auto c = write_batch(segment, 2);
  const Found found = scanned().at(0);
  SegmentBuilder builder(found.segment.segment);
  ASSERT_TRUE(builder.adopt(found.list, found.segment.end));
  Buffer pages(builder.seal_pages() * kPageBytes);
  builder.encode_seal(pages);
  disk_.poke(kPath, segment.offset_of(builder.seal_place().first), pages);
  Collect again = scanned();
  EXPECT_EQ(again.at(0).segment.condition, SegmentCondition::kSealed);
  expect_keys(again.at(0), {a, c});
  EXPECT_EQ(entries_of(again.at(0).list), entries_of(found.list));
}

TEST_F(ScanTest, several_paths_of_different_lengths) {
  MemoryIo io(disk_, {}, seeded_latency(5, {microseconds(10), microseconds(300)}));
  std::vector<ScanPath> paths;
  std::vector<WrittenSegment::Batch> batches;
  for (const std::uint32_t segments : {1u, 3u, 2u}) {
    const std::string path = "path" + std::to_string(segments);
    const Superblock super = superblock_of(segments);
    disk_.resize(path, ByteCount(segment_offset(super, segments)));
    const WriteBytes write = [&](std::uint64_t offset, std::span<const std::byte> b) {
      disk_.poke(path, offset, b);
    };
    WrittenSegment segment = open_segment(write, super, segments - 1, segments);
    batches.push_back(write_batch(segment, segments));
    segment.seal();
    const auto file = io.open(path, ByteCount());
    ASSERT_TRUE(file.ok());
    paths.push_back({file->file, super});
  }
  Collect found;
  ScanOptions options;
  options.depth = 1;
  const auto totals = scan(io, paths, found, options);
  ASSERT_TRUE(totals.ok());
  EXPECT_EQ(totals->segments, 6u);
  expect_keys(found.at(0, 0), {batches[0]});
  expect_keys(found.at(2, 1), {batches[1]});
  expect_keys(found.at(1, 2), {batches[2]});
}

TEST_F(ScanTest, stop_fd_gives_up) {
  MemoryIo io(disk_, {}, seeded_latency(3, {microseconds(10), microseconds(300)}));
  const auto file = io.open(kPath, ByteCount());
  const ScanPath path{file->file, superblock_};
  ScanOptions options;
  options.stop_fd = ::eventfd(1, EFD_CLOEXEC);
  Collect found;
  const auto totals = scan(io, std::span(&path, 1), found, options);
  ::close(options.stop_fd);
  ASSERT_FALSE(totals.ok());
  EXPECT_EQ(totals.error().code(), Code::kBusy);
}

}  // namespace
}  // namespace orbitkv::ssd::suite
