#include "ssd/scan_batches.h"

#include <algorithm>
#include <iterator>
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

class BatchScan {
 public:
  BatchScan(ScanReads& reads, const SegmentFile& where, EntryList& out)
      : where_(where), pages_(reads, where), out_(out) {}

  Result<BatchesFound> run() {
    for (std::uint32_t at = 1; at < where_.segment.pages;) {
      pages_.release_before(at);
      ORBITKV_ASSIGN_OR_RETURN(const std::uint32_t next, step(at));
      at = next;
    }
    found_.damaged += pages_.unreadable();
    return found_;
  }

 private:
  // Where to look next.
  Result<std::uint32_t> step(std::uint32_t at) {
    ORBITKV_ASSIGN_OR_RETURN(const auto page, pages_.page(at));
    if (!may_be_batch(page, at, where_.segment)) return at + 1;
    const auto head = peek_batch(page, at, where_.segment);
    if (!head.ok() || head->number < next_batch_) return damaged(at + 1);
    ORBITKV_RETURN_IF_ERROR(copy_descriptor(*head));
    if (!decode_batch(descriptor_, *head, where_.segment, batch_).ok()) return damaged(at + 1);
    next_batch_ = head->number + 1;
    found_.end = head->pages.end();
    if (!take_spaces()) return damaged(head->pages.end());
    for (const RecordEntry& record : batch_.records) ORBITKV_RETURN_IF_ERROR(take_record(record));
    for (const Tombstone& tombstone : batch_.tombstones) {
      out_.tombstones.push_back(tombstone);
      note(tombstone.sequence);
    }
    return head->pages.end();
  }

  std::uint32_t damaged(std::uint32_t next) {
    ++found_.damaged;
    return next;
  }

  // Short where a page of it cannot be read.
  Status copy_descriptor(const BatchHead& head) {
    descriptor_.clear();
    for (std::uint32_t i = 0; i < head.descriptor_pages; ++i) {
      ORBITKV_ASSIGN_OR_RETURN(const auto page, pages_.page(head.pages.first + i));
      descriptor_.insert(descriptor_.end(), page.begin(), page.end());
    }
    return ok_status();
  }

  // A number means one space in all of the segment.
  bool take_spaces() {
    for (const SpaceEntry& space : batch_.spaces)
      if (const SpaceEntry* known = out_.space(space.number); known != nullptr && !same_space(*known, space))
        return false;
    for (SpaceEntry& space : batch_.spaces)
      if (out_.space(space.number) == nullptr) out_.spaces.push_back(std::move(space));
    return true;
  }

  Status take_record(const RecordEntry& record) {
    const auto marks = batch_.marks_of(record);
    const SpaceShape& shape = out_.space(record.space)->shape;
    const ImageLayout layout = image_layout(shape);
    ImageCheck check(shape, layout);
    bool good = true;
    for (std::uint16_t i = 0; i < record.shards && good; ++i) {
      check.begin(record.hash, ShardId(i), marks[i]);
      const PageRange image{record.first_page + i * record.image_pages, record.image_pages};
      ORBITKV_RETURN_IF_ERROR(feed(image, check));
      good = check.state() == ImageCheck::State::kGood;
    }
    if (!good) {
      ++found_.damaged;
      return ok_status();
    }
    RecordEntry taken = record;
    taken.first_mark = static_cast<std::uint32_t>(out_.marks.size());
    out_.marks.insert(out_.marks.end(), marks.begin(), marks.end());
    out_.records.push_back(taken);
    note(record.sequence);
    return ok_status();
  }

  Status feed(const PageRange& image, ImageCheck& check) {
    for (std::uint32_t at = image.first; at < image.end(); ++at) {
      pages_.release_before(at);
      ORBITKV_ASSIGN_OR_RETURN(const auto page, pages_.page(at));
      if (page.empty() || check.feed(page) != ImageCheck::State::kMore) break;
    }
    return ok_status();
  }

  void note(RecordSequence sequence) {
    RecordSequence& least = out_.min_sequence;
    if (least.value == 0 || sequence < least) least = sequence;
  }

  const SegmentFile& where_;
  SegmentPages pages_;
  EntryList& out_;
  EntryList batch_;
  std::vector<std::byte> descriptor_;
  std::uint32_t next_batch_ = 0;
  BatchesFound found_;
};

}  // namespace

SegmentPages::SegmentPages(ScanReads& reads, const SegmentFile& where)
    : reads_(reads), where_(where), chunks_(reads.slots(), Chunk::kReading) {}

void SegmentPages::read_ahead() {
  const std::uint32_t chunks = (where_.segment.pages + kChunkPages - 1) / kChunkPages;
  while (next_ < chunks && next_ < first_ + reads_.slots()) {
    const std::uint32_t slot = next_ % reads_.slots();
    const std::uint32_t page = next_ * kChunkPages;
    const std::uint32_t pages = std::min(kChunkPages, where_.segment.pages - page);
    chunks_[slot] = Chunk::kReading;
    reads_.start(ReadSlot(slot), where_.file, where_.offset + page * kPageBytes, pages);
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

Result<std::span<const std::byte>> SegmentPages::page(std::uint32_t number) {
  const std::uint32_t chunk = number / kChunkPages;
  read_ahead();
  const std::uint32_t slot = chunk % reads_.slots();
  while (chunk >= next_ || chunks_[slot] == Chunk::kReading) {
    ORBITKV_ASSIGN_OR_RETURN(const auto done, reads_.wait());
    chunks_[done.slot.value] = done.error == 0 ? Chunk::kRead : Chunk::kFailed;
    unreadable_ += done.error == 0 ? 0 : 1;
    let_go();
    read_ahead();
  }
  if (chunks_[slot] == Chunk::kFailed) return std::span<const std::byte>();
  const std::span<const std::byte> buffer = reads_.buffer(ReadSlot(slot));
  return buffer.subspan(number % kChunkPages * kPageBytes, kPageBytes);
}

Result<BatchesFound> scan_batches(ScanReads& reads, const SegmentFile& where, EntryList& out) {
  out.clear();
  auto found = BatchScan(reads, where, out).run();
  reads.drain();
  return found;
}

}  // namespace orbitkv::ssd
