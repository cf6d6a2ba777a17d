// What the scan at open finds in paths that are torn, stale and damaged.
#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "ssd/scan_rig.h"

namespace orbitkv::ssd::suite {
namespace {

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

// Its footer says whose the segment is, whatever has become of the header.
TEST_F(ScanTest, a_damaged_header_costs_nothing_where_the_footer_is_right) {
  WrittenSegment segment = open(0);
  const auto a = write_batch(segment, 3), b = write_batch(segment, 2);
  segment.seal();
  const Buffer foreign(kPageBytes, std::byte{0x5A});
  BadStretch unreadable;
  unreadable.begin = segment.offset_of(0);
  unreadable.end = segment.offset_of(1);
  flip(segment.offset_of(0) + 100);
  const auto expect_all = [&](IoFaults* faults) {
    Collect found = scanned({}, faults);
    EXPECT_EQ(found.at(0).segment.condition, SegmentCondition::kSealed);
    EXPECT_EQ(found.at(0).segment.segment.life.sequence.value, first_sequence(kEpoch) + 1);
    EXPECT_EQ(found.at(0).segment.end, b.head.pages.end());
    expect_keys(found.at(0), {a, b});
  };
  expect_all(nullptr);
  expect_all(&unreadable);
  disk_.poke(kPath, segment.offset_of(0), foreign);
  expect_all(nullptr);
  // Batches alone prove nothing.
  const std::uint32_t pages = segment.builder().segment().pages;
  for (const std::uint32_t page : {1u, pages - 1, pages - 2}) {
    flip(segment.offset_of(page) + 200);
    EXPECT_EQ(scanned().at(0).segment.condition, SegmentCondition::kFree) << page;
    EXPECT_EQ(scanned({}, &unreadable).at(0).segment.condition, SegmentCondition::kBad) << page;
    flip(segment.offset_of(page) + 200);
  }
}

// The header of a later life is damaged: the earlier one's footer is still there.
TEST_F(ScanTest, the_footer_of_an_earlier_life_is_not_believed) {
  WrittenSegment old = open(0, 1);
  write_batch(old, 3);
  write_batch(old, 2);
  old.seal();
  WrittenSegment fresh = open(0, 2);
  const auto a = write_batch(fresh, 1);
  expect_keys(scanned().at(0), {a});
  flip(fresh.offset_of(0) + 100);
  EXPECT_EQ(scanned().at(0).segment.condition, SegmentCondition::kFree);
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

// Of a long descriptor only a later page is wrong.
TEST_F(ScanTest, later_page_of_a_descriptor_flip_resynchronises) {
  WrittenSegment segment = open(0);
  const auto a = write_batch(segment, 2);
  for (std::uint64_t i = 0; i < 60; ++i)
    segment.drop({digest(0x10), GroupId(2), numbered(100 + i), sequence(500 + i)});
  const auto b = write_batch(segment, 1), c = write_batch(segment, 1);
  ASSERT_EQ(b.head.descriptor_pages, 2u);
  flip(segment.offset_of(b.head.pages.first + 1) + 300);
  Collect found = scanned();
  expect_keys(found.at(0), {a, c});
  EXPECT_TRUE(found.at(0).list.tombstones.empty());
  EXPECT_EQ(found.at(0).segment.damaged, 1u);
}

// Bytes of an engine that look like a batch of this life at this place: images are passed
// over, whatever is in them.
TEST_F(ScanTest, batch_inside_an_image_is_not_found) {
  WrittenSegment segment = open(0);
  const auto a = write_batch(segment, 1), b = write_batch(segment, 2);
  Buffer entries, forged(kPageBytes);
  encode_tombstone({digest(0x10), GroupId(2), b.keys[0], sequence(99)}, entries);
  const PageFrame frame = segment_frame(PageKind::kBatch, segment.builder().segment().life, a.first_pages[0]);
  encode_part({entries, 1, 9, 1, sequence(99)}, frame, forged);
  disk_.poke(kPath, segment.offset_of(a.first_pages[0]), forged);
  Collect found = scanned();
  expect_keys(found.at(0), {b});
  EXPECT_TRUE(found.at(0).list.tombstones.empty());
  // The same bytes where a batch may begin are one.
  flip(segment.offset_of(a.head.pages.first) + 300);
  found = scanned();
  EXPECT_EQ(found.at(0).list.tombstones.size(), 1u);
}

TEST_F(ScanTest, unreadable_stretches_cost_what_lies_there) {
  WrittenSegment first = open(0), second = open(1), third = open(2);
  const auto a = write_batch(first, 3);
  first.seal();
  write_batch(second, 12);
  write_batch(second, 4);
  const auto d = write_batch(third, 1);
  BadStretch bad;
  bad.begin = third.offset_of(0);  // of one that has no footer either
  bad.end = bad.begin + 1;
  EXPECT_EQ(scanned({}, &bad).at(2).segment.condition, SegmentCondition::kBad);
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

}  // namespace
}  // namespace orbitkv::ssd::suite
