#include "ssd/format.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/limits.h"

namespace orbitkv::ssd {
namespace {

constexpr std::size_t kMagicBytes = 8;
constexpr std::array<std::string_view, 5> kMagics = {"OKVSTORE", "OKVSEGMT", "OKVBATCH", "OKVFOOTR",
                                                     "OKVTRAIL"};
constexpr std::size_t kVersionAt = 8, kCrcAt = 12, kUuidAt = 16, kSequenceAt = 40;
constexpr std::size_t kIndexAt = 56, kCountAt = 60;

template <class T>
void put_at(std::span<std::byte> page, std::size_t at, T value) {
  std::memcpy(page.data() + at, &value, sizeof value);
}
template <class T>
T get_at(std::span<const std::byte> page, std::size_t at) {
  T value;
  std::memcpy(&value, page.data() + at, sizeof value);
  return value;
}

std::string_view magic_of(PageKind kind) {
  return kMagics[static_cast<std::size_t>(kind)];
}

bool has_magic(std::span<const std::byte> page, PageKind kind) {
  return std::memcmp(page.data(), magic_of(kind).data(), kMagicBytes) == 0;
}

std::uint32_t page_crc(std::span<const std::byte> page) {
  constexpr std::array<std::byte, 4> kZero{};
  const std::uint32_t crc = crc32c(kZero, crc32c(page.first(kCrcAt)));
  return crc32c(page.subspan(kCrcAt + kZero.size()), crc);
}

// Everything up to the index, with a checksum of 0.
std::array<std::byte, kFrameBytes> frame_bytes(const PageFrame& frame) {
  std::array<std::byte, kFrameBytes> out{};
  std::memcpy(out.data(), magic_of(frame.kind).data(), kMagicBytes);
  put_at(out, kVersionAt, kFormatVersion);
  std::memcpy(out.data() + kUuidAt, frame.life.uuid.data(), frame.life.uuid.size());
  put_at(out, 32, frame.epoch.value);
  put_at(out, kSequenceAt, frame.life.sequence.value);
  put_at(out, 48, frame.life.number.value);
  put_at(out, 52, frame.page);
  put_at(out, kIndexAt, frame.index);
  put_at(out, kCountAt, frame.count);
  return out;
}

Error not_here(PageKind kind, std::string_view what) {
  return recompute("page " + std::string(magic_of(kind)) + ": " + std::string(what) +
                   "; what it describes is not used");
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

std::span<std::byte> body(std::span<std::byte> page) {
  ORBITKV_CHECK(page.size() == kPageBytes, "a page of the store has 4096 bytes");
  return page.subspan(kFrameBytes);
}
std::span<const std::byte> body(std::span<const std::byte> page) {
  return page.subspan(kFrameBytes);
}

void fill(std::span<std::byte> out, const std::vector<std::byte>& bytes) {
  ORBITKV_CHECK(bytes.size() <= out.size(), "body longer than its page");
  std::copy(bytes.begin(), bytes.end(), out.begin());
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(bytes.size()), out.end(), std::byte{0});
}

bool sequence_in(std::uint64_t sequence, StoreEpoch newest) {
  const StoreEpoch epoch = epoch_of(sequence);
  return epoch.value >= 1 && epoch <= newest;
}

}  // namespace

PageFrame segment_frame(PageKind kind, const SegmentLife& life, std::uint32_t page) {
  PageFrame frame;
  frame.kind = kind;
  frame.life = life;
  frame.epoch = epoch_of(life.sequence.value);
  frame.page = page;
  return frame;
}

void seal_page(const PageFrame& frame, std::span<std::byte> page) {
  ORBITKV_CHECK(page.size() == kPageBytes, "a page of the store has 4096 bytes");
  const auto bytes = frame_bytes(frame);
  std::copy(bytes.begin(), bytes.end(), page.begin());
  put_at(page, kCrcAt, page_crc(page));
}

bool may_be_page(const PageFrame& expected, std::span<const std::byte> page) {
  if (page.size() != kPageBytes || !has_magic(page, expected.kind)) return false;
  const auto wanted = frame_bytes(expected);
  return std::memcmp(page.data(), wanted.data(), kCrcAt) == 0 &&
         std::memcmp(page.data() + kUuidAt, wanted.data() + kUuidAt, kCountAt - kUuidAt) == 0;
}

Result<std::uint32_t> open_page(const PageFrame& expected, std::span<const std::byte> page) {
  const PageKind kind = expected.kind;
  if (page.size() != kPageBytes) return not_here(kind, "is not whole");
  if (!has_magic(page, kind)) return not_here(kind, "there is none here");
  if (get_at<std::uint32_t>(page, kCrcAt) != page_crc(page)) return not_here(kind, "its checksum is wrong");
  const auto version = get_at<std::uint16_t>(page, kVersionAt);
  if (version != kFormatVersion)
    return not_here(kind, "its format version is " + std::to_string(version) + ", this program reads " +
                              std::to_string(kFormatVersion));
  const auto wanted = frame_bytes(expected);
  if (std::memcmp(page.data() + kUuidAt, wanted.data() + kUuidAt, 32) != 0)
    return not_here(kind, "it is of another life of the segment, or of another store");
  if (!may_be_page(expected, page)) return not_here(kind, "it belongs to another place");
  const auto count = get_at<std::uint32_t>(page, kCountAt);
  if (count <= expected.index || (expected.count != 0 && count != expected.count))
    return not_here(kind, "its number of pages is wrong");
  return count;
}

// ---- superblock ----

namespace {

// Body: 0 u32 path | 4 u32 page bytes | 8 u64 segment bytes | 16 u64 first segment |
// 24 u32 segments | 28 u32 drops | 32 u64 created | 40 u32 paths | 44 u32 numbers | zeros to 64 | drops x
// {digest, u64 sequence}.
constexpr std::size_t kDropsAt = 64;

PageFrame superblock_frame(const Superblock& s, std::uint32_t copy) {
  PageFrame frame;
  frame.kind = PageKind::kSuperblock;
  frame.life = {s.uuid, SegmentSequence(s.update), SegmentNumber(s.path.value)};
  frame.epoch = s.epoch;
  frame.page = copy;
  return frame;
}

std::optional<std::string> superblock_fault(const Superblock& s) {
  const std::uint64_t segment = s.segment.value, first = s.first_segment.value;
  if (s.epoch.value < 1 || s.epoch.value > kMaxEpoch) return "epoch";
  if (segment % kPageBytes != 0 || s.segment < limits::kSegmentBytesLeast ||
      s.segment > limits::kSegmentBytesMost)
    return "segment bytes";
  if (first % kPageBytes != 0 || first < kSuperblockCopies * kPageBytes || s.first_segment > kGiB)
    return "first segment";
  if (s.segments < 1 || s.segments > limits::kPathSegments) return "segments";
  if (s.path.value >= limits::kPathNumbers || s.numbers > limits::kPathNumbers) return "path number";
  if (s.paths > limits::kStorePaths) return "paths";
  if (s.drops.size() > limits::kSpaceDrops) return "namespace drops";
  for (const SpaceDrop& drop : s.drops)
    if (!sequence_in(drop.sequence.value, s.epoch)) return "namespace drops";
  return std::nullopt;
}

Result<Superblock> decode_superblock_copy(std::span<const std::byte> page, std::uint32_t copy) {
  Superblock s;
  std::copy_n(page.data() + kUuidAt, s.uuid.size(), s.uuid.data());
  s.epoch = StoreEpoch(get_at<std::uint64_t>(page, 32));
  s.update = get_at<std::uint64_t>(page, kSequenceAt);
  s.path = PathNumber(get_at<std::uint32_t>(page, 48));
  ORBITKV_RETURN_IF_ERROR(open_page(superblock_frame(s, copy), page));
  ByteReader in(body(page));
  if (in.u32() != s.path.value) return reject("path number");
  if (in.u32() != kPageBytes) return reject("page bytes");
  s.segment = ByteCount(in.u64());
  s.first_segment = ByteCount(in.u64());
  s.segments = in.u32();
  const std::uint32_t drops = in.u32();
  s.created = in.u64();
  if (drops > limits::kSpaceDrops) return reject("namespace drops");
  s.paths = in.u32();
  s.numbers = in.u32();
  if (!all_zero(in.take(kDropsAt - 48))) return reject("reserved bytes");
  for (std::uint32_t i = 0; i < drops; ++i) {
    SpaceDrop drop;
    const auto digest = in.take(drop.digest.bytes.size());
    std::copy(digest.begin(), digest.end(), drop.digest.bytes.begin());
    drop.sequence = RecordSequence(in.u64());
    s.drops.push_back(drop);
  }
  if (!all_zero(in.take(in.left()))) return reject("reserved bytes");
  if (const auto fault = superblock_fault(s)) return reject(*fault);
  return s;
}

// The version of a superblock that is whole but not of ours; magic, version and checksum
// are at the same places in all versions.
std::optional<std::uint16_t> other_version(std::span<const std::byte> page) {
  if (!has_magic(page, PageKind::kSuperblock)) return std::nullopt;
  if (get_at<std::uint32_t>(page, kCrcAt) != page_crc(page)) return std::nullopt;
  const auto version = get_at<std::uint16_t>(page, kVersionAt);
  return version == kFormatVersion ? std::nullopt : std::optional(version);
}

Error neither_copy(std::span<const std::byte> first, std::span<const std::byte> second) {
  if (!has_magic(first, PageKind::kSuperblock) && !has_magic(second, PageKind::kSuperblock))
    return reject(
        "it is not empty and no OrbitKV store: give another path, or remove the file (wipe the device) if "
        "nothing in it is needed");
  return reject(
      "both superblocks of the store are damaged: check the device; remove the file (wipe the device) to "
      "begin an empty store");
}

}  // namespace

void encode_superblock(const Superblock& s, std::uint32_t copy, std::span<std::byte> out) {
  ORBITKV_CHECK(copy < kSuperblockCopies, "a superblock has two copies");
  const auto fault = superblock_fault(s);
  ORBITKV_CHECK(!fault, fault ? fault->c_str() : "");
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.u32(s.path.value);
  writer.u32(kPageBytes);
  writer.u64(s.segment.value);
  writer.u64(s.first_segment.value);
  writer.u32(s.segments);
  writer.u32(static_cast<std::uint32_t>(s.drops.size()));
  writer.u64(s.created);
  writer.u32(s.paths);
  writer.u32(s.numbers);
  bytes.resize(kDropsAt);
  for (const SpaceDrop& drop : s.drops) {
    writer.bytes(drop.digest.bytes);
    writer.u64(drop.sequence.value);
  }
  fill(body(out), bytes);
  seal_page(superblock_frame(s, copy), out);
}

Result<std::optional<SuperblockFound>> decode_superblock(std::span<const std::byte> pages) {
  ORBITKV_CHECK(pages.size() == kSuperblockCopies * kPageBytes, "both copies of the superblock");
  const auto first = pages.first(kPageBytes), second = pages.subspan(kPageBytes);
  if (all_zero(first) && all_zero(second)) return std::optional<SuperblockFound>();
  for (const auto page : {first, second})
    if (const auto version = other_version(page))
      return reject("the store has format version " + std::to_string(*version) +
                    " and this program reads version " + std::to_string(kFormatVersion) +
                    ": use the program that wrote it, or remove the file to begin an empty store");
  const auto a = decode_superblock_copy(first, 0), b = decode_superblock_copy(second, 1);
  // Formatting writes the second copy once the first is durable, and segments after that.
  const bool half_formatted = !a.ok() && has_magic(first, PageKind::kSuperblock) && all_zero(second);
  if (half_formatted) return std::optional<SuperblockFound>();
  if (!a.ok() && !b.ok()) return neither_copy(first, second);
  if (!a.ok()) return std::optional(SuperblockFound{*b, 0, true});
  if (!b.ok()) return std::optional(SuperblockFound{*a, 1, true});
  if (a->uuid != b->uuid || a->path != b->path)
    return reject("its two superblocks are of different stores: remove the file to begin an empty store");
  const bool a_newer = std::pair(a->epoch, a->update) >= std::pair(b->epoch, b->update);
  return std::optional(a_newer ? SuperblockFound{*a, 1, false} : SuperblockFound{*b, 0, false});
}

// ---- segment header ----

void encode_segment_header(const SegmentHeader& header, std::span<std::byte> page) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.u32(header.pages);
  writer.u32(0);
  writer.u64(header.created);
  fill(body(page), bytes);
  seal_page(segment_frame(PageKind::kSegmentHeader, header.life, 0), page);
}

