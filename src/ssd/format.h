// Pages of the on-disk format: superblock, segment header, trailer, and the frame that
// every page of ours carries. docs/ssd-format.md is the same in words; what batches and
// footers list: format_entries.h; filling a segment: format_builder.h. Pure functions over
// bytes of the caller's; any thread. Decoding copies what it keeps, checks everything
// against limits and against what the caller expects there, and never reads out of bounds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "model/geometry.h"

namespace orbitkv::ssd {

inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint16_t kFormatVersion = 1;
inline constexpr std::uint64_t kFrameBytes = 64;                       // of a page, before its body
inline constexpr std::uint64_t kBodyBytes = kPageBytes - kFrameBytes;  // of a page
inline constexpr ByteCount kFirstSegment = kMiB;                       // where segments begin in a file

using StoreUuid = std::array<std::byte, 16>;  // of a set of paths; random
// Counts opens of the set, from 1. Sequences of one epoch begin at epoch << kSequenceBits,
// so that those of a later open are higher whatever has been lost.
using StoreEpoch = Id<struct StoreEpochTag, std::uint64_t>;
using SegmentSequence = Id<struct SegmentSequenceTag, std::uint64_t>;  // never two alike in a set
using RecordSequence = Id<struct RecordSequenceTag, std::uint64_t>;    // 0: none
using SegmentNumber = Id<struct SegmentNumberTag, std::uint32_t>;      // in its path
using PathNumber = Id<struct PathNumberTag, std::uint32_t>;            // in the set
inline constexpr unsigned kSequenceBits = 40;
inline constexpr std::uint64_t kMaxEpoch = (std::uint64_t{1} << (63 - kSequenceBits)) - 1;
constexpr std::uint64_t first_sequence(StoreEpoch epoch) {
  return epoch.value << kSequenceBits;
}
constexpr StoreEpoch epoch_of(std::uint64_t sequence) {
  return StoreEpoch(sequence >> kSequenceBits);
}

// One use of one segment: every page that was written in it carries this.
struct SegmentLife {
  StoreUuid uuid{};
  SegmentSequence sequence;  // its epoch_of() is the epoch in which it was opened
  SegmentNumber number;
  friend bool operator==(const SegmentLife&, const SegmentLife&) = default;
};

// Pages of a segment, counted from its start.
struct PageRange {
  std::uint32_t first = 0, count = 0;
  std::uint32_t end() const { return first + count; }
  friend bool operator==(const PageRange&, const PageRange&) = default;
};

constexpr std::uint32_t pages_for(std::uint64_t bytes) {
  return static_cast<std::uint32_t>((bytes + kPageBytes - 1) / kPageBytes);
}

// ---- superblock: two copies, in pages 0 and 1 of the file ----

// Records of the namespace up to and with this sequence are gone.
struct SpaceDrop {
  model::NamespaceDigest digest;
  RecordSequence sequence;
  friend bool operator==(const SpaceDrop&, const SpaceDrop&) = default;
};

struct Superblock {
  StoreUuid uuid{};
  StoreEpoch epoch;
  std::uint64_t update = 0;  // rises with every writing; the highest (epoch, update) counts
  PathNumber path;
  std::uint32_t paths = 0;    // of the set, those included that were away at its last opening; 0: not known
  std::uint32_t numbers = 0;  // path numbers from here on were never given
  std::uint32_t segments = 0;
  ByteCount segment;  // a multiple of kPageBytes
  ByteCount first_segment = kFirstSegment;
  std::uint64_t created = 0;     // unix seconds
  std::vector<SpaceDrop> drops;  // at most limits::kSpaceDrops
  friend bool operator==(const Superblock&, const Superblock&) = default;
};
inline constexpr std::uint32_t kSuperblockCopies = 2;

// `out`: one page; `copy` says where it goes: at copy * kPageBytes. Write the copy that
// SuperblockFound::write_first names, fdatasync, the other one, fdatasync.
void encode_superblock(const Superblock& superblock, std::uint32_t copy, std::span<std::byte> out);

struct SuperblockFound {
  Superblock superblock;
  std::uint32_t write_first = 0;  // the copy that is older or damaged
  bool damaged_copy = false;
};
// `pages`: the first two of the file. nullopt: nothing has been there, or a first formatting
// was cut before any segment could be written. kReject, and nothing may be overwritten: not
// a store, damaged in both copies, another version (both are named).
Result<std::optional<SuperblockFound>> decode_superblock(std::span<const std::byte> pages);

// ---- segment header: page 0 of a segment, durable before anything else of that life ----

struct SegmentHeader {
  SegmentLife life;
  std::uint32_t pages = 0;    // of the segment
  std::uint64_t created = 0;  // unix seconds
  friend bool operator==(const SegmentHeader&, const SegmentHeader&) = default;
};
void encode_segment_header(const SegmentHeader& header, std::span<std::byte> page);

// Where in which store a segment is being read. `newest`: the epoch of the superblock.
struct SegmentPlace {
  StoreUuid uuid{};
  SegmentNumber number;
  std::uint32_t pages = 0;
  StoreEpoch newest;
};
// kRecompute: not a header of this place; the segment is free.
Result<SegmentHeader> decode_segment_header(std::span<const std::byte> page, const SegmentPlace& place);

// ---- trailer: the last page of a sealed segment; the footer lies right before it ----

struct Trailer {
  PageRange footer;               // ends where the trailer is
  std::uint32_t entries_crc = 0;  // crc32c of the footer's entries
  std::uint32_t batches = 0;
  friend bool operator==(const Trailer&, const Trailer&) = default;
};
// A segment as its header says.
struct SegmentRead {
  SegmentLife life;
  std::uint32_t pages = 0;
};
void encode_trailer(const Trailer& trailer, const SegmentRead& segment, std::span<std::byte> page);
// kRecompute: none of this life; scan for batches.
Result<Trailer> decode_trailer(std::span<const std::byte> page, const SegmentRead& segment);
// Where the header is damaged: of which life the trailer is, if it is one of this place. Whether
// a later life has begun it cannot say; the first page of a batch at page 1 can.
Result<SegmentRead> life_of_trailer(std::span<const std::byte> page, const SegmentPlace& place);

// ---- the frame ----

// 0 char[8] magic | 8 u16 version | 10 u16 0 | 12 u32 crc32c of the page with this 0 |
// 16 uuid | 32 u64 epoch | 40 u64 sequence | 48 u32 segment | 52 u32 page |
// 56 u32 index in its part | 60 u32 pages of its part | 64 body.
enum class PageKind : std::uint8_t { kSuperblock, kSegmentHeader, kBatch, kFooter, kTrailer };

struct PageFrame {
  PageKind kind = PageKind::kSuperblock;
  SegmentLife life;         // of a superblock: sequence = update, number = path
  StoreEpoch epoch;         // of a segment's page: epoch_of(life.sequence)
  std::uint32_t page = 0;   // in the segment
  std::uint32_t index = 0;  // in its part: superblock copies, pages of a descriptor or footer
  std::uint32_t count = 1;  // pages of the part
};
PageFrame segment_frame(PageKind kind, const SegmentLife& life, std::uint32_t page);
// Writes the first 64 bytes and the checksum over the page, whose body is in place.
void seal_page(const PageFrame& frame, std::span<std::byte> page);
// A page of that kind, life and place, whole: the text says what is wrong. `expected.count`
// 0: any, and it is returned.
Result<std::uint32_t> open_page(const PageFrame& expected, std::span<const std::byte> page);
// The same question asked of a page that is likely something else; cheap and without text.
bool may_be_page(const PageFrame& expected, std::span<const std::byte> page);

}  // namespace orbitkv::ssd
