#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "ssd/format_entries.h"

namespace orbitkv::ssd {
namespace {

void entry_header(ByteWriter& out, EntryKind kind, std::uint64_t bytes) {
  out.u16(static_cast<std::uint16_t>(kind));
  out.u16(0);
  out.u32(static_cast<std::uint32_t>(bytes));
}

}  // namespace

void encode_space(const SpaceEntry& space, std::vector<std::byte>& out) {
  const SpaceShape& shape = space.shape;
  const std::size_t start = out.size();
  const std::uint64_t bytes =
      kSpaceFixedBytes + kFragmentBytes * shape.fragments.size() + round_up8(shape.text.size());
  ByteWriter writer(out);
  entry_header(writer, EntryKind::kSpace, bytes);
  writer.u16(space.number.value);
  writer.u16(shape.group.value);
  writer.u16(shape.shards);
  writer.u16(static_cast<std::uint16_t>(shape.text.size()));
  writer.u32(static_cast<std::uint32_t>(shape.fragments.size()));
  writer.u32(0);
  writer.u64(shape.slot_bytes);
  writer.bytes(shape.digest.bytes);
  for (const SpaceShape::Fragment& fragment : shape.fragments) {
    writer.u32(fragment.layer);
    writer.u16(fragment.component);
    writer.u16(fragment.encoding);
    writer.u64(fragment.bytes);
  }
  writer.text(shape.text);
  out.resize(start + bytes);
}

void encode_record(const RecordEntry& record, std::span<const ImageMark> marks, std::vector<std::byte>& out) {
  ORBITKV_CHECK(marks.size() == record.shards, "a record has one mark a shard");
  ByteWriter writer(out);
  entry_header(writer, EntryKind::kRecord, record_entry_bytes(record.shards));
  writer.u64(record.sequence.value);
  writer.u32(record.first_page);
  writer.u32(record.image_pages);
  writer.u16(record.space.value);
  writer.u16(record.shards);
  writer.u32(0);
  writer.bytes(record.hash.bytes);
  for (const ImageMark& mark : marks) {
    writer.u64(mark.digest);
    writer.u64(mark.revision.value);
  }
}

void encode_tombstone(const Tombstone& tombstone, std::vector<std::byte>& out) {
  ByteWriter writer(out);
  entry_header(writer, EntryKind::kTombstone, kTombstoneEntryBytes);
  writer.u64(tombstone.sequence.value);
  writer.u16(tombstone.group.value);
  writer.u16(0);
  writer.u32(0);
  writer.bytes(tombstone.digest.bytes);
  writer.bytes(tombstone.hash.bytes);
}

std::uint32_t encode_part(const Part& part, const PageFrame& first, std::span<std::byte> out) {
  const std::uint32_t pages = part_pages(part.entries.size());
  ORBITKV_CHECK(out.size() == pages * kPageBytes, "room for exactly the pages of the list");
  const std::uint32_t crc = crc32c(part.entries);
  std::vector<std::byte> bytes;
  bytes.reserve(pages * kBodyBytes);
  ByteWriter writer(bytes);
  writer.u32(part.count);
  writer.u32(static_cast<std::uint32_t>(part.entries.size()));
  writer.u32(crc);
  writer.u32(part.batch);
  writer.u32(part.whole_pages);
  writer.u32(0);
  writer.u64(part.min_sequence.value);
  writer.bytes(part.entries);
  bytes.resize(pages * kBodyBytes);
  PageFrame frame = first;
  frame.count = pages;
  for (std::uint32_t i = 0; i < pages; ++i) {
    const auto page = out.subspan(i * kPageBytes, kPageBytes);
    const auto from = std::span(bytes).subspan(i * kBodyBytes, kBodyBytes);
    std::copy(from.begin(), from.end(), page.data() + kFrameBytes);
    frame.page = first.page + i;
    frame.index = i;
    seal_page(frame, page);
  }
  return crc;
}

}  // namespace orbitkv::ssd