Result<SegmentHeader> decode_segment_header(std::span<const std::byte> page, const SegmentPlace& place) {
  SegmentHeader out;
  out.life = {place.uuid, {}, place.number};
  if (page.size() != kPageBytes) return not_here(PageKind::kSegmentHeader, "is not whole");
  out.life.sequence = SegmentSequence(get_at<std::uint64_t>(page, kSequenceAt));
  ORBITKV_RETURN_IF_ERROR(open_page(segment_frame(PageKind::kSegmentHeader, out.life, 0), page));
  if (!sequence_in(out.life.sequence.value, place.newest))
    return not_here(PageKind::kSegmentHeader, "it is of an open that the superblock does not know");
  ByteReader in(body(page));
  out.pages = in.u32();
  const std::uint32_t reserved = in.u32();
  out.created = in.u64();
  if (reserved != 0 || !all_zero(in.take(in.left())))
    return not_here(PageKind::kSegmentHeader, "reserved bytes are not zero");
  if (out.pages != place.pages) return not_here(PageKind::kSegmentHeader, "the segment has another size");
  return out;
}

// ---- trailer ----

void encode_trailer(const Trailer& trailer, const SegmentRead& segment, std::span<std::byte> page) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.u32(trailer.footer.first);
  writer.u32(trailer.footer.count);
  writer.u32(trailer.entries_crc);
  writer.u32(trailer.batches);
  fill(body(page), bytes);
  seal_page(segment_frame(PageKind::kTrailer, segment.life, segment.pages - 1), page);
}

