// What the scan at open finds in paths that are whole, torn, stale and damaged.
#include "ssd/scan.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>

#include "ssd/memory_io.h"
#include "ssd/written_store_suite.h"

namespace orbitkv::ssd::suite {
namespace {

constexpr std::uint32_t kSegments = 4;
constexpr const char* kPath = "ssd";

Superblock superblock_of(std::uint32_t segments, ByteCount segment = kMiB) {
  Superblock out;
  out.uuid = kUuid;
  out.epoch = kEpoch;
  out.update = 1;
  out.segments = segments;
  out.segment = segment;
  return out;
}

struct Found {
  SegmentFound segment;
  EntryList list;
  std::set<BlockHash> keys() const {
    std::set<BlockHash> out;
    for (const RecordEntry& record : list.records) out.insert(record.hash);
    return out;
  }
};

class Collect final : public ScanSink {
 public:
  void found(const SegmentFound& segment, EntryList& entries) override {
    const bool once =
        all.emplace(std::pair(segment.path, segment.number.value), Found{segment, entries}).second;
    EXPECT_TRUE(once);
  }
  std::map<std::pair<std::uint32_t, std::uint32_t>, Found> all;
  const Found& at(std::uint32_t number, std::uint32_t path = 0) { return all.at({path, number}); }
};

// Fails what lies in a stretch of the file.
class BadStretch final : public IoFaults {
 public:
  IoFault next(const IoRequest& request) override {
    const bool hit = request.offset < end && request.offset + request.pieces[0].size() > begin;
    return hit ? IoFault{IoFault::Kind::kError, 0, EIO, {}} : IoFault{};
  }
  std::uint64_t begin = 0, end = 0;
};

class ScanTest : public testing::Test {
 protected:
  ScanTest() : superblock_(superblock_of(kSegments)) {
    disk_.resize(kPath, ByteCount(segment_offset(superblock_, kSegments)));
    disk_.poke(kPath, 0, both_superblocks(superblock_));
  }

  WriteBytes writer() {
    return
        [this](std::uint64_t offset, std::span<const std::byte> bytes) { disk_.poke(kPath, offset, bytes); };
  }
  WrittenSegment open(std::uint32_t number, std::uint64_t life = 0) {
    return open_segment(writer(), superblock_, number, life == 0 ? number + 1 : life);
  }
  void flip(std::uint64_t offset) {
    std::byte b;
    disk_.peek(kPath, offset, std::span(&b, 1));
    b ^= std::byte{0x10};
    disk_.poke(kPath, offset, std::span(&b, 1));
  }

  Collect scanned(ScanOptions options = {}, IoFaults* faults = nullptr) {
    IoOptions io_options;
    io_options.faults = faults;
    MemoryIo io(disk_, io_options, seeded_latency(3, {microseconds(10), microseconds(300)}));
    const auto file = io.open(kPath, ByteCount());
    EXPECT_TRUE(file.ok());
    const auto super = read_superblock(io, file->file);
    EXPECT_TRUE(super.ok() && *super);
    const ScanPath path{file->file, (*super)->superblock};
    Collect out;
    const auto totals = scan(io, std::span(&path, 1), out, options);
    EXPECT_TRUE(totals.ok());
    EXPECT_EQ(out.all.size(), kSegments);
    totals_ = *totals;
    return out;
  }

  // One batch of `n` records.
  WrittenSegment::Batch write_batch(WrittenSegment& segment, std::uint32_t n,
                                    WrittenSegment::Write what = WrittenSegment::Write::kAll) {
    for (std::uint32_t i = 0; i < n; ++i, ++next_)
      EXPECT_EQ(segment.add(SpaceIndex(0), shape_, numbered(next_), sequence(next_)), Fit::kYes);
    return segment.close(what);
  }

  static void expect_keys(const Found& found, std::initializer_list<WrittenSegment::Batch> batches) {
    std::set<BlockHash> wanted;
    for (const auto& batch : batches) wanted.insert(batch.keys.begin(), batch.keys.end());
    EXPECT_EQ(found.keys(), wanted);
    EXPECT_EQ(found.list.records.size(), wanted.size());
  }

