// Reads paths of the store when it is opened: which segments hold what. Sealed ones by their
// footer; the others batch by batch, their images verified, page by page over what is damaged.
// Goes on by bounded pieces of work on the thread of its caller, who pumps the Dispatch, and
// never waits. Never writes; memory is bounded whatever the files hold.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "ssd/dispatch.h"
#include "ssd/format_entries.h"
#include "ssd/io.h"
#include "ssd/scan_batches.h"

namespace orbitkv::ssd {

// nullopt: empty, may be formatted (decode_superblock). kReject as there, or the file cannot
// be read; the text does not name the path.
Result<std::optional<SuperblockFound>> read_superblock(Io& io, FileIndex file);

struct ScanPath {
  FileIndex file;
  Superblock superblock;  // of this open or of an earlier one
};

enum class SegmentCondition : std::uint8_t {
  kFree,      // no header of this store: nothing is in it
  kSealed,    // its footer says what it holds, also where its header is damaged; images are not looked at
  kUnsealed,  // batches were found one by one; images of what is listed are right
  kBad,       // its header could not be read from the device
};

struct SegmentFound {
  std::uint32_t path = 0;  // in the order given to scan()
  SegmentNumber number;
  SegmentCondition condition = SegmentCondition::kFree;
  SegmentRead segment;        // of kSealed and kUnsealed
  std::uint64_t created = 0;  // unix seconds, of those
  std::uint32_t end = 0;      // of those: the first page behind the last batch or record
  // Batches and records given up, a footer, a header that is none, stretches not read.
  std::uint64_t damaged = 0;
};

struct ScanTotals {
  std::uint64_t segments = 0, sealed = 0, unsealed = 0, bad = 0;
  std::uint64_t records = 0, damaged = 0;
  ByteCount read;
};

class Scan {
 public:
  // `reads`: on their way at most. Who ends it before over() drains `io` first.
  Scan(Dispatch& io, std::vector<ScanPath> paths, std::uint32_t reads);
  // Each segment once, in any order. It and entries() stay until the next call. nullptr: none
  // now, and rests() or over() say why.
  const SegmentFound* next();
  // Of the segment that next() gave: empty but for kSealed and kUnsealed. The caller may take
  // things out of it.
  EntryList& entries() { return entries_; }
  // Only results of the device bring it on. Otherwise next() has ended a bounded piece of work.
  bool rests() const { return rests_ && !reads_.any(); }
  bool over() const { return phase_ == Phase::kOver; }
  const ScanTotals& totals() const { return totals_; }
  std::uint64_t segments() const;  // of all paths
  // No read begins any more; it is over when those on their way have ended.
  void give_up() { given_up_ = true; }

 private:
  // Footers of many segments at once; then, one at a time, what needs a closer look.
  enum class Phase : std::uint8_t { kFooters, kClosely, kOver };
  // What is read of the segment that is looked at closely.
  enum class Look : std::uint8_t { kNothing, kFirstBatch, kLongFooter, kBatches };
  struct Job {
    SegmentFound found;
    std::uint32_t tail = 0;  // pages of the tail that is being read; 0: the header
    bool headless = false;   // the header is damaged: the tail must prove whose the segment is
    std::optional<Trailer> trailer;
  };

  const ScanPath& path_of(const Job& job) const { return paths_[job.found.path]; }
  std::uint32_t pages_of(const Job& job) const { return pages_for(path_of(job).superblock.segment.value); }
  SegmentFile file_of(const Job& job) const;
  SegmentPlace place_of(const Job& job) const;
  bool step();
  void fill_slots();
  bool take_read();
  bool header_read(Job& job, const ScanReads::Done& done);
  bool without_header(Job& job);
  bool tail_read(Job& job, const ScanReads::Done& done);
  bool take_footer(SegmentFound& found, const Trailer& trailer, std::span<const std::byte> pages);
  bool look();
  bool look_on();
  bool look_given_up();
  void begin_look();
  void look_at_footer();
  void look_at_batches();
  void first_batch_read(int error);
  void long_footer_read(int error);
  void end_look();
  void report(const SegmentFound& found);

  const std::vector<ScanPath> paths_;
  ScanReads reads_;
  Phase phase_ = Phase::kFooters;
  bool given_up_ = false;
  bool reported_ = false, worked_ = false, rests_ = false;  // of the call of next()
  std::vector<Job> jobs_;                                   // by slot
  std::vector<ReadSlot> idle_;
  std::uint32_t most_segments_ = 0;
  std::uint32_t next_segment_ = 0, next_path_ = 0;
  std::uint32_t tail_hint_;
  std::vector<Job> later_;
  // The one that is looked at closely: later_[looked_at_].
  std::size_t looked_at_ = 0;
  Look look_ = Look::kNothing;
  PageBuffer footer_;
  std::optional<BatchScan> batches_;
  SegmentFound found_;  // as reported
  EntryList entries_;
  ScanTotals totals_;
};

// ---- the whole of it, waited for ----

class ScanSink {
 public:
  virtual ~ScanSink() = default;
  // As Scan::next() gives it.
  virtual void found(const SegmentFound& segment, EntryList& entries) = 0;
};

struct ScanOptions {
  int stop_fd = -1;          // readable: give up
  std::uint32_t depth = 64;  // reads on their way
};
// kBusy: stop_fd became readable. What a device does not read is kBad, not an error. Nothing else
// is in flight on the Io.
Result<ScanTotals> scan(Io& io, std::span<const ScanPath> paths, ScanSink& sink, const ScanOptions& options);

}  // namespace orbitkv::ssd
