// Fills one segment: batches of entries, then the footer and the trailer. Admits an entry
// only while the footer of everything that was admitted still fits. Owned by the store, one
// an open segment; does no I/O and holds no image bytes. What it hands out is placed, never
// moved; a batch that failed stays out of the footer and its pages stay unused.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "ssd/format_entries.h"

namespace orbitkv::ssd {

enum class Fit : std::uint8_t {
  kYes,
  kBatchFull,    // close the batch, then ask again
  kSegmentFull,  // close the batch if there is one, then seal
};

// A batch with its place. Images follow the descriptor in the order in which their records
// were added, each at a page boundary.
struct ClosedBatch {
  BatchHead head;
  std::vector<LocalSpace> spaces;  // that it repeats
  std::vector<std::byte> entries;  // records and tombstones
  std::uint32_t entry_count = 0;   // of those
  RecordSequence min_sequence;
  std::vector<std::uint32_t> first_pages;  // of each record, as added
};

struct NewRecord {
  BlockHash hash;
  RecordSequence sequence;
  std::span<const ImageMark> marks;  // one a shard of the space
};

class SegmentBuilder {
 public:
  explicit SegmentBuilder(const SegmentRead& segment);
  // Goes on behind what recovery found, to seal it: pages up to `end` are taken. Takes no
  // more entries; false: its footer does not fit, and the segment stays as it is.
  bool adopt(const EntryList& found, std::uint32_t end);

  // ---- the batch under construction ----
  // `shape` is valid (validate_shape), as is the number of marks; a `space` whose shape has
  // changed is written as another one.
  Fit add_record(SpaceIndex space, const SpaceShape& shape, const NewRecord& record);
  Fit add_tombstone(const Tombstone& tombstone);
  bool batch_empty() const { return batch_.entry_count == 0; }
  std::uint32_t batch_pages() const;  // descriptor and images, if it were closed now
  // Not empty. It has its place from now on.
  ClosedBatch close_batch();
  // `out`: descriptor_pages of it.
  void encode_descriptor(const ClosedBatch& batch, std::span<std::byte> out) const;
  // Written: its entries will be in the footer. In any order of batches.
  void committed(ClosedBatch&& batch);

  // ---- sealing: all batches are committed or given up ----
  std::uint32_t seal_pages() const;  // footer and trailer; they end the segment
  PageRange seal_place() const;
  void encode_seal(std::span<std::byte> out) const;  // seal_pages of it

  const SegmentRead& segment() const { return segment_; }
  std::uint32_t next_page() const { return next_page_; }
  std::uint32_t pages_left() const;  // before the footer and trailer of what was admitted

 private:
  struct Space {
    SpaceShape shape;
    std::vector<std::byte> entry;
    std::uint32_t batch = 0;  // the last one that repeats it, + 1; 0: none yet
  };
  // What the next entry adds.
  struct Growth {
    std::uint64_t batch_bytes = 0, footer_bytes = 0;
    std::uint32_t image_pages = 0;
  };

  std::optional<LocalSpace> local_space(SpaceIndex index, const SpaceShape& shape);
  Fit fit(const Growth& growth) const;
  void grow(const Growth& growth, RecordSequence sequence);
  std::vector<std::byte> space_entries(std::span<const LocalSpace> spaces) const;
  std::vector<LocalSpace> footer_spaces() const;
  std::uint64_t committed_bytes() const;  // of the footer's entries

  SegmentRead segment_;
  bool adopted_ = false;
  std::uint32_t next_page_ = 1;
  std::uint32_t next_batch_ = 0;
  std::uint64_t footer_bytes_ = 0;  // if all admitted batches are committed
  std::vector<Space> spaces_;       // by LocalSpace
  std::map<SpaceIndex, LocalSpace> current_;
  ClosedBatch batch_;                               // under construction: first_pages count from its images
  std::uint64_t batch_bytes_ = 0;                   // of its descriptor's entries
  std::uint32_t image_pages_ = 0;                   // of it
  std::vector<std::uint32_t> record_at_;            // of its records, in batch_.entries
  std::map<std::uint32_t, ClosedBatch> committed_;  // by number
};

// Whether a segment of this many pages holds at least one record of the (valid) shape.
bool fits_segment(const SpaceShape& shape, std::uint32_t pages);

}  // namespace orbitkv::ssd