  const SpaceShape shape_ = sample_shape();
  Superblock superblock_;
  MemoryDisk disk_;
  ScanTotals totals_;
  std::uint64_t next_ = 1;
};

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

// Both ways of finding a segment's entries give the same.
TEST_F(ScanTest, trailer_torn_falls_to_scan) {
  WrittenSegment segment = open(0);
  const auto a = write_batch(segment, 3);
  segment.drop({digest(0x10), GroupId(2), numbered(99), sequence(50)});
  const auto b = write_batch(segment, 2);
  segment.seal();
  const EntryList by_footer = scanned().at(0).list;
  const std::uint32_t pages = segment.builder().segment().pages;
  for (const std::uint32_t page : {pages - 1, pages - 2}) {
    flip(segment.offset_of(page) + 200);
    Collect found = scanned();
    EXPECT_EQ(found.at(0).segment.condition, SegmentCondition::kUnsealed) << page;
    EXPECT_EQ(found.at(0).segment.damaged, page == pages - 2 ? 1u : 0u);
    expect_keys(found.at(0), {a, b});
    EXPECT_EQ(entries_of(found.at(0).list), entries_of(by_footer));
    EXPECT_EQ(found.at(0).list.min_sequence, by_footer.min_sequence);
    flip(segment.offset_of(page) + 200);
  }
}

// A descriptor is no record: the images decide.
TEST_F(ScanTest, footer_without_payload_is_not_believed_without_its_trailer) {
  WrittenSegment segment = open(0);
  const auto a = write_batch(segment, 2);
  const auto b = write_batch(segment, 2, WrittenSegment::Write::kDescriptorOnly);
  const auto c = write_batch(segment, 1);
  segment.seal();
  flip(segment.offset_of(segment.builder().segment().pages - 1) + 8);
  Collect found = scanned();
  expect_keys(found.at(0), {a, c});
  EXPECT_EQ(found.at(0).segment.damaged, 2u);
}

TEST_F(ScanTest, one_wrong_byte_costs_one_record) {
  WrittenSegment segment = open(0);
  auto a = write_batch(segment, 4);
  // Header, first and last fragment of the first shard; any of the second.
  const std::uint64_t wheres[] = {3, 32, 200, 4096 + 128, shape_.slot_bytes - 121, 3 * kPageBytes + 100};
  for (const std::uint64_t where : wheres) {
    const std::uint64_t at = segment.offset_of(a.first_pages[2]) + where;
    flip(at);
    Collect found = scanned();
    EXPECT_EQ(found.at(0).segment.damaged, 1u) << where;
    EXPECT_EQ(found.at(0).keys(), (std::set<BlockHash>{a.keys[0], a.keys[1], a.keys[3]})) << where;
    flip(at);
  }
  // What no fragment covers is not looked at.
  flip(segment.offset_of(a.first_pages[2]) + shape_.slot_bytes + 5);
  EXPECT_EQ(scanned().at(0).keys().size(), 4u);
}

// Images of two keys that changed places: right bytes, wrong record.
TEST_F(ScanTest, image_of_another_key_is_refused) {
  WrittenSegment segment = open(0);
  const auto a = write_batch(segment, 2);
  const std::uint64_t bytes = 6 * kPageBytes;
  Buffer first(bytes), second(bytes);
  disk_.peek(kPath, segment.offset_of(a.first_pages[0]), first);
  disk_.peek(kPath, segment.offset_of(a.first_pages[1]), second);
  disk_.poke(kPath, segment.offset_of(a.first_pages[0]), second);
  disk_.poke(kPath, segment.offset_of(a.first_pages[1]), first);
  EXPECT_TRUE(scanned().at(0).keys().empty());
}

TEST_F(ScanTest, descriptor_flip_resynchronises) {
  WrittenSegment segment = open(0);
  const auto a = write_batch(segment, 2), b = write_batch(segment, 3), c = write_batch(segment, 1);
  flip(segment.offset_of(b.head.pages.first) + 300);
  Collect found = scanned();
  expect_keys(found.at(0), {a, c});
  EXPECT_EQ(found.at(0).segment.damaged, 1u);
  EXPECT_EQ(found.at(0).segment.end, c.head.pages.end());
}

// A later batch is there and an earlier one never arrived.
TEST_F(ScanTest, hole_is_passed_over) {
  WrittenSegment segment = open(0);
  const auto a = write_batch(segment, 2);
  write_batch(segment, 3, WrittenSegment::Write::kNothing);
  const auto c = write_batch(segment, 1);
  Collect found = scanned();
  expect_keys(found.at(0), {a, c});
}

// What an earlier life left behind the new one's last batch, at the same pages.
TEST_F(ScanTest, stale_batches_behind_cut_stay_dead) {
  WrittenSegment old = open(0, 1);
  write_batch(old, 2);
  const auto stale = write_batch(old, 2);
  old.seal();
  WrittenSegment fresh = open(0, 2);
  const auto a = write_batch(fresh, 2);
  EXPECT_EQ(a.head.pages.end(), stale.head.pages.first);
  Collect found = scanned();
  EXPECT_EQ(found.at(0).segment.condition, SegmentCondition::kUnsealed);
  expect_keys(found.at(0), {a});
  EXPECT_EQ(found.at(0).segment.end, a.head.pages.end());
}

// A batch of this life that lies in an image is no batch of the segment.
TEST_F(ScanTest, batch_inside_an_image_is_not_found) {
  WrittenSegment segment = open(0);
  const auto a = write_batch(segment, 1), b = write_batch(segment, 2);
  Buffer descriptor(kPageBytes);
  disk_.peek(kPath, segment.offset_of(b.head.pages.first), descriptor);
  disk_.poke(kPath, segment.offset_of(a.first_pages[0]), descriptor);
  Collect found = scanned();
  expect_keys(found.at(0), {b});
}

TEST_F(ScanTest, header_of_nobody_frees_the_segment) {
  WrittenSegment segment = open(0);
  write_batch(segment, 2);
  segment.seal();
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

TEST_F(ScanTest, unreadable_stretches_cost_what_lies_there) {
  WrittenSegment first = open(0), second = open(1), third = open(2);
  const auto a = write_batch(first, 3);
  first.seal();
  write_batch(second, 12);
  write_batch(second, 4);
  const auto d = write_batch(third, 1);
  BadStretch bad;
  bad.begin = first.offset_of(0);
  bad.end = bad.begin + 1;
  EXPECT_EQ(scanned({}, &bad).at(0).segment.condition, SegmentCondition::kBad);
  // The second's later chunk, as the scan reads: its first records are found.
  bad.begin = second.offset_of(64);
  bad.end = bad.begin + 1;
  Collect found = scanned({}, &bad);
  EXPECT_EQ(found.at(1).segment.condition, SegmentCondition::kUnsealed);
  EXPECT_GT(found.at(1).list.records.size(), 5u);
  EXPECT_LT(found.at(1).list.records.size(), 16u);
  EXPECT_GT(found.at(1).segment.damaged, 0u);
  expect_keys(found.at(2), {d});
  expect_keys(found.at(0), {a});
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
