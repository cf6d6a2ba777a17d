#include "ssd/format_entries.h"

#include <algorithm>
#include <bitset>
#include <string>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/limits.h"
#include "model/slot_image.h"

namespace orbitkv::ssd {
namespace {

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c <= 0x7E; });
}

template <class T>
void take_into(ByteReader& in, T& bytes) {
  const auto from = in.take(bytes.size());
  std::copy(from.begin(), from.end(), bytes.begin());
}

bool zeros(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

Error wrong(std::string_view what) {
  return recompute("list of records: " + std::string(what) + "; its records are not used");
}

}  // namespace

const SpaceEntry* EntryList::space(LocalSpace number) const {
  const auto it =
      std::find_if(spaces.begin(), spaces.end(), [&](const SpaceEntry& s) { return s.number == number; });
  return it == spaces.end() ? nullptr : &*it;
}

void EntryList::clear() {
  spaces.clear();
  records.clear();
  marks.clear();
  tombstones.clear();
  min_sequence = {};
  bytes.clear();
}

ImageLayout image_layout(const SpaceShape& shape) {
  ImageLayout out;
  out.header_bytes = model::slot_header_bytes(shape.fragments.size());
  std::uint64_t at = out.header_bytes;
  out.offsets.reserve(shape.fragments.size());
  for (const SpaceShape::Fragment& fragment : shape.fragments) {
    out.offsets.push_back(at);
    at += model::align_slot(fragment.bytes);
  }
  out.slot_bytes = at;
  return out;
}

Status validate_shape(const SpaceShape& shape) {
  const auto bad = [](std::string_view field) {
    return reject("stored space: " + std::string(field) + " is out of bounds");
  };
  if (shape.text.size() > limits::kNamespaceBytes || !printable(shape.text)) return bad("text");
  if (shape.shards < 1 || shape.shards > limits::kShards) return bad("shards");
  if (shape.fragments.empty() || shape.fragments.size() > limits::kFragmentsPerSlot) return bad("fragments");
  std::uint64_t payload = 0;
  for (const SpaceShape::Fragment& fragment : shape.fragments) {
    const bool fits = fragment.bytes > 0 && fragment.bytes <= limits::kSlotImageBytes.value;
    if (!fits || fragment.bytes % 8 != 0) return bad("fragment bytes");
    payload += model::align_slot(fragment.bytes);
  }
  const std::uint64_t slot_bytes = model::slot_header_bytes(shape.fragments.size()) + payload;
  if (shape.slot_bytes != slot_bytes || slot_bytes > limits::kSlotImageBytes.value) return bad("slot_bytes");
  return ok_status();
}

std::uint32_t image_pages(const SpaceShape& shape) {
  return pages_for(shape.slot_bytes);
}

namespace {

struct PartHeader {
  std::uint32_t count = 0, entry_bytes = 0, entries_crc = 0, batch = 0, whole_pages = 0;
  RecordSequence min_sequence;
};

std::optional<PartHeader> read_part_header(ByteReader& in) {
  PartHeader out;
  out.count = in.u32();
  out.entry_bytes = in.u32();
  out.entries_crc = in.u32();
  out.batch = in.u32();
  out.whole_pages = in.u32();
  const std::uint32_t reserved = in.u32();
  out.min_sequence = RecordSequence(in.u64());
  if (in.failed() || reserved != 0) return std::nullopt;
  return out;
}

// The bodies of all pages, one behind the other, in `out.bytes`.
Status gather(std::span<const std::byte> pages, const PageFrame& first, std::vector<std::byte>& out) {
  PageFrame frame = first;
  for (std::uint32_t i = 0; i < first.count; ++i) {
    frame.page = first.page + i;
    frame.index = i;
    const auto page = pages.subspan(i * kPageBytes, kPageBytes);
    ORBITKV_RETURN_IF_ERROR(open_page(frame, page));
    const auto body = page.subspan(kFrameBytes);
    out.insert(out.end(), body.begin(), body.end());
  }
  return ok_status();
}

// What is true of every entry of one part.
struct PartRules {
  StoreEpoch epoch;      // no record is younger
  PageRange images;      // where they lie
  bool gapless = false;  // they fill it
};

class EntryReader {
 public:
  EntryReader(const PartRules& rules, EntryList& out)
      : rules_(rules), out_(out), next_page_(rules.images.first) {}

  // nullptr, or what is wrong.
  const char* read(std::span<const std::byte> entries, const PartHeader& header) {
    ByteReader in(entries);
    for (std::uint32_t i = 0; i < header.count; ++i)
      if (const char* fault = read_one(in)) return fault;
    if (!in.finished()) return "bytes are left over";
    if (rules_.gapless && next_page_ != rules_.images.end()) return "its images do not fill the batch";
    if (out_.min_sequence != header.min_sequence) return "the lowest sequence is wrong";
    return nullptr;
  }

