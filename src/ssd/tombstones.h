// Ends of single records that must outlive what they end: pending until written, then held
// by a segment, and copied forward when that is reclaimed, for as long as older content on
// any path may hold the record. Owned by the store; its thread only; does no I/O.
// Never more than StoreConfig::tombstones: one that finds no room is not durable.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "ssd/format_entries.h"
#include "ssd/segments.h"

namespace orbitkv::ssd {

using TombstoneId = Id<struct TombstoneIdTag, std::uint64_t>;

class Tombstones {
 public:
  Tombstones(Segments& segments, std::size_t most) : segments_(segments), most_(most) {}

  // To be written. `newest`: the newest life that may hold what it ends. False: no room.
  bool bury(const Tombstone& tombstone, SegmentSequence newest);
  // Found in a segment. Of two that say the same, the newer life's is kept.
  void recovered(const Tombstone& tombstone, SegmentIndex holder);
  void recovery_ended(SegmentSequence newest);
  struct Next {
    TombstoneId id;
    const Tombstone* tombstone = nullptr;
  };
  // In the order in which they came; of none: there is no more.
  Next after(TombstoneId id) const;

  // ---- writing ----
  bool pending() const { return !pending_.empty(); }
  Next next() const;                   // of the pending ones
  void started(SegmentIndex segment);  // the next one: in a batch of that segment
  void written(TombstoneId id);
  void failed(TombstoneId id);  // pending again

  // ---- reclaim ----
  // Whether one of the segment's must be copied; forgets those that need not.
  bool needed_from(SegmentIndex segment);
  // Those become pending.
  void copy_from(SegmentIndex segment);
  // What the segment held is not known to be durable: pending again.
  void lost_with(SegmentIndex segment) { copy_from(segment); }
  bool in_flight() const { return writing_ > 0; }
  bool full() const;
  std::size_t count() const { return all_.size(); }

 private:
  struct Entry {
    Tombstone tombstone;
    SegmentSequence newest;
    std::optional<SegmentIndex> holder;  // none while pending
    bool writing = false;
  };
  bool needed(const Entry& entry, SegmentIndex holder) const;
  void hold(TombstoneId id, std::optional<SegmentIndex> holder);
  std::vector<TombstoneId> held_by(SegmentIndex segment) const;

  Segments& segments_;
  const std::size_t most_;
  using Key = std::tuple<model::NamespaceDigest, GroupId, BlockHash, RecordSequence>;
  std::map<TombstoneId, Entry> all_;
  std::map<SegmentIndex, std::set<TombstoneId>> held_;  // by holder, those being written included
  std::map<Key, TombstoneId> found_;                    // until recovery has ended
  std::deque<TombstoneId> pending_;
  std::uint64_t next_id_ = 1;
  std::uint32_t writing_ = 0;
};

}  // namespace orbitkv::ssd
