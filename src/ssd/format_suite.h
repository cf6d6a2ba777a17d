// Every part of the on-disk format with one sample and a probe that says what became of
// some bytes. For tests and fuzz targets only: golden bytes, truncations, flipped bits and
// libFuzzer walk this one list. Pure; any thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "base/limits.h"
#include "model/slot_image.h"
#include "ssd/format_builder.h"

namespace orbitkv::ssd::suite {

enum class Verdict : std::uint8_t {
  kRefused,
  kAccepted,  // within all limits, and encoding the value gives the same bytes
  kBroken,    // accepted, but over a limit or not the only form of the value
};

using Buffer = std::vector<std::byte>;

struct FormatCase {
  std::string_view name;
  Buffer sample;
  Verdict (*probe)(std::span<const std::byte> bytes);
};

// ---- what the samples are made of ----

template <class Bytes>
Bytes counting(std::uint8_t first) {
  Bytes out;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(first + i);
  return out;
}

inline constexpr StoreEpoch kEpoch{3};
inline constexpr std::uint32_t kPages = 64;  // of the sample segment
inline const StoreUuid kUuid = counting<StoreUuid>(0xA0);
inline const SegmentLife kLife{kUuid, SegmentSequence(first_sequence(kEpoch) + 7), SegmentNumber(5)};
inline const SegmentRead kSegment{kLife, kPages};
inline const SegmentPlace kPlace{kUuid, SegmentNumber(5), kPages, kEpoch};

inline RecordSequence sequence(std::uint64_t n) {
  return RecordSequence(first_sequence(kEpoch) + n);
}
inline BlockHash hash(std::uint8_t first) {
  return {counting<std::array<std::byte, 32>>(first)};
}
inline model::NamespaceDigest digest(std::uint8_t first) {
  return {counting<std::array<std::byte, 32>>(first)};
}

// A shape with the size that its fragments make.
inline SpaceShape shape_of(std::vector<SpaceShape::Fragment> fragments, std::uint16_t shards = 1) {
  SpaceShape out;
  out.digest = digest(0x10);
  out.text = "model=tiny;dtype=f32";
  out.group = GroupId(2);
  out.shards = shards;
  out.fragments = std::move(fragments);
  out.slot_bytes = image_layout(out).slot_bytes;
  return out;
}
inline SpaceShape sample_shape() {
  return shape_of({{0, 0, 0, 4096}, {0, 1, 0, 4096}, {3, 0, 0, 8}}, 2);
}

inline Superblock sample_superblock() {
  Superblock out;
  out.uuid = kUuid;
  out.epoch = kEpoch;
  out.update = 9;
  out.path = PathNumber(1);
  out.segments = 160;
  out.segment = ByteCount(kPages * kPageBytes);
  out.created = 1700000000;
  out.drops = {{digest(0x30), sequence(4)}, {digest(0x50), sequence(5)}};
  return out;
}

// Two records and a tombstone in one batch, closed.
inline ClosedBatch sample_batch(SegmentBuilder& builder) {
  const ImageMark marks[] = {{0x1111, AllocationId(100)}, {0x2222, AllocationId(101)}};
  const SpaceShape shape = sample_shape();
  builder.add_record(SpaceIndex(0), shape, {hash(0x40), sequence(11), marks});
  builder.add_tombstone({digest(0x10), GroupId(2), hash(0x60), sequence(12)});
  builder.add_record(SpaceIndex(0), shape, {hash(0x80), sequence(13), marks});
  return builder.close_batch();
}

inline Buffer sample_descriptor() {
  SegmentBuilder builder(kSegment);
  const ClosedBatch batch = sample_batch(builder);
  Buffer out(batch.head.descriptor_pages * kPageBytes);
  builder.encode_descriptor(batch, out);
  return out;
}

inline Buffer sample_seal() {
  SegmentBuilder builder(kSegment);
  builder.committed(sample_batch(builder));
  Buffer out(builder.seal_pages() * kPageBytes);
  builder.encode_seal(out);
  return out;
}

inline Buffer both_superblocks(const Superblock& superblock) {
  Buffer out(kSuperblockCopies * kPageBytes);
  for (std::uint32_t copy = 0; copy < kSuperblockCopies; ++copy)
    encode_superblock(superblock, copy, std::span(out).subspan(copy * kPageBytes, kPageBytes));
  return out;
}

inline Buffer sample_segment_header() {
  Buffer out(kPageBytes);
  encode_segment_header({kLife, kPages, 1700000001}, out);
  return out;
}

// ---- probes: a page or part where the samples lie ----

inline bool within_limits(const EntryList& list, PageRange images) {
  const auto good_record = [&](const RecordEntry& record) {
    const SpaceEntry* space = list.space(record.space);
    const std::uint64_t end = record.first_page + std::uint64_t{record.image_pages} * record.shards;
    return space != nullptr && record.shards >= 1 && record.shards <= 64 &&
           record.first_page >= images.first && end <= images.end() &&
           record.first_mark + record.shards <= list.marks.size() &&
           record.image_pages * kPageBytes >= space->shape.slot_bytes;
  };
  const auto good_space = [](const SpaceEntry& space) {
    return space.number.value < 256 && validate_shape(space.shape).ok() && space.shape.text.size() <= 512;
  };
  return std::ranges::all_of(list.records, good_record) && std::ranges::all_of(list.spaces, good_space);
}

// Spaces, records and tombstones in the order in which a list keeps them.
inline Buffer entries_of(const EntryList& list) {
  Buffer out;
  for (const SpaceEntry& space : list.spaces) encode_space(space, out);
  for (const RecordEntry& record : list.records) encode_record(record, list.marks_of(record), out);
  for (const Tombstone& tombstone : list.tombstones) encode_tombstone(tombstone, out);
  return out;
}

// A list has no bytes that its entries do not say again.
inline Verdict probe_list(const EntryList& list, PageRange images, std::uint64_t entry_bytes) {
  const bool fits = within_limits(list, images) && entries_of(list).size() == entry_bytes;
  return fits ? Verdict::kAccepted : Verdict::kBroken;
}

inline std::uint32_t word_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t out;
  std::memcpy(&out, bytes.data() + at, sizeof out);
  return out;
}