Result<Trailer> decode_trailer(std::span<const std::byte> page, const SegmentRead& segment) {
  ORBITKV_RETURN_IF_ERROR(
      open_page(segment_frame(PageKind::kTrailer, segment.life, segment.pages - 1), page));
  ByteReader in(body(page));
  Trailer out;
  out.footer.first = in.u32();
  out.footer.count = in.u32();
  out.entries_crc = in.u32();
  out.batches = in.u32();
  if (!all_zero(in.take(in.left()))) return not_here(PageKind::kTrailer, "reserved bytes are not zero");
  const bool fits = out.footer.first >= 1 && out.footer.count >= 1 &&
                    std::uint64_t{out.footer.first} + out.footer.count == segment.pages - 1;
  if (!fits || out.batches >= segment.pages) return not_here(PageKind::kTrailer, "its footer does not fit");
  return out;
}

Result<SegmentRead> life_of_trailer(std::span<const std::byte> page, const SegmentPlace& place) {
  if (page.size() != kPageBytes) return not_here(PageKind::kTrailer, "is not whole");
  const SegmentSequence sequence(get_at<std::uint64_t>(page, kSequenceAt));
  const SegmentRead segment{{place.uuid, sequence, place.number}, place.pages};
  if (!sequence_in(sequence.value, place.newest))
    return not_here(PageKind::kTrailer, "it is of an open that the superblock does not know");
  ORBITKV_RETURN_IF_ERROR(decode_trailer(page, segment));
  return segment;
}

}  // namespace orbitkv::ssd
