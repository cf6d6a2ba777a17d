// One segment without a right footer: finds its batches page by page and verifies the
// images of their records. What is damaged is passed over, up to the next page that begins
// a batch of the segment's life. Used by scan(); memory is that of the ScanReads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ssd/image_check.h"
#include "ssd/scan_reads.h"

namespace orbitkv::ssd {

// Where a segment lies.
struct SegmentFile {
  FileIndex file;
  std::uint64_t offset = 0;
  SegmentRead segment;
};

// Pages of one segment in rising order, read ahead. Pages from the release point on, as
// many as a slot has, can be asked for.
class SegmentPages {
 public:
  SegmentPages(ScanReads& reads, const SegmentFile& where);  // nothing is on its way
  // Empty: the device did not read it. kBusy: as ScanReads::wait().
  Result<std::span<const std::byte>> page(std::uint32_t number);
  void release_before(std::uint32_t number);
  std::uint64_t unreadable() const { return unreadable_; }  // stretches

 private:
  enum class Chunk : std::uint8_t { kReading, kRead, kFailed };
  void read_ahead();
  void let_go();

  ScanReads& reads_;
  const SegmentFile where_;
  std::uint32_t first_ = 0, next_ = 0;  // chunks that are held: [first_, next_)
  std::uint32_t released_ = 0;          // those before it are not asked for again
  std::vector<Chunk> chunks_;           // by slot
  std::uint64_t unreadable_ = 0;
};

struct BatchesFound {
  std::uint32_t end = 1;      // behind the last batch
  std::uint64_t damaged = 0;  // batches, records, stretches that could not be read
};
// Replaces `out`.
Result<BatchesFound> scan_batches(ScanReads& reads, const SegmentFile& where, EntryList& out);

}  // namespace orbitkv::ssd
