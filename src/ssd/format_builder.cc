#include "ssd/format_builder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/limits.h"

namespace orbitkv::ssd {
namespace {

constexpr std::uint32_t kTrailerPages = 1;

std::uint64_t space_entry_bytes(const SpaceShape& shape) {
  return kSpaceFixedBytes + kFragmentBytes * shape.fragments.size() + round_up8(shape.text.size());
}

bool same_shape(const SpaceShape& a, const SpaceShape& b) {
  return a.digest == b.digest && a.group == b.group && a.shards == b.shards && a.slot_bytes == b.slot_bytes &&
         a.text == b.text && a.fragments == b.fragments;
}

RecordSequence lower(RecordSequence a, RecordSequence b) {
  if (a.value == 0 || b.value == 0) return std::max(a, b);
  return std::min(a, b);
}

}  // namespace

bool fits_segment(const SpaceShape& shape, std::uint32_t pages) {
  const std::uint32_t list = part_pages(space_entry_bytes(shape) + record_entry_bytes(shape.shards));
  const std::uint64_t images = std::uint64_t{image_pages(shape)} * shape.shards;
  return 1 + 2 * std::uint64_t{list} + images + kTrailerPages <= pages;
}

SegmentBuilder::SegmentBuilder(const SegmentRead& segment) : segment_(segment) {
  ORBITKV_CHECK(ByteCount(segment.pages * kPageBytes) >= limits::kSegmentBytesLeast, "segment too small");
}

std::optional<LocalSpace> SegmentBuilder::local_space(SpaceIndex index, const SpaceShape& shape) {
  const auto it = current_.find(index);
  if (it != current_.end() && same_shape(spaces_[it->second.value].shape, shape)) return it->second;
  if (spaces_.size() == limits::kSegmentSpaces) return std::nullopt;
  const LocalSpace number(static_cast<std::uint16_t>(spaces_.size()));
  Space space;
  space.shape = shape;
  encode_space({number, shape}, space.entry);
  spaces_.push_back(std::move(space));
  current_[index] = number;
  return number;
}

Fit SegmentBuilder::fit(const Growth& growth) const {
  ORBITKV_CHECK(!adopted_, "a recovered segment takes no more entries");
  const std::uint32_t descriptor = part_pages(batch_bytes_ + growth.batch_bytes);
  if (descriptor > limits::kDescriptorPages) return Fit::kBatchFull;
  const std::uint64_t batch_end = std::uint64_t{next_page_} + descriptor + image_pages_ + growth.image_pages;
  const std::uint32_t footer = part_pages(footer_bytes_ + growth.footer_bytes);
  return batch_end + footer + kTrailerPages <= segment_.pages ? Fit::kYes : Fit::kSegmentFull;
}

void SegmentBuilder::grow(const Growth& growth, RecordSequence sequence) {
  batch_bytes_ += growth.batch_bytes;
  footer_bytes_ += growth.footer_bytes;
  image_pages_ += growth.image_pages;
  ++batch_.entry_count;
  batch_.min_sequence = lower(batch_.min_sequence, sequence);
}

Fit SegmentBuilder::add_record(SpaceIndex index, const SpaceShape& shape, const NewRecord& record) {
  ORBITKV_CHECK(record.marks.size() == shape.shards, "a record has one mark a shard");
  const auto number = local_space(index, shape);
  if (!number) return Fit::kSegmentFull;
  Space& space = spaces_[number->value];
  const std::uint64_t entry = record_entry_bytes(shape.shards);
  const bool in_batch = space.batch == next_batch_ + 1;
  const bool in_footer = space.batch != 0;
  const std::uint64_t space_bytes = space.entry.size();
  const std::uint32_t pages = image_pages(shape);
  const Growth growth{entry + (in_batch ? 0 : space_bytes), entry + (in_footer ? 0 : space_bytes),
                      pages * shape.shards};
  if (const Fit fits = fit(growth); fits != Fit::kYes) return fits;
  if (!in_batch) batch_.spaces.push_back(*number);
  space.batch = next_batch_ + 1;
  RecordEntry written;
  written.hash = record.hash;
  written.sequence = record.sequence;
  written.image_pages = pages;
  written.space = *number;
  written.shards = shape.shards;
  record_at_.push_back(static_cast<std::uint32_t>(batch_.entries.size()));
  batch_.first_pages.push_back(image_pages_);
  encode_record(written, record.marks, batch_.entries);
  grow(growth, record.sequence);
  return Fit::kYes;
}

Fit SegmentBuilder::add_tombstone(const Tombstone& tombstone) {
  const Growth growth{kTombstoneEntryBytes, kTombstoneEntryBytes, 0};
  if (const Fit fits = fit(growth); fits != Fit::kYes) return fits;
  encode_tombstone(tombstone, batch_.entries);
  grow(growth, tombstone.sequence);
  return Fit::kYes;
}

std::uint32_t SegmentBuilder::batch_pages() const {
  return part_pages(batch_bytes_) + image_pages_;
}

std::uint32_t SegmentBuilder::pages_left() const {
  const std::uint32_t kept = part_pages(footer_bytes_) + kTrailerPages;
  const std::uint32_t used = next_page_ + (batch_empty() ? 0 : batch_pages());
  return segment_.pages > used + kept ? segment_.pages - used - kept : 0;
}

ClosedBatch SegmentBuilder::close_batch() {
  ORBITKV_CHECK(!batch_empty(), "a batch without entries is not written");
  const std::uint32_t descriptor = part_pages(batch_bytes_);
  batch_.head = {next_batch_++, {next_page_, batch_pages()}, descriptor};
  for (std::size_t i = 0; i < record_at_.size(); ++i) {
    batch_.first_pages[i] += next_page_ + descriptor;
    std::memcpy(batch_.entries.data() + record_at_[i] + kRecordPageAt, &batch_.first_pages[i], 4);
  }
  next_page_ = batch_.head.pages.end();
  batch_bytes_ = 0;
  image_pages_ = 0;
  record_at_.clear();
  return std::exchange(batch_, {});
}

std::vector<std::byte> SegmentBuilder::space_entries(std::span<const LocalSpace> spaces) const {
  std::vector<std::byte> out;
  for (const LocalSpace number : spaces) {
    const auto& entry = spaces_[number.value].entry;
    out.insert(out.end(), entry.begin(), entry.end());
  }
  return out;
}

void SegmentBuilder::encode_descriptor(const ClosedBatch& batch, std::span<std::byte> out) const {
  auto entries = space_entries(batch.spaces);
  entries.insert(entries.end(), batch.entries.begin(), batch.entries.end());
  const auto count = static_cast<std::uint32_t>(batch.entry_count + batch.spaces.size());
  const Part part{entries, count, batch.head.number, batch.head.pages.count, batch.min_sequence};
  encode_part(part, segment_frame(PageKind::kBatch, segment_.life, batch.head.pages.first), out);
}

void SegmentBuilder::committed(ClosedBatch&& batch) {
  const std::uint32_t number = batch.head.number;
  const bool fresh = committed_.emplace(number, std::move(batch)).second;
  ORBITKV_CHECK(fresh, "a batch is committed once");
}

std::vector<LocalSpace> SegmentBuilder::footer_spaces() const {
  std::vector<LocalSpace> out;
  for (const auto& [number, batch] : committed_)
    out.insert(out.end(), batch.spaces.begin(), batch.spaces.end());
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::uint64_t SegmentBuilder::committed_bytes() const {
  std::uint64_t bytes = 0;
  for (const LocalSpace number : footer_spaces()) bytes += spaces_[number.value].entry.size();
  for (const auto& [number, batch] : committed_) bytes += batch.entries.size();
  return bytes;
}

std::uint32_t SegmentBuilder::seal_pages() const {
  return part_pages(committed_bytes()) + kTrailerPages;
}

PageRange SegmentBuilder::seal_place() const {
  const std::uint32_t pages = seal_pages();
  return {segment_.pages - pages, pages};
}

void SegmentBuilder::encode_seal(std::span<std::byte> out) const {
  const PageRange place = seal_place();
  ORBITKV_CHECK(batch_empty() && out.size() == place.count * kPageBytes, "all batches closed, room to seal");
  const auto spaces = footer_spaces();
  auto entries = space_entries(spaces);
  std::uint64_t count = spaces.size();
  RecordSequence least;
  for (const auto& [number, batch] : committed_) {
    entries.insert(entries.end(), batch.entries.begin(), batch.entries.end());
    count += batch.entry_count;
    least = lower(least, batch.min_sequence);
  }
  Trailer trailer;
  trailer.footer = {place.first, place.count - kTrailerPages};
  trailer.batches = static_cast<std::uint32_t>(committed_.size());
  const Part part{entries, static_cast<std::uint32_t>(count), trailer.batches, trailer.footer.count, least};
  trailer.entries_crc = encode_part(part, segment_frame(PageKind::kFooter, segment_.life, place.first),
                                    out.first(trailer.footer.count * kPageBytes));
  encode_trailer(trailer, segment_, out.last(kPageBytes));
}

bool SegmentBuilder::adopt(const EntryList& found, std::uint32_t end) {
  ORBITKV_CHECK(next_page_ == 1 && batch_empty() && committed_.empty(), "only a fresh builder adopts");
  ClosedBatch all;
  for (const SpaceEntry& entry : found.spaces) {
    if (spaces_.size() <= entry.number.value) spaces_.resize(entry.number.value + std::size_t{1});
    encode_space(entry, spaces_[entry.number.value].entry);
    all.spaces.push_back(entry.number);
  }
  for (const RecordEntry& record : found.records) encode_record(record, found.marks_of(record), all.entries);
  for (const Tombstone& tombstone : found.tombstones) encode_tombstone(tombstone, all.entries);
  all.entry_count = static_cast<std::uint32_t>(found.records.size() + found.tombstones.size());
  all.min_sequence = found.min_sequence;
  committed(std::move(all));
  next_page_ = end;
  adopted_ = true;
  return seal_place().first >= end && seal_pages() < segment_.pages;
}

}  // namespace orbitkv::ssd
