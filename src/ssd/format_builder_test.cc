// Filling a segment: everything that is admitted can be sealed, read again and says the same.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "ssd/written_store_suite.h"

namespace orbitkv::ssd::suite {
namespace {

struct Sealed {
  EntryList list;
  PageRange footer;
};

// The seal's own pages decoded, as a reader of the segment would.
Sealed seal(const SegmentBuilder& builder) {
  Buffer pages(builder.seal_pages() * kPageBytes);
  builder.encode_seal(pages);
  const auto trailer = decode_trailer(std::span(pages).last(kPageBytes), builder.segment());
  EXPECT_TRUE(trailer.ok());
  EXPECT_EQ(trailer->footer.first, builder.seal_place().first);
  Sealed out;
  out.footer = trailer->footer;
  const auto footer = std::span(pages).first(pages.size() - kPageBytes);
  const auto read = decode_footer(footer, *trailer, builder.segment(), out.list);
  EXPECT_TRUE(read.ok()) << read.error().message();
  return out;
}

EntryList read_batch(const SegmentBuilder& builder, const ClosedBatch& batch) {
  Buffer pages(batch.head.descriptor_pages * kPageBytes);
  builder.encode_descriptor(batch, pages);
  const auto head = peek_batch(std::span(pages).first(kPageBytes), batch.head.pages.first, builder.segment());
  EXPECT_TRUE(head.ok());
  EXPECT_EQ(head->pages, batch.head.pages);
  EntryList out;
  const auto read = decode_batch(pages, *head, builder.segment(), out);
  EXPECT_TRUE(read.ok()) << read.error().message();
  return out;
}

std::vector<ImageMark> marks(std::uint16_t shards, std::uint64_t from = 1) {
  std::vector<ImageMark> out;
  for (std::uint16_t i = 0; i < shards; ++i) out.push_back({from + i, AllocationId(1000 + from + i)});
  return out;
}

TEST(SegmentBuilderTest, batch_and_footer_say_what_was_added) {
  SegmentBuilder builder(kSegment);
  ClosedBatch batch = sample_batch(builder);
  const EntryList in_batch = read_batch(builder, batch);
  // 8,328 bytes of payload and their header: 3 pages an image, 2 images a record.
  EXPECT_EQ(batch.first_pages, (std::vector<std::uint32_t>{2, 8}));
  EXPECT_EQ(batch.head.pages, (PageRange{1, 13}));
  builder.committed(std::move(batch));
  const Sealed sealed = seal(builder);
  for (const EntryList* list : {&in_batch, &sealed.list}) {
    ASSERT_EQ(list->records.size(), 2u);
    EXPECT_EQ(list->records[1].hash, hash(0x80));
    EXPECT_EQ(list->records[1].first_page, 8u);
    EXPECT_EQ(list->records[1].image_pages, 3u);
    EXPECT_EQ(list->records[1].sequence, sequence(13));
    EXPECT_EQ(list->marks_of(list->records[1])[1].digest, 0x2222u);
    EXPECT_EQ(list->marks_of(list->records[1])[1].revision, AllocationId(101));
    ASSERT_EQ(list->tombstones.size(), 1u);
    EXPECT_EQ(list->tombstones[0], (Tombstone{digest(0x10), GroupId(2), hash(0x60), sequence(12)}));
    ASSERT_EQ(list->spaces.size(), 1u);
    EXPECT_EQ(list->spaces[0].shape.fragments, sample_shape().fragments);
    EXPECT_EQ(list->spaces[0].shape.text, "model=tiny;dtype=f32");
    EXPECT_EQ(list->spaces[0].shape.group, GroupId(2));
    EXPECT_EQ(list->min_sequence, sequence(11));
  }
}

// Batches come back in any order, and some do not.
TEST(SegmentBuilderTest, failed_batch_is_left_out) {
  SegmentBuilder builder(kSegment);
  ClosedBatch first = sample_batch(builder), second = sample_batch(builder), third = sample_batch(builder);
  const std::uint32_t where = third.first_pages[0];
  builder.committed(std::move(third));
  builder.committed(std::move(first));
  const Sealed sealed = seal(builder);
  ASSERT_EQ(sealed.list.records.size(), 4u);
  EXPECT_EQ(sealed.list.records[2].first_page, where);
  EXPECT_GT(where, second.head.pages.first);
}

TEST(SegmentBuilderTest, empty_segment_can_be_sealed) {
  const Sealed sealed = seal(SegmentBuilder(kSegment));
  EXPECT_TRUE(sealed.list.records.empty());
  EXPECT_EQ(sealed.footer, (PageRange{kPages - 2, 1}));
  EXPECT_EQ(sealed.list.min_sequence, RecordSequence());
}

// A space of the same number whose shape has changed is another one in the segment.
TEST(SegmentBuilderTest, changed_shape_is_another_space) {
  SegmentBuilder builder(kSegment);
  const SpaceShape one = shape_of({{0, 0, 0, 512}}), two = shape_of({{0, 0, 0, 1024}});
  for (const SpaceShape* shape : {&one, &two, &one})
    ASSERT_EQ(builder.add_record(SpaceIndex(4), *shape, {hash(1), sequence(1), marks(1)}), Fit::kYes);
  builder.committed(builder.close_batch());
  const Sealed sealed = seal(builder);
  ASSERT_EQ(sealed.list.records.size(), 3u);
  EXPECT_EQ(sealed.list.space(sealed.list.records[0].space)->shape.slot_bytes, one.slot_bytes);
  EXPECT_EQ(sealed.list.space(sealed.list.records[1].space)->shape.slot_bytes, two.slot_bytes);
}

TEST(SegmentBuilderTest, spaces_of_a_segment_are_bounded) {
  SegmentBuilder builder({kLife, 4096});
  SpaceShape shape = shape_of({{0, 0, 0, 512}});
  std::uint32_t added = 0;
  for (; added < 2 * limits::kSegmentSpaces; ++added) {
    shape.group = GroupId(static_cast<std::uint16_t>(added));
    if (builder.add_record(SpaceIndex(added), shape, {numbered(added), sequence(1), marks(1)}) != Fit::kYes)
      break;
  }
  EXPECT_EQ(added, limits::kSegmentSpaces);
  builder.committed(builder.close_batch());
  EXPECT_EQ(seal(builder).list.spaces.size(), limits::kSegmentSpaces);
}

// Most shards, most fragments, longest text: entries of the largest size.
TEST(SegmentBuilderTest, limits_fit) {
  std::vector<SpaceShape::Fragment> fragments;
  for (std::uint32_t i = 0; i < limits::kFragmentsPerSlot; ++i) fragments.push_back({i, 1, 0, 8});
  SpaceShape shape = shape_of(std::move(fragments), limits::kShards);
  shape.text.assign(limits::kNamespaceBytes, 'n');
  ASSERT_TRUE(validate_shape(shape).ok());
  const std::uint32_t pages = pages_for(limits::kSegmentBytesMost.value);
  ASSERT_TRUE(fits_segment(shape, pages));
  SegmentBuilder builder({kLife, pages});
  std::uint64_t records = 0;
  while (records < 40) {
    const Fit fit = builder.add_record(SpaceIndex(0), shape,
                                       {numbered(records), sequence(records + 1), marks(limits::kShards)});
    if (fit == Fit::kSegmentFull) break;
    ++records;
    ASSERT_EQ(fit, Fit::kYes);
  }
  ClosedBatch batch = builder.close_batch();
  EXPECT_LE(batch.head.descriptor_pages, limits::kDescriptorPages);
  EXPECT_EQ(read_batch(builder, batch).marks.size(), records * limits::kShards);
  builder.committed(std::move(batch));
  const Sealed sealed = seal(builder);
  EXPECT_EQ(sealed.list.records.size(), records);
  EXPECT_EQ(sealed.list.spaces[0].shape.text, shape.text);
  EXPECT_EQ(sealed.list.spaces[0].shape.fragments, shape.fragments);
}

// The smallest segment that fits_segment() allows holds a record, and none smaller does.
TEST(SegmentBuilderTest, fits_segment_is_exact) {
  const std::uint32_t least = pages_for(limits::kSegmentBytesLeast.value);
  for (const std::uint64_t bytes : {std::uint64_t{256} * 1024, std::uint64_t{1} << 20}) {
    const SpaceShape shape = shape_of({{0, 0, 0, bytes}});
    std::uint32_t pages = least;
    while (!fits_segment(shape, pages)) ++pages;
    ASSERT_GT(pages, least);
    for (const std::uint32_t size : {pages, pages - 1}) {
      SegmentBuilder builder({kLife, size});
      const Fit fit = builder.add_record(SpaceIndex(0), shape, {hash(1), sequence(1), marks(1)});
      EXPECT_EQ(fit, size == pages ? Fit::kYes : Fit::kSegmentFull);
      if (fit != Fit::kYes) continue;
      builder.committed(builder.close_batch());
      EXPECT_GE(builder.seal_place().first, builder.next_page());
      EXPECT_EQ(seal(builder).list.records.size(), 1u);
    }
  }
}

// Whatever is added until the segment is full: its footer fits behind the last batch.
TEST(SegmentBuilderTest, footer_always_fits) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 40; ++round) {
    const std::uint32_t pages = 64 + static_cast<std::uint32_t>(random() % 512);
    SegmentBuilder builder({kLife, pages});
    std::vector<SpaceShape> shapes;
    for (std::uint32_t i = 0; i < 4; ++i) {
      shapes.push_back(
          shape_of({{i, 0, 0, 8 * (1 + random() % 2000)}}, static_cast<std::uint16_t>(1 + random() % 5)));
      for (std::uint64_t n = random() % 100; n > 0; --n) shapes.back().fragments.push_back({i, 1, 0, 8});
      shapes.back().slot_bytes = image_layout(shapes.back()).slot_bytes;
    }
    std::uint64_t added = 0, tombstones = 0;
    for (bool full = false; !full;) {
      const auto space = static_cast<std::uint32_t>(random() % shapes.size());
      const SpaceShape& shape = shapes[space];
      const bool tombstone = random() % 4 == 0;
      const Fit fit = tombstone ? builder.add_tombstone({digest(1), GroupId(1), hash(2), sequence(added)})
                                : builder.add_record(SpaceIndex(space), shape,
                                                     {numbered(added), sequence(added), marks(shape.shards)});
      full = fit == Fit::kSegmentFull;
      if (fit == Fit::kYes) (tombstone ? tombstones : added) += 1;
      if (!builder.batch_empty() && (fit != Fit::kYes || random() % 5 == 0)) {
        const std::uint32_t size = builder.batch_pages();
        ClosedBatch batch = builder.close_batch();
        EXPECT_EQ(batch.head.pages.count, size);
        read_batch(builder, batch);
        builder.committed(std::move(batch));
      }
    }
    EXPECT_GE(builder.seal_place().first, builder.next_page());
    const Sealed sealed = seal(builder);
    EXPECT_EQ(sealed.list.records.size(), added);
    EXPECT_EQ(sealed.list.tombstones.size(), tombstones);
    EXPECT_GT(added, 0u);
  }
}

