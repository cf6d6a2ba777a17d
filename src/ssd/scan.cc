#include "ssd/scan.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "ssd/scan_batches.h"

namespace orbitkv::ssd {
namespace {

constexpr std::uint32_t kFirstTail = 4;  // pages read at the end of a segment, at first

class Scanner {
 public:
  Scanner(Io& io, std::span<const ScanPath> paths, ScanSink& sink, const ScanOptions& options)
      : paths_(paths), sink_(sink), reads_(io, options.stop_fd, options.depth), jobs_(reads_.slots()) {
    for (std::uint32_t slot = 0; slot < reads_.slots(); ++slot) idle_.push_back(ReadSlot(slot));
    for (const ScanPath& path : paths) most_segments_ = std::max(most_segments_, path.superblock.segments);
  }

  Result<ScanTotals> run() {
    while (next_job() || reads_.in_flight() > 0) {
      ORBITKV_ASSIGN_OR_RETURN(const auto done, reads_.wait());
      step(done);
    }
    for (const Job& job : later_) ORBITKV_RETURN_IF_ERROR(look_closely(job));
    totals_.read = reads_.read();
    return totals_;
  }

 private:
  struct Job {
    SegmentFound found;
    std::uint32_t tail = 0;  // pages of the tail that is being read; 0: the header
    bool headless = false;   // the header is damaged: the tail must prove whose the segment is
    std::optional<Trailer> trailer;
  };

  const ScanPath& path_of(const Job& job) const { return paths_[job.found.path]; }
  std::uint32_t pages_of(const Job& job) const { return pages_for(path_of(job).superblock.segment.value); }
  std::uint64_t offset_of(const Job& job, std::uint32_t page) const {
    const Superblock& super = path_of(job).superblock;
    return super.first_segment.value + job.found.number.value * super.segment.value + page * kPageBytes;
  }

  // Fills idle slots with segments, path after path, so that all devices are busy.
  bool next_job() {
    while (!idle_.empty() && next_segment_ < most_segments_) {
      const ScanPath& path = paths_[next_path_];
      if (next_segment_ < path.superblock.segments) {
        const ReadSlot slot = idle_.back();
        idle_.pop_back();
        Job& job = jobs_[slot.value];
        job = {};
        job.found.path = next_path_;
        job.found.number = SegmentNumber(next_segment_);
        reads_.start(slot, path.file, offset_of(job, 0), 1);
      }
      if (++next_path_ == paths_.size()) {
        next_path_ = 0;
        ++next_segment_;
      }
    }
    return reads_.in_flight() > 0;
  }

  void step(const ScanReads::Done& done) {
    Job& job = jobs_[done.slot.value];
    const bool goes_on = job.tail == 0 ? header_read(job, done) : tail_read(job, done);
    if (goes_on) {
      const std::uint32_t first = pages_of(job) - job.tail;
      reads_.start(done.slot, path_of(job).file, offset_of(job, first), job.tail);
    } else {
      idle_.push_back(done.slot);
    }
  }

  SegmentPlace place_of(const Job& job) const {
    const Superblock& super = path_of(job).superblock;
    return {super.uuid, job.found.number, pages_of(job), super.epoch};
  }

  // True: the tail of that length is to be read.
  bool header_read(Job& job, const ScanReads::Done& done) {
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

  bool without_header(Job& job) {
    job.headless = true;
    job.tail = 1;
    return true;
  }

  // True: the footer is longer, read again.
  bool tail_read(Job& job, const ScanReads::Done& done) {
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

  bool take_footer(SegmentFound& found, const Trailer& trailer, std::span<const std::byte> pages) {
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

  // One at a time: a long footer, or batches.
  Status look_closely(const Job& job) {
    SegmentFound found = job.found;
    const SegmentFile where{path_of(job).file, offset_of(job, 0), found.segment};
    if (job.headless) {
      ORBITKV_ASSIGN_OR_RETURN(const bool proven, first_batch_is_of(where));
      if (!proven) return without_content(found);
    }
    if (job.trailer) {
      const MappedBytes memory(job.trailer->footer.count * kPageBytes);
      const std::span<std::byte> pages(memory.data(), job.trailer->footer.count * kPageBytes);
      auto read = reads_.read_all(where.file, offset_of(job, job.trailer->footer.first), pages);
      if (!read.ok() && read.error().code() == Code::kBusy) return read;
      if (read.ok() && take_footer(found, *job.trailer, pages)) return ok_status();
    }
    if (job.headless) return without_content(found);
    ORBITKV_ASSIGN_OR_RETURN(const BatchesFound batches, scan_batches(reads_, where, entries_));
    found.condition = SegmentCondition::kUnsealed;
    found.end = batches.end;
    found.damaged += batches.damaged;
    report(found);
    return ok_status();
  }

  Status without_content(const SegmentFound& found) {
    report(found);
    return ok_status();
  }

  // A life begins with a batch at page 1: where that is of the trailer's life, no later one has
  // written over what the footer lists.
  Result<bool> first_batch_is_of(const SegmentFile& where) {
    const MappedBytes memory(kPageBytes);
    const std::span<std::byte> page(memory.data(), kPageBytes);
    const Status read = reads_.read_all(where.file, where.offset + kPageBytes, page);
    if (!read.ok() && read.error().code() == Code::kBusy) return read.error();
    PageFrame first = segment_frame(PageKind::kBatch, where.segment.life, 1);
    first.count = 0;
    return read.ok() && open_page(first, page).ok();
  }

  void report(const SegmentFound& found) {
    const bool listed =
        found.condition == SegmentCondition::kSealed || found.condition == SegmentCondition::kUnsealed;
    if (!listed) entries_.clear();
    ++totals_.segments;
    totals_.sealed += found.condition == SegmentCondition::kSealed ? 1 : 0;
    totals_.unsealed += found.condition == SegmentCondition::kUnsealed ? 1 : 0;
    totals_.bad += found.condition == SegmentCondition::kBad ? 1 : 0;
    totals_.records += entries_.records.size();
    totals_.damaged += found.damaged;
    sink_.found(found, entries_);
  }

  const std::span<const ScanPath> paths_;
  ScanSink& sink_;
  ScanReads reads_;
  std::vector<Job> jobs_;  // by slot
  std::vector<ReadSlot> idle_;
  std::vector<Job> later_;
  std::uint32_t most_segments_ = 0;
  std::uint32_t next_segment_ = 0, next_path_ = 0;
  std::uint32_t tail_hint_ = kFirstTail;
  EntryList entries_;
  ScanTotals totals_;
};

}  // namespace

Result<std::optional<SuperblockFound>> read_superblock(Io& io, FileIndex file) {
  ScanReads reads(io, -1, 1);
  const auto pages = reads.buffer(ReadSlot(0)).first(kSuperblockCopies * kPageBytes);
  if (!reads.read_all(file, 0, pages).ok())
    return reject("the device does not read the superblock: look for its errors in the kernel's log");
  return decode_superblock(pages);
}

Result<ScanTotals> scan(Io& io, std::span<const ScanPath> paths, ScanSink& sink, const ScanOptions& options) {
  return Scanner(io, paths, sink, options).run();
}

}  // namespace orbitkv::ssd
