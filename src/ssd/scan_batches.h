// One segment without a right footer: finds its batches page by page and verifies the
// images of their records. What is damaged is passed over, up to the next page that begins
// a batch of the segment's life. Goes on by bounded numbers of pages and never waits; memory
// is that of the ScanReads, of which nobody else has reads on their way meanwhile.
#pragma once

#include <cstdint>
#include <optional>
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

  ScanReads::Place page(std::uint32_t number) const { return {file, offset + number * kPageBytes}; }
};

// Pages of one segment in rising order, read ahead. Pages from the release point on, as
// many as a slot has, can be asked for.
class SegmentPages {
 public:
  SegmentPages(ScanReads& reads, const SegmentFile& where);  // nothing is on its way
  // nullopt: it is being read. Empty: the device did not read it.
  std::optional<std::span<const std::byte>> page(std::uint32_t number);
  void release_before(std::uint32_t number);
  bool ended();                                             // nothing is on its way any more
  std::uint64_t unreadable() const { return unreadable_; }  // stretches

 private:
  enum class Chunk : std::uint8_t { kReading, kRead, kFailed };
  void read_ahead();
  void let_go();
  void take_results();

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

class BatchScan {
 public:
  // Replaces `out`, which outlives it.
  BatchScan(ScanReads& reads, const SegmentFile& where, EntryList& out);
  // Looks at so many pages, or at those that have been read. True: it is over, and nothing is
  // on its way.
  bool go_on(std::uint32_t pages);
  bool rests() const { return rests_; }  // go_on() has found that a page is still being read
  const BatchesFound& found() const { return found_; }

 private:
  // What the next page is wanted for.
  enum class For : std::uint8_t { kBatch, kDescriptor, kImage };

  std::uint32_t wanted() const;
  void take(std::span<const std::byte> page);
  void look_for_batch(std::span<const std::byte> page);
  void add_to_descriptor(std::span<const std::byte> page);
  void take_batch();
  bool take_spaces();
  void begin_record();
  void begin_image();
  void take_image_page(std::span<const std::byte> page);
  void take_record();
  void damaged(std::uint32_t next);
  void look_from(std::uint32_t next);
  void note(RecordSequence sequence);
  const RecordEntry& record() const { return batch_.records[record_]; }

  const SegmentFile where_;
  SegmentPages pages_;
  EntryList& out_;
  For for_ = For::kBatch;
  bool rests_ = false;
  std::uint32_t at_ = 1;  // where a batch is looked for
  // The batch at hand.
  BatchHead head_;
  std::vector<std::byte> descriptor_;
  EntryList batch_;
  std::size_t record_ = 0;
  std::uint16_t shard_ = 0;
  std::uint32_t page_ = 0;  // of the descriptor, or of the image
  ImageLayout layout_;
  std::optional<ImageCheck> check_;
  std::uint32_t next_batch_ = 0;
  BatchesFound found_;
};

}  // namespace orbitkv::ssd