inline Verdict probe_superblock(std::span<const std::byte> bytes) {
  if (bytes.size() != kSuperblockCopies * kPageBytes) return Verdict::kRefused;
  const auto found = decode_superblock(bytes);
  if (!found.ok() || !*found) return Verdict::kRefused;
  const Superblock& s = (*found)->superblock;
  if (s.drops.size() > 64 || s.segments == 0 || s.segment > kGiB || s.path.value >= 64)
    return Verdict::kBroken;
  const std::uint32_t copy = 1 - (*found)->write_first;
  Buffer again(kPageBytes);
  encode_superblock(s, copy, again);
  const auto page = bytes.subspan(copy * kPageBytes, kPageBytes);
  return std::ranges::equal(again, page) ? Verdict::kAccepted : Verdict::kBroken;
}

inline Verdict probe_segment_header(std::span<const std::byte> bytes) {
  const auto header = decode_segment_header(bytes, kPlace);
  if (!header.ok()) return Verdict::kRefused;
  Buffer again(kPageBytes);
  encode_segment_header(*header, again);
  return std::ranges::equal(again, bytes) ? Verdict::kAccepted : Verdict::kBroken;
}

inline Verdict probe_batch(std::span<const std::byte> bytes) {
  if (bytes.size() < kPageBytes) return Verdict::kRefused;
  const auto head = peek_batch(bytes.first(kPageBytes), 1, kSegment);
  if (!head.ok()) return Verdict::kRefused;
  EntryList list;
  if (!decode_batch(bytes, *head, kSegment, list).ok()) return Verdict::kRefused;
  return probe_list(list, head->pages, word_at(bytes, kFrameBytes + 4));
}

inline Verdict probe_trailer(std::span<const std::byte> bytes) {
  const auto trailer = decode_trailer(bytes, kSegment);
  if (!trailer.ok()) return Verdict::kRefused;
  if (trailer->footer.end() != kPages - 1) return Verdict::kBroken;
  Buffer again(kPageBytes);
  encode_trailer(*trailer, kSegment, again);
  return std::ranges::equal(again, bytes) ? Verdict::kAccepted : Verdict::kBroken;
}

// What the trailer would say of this footer.
inline Trailer trailer_for(std::span<const std::byte> footer) {
  const auto pages = static_cast<std::uint32_t>(footer.size() / kPageBytes);
  return {{kPages - 1 - pages, pages}, word_at(footer, kFrameBytes + 8), word_at(footer, kFrameBytes + 12)};
}

inline Verdict probe_footer(std::span<const std::byte> bytes) {
  if (bytes.size() < kPageBytes) return Verdict::kRefused;
  EntryList list;
  const Trailer trailer = trailer_for(bytes);
  if (!decode_footer(bytes, trailer, kSegment, list).ok()) return Verdict::kRefused;
  return probe_list(list, {1, trailer.footer.first - 1}, word_at(bytes, kFrameBytes + 4));
}

inline std::vector<FormatCase> all_cases() {
  const Buffer seal = sample_seal();
  const auto split = seal.end() - kPageBytes;
  return {{"superblock", both_superblocks(sample_superblock()), probe_superblock},
          {"segment_header", sample_segment_header(), probe_segment_header},
          {"batch", sample_descriptor(), probe_batch},
          {"footer", Buffer(seal.begin(), split), probe_footer},
          {"trailer", Buffer(split, seal.end()), probe_trailer}};
}

// Makes the checksums of a mutated part right again: of the pages and of the list in them.
inline void repair_crc(Buffer& bytes, bool is_list) {
  if (bytes.size() < kPageBytes || bytes.size() % kPageBytes != 0) return;
  if (is_list && bytes.size() == kPageBytes) {
    const std::size_t entries = kFrameBytes + kPartHeaderBytes;
    const std::size_t size = std::min<std::size_t>(word_at(bytes, kFrameBytes + 4), kPageBytes - entries);
    const std::uint32_t crc = crc32c(std::span(bytes).subspan(entries, size));
    std::memcpy(bytes.data() + kFrameBytes + 8, &crc, sizeof crc);
  }
  for (std::size_t at = 0; at < bytes.size(); at += kPageBytes) {
    const auto page = std::span(bytes).subspan(at, kPageBytes);
    std::memset(page.data() + 12, 0, 4);
    const std::uint32_t crc = crc32c(page);
    std::memcpy(page.data() + 12, &crc, sizeof crc);
  }
}

inline bool is_list(std::string_view name) {
  return name == "batch" || name == "footer";
}

}  // namespace orbitkv::ssd::suite