TEST(SegmentBuilderTest, recovered_segment_is_sealed_as_found) {
  SegmentBuilder builder(kSegment);
  const ClosedBatch batch = sample_batch(builder);
  const EntryList found = read_batch(builder, batch);
  SegmentBuilder again(kSegment);
  ASSERT_TRUE(again.adopt(found, batch.head.pages.end()));
  const Sealed sealed = seal(again);
  ASSERT_EQ(sealed.list.records.size(), 2u);
  EXPECT_EQ(sealed.list.records[0].hash, hash(0x40));
  EXPECT_EQ(sealed.list.marks_of(sealed.list.records[1])[0].digest, 0x1111u);
  EXPECT_EQ(sealed.list.tombstones.size(), 1u);
  SegmentBuilder full(kSegment);
  EXPECT_FALSE(full.adopt(found, kPages - 1));
}

// ---- lists that no builder writes ----

struct ListOf {
  std::vector<std::byte> entries;
  std::uint32_t count = 0;
  RecordSequence least = sequence(1);
  std::uint32_t image_pages = 0;

  ListOf& space(LocalSpace number, const SpaceShape& shape) {
    encode_space({number, shape}, entries);
    ++count;
    return *this;
  }
  ListOf& record(RecordEntry entry) {
    encode_record(entry, marks(entry.shards), entries);
    ++count;
    image_pages += entry.image_pages * entry.shards;
    return *this;
  }
  Status read() const {
    const std::uint32_t pages = part_pages(entries.size());
    Buffer out(pages * kPageBytes);
    encode_part({entries, count, 0, pages + image_pages, least}, segment_frame(PageKind::kBatch, kLife, 1),
                out);
    const auto head = peek_batch(std::span(out).first(kPageBytes), 1, kSegment);
    if (!head.ok()) return head.error();
    EntryList list;
    return decode_batch(out, *head, kSegment, list);
  }
};

