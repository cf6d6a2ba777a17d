// What tests of the scan stand on: a path in memory that is written segment by segment and
// damaged, and what a scan of it said. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "ssd/memory_io.h"
#include "ssd/scan.h"
#include "ssd/written_store_suite.h"

namespace orbitkv::ssd::suite {

inline constexpr std::uint32_t kSegments = 4;
inline constexpr const char* kPath = "ssd";

inline Superblock superblock_of(std::uint32_t segments, ByteCount segment = kMiB) {
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

}  // namespace orbitkv::ssd::suite