 private:
  const char* read_one(ByteReader& in) {
    const std::uint16_t kind = in.u16();
    const std::uint16_t reserved = in.u16();
    const std::uint32_t bytes = in.u32();
    if (in.failed() || bytes < kEntryHeaderBytes || reserved != 0) return "an entry is cut";
    ByteReader body(in.take(bytes - kEntryHeaderBytes));
    if (in.failed()) return "an entry is cut";
    const char* fault = "an entry of an unknown kind";
    if (kind == static_cast<std::uint16_t>(EntryKind::kRecord)) fault = read_record(body);
    if (kind == static_cast<std::uint16_t>(EntryKind::kSpace)) fault = read_space(body);
    if (kind == static_cast<std::uint16_t>(EntryKind::kTombstone)) fault = read_tombstone(body);
    if (fault == nullptr && !body.finished()) return "an entry has the wrong length";
    return fault;
  }

  const char* read_record(ByteReader& in) {
    RecordEntry record;
    record.sequence = RecordSequence(in.u64());
    record.first_page = in.u32();
    record.image_pages = in.u32();
    record.space = LocalSpace(in.u16());
    record.shards = in.u16();
    const std::uint32_t reserved = in.u32();
    take_into(in, record.hash.bytes);
    if (in.failed() || reserved != 0) return "a record is cut";
    const SpaceEntry* space = space_of(record.space);
    if (space == nullptr) return "a record of a space that it does not hold";
    if (record.shards != space->shape.shards) return "a record with another number of shards";
    if (record.image_pages != image_pages(space->shape)) return "a record with another image size";
    if (const char* fault = place(record)) return fault;
    record.first_mark = static_cast<std::uint32_t>(out_.marks.size());
    for (std::uint16_t i = 0; i < record.shards; ++i) {
      const std::uint64_t digest = in.u64();
      out_.marks.push_back({digest, AllocationId(in.u64())});
    }
    out_.records.push_back(record);
    return note(record.sequence);
  }

  const char* place(const RecordEntry& record) {
    const std::uint64_t end = record.first_page + std::uint64_t{record.image_pages} * record.shards;
    const bool in_order = rules_.gapless ? record.first_page == next_page_ : record.first_page >= next_page_;
    if (!in_order || end > rules_.images.end()) return "images lie where they cannot";
    next_page_ = static_cast<std::uint32_t>(end);
    return nullptr;
  }

  const char* read_space(ByteReader& in) {
    SpaceEntry space;
    space.number = LocalSpace(in.u16());
    SpaceShape& shape = space.shape;
    shape.group = GroupId(in.u16());
    shape.shards = in.u16();
    const std::uint16_t text_bytes = in.u16();
    const std::uint32_t fragments = in.u32();
    const std::uint32_t reserved = in.u32();
    shape.slot_bytes = in.u64();
    take_into(in, shape.digest.bytes);
    if (in.failed() || reserved != 0 || fragments > limits::kFragmentsPerSlot) return "a space is cut";
    if (in.left() < kFragmentBytes * fragments) return "a space is cut";
    shape.fragments.resize(fragments);
    for (SpaceShape::Fragment& fragment : shape.fragments) {
      fragment.layer = in.u32();
      fragment.component = in.u16();
      fragment.encoding = in.u16();
      fragment.bytes = in.u64();
    }
    shape.text = in.text(text_bytes);
    if (!zeros(in.take(round_up8(text_bytes) - text_bytes)) || in.failed()) return "a space is cut";
    if (!validate_shape(shape).ok()) return "a space out of bounds";
    if (space.number.value >= limits::kSegmentSpaces || known_.test(space.number.value))
      return "a space with a wrong number";
    known_.set(space.number.value);
    out_.spaces.push_back(std::move(space));
    return nullptr;
  }

  const char* read_tombstone(ByteReader& in) {
    Tombstone tombstone;
    tombstone.sequence = RecordSequence(in.u64());
    tombstone.group = GroupId(in.u16());
    const std::uint64_t reserved = in.u16() + std::uint64_t{in.u32()};
    take_into(in, tombstone.digest.bytes);
    take_into(in, tombstone.hash.bytes);
    if (in.failed() || reserved != 0) return "a tombstone is cut";
    out_.tombstones.push_back(tombstone);
    return note(tombstone.sequence);
  }

  const char* note(RecordSequence sequence) {
    const StoreEpoch epoch = epoch_of(sequence.value);
    if (epoch.value < 1 || epoch > rules_.epoch) return "a record sequence out of bounds";
    RecordSequence& least = out_.min_sequence;
    if (least.value == 0 || sequence < least) least = sequence;
    return nullptr;
  }

