// What the parts of the store share: paths, segments, spaces, index, counters, and the few
// steps that keep them consistent with each other. Owned by the store; its thread only;
// does no I/O itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ssd/dispatch.h"
#include "ssd/index.h"
#include "ssd/segments.h"
#include "ssd/spaces.h"
#include "ssd/store.h"

namespace orbitkv::ssd {

constexpr std::uint64_t bytes_of(const IndexRecord& record) {
  return std::uint64_t{record.image_pages} * record.shards * kPageBytes;
}

bool any_overlaps(std::span<const SlotMemory> slots, std::span<const std::byte> memory);

// Flags of IndexRecord.
inline constexpr std::uint8_t kHot = 1;         // used since it was written or copied forward
inline constexpr std::uint8_t kFailedOnce = 2;  // the device did not read it

struct Path {
  std::string name;
  FileIndex file;
  Superblock superblock;  // as it was last given to the device
  std::uint32_t write_first = 0;
  PathState state = PathState::kOk;
  std::string why;             // of kWriteStopped
  bool until_restart = false;  // no probe ends it
  TimePoint probe_at;
  bool named = true;           // at the start: whoever gave a file without a name keeps it
  bool linked = true;          // as far as was seen
  std::uint32_t failures = 0;  // writes in a row

  bool writable() const { return state == PathState::kOk; }
};

class StoreState {
 public:
  // `paths`: with their superblocks; all segments are free.
  StoreState(const StoreConfig& config, Io& io, std::vector<Path> paths);

  // ---- counters ----
  RecordSequence next_record() { return RecordSequence(next_record_++); }
  TransferId next_transfer() { return TransferId(next_transfer_++); }
  SegmentLife next_life(SegmentIndex segment);
  SegmentSequence newest_life() const { return SegmentSequence(next_life_ - 1); }
  void start_epoch(StoreEpoch epoch);

  // ---- records ----
  // The record that find() may give: not one that a drop of its namespace has ended.
  bool visible(StoredRef record) const;
  // Into the index, with segments and spaces told.
  Index::Placed enter(const IndexRecord& record, std::span<const ImageMark> marks);
  void forget(StoredId record, Loss why);
  void move(StoredId record, SegmentIndex segment, std::uint32_t first_page);

  // ---- ages, in minutes of `now` ----
  void used_now(StoredId record) {
    index.minute(record) = minute_of(now);
    spaces.at(index.at(record).space).last_use = ++uses;
  }
  // It was last used that long ago at least; one that was recovered, when this life began.
  bool unused_for(StoredId record, Duration least);

  // ---- places ----
  std::uint64_t offset_of(SegmentIndex segment, std::uint32_t page) const;
  Path& path_of(SegmentIndex segment) { return paths[segments.at(segment).path.value]; }
  std::uint32_t segment_pages() const { return pages_for(config.segment.value); }
  // Segments that only tombstones and copies forward may take.
  bool above_reserve(PathIndex path) const;

  // ---- faults of writing ----
  enum class Stop : std::uint8_t { kUntilProbe, kUntilRestart };
  void stop(PathIndex path, int error, Stop stop);
  // Stops the path where the error says so, or where errors go on and on.
  void write_failed(PathIndex path, int error);
  void write_went_well(PathIndex path) { paths[path.value].failures = 0; }

  // Says once of each file that it has lost its name: what is written to it ends with us.
  void look_for_names();

  void report(const StoreEvent& event);
  Error refuse(Refusal why);  // counts it

  StoreConfig config;
  Io& device;
  Dispatch io;
  std::vector<Path> paths;
  Segments segments;
  Spaces spaces;
  Index index;
  StoreStats stats;
  std::vector<StoreEvent> events;
  TimePoint now;
  TimePoint begun;  // the first poll
  StoreUuid uuid{};
  std::uint64_t killed_records = 0;  // of all spaces
  std::uint64_t uses = 0;            // of records: written or read
  // As found at the start: where an earlier life of the store had just begun when it ended.
  // Reclaimed first, for their records are few and their room is whole.
  std::vector<SegmentIndex> hardly_filled;
  bool closing = false;

 private:
  static std::uint32_t minute_of(TimePoint at) { return static_cast<std::uint32_t>(at.ns / seconds(60).ns); }
  void count_in(const IndexRecord& record);
  void count_out(const IndexRecord& record, Loss why);

  std::uint64_t next_record_ = 1, next_life_ = 1, next_transfer_ = 1;
};

}  // namespace orbitkv::ssd
