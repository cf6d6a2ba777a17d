// Forms batches of what waits, gives them to the device in pieces, and enters their records
// when they have ended. At most two batches of a path are on their way; a batch goes when
// it is worth a transfer or has waited. Owned by the store; its thread only. Never copies
// image bytes; gaps up to whole pages are zeros. A batch that fails becomes no record.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "ssd/open_segments.h"
#include "ssd/tombstones.h"
#include "ssd/write_queue.h"

namespace orbitkv::ssd {

class Writer {
 public:
  Writer(StoreState& state, Durability& durability, Tombstones& tombstones)
      : state_(state),
        durability_(durability),
        tombstones_(tombstones),
        queue_(state),
        open_(state, durability),
        batches_of_(state.paths.size()) {}

  WriteQueue& queue() { return queue_; }
  OpenSegments& open_segments() { return open_; }
  const OpenSegments& open_segments() const { return open_; }

  // What waits now goes without waiting for more.
  void hurry();
  // Writes of this key and image, wherever they are, become no record.
  void fence(SpaceIndex space, const BlockHash& hash, const ImageMark& first_shard);
  void step();

  // Users' writes wait and no path has or can open a segment for them, unless reclaim helps.
  bool stuck() const;
  // A copy forward or a tombstone would find a segment.
  bool room_for_store() const;
  // Sequence of the oldest write of a user that has not ended.
  std::optional<RecordSequence> oldest() const;
  bool idle() const;
  void drop_forwards();
  bool uses(std::span<const std::byte> memory) const;
  TimePoint due() const;

 private:
  struct Batch {
    PathIndex path;
    OpenSegment* segment = nullptr;
    ClosedBatch closed;
    PageBuffer descriptor;
    Writes writes;  // in the order of its records
    std::vector<TombstoneId> tombstones;
    std::uint32_t left = 0;  // requests
    int error = 0;
  };
  using Batches = std::list<Batch>;

  bool users_ready() const;
  bool store_ready() const { return tombstones_.pending() || !queue_.forwards().empty(); }
  std::optional<PathIndex> choose(Use use);
  bool form_one();
  Fit fill(OpenSegment& segment, Batch& batch);
  Fit fill_forwards(OpenSegment& segment, Batch& batch);
  Fit fill_users(OpenSegment& segment, Batch& batch);
  Fit add(OpenSegment& segment, const PendingWrite& write);
  void send(Batches&& one);
  void ended(Batches::iterator batch);
  void lost(Batch& batch);
  std::vector<StoredRef> enter(Batch& batch);
  void enter_forward(PendingWrite& write, SegmentIndex segment, std::uint32_t first_page);
  Refusal enter_user(const PendingWrite& write, const IndexRecord& record, std::vector<StoredRef>& entered);

  StoreState& state_;
  Durability& durability_;
  Tombstones& tombstones_;
  WriteQueue queue_;
  OpenSegments open_;
  Batches batches_;
  std::vector<std::uint32_t> batches_of_;  // by path
  std::uint32_t last_path_ = 0;
  RecordSequence hurry_;  // users' writes up to it go at once
  bool blocked_ = false;  // users' writes were ready in the last step and found no path
};

}  // namespace orbitkv::ssd