RecordEntry one_page(std::uint32_t at, LocalSpace space) {
  RecordEntry out;
  out.hash = hash(1);
  out.sequence = sequence(1);
  out.first_page = at;
  out.image_pages = 1;
  out.space = space;
  out.shards = 1;
  return out;
}

TEST(EntryListTest, dangling_space_invalidates_its_batch) {
  const SpaceShape shape = shape_of({{0, 0, 0, 512}});
  EXPECT_TRUE(ListOf().space(LocalSpace(3), shape).record(one_page(2, LocalSpace(3))).read().ok());
  EXPECT_FALSE(ListOf().space(LocalSpace(3), shape).record(one_page(2, LocalSpace(4))).read().ok());
  EXPECT_FALSE(ListOf().record(one_page(2, LocalSpace(3))).read().ok());
  EXPECT_FALSE(ListOf().record(one_page(2, LocalSpace(3))).space(LocalSpace(3), shape).read().ok());
}

TEST(EntryListTest, list_header_is_that_of_its_entries) {
  const SpaceShape shape = shape_of({{0, 0, 0, 512}});
  ListOf list;
  list.space(LocalSpace(0), shape).record(one_page(2, LocalSpace(0)));
  EXPECT_TRUE(list.read().ok());
  for (const RecordSequence wrong : {RecordSequence(), sequence(0), sequence(2)}) {
    list.least = wrong;
    EXPECT_FALSE(list.read().ok()) << wrong.value;
  }
  list.least = sequence(1);
  for (const std::uint32_t pages : {0u, 2u}) {
    list.image_pages = pages;
    EXPECT_FALSE(list.read().ok()) << pages;
  }
  list.image_pages = 1;
  for (const std::uint32_t count : {0u, 1u, 3u}) {
    list.count = count;
    EXPECT_FALSE(list.read().ok()) << count;
  }
}

