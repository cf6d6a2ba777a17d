#include "ssd/scan_batches.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"

namespace orbitkv::ssd {
namespace {

constexpr std::uint32_t kChunkPages = ScanReads::kSlotPages;
static_assert(limits::kDescriptorPages <= kChunkPages, "a descriptor lies in two chunks at most");

bool same_space(const SpaceEntry& a, const SpaceEntry& b) {
  return a.shape.digest == b.shape.digest && a.shape.group == b.shape.group &&
         a.shape.shards == b.shape.shards && a.shape.fragments == b.shape.fragments &&
         a.shape.text == b.shape.text;
}

}  // namespace

// ---- pages ----

SegmentPages::SegmentPages(ScanReads& reads, const SegmentFile& where)
    : reads_(reads), where_(where), chunks_(reads.slots(), Chunk::kReading) {}

void SegmentPages::read_ahead() {
  const std::uint32_t chunks = (where_.segment.pages + kChunkPages - 1) / kChunkPages;
  while (next_ < chunks && next_ < first_ + reads_.slots()) {
    const std::uint32_t slot = next_ % reads_.slots();
    const std::uint32_t page = next_ * kChunkPages;
    chunks_[slot] = Chunk::kReading;
    reads_.start(ReadSlot(slot), where_.page(page), std::min(kChunkPages, where_.segment.pages - page));
    ++next_;
  }
}

void SegmentPages::release_before(std::uint32_t number) {
  released_ = std::max(released_, number / kChunkPages);
  let_go();
}

// Chunks that are being read stand in the way only while they are.
void SegmentPages::let_go() {
  while (first_ < std::min(released_, next_) && chunks_[first_ % reads_.slots()] != Chunk::kReading) ++first_;
}

void SegmentPages::take_results() {
  while (const auto done = reads_.next()) {
    chunks_[done->slot.value] = done->error == 0 ? Chunk::kRead : Chunk::kFailed;
    unreadable_ += done->error == 0 ? 0 : 1;
  }
  let_go();
}

std::optional<std::span<const std::byte>> SegmentPages::page(std::uint32_t number) {
  take_results();
  read_ahead();
  const std::uint32_t chunk = number / kChunkPages;
  const std::uint32_t slot = chunk % reads_.slots();
  if (chunk >= next_ || chunks_[slot] == Chunk::kReading) return std::nullopt;
  if (chunks_[slot] == Chunk::kFailed) return std::span<const std::byte>();
  const std::span<const std::byte> buffer = reads_.buffer(ReadSlot(slot));
  return buffer.subspan(number % kChunkPages * kPageBytes, kPageBytes);
}

bool SegmentPages::ended() {
  take_results();
  return reads_.in_flight() == 0;
}

// ---- batches ----

BatchScan::BatchScan(ScanReads& reads, const SegmentFile& where, EntryList& out)
    : where_(where), pages_(reads, where), out_(out) {
  out_.clear();
}

bool BatchScan::go_on(std::uint32_t pages) {
  rests_ = false;
  for (; pages > 0 && !rests_; --pages) {
    if (for_ == For::kBatch && at_ >= where_.segment.pages) {
      rests_ = !pages_.ended();
      if (rests_) return false;
      found_.damaged += pages_.unreadable();
      return true;
    }
    const auto page = pages_.page(wanted());
    rests_ = !page;
    if (page) take(*page);
  }
  return false;
}

std::uint32_t BatchScan::wanted() const {
  switch (for_) {
    case For::kBatch: return at_;
    case For::kDescriptor: return head_.pages.first + page_;
    case For::kImage: break;
  }
  return record().first_page + shard_ * record().image_pages + page_;
}

void BatchScan::take(std::span<const std::byte> page) {
  switch (for_) {
    case For::kBatch: return look_for_batch(page);
    case For::kDescriptor: return add_to_descriptor(page);
    case For::kImage: return take_image_page(page);
  }
}

void BatchScan::look_from(std::uint32_t next) {
  for_ = For::kBatch;
  at_ = next;
  pages_.release_before(at_);
}

void BatchScan::damaged(std::uint32_t next) {
  ++found_.damaged;
  look_from(next);
}

void BatchScan::look_for_batch(std::span<const std::byte> page) {
  if (!may_be_batch(page, at_, where_.segment)) return look_from(at_ + 1);
  const auto head = peek_batch(page, at_, where_.segment);
  if (!head.ok() || head->number < next_batch_) return damaged(at_ + 1);
  head_ = *head;
  descriptor_.clear();
  page_ = 0;
  for_ = For::kDescriptor;
}

// Short where a page of it cannot be read.
void BatchScan::add_to_descriptor(std::span<const std::byte> page) {
  descriptor_.insert(descriptor_.end(), page.begin(), page.end());
  if (++page_ == head_.descriptor_pages) take_batch();
}

void BatchScan::take_batch() {
  if (!decode_batch(descriptor_, head_, where_.segment, batch_).ok()) return damaged(at_ + 1);
  next_batch_ = head_.number + 1;
  found_.end = head_.pages.end();
  if (!take_spaces()) return damaged(head_.pages.end());
  record_ = 0;
  begin_record();
}

// A number means one space in all of the segment.
bool BatchScan::take_spaces() {
  for (const SpaceEntry& space : batch_.spaces)
    if (const SpaceEntry* known = out_.space(space.number); known != nullptr && !same_space(*known, space))
      return false;
  for (SpaceEntry& space : batch_.spaces)
    if (out_.space(space.number) == nullptr) out_.spaces.push_back(std::move(space));
  return true;
}

// The next one of the batch, or what stands behind its records.
void BatchScan::begin_record() {
  if (record_ < batch_.records.size()) {
    const SpaceShape& shape = out_.space(record().space)->shape;
    check_.reset();
    layout_ = image_layout(shape);
    check_.emplace(shape, layout_);
    shard_ = 0;
    return begin_image();
  }
  for (const Tombstone& tombstone : batch_.tombstones) {
    out_.tombstones.push_back(tombstone);
    note(tombstone.sequence);
  }
  look_from(head_.pages.end());
}

void BatchScan::begin_image() {
  check_->begin(record().hash, ShardId(shard_), batch_.marks_of(record())[shard_]);
  page_ = 0;
  for_ = For::kImage;
  pages_.release_before(wanted());
}

void BatchScan::take_image_page(std::span<const std::byte> page) {
  const bool more = !page.empty() && check_->feed(page) == ImageCheck::State::kMore;
  if (more && ++page_ < record().image_pages) return pages_.release_before(wanted());
  const bool good = check_->state() == ImageCheck::State::kGood;
  if (good && ++shard_ < record().shards) return begin_image();
  if (good)
    take_record();
  else
    ++found_.damaged;
  ++record_;
  begin_record();
}

void BatchScan::take_record() {
  const auto marks = batch_.marks_of(record());
  RecordEntry taken = record();
  taken.first_mark = static_cast<std::uint32_t>(out_.marks.size());
  out_.marks.insert(out_.marks.end(), marks.begin(), marks.end());
  out_.records.push_back(taken);
  note(taken.sequence);
}

void BatchScan::note(RecordSequence sequence) {
  RecordSequence& least = out_.min_sequence;
  if (least.value == 0 || sequence < least) least = sequence;
}

}  // namespace orbitkv::ssd
