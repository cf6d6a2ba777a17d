#include "ssd/scan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/readable.h"

namespace orbitkv::ssd {
namespace {

constexpr std::uint32_t kFirstTail = 4;       // pages read at the end of a segment, at first
constexpr std::uint32_t kStepsACall = 64;     // of next(): headers and the like
constexpr std::uint32_t kPagesACall = 64;     // of next(): pages of batches and images
constexpr Duration kWait = milliseconds(50);  // between looks at stop_fd

}  // namespace

Scan::Scan(Dispatch& io, std::vector<ScanPath> paths, std::uint32_t reads)
    : paths_(std::move(paths)), reads_(io, reads), jobs_(reads_.slots()), tail_hint_(kFirstTail) {
  for (std::uint32_t slot = 0; slot < reads_.slots(); ++slot) idle_.push_back(ReadSlot(slot));
  for (const ScanPath& path : paths_) most_segments_ = std::max(most_segments_, path.superblock.segments);
}

std::uint64_t Scan::segments() const {
  std::uint64_t all = 0;
  for (const ScanPath& path : paths_) all += path.superblock.segments;
  return all;
}

const SegmentFound* Scan::next() {
  reported_ = worked_ = rests_ = false;
  for (std::uint32_t i = 0; i < kStepsACall && !reported_ && !worked_ && !rests_; ++i) rests_ = !step();
  totals_.read = reads_.read();
  return reported_ ? &found_ : nullptr;
}

// False: nothing can be done before the device has ended something, or it is over.
bool Scan::step() {
  switch (phase_) {
    case Phase::kFooters:
      fill_slots();
      if (take_read()) return true;
      if (reads_.in_flight() > 0) return false;
      phase_ = given_up_ ? Phase::kOver : Phase::kClosely;
      return !over();
    case Phase::kClosely: return look();
    case Phase::kOver: break;
  }
  return false;
}

// Idle slots with segments, path after path, so that all devices are busy.
void Scan::fill_slots() {
  while (!given_up_ && !idle_.empty() && next_segment_ < most_segments_) {
    const ScanPath& path = paths_[next_path_];
    if (next_segment_ < path.superblock.segments) {
      const ReadSlot slot = idle_.back();
      idle_.pop_back();
      Job& job = jobs_[slot.value];
      job = {};
      job.found.path = next_path_;
      job.found.number = SegmentNumber(next_segment_);
      reads_.start(slot, file_of(job).page(0), 1);
    }
    if (++next_path_ == paths_.size()) {
      next_path_ = 0;
      ++next_segment_;
    }
  }
}

bool Scan::take_read() {
  const auto done = reads_.next();
  if (!done) return false;
  Job& job = jobs_[done->slot.value];
  const bool goes_on = !given_up_ && (job.tail == 0 ? header_read(job, *done) : tail_read(job, *done));
  if (goes_on)
    reads_.start(done->slot, file_of(job).page(pages_of(job) - job.tail), job.tail);
  else
    idle_.push_back(done->slot);
  return true;
}

SegmentFile Scan::file_of(const Job& job) const {
  const Superblock& super = path_of(job).superblock;
  return {path_of(job).file, super.first_segment.value + job.found.number.value * super.segment.value,
          job.found.segment};
}

SegmentPlace Scan::place_of(const Job& job) const {
  const Superblock& super = path_of(job).superblock;
  return {super.uuid, job.found.number, pages_of(job), super.epoch};
}

// True: the tail of that length is to be read.
bool Scan::header_read(Job& job, const ScanReads::Done& done) {
  SegmentFound& found = job.found;
  const auto page = reads_.buffer(done.slot).first(kPageBytes);
  if (done.error != 0) {
    found.condition = SegmentCondition::kBad;
    return without_header(job);
  }
  const auto header = decode_segment_header(page, place_of(job));
  if (!header.ok()) {
    // Never written: nothing is in it.
    if (std::all_of(page.begin(), page.end(), [](std::byte b) { return b == std::byte{0}; })) {
      report(found);
      return false;
    }
    // Of this store, and yet no header: it was damaged, or torn as it was written.
    const StoreUuid& uuid = path_of(job).superblock.uuid;
    found.damaged = std::memcmp(page.data() + 16, uuid.data(), uuid.size()) == 0 ? 1 : 0;
    return without_header(job);
  }
  found.segment = {header->life, header->pages};
  found.created = header->created;
  job.tail = std::min({tail_hint_, ScanReads::kSlotPages, pages_of(job) - 1});
  return true;
}

bool Scan::without_header(Job& job) {
  job.headless = true;
  job.tail = 1;
  return true;
}

// True: the footer is longer, read again.
bool Scan::tail_read(Job& job, const ScanReads::Done& done) {
  const auto tail = reads_.buffer(done.slot).first(job.tail * kPageBytes);
  if (job.headless) {
    const auto life = life_of_trailer(tail, place_of(job));
    if (done.error != 0 || !life.ok()) {
      report(job.found);
    } else {
      job.found.segment = *life;
      job.trailer = *decode_trailer(tail, *life);
      later_.push_back(job);
    }
    return false;
  }
  const SegmentRead& segment = job.found.segment;
  const auto trailer = decode_trailer(tail.last(kPageBytes), segment);
  if (done.error != 0 || !trailer.ok()) {
    later_.push_back(job);
    return false;
  }
  const std::uint32_t wanted = trailer->footer.count + 1;
  tail_hint_ = std::max(kFirstTail, wanted + 1);
  if (wanted <= job.tail) {
    const auto pages = tail.subspan((job.tail - wanted) * kPageBytes, trailer->footer.count * kPageBytes);
    if (!take_footer(job.found, *trailer, pages)) later_.push_back(job);
    return false;
  }
  job.tail = wanted;
  if (wanted <= ScanReads::kSlotPages) return true;
  job.trailer = *trailer;
  later_.push_back(job);
  return false;
}

bool Scan::take_footer(SegmentFound& found, const Trailer& trailer, std::span<const std::byte> pages) {
  if (!decode_footer(pages, trailer, found.segment, entries_).ok()) {
    ++found.damaged;
    return false;
  }
  found.condition = SegmentCondition::kSealed;
  found.end = 1;
  if (!entries_.records.empty()) {
    const RecordEntry& last = entries_.records.back();
    found.end = last.first_page + last.image_pages * last.shards;
  }
  report(found);
  return true;
}

// ---- a closer look, at one segment at a time: a long footer, or batches ----

bool Scan::look() {
  if (look_ != Look::kNothing) return given_up_ ? look_given_up() : look_on();
  if (looked_at_ == later_.size() || given_up_) {
    phase_ = Phase::kOver;
    return false;
  }
  begin_look();
  return true;
}

bool Scan::look_on() {
  if (look_ == Look::kBatches) {
    worked_ = true;
    if (!batches_->go_on(kPagesACall)) return !batches_->rests();
    SegmentFound& found = later_[looked_at_].found;
    found.condition = SegmentCondition::kUnsealed;
    found.end = batches_->found().end;
    found.damaged += batches_->found().damaged;
    report(found);
    end_look();
    return true;
  }
  const auto done = reads_.next();
  if (!done) return false;
  if (look_ == Look::kFirstBatch)
    first_batch_read(done->error);
  else
    long_footer_read(done->error);
  return true;
}

bool Scan::look_given_up() {
  while (reads_.next()) {
  }
  if (reads_.in_flight() > 0) return false;
  end_look();
  return true;
}

void Scan::begin_look() {
  const Job& job = later_[looked_at_];
  if (job.headless) {
    look_ = Look::kFirstBatch;
    reads_.start(ReadSlot(0), file_of(job).page(1), 1);
  } else if (job.trailer) {
    look_at_footer();
  } else {
    look_at_batches();
  }
}

// A life begins with a batch at page 1: where that is of the trailer's life, no later one has
// written over what the footer lists.
void Scan::first_batch_read(int error) {
  const Job& job = later_[looked_at_];
  PageFrame first = segment_frame(PageKind::kBatch, job.found.segment.life, 1);
  first.count = 0;
  if (error == 0 && open_page(first, reads_.buffer(ReadSlot(0)).first(kPageBytes)).ok())
    return look_at_footer();
  report(job.found);
  end_look();
}

void Scan::look_at_footer() {
  const Job& job = later_[looked_at_];
  look_ = Look::kLongFooter;
  footer_ = PageBuffer(job.trailer->footer.count * kPageBytes);
  reads_.start(ReadSlot(0), file_of(job).page(job.trailer->footer.first), footer_.span());
}

void Scan::long_footer_read(int error) {
  Job& job = later_[looked_at_];
  if (error == 0 && take_footer(job.found, *job.trailer, footer_.span())) return end_look();
  if (!job.headless) return look_at_batches();
  report(job.found);
  end_look();
}

void Scan::look_at_batches() {
  look_ = Look::kBatches;
  batches_.emplace(reads_, file_of(later_[looked_at_]), entries_);
}

void Scan::end_look() {
  batches_.reset();
  footer_ = {};
  look_ = Look::kNothing;
  ++looked_at_;
}

void Scan::report(const SegmentFound& found) {
  const bool listed =
      found.condition == SegmentCondition::kSealed || found.condition == SegmentCondition::kUnsealed;
  if (!listed) entries_.clear();
  ++totals_.segments;
  totals_.sealed += found.condition == SegmentCondition::kSealed ? 1 : 0;
  totals_.unsealed += found.condition == SegmentCondition::kUnsealed ? 1 : 0;
  totals_.bad += found.condition == SegmentCondition::kBad ? 1 : 0;
  totals_.records += entries_.records.size();
  totals_.damaged += found.damaged;
  found_ = found;
  reported_ = true;
}

// ---- the whole of it ----

Result<std::optional<SuperblockFound>> read_superblock(Io& io, FileIndex file) {
  Dispatch device(io);
  const PageBuffer pages(kSuperblockCopies * kPageBytes);
  if (device.wait({IoOp::kRead, file, 0, {pages.span()}}) != 0)
    return reject("the device does not read the superblock: look for its errors in the kernel's log");
  return decode_superblock(pages.span());
}

Result<ScanTotals> scan(Io& io, std::span<const ScanPath> paths, ScanSink& sink, const ScanOptions& options) {
  Dispatch device(io);
  Scan scan(device, {paths.begin(), paths.end()}, options.depth);
  while (!scan.over()) {
    if (is_readable(options.stop_fd)) {
      device.drain();
      return busy("the scan was given up");
    }
    while (const SegmentFound* found = scan.next()) sink.found(*found, scan.entries());
    if (!scan.over() && scan.rests()) device.pump_waiting(kWait);
  }
  return scan.totals();
}

}  // namespace orbitkv::ssd