// Two writings of one footer, each page of them whole: the checksum of all entries tells.
TEST(EntryListTest, pages_of_two_writings_do_not_mix) {
  Buffer seals[2];
  for (std::uint64_t version = 0; version < 2; ++version) {
    SegmentBuilder builder(kSegment);
    for (std::uint64_t i = 0; i < 60; ++i)
      builder.add_tombstone(
          {digest(0x10), GroupId(2), numbered(i < 50 ? i : 1000 * version + i), sequence(i)});
    builder.committed(builder.close_batch());
    seals[version].resize(builder.seal_pages() * kPageBytes);
    builder.encode_seal(seals[version]);
  }
  ASSERT_EQ(seals[0].size(), 3 * kPageBytes);
  const auto read = [](const Buffer& seal) {
    const auto trailer = decode_trailer(std::span(seal).last(kPageBytes), kSegment);
    EntryList list;
    return decode_footer(std::span(seal).first(2 * kPageBytes), *trailer, kSegment, list).ok();
  };
  EXPECT_TRUE(read(seals[0]) && read(seals[1]));
  std::swap_ranges(seals[0].begin() + kPageBytes, seals[0].begin() + 2 * kPageBytes,
                   seals[1].begin() + kPageBytes);
  EXPECT_FALSE(read(seals[0]) || read(seals[1]));
}

TEST(EntryListTest, what_cannot_be_is_refused) {
  const SpaceShape shape = shape_of({{0, 0, 0, 512}});
  const LocalSpace zero(0);
  const auto with = [&](auto change) {
    RecordEntry entry = one_page(2, LocalSpace(0));
    change(entry);
    return ListOf().space(LocalSpace(0), shape).record(entry).read().ok();
  };
  EXPECT_TRUE(with([](RecordEntry&) {}));
  EXPECT_FALSE(with([](RecordEntry& e) { e.first_page = 3; }));
  EXPECT_FALSE(with([](RecordEntry& e) { e.first_page = 1; }));
  EXPECT_FALSE(with([](RecordEntry& e) { e.image_pages = 2; }));
  EXPECT_FALSE(with([](RecordEntry& e) { e.shards = 2; }));
  EXPECT_FALSE(with([](RecordEntry& e) { e.sequence = RecordSequence(5); }));
  EXPECT_FALSE(with([](RecordEntry& e) { e.sequence = RecordSequence(first_sequence(StoreEpoch(4))); }));
  EXPECT_FALSE(ListOf().space(zero, shape).space(zero, shape).record(one_page(2, zero)).read().ok());
  const LocalSpace beyond(limits::kSegmentSpaces);
  EXPECT_FALSE(ListOf().space(beyond, shape).record(one_page(2, beyond)).read().ok());
  SpaceShape wrong = shape;
  wrong.slot_bytes += 128;
  EXPECT_FALSE(ListOf().space(zero, wrong).record(one_page(2, zero)).read().ok());
  wrong = shape;
  wrong.text = "\x1b[2J";
  EXPECT_FALSE(ListOf().space(zero, wrong).record(one_page(2, zero)).read().ok());
}

}  // namespace
}  // namespace orbitkv::ssd::suite
