// What batch descriptors and footers list: spaces, records, tombstones. A list is read into
// flat vectors that the caller keeps from segment to segment. Pure; any thread. A decoded
// list is within all limits and consistent: every record's space stands before it, images
// lie in the part's pages, one behind the other; anything else is refused as a whole.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ssd/format.h"
#include "ssd/store.h"

namespace orbitkv::ssd {

using LocalSpace = Id<struct LocalSpaceTag, std::uint16_t>;  // number of a space in one segment

struct SpaceEntry {
  LocalSpace number;
  SpaceShape shape;
};

struct RecordEntry {
  BlockHash hash;
  RecordSequence sequence;
  std::uint32_t first_page = 0;   // of the first shard's image, in the segment
  std::uint32_t image_pages = 0;  // of one image; they follow each other
  LocalSpace space;
  std::uint16_t shards = 0;
  std::uint32_t first_mark = 0;  // in EntryList::marks, one a shard
};

// The record of this key with a sequence up to this one is gone. Of kAllGroups, and a hash
// of zeros: every such record of the namespace.
inline constexpr GroupId kAllGroups{0xFFFF};
struct Tombstone {
  model::NamespaceDigest digest;
  GroupId group;
  BlockHash hash;
  RecordSequence sequence;
  friend bool operator==(const Tombstone&, const Tombstone&) = default;
};

struct EntryList {
  std::vector<SpaceEntry> spaces;
  std::vector<RecordEntry> records;  // ascending first_page
  std::vector<ImageMark> marks;
  std::vector<Tombstone> tombstones;
  RecordSequence min_sequence;   // of records and tombstones; 0: there are none
  std::vector<std::byte> bytes;  // as read

  std::span<const ImageMark> marks_of(const RecordEntry& record) const {
    return std::span(marks).subspan(record.first_mark, record.shards);
  }
  const SpaceEntry* space(LocalSpace number) const;
  void clear();
};

// Where the fragments of an image lie; offsets from the image's start.
struct ImageLayout {
  std::uint64_t header_bytes = 0, slot_bytes = 0;
  std::vector<std::uint64_t> offsets;
};
ImageLayout image_layout(const SpaceShape& shape);
// Bounds of limits.h, and slot_bytes is what the fragments make. The error names the field.
Status validate_shape(const SpaceShape& shape);
std::uint32_t image_pages(const SpaceShape& shape);

// ---- batch: descriptor pages, then the images of its records ----

struct BatchHead {
  std::uint32_t number = 0;  // in the segment, from 0
  PageRange pages;           // the whole batch
  std::uint32_t descriptor_pages = 0;
};
// Whether a batch of this segment begins with this page, which lies at `at` in it; its
// descriptor may still be wrong. kRecompute.
Result<BatchHead> peek_batch(std::span<const std::byte> page, std::uint32_t at, const SegmentRead& segment);
bool may_be_batch(std::span<const std::byte> page, std::uint32_t at, const SegmentRead& segment);
// `descriptor`: all pages of it. Replaces `out`.
Status decode_batch(std::span<const std::byte> descriptor, const BatchHead& head, const SegmentRead& segment,
                    EntryList& out);

// ---- footer: every space, record and tombstone of the segment ----

// `pages`: trailer.footer. Replaces `out`.
Status decode_footer(std::span<const std::byte> pages, const Trailer& trailer, const SegmentRead& segment,
                     EntryList& out);

// ---- encoding, for format_builder.h ----

// A list begins with a header: u32 entries | u32 bytes of them | u32 their crc32c |
// u32 batch | u32 pages of the whole batch | u32 0 | u64 lowest sequence.
inline constexpr std::uint64_t kPartHeaderBytes = 32;
// Every entry begins with u16 kind | u16 0 | u32 bytes of the entry, a multiple of 8.
enum class EntryKind : std::uint16_t { kRecord = 1, kSpace = 2, kTombstone = 3 };
inline constexpr std::uint64_t kEntryHeaderBytes = 8;
inline constexpr std::uint64_t kRecordFixedBytes = 64, kMarkBytes = 16;
inline constexpr std::uint64_t kRecordPageAt = 16;  // of first_page in a record's entry
inline constexpr std::uint64_t kSpaceFixedBytes = 64, kFragmentBytes = 16;
inline constexpr std::uint64_t kTombstoneEntryBytes = 88;
constexpr std::uint64_t round_up8(std::uint64_t bytes) {
  return (bytes + 7) / 8 * 8;
}
constexpr std::uint64_t record_entry_bytes(std::uint16_t shards) {
  return kRecordFixedBytes + kMarkBytes * shards;
}
// Pages of a descriptor or footer with entries of this many bytes.
constexpr std::uint32_t part_pages(std::uint64_t entry_bytes) {
  return static_cast<std::uint32_t>((kPartHeaderBytes + entry_bytes + kBodyBytes - 1) / kBodyBytes);
}
void encode_space(const SpaceEntry& space, std::vector<std::byte>& out);
void encode_record(const RecordEntry& record, std::span<const ImageMark> marks, std::vector<std::byte>& out);
void encode_tombstone(const Tombstone& tombstone, std::vector<std::byte>& out);

struct Part {
  std::span<const std::byte> entries;
  std::uint32_t count = 0;        // entries
  std::uint32_t batch = 0;        // its number; of a footer: how many there are
  std::uint32_t whole_pages = 0;  // of the batch; of a footer: its own
  RecordSequence min_sequence;
};
// `out`: part_pages(entries) pages. Returns the crc32c of the entries.
std::uint32_t encode_part(const Part& part, const PageFrame& first, std::span<std::byte> out);

}  // namespace orbitkv::ssd