  // Records of one space mostly follow each other.
  const SpaceEntry* space_of(LocalSpace number) {
    if (last_ < out_.spaces.size() && out_.spaces[last_].number == number) return &out_.spaces[last_];
    const SpaceEntry* found = out_.space(number);
    if (found != nullptr) last_ = static_cast<std::size_t>(found - out_.spaces.data());
    return found;
  }

  const PartRules& rules_;
  EntryList& out_;
  std::uint32_t next_page_;
  std::size_t last_ = 0;
  std::bitset<limits::kSegmentSpaces> known_;
};

// Everything but the header's batch and whole_pages, which the caller has compared.
Status read_entries(std::span<const std::byte> bytes, const PartHeader& header, const PartRules& rules,
                    EntryList& out) {
  const auto entries = bytes.subspan(kPartHeaderBytes, header.entry_bytes);
  if (crc32c(entries) != header.entries_crc) return wrong("its checksum is wrong");
  if (!zeros(bytes.subspan(kPartHeaderBytes + header.entry_bytes))) return wrong("its padding is not zero");
  const char* fault = EntryReader(rules, out).read(entries, header);
  if (fault == nullptr) return ok_status();
  out.clear();
  return wrong(fault);
}

}  // namespace

bool may_be_batch(std::span<const std::byte> page, std::uint32_t at, const SegmentRead& segment) {
  return may_be_page(segment_frame(PageKind::kBatch, segment.life, at), page);
}

Result<BatchHead> peek_batch(std::span<const std::byte> page, std::uint32_t at, const SegmentRead& segment) {
  PageFrame frame = segment_frame(PageKind::kBatch, segment.life, at);
  frame.count = 0;
  ORBITKV_ASSIGN_OR_RETURN(const std::uint32_t pages, open_page(frame, page));
  ByteReader in(page.subspan(kFrameBytes));
  const auto header = read_part_header(in);
  if (!header) return wrong("its header is wrong");
  BatchHead out;
  out.number = header->batch;
  out.pages = {at, header->whole_pages};
  out.descriptor_pages = pages;
  if (pages > limits::kDescriptorPages || pages != part_pages(header->entry_bytes))
    return wrong("its descriptor has the wrong size");
  // A footer of at least a page and the trailer stand behind the last batch.
  if (out.pages.count < pages || std::uint64_t{at} + out.pages.count + 2 > segment.pages)
    return wrong("the batch does not fit the segment");
  return out;
}

Status decode_batch(std::span<const std::byte> descriptor, const BatchHead& head, const SegmentRead& segment,
                    EntryList& out) {
  out.clear();
  if (descriptor.size() != head.descriptor_pages * kPageBytes) return wrong("its descriptor is not whole");
  PageFrame frame = segment_frame(PageKind::kBatch, segment.life, head.pages.first);
  frame.count = head.descriptor_pages;
  ORBITKV_RETURN_IF_ERROR(gather(descriptor, frame, out.bytes));
  ByteReader in(out.bytes);
  const auto header = read_part_header(in);
  const bool as_peeked = header && header->batch == head.number && header->whole_pages == head.pages.count &&
                         part_pages(header->entry_bytes) == head.descriptor_pages;
  if (!as_peeked) return wrong("its header is wrong");
  const PageRange images{head.pages.first + head.descriptor_pages, head.pages.count - head.descriptor_pages};
  return read_entries(out.bytes, *header, {epoch_of(segment.life.sequence.value), images, true}, out);
}

Status decode_footer(std::span<const std::byte> pages, const Trailer& trailer, const SegmentRead& segment,
                     EntryList& out) {
  out.clear();
  if (pages.size() != trailer.footer.count * kPageBytes) return wrong("the footer is not whole");
  PageFrame frame = segment_frame(PageKind::kFooter, segment.life, trailer.footer.first);
  frame.count = trailer.footer.count;
  ORBITKV_RETURN_IF_ERROR(gather(pages, frame, out.bytes));
  ByteReader in(out.bytes);
  const auto header = read_part_header(in);
  const bool as_announced =
      header && header->batch == trailer.batches && header->whole_pages == trailer.footer.count &&
      header->entries_crc == trailer.entries_crc && part_pages(header->entry_bytes) == trailer.footer.count;
  if (!as_announced) return wrong("the footer is not the one that the trailer names");
  const PageRange images{1, trailer.footer.first - 1};
  return read_entries(out.bytes, *header, {epoch_of(segment.life.sequence.value), images, false}, out);
}

}  // namespace orbitkv::ssd
