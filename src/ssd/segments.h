// The segments of all paths: states, what lies in them, and which is the oldest. Owned by
// the store; its thread only; says nothing about I/O. "Content" is what a start would find
// on the disk: a free segment keeps its old one until its next header is durable.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ssd/format.h"
#include "ssd/index.h"
#include "ssd/segment_state.h"

namespace orbitkv::ssd {

using SegmentIndex = IndexSegment;                         // over all paths
using PathIndex = Id<struct PathIndexTag, std::uint32_t>;  // in StoreConfig::paths

struct Segment {
  SegmentState state = SegmentState::kFree;
  PathIndex path;
  SegmentNumber number;
  SegmentSequence life;                                                  // of the content; 0: none
  RecordSequence min_record{std::numeric_limits<std::uint64_t>::max()};  // of the content
  std::uint32_t readers = 0;                                             // transfers that read from it
  std::uint64_t bytes = 0;                                               // of the index's records
};

class Segments {
 public:
  // Segments of the next path, all free.
  void add_path(std::uint32_t count);

  Segment& at(SegmentIndex segment) { return segments_[segment.value]; }
  const Segment& at(SegmentIndex segment) const { return segments_[segment.value]; }
  SegmentIndex of(PathIndex path, SegmentNumber number) const;
  void step(SegmentIndex segment, SegmentEvent event);
  void set_content(SegmentIndex segment, SegmentSequence life);

  std::uint32_t count(PathIndex path, SegmentState state) const;
  std::uint32_t size() const { return static_cast<std::uint32_t>(segments_.size()); }
  std::uint32_t count(PathIndex path) const { return paths_[path.value].count; }
  // The free segment whose content is the oldest; those without any first.
  std::optional<SegmentIndex> oldest_free(PathIndex path) const;
  // Sealed segments by age, oldest first.
  const std::set<std::pair<SegmentSequence, SegmentIndex>>& sealed(PathIndex path) const {
    return paths_[path.value].sealed;
  }
  // Whether the content of a segment but `but` can hold what a drop at that time ended: its
  // life had begun by then (`newest`), and it has a record up to `sequence`.
  struct Ended {
    SegmentSequence newest;
    RecordSequence sequence;
  };
  bool may_hold(const Ended& ended, std::optional<SegmentIndex> but) const;
  // A path of the set is not here, or not all has been read: segments may hold anything.
  void set_incomplete(bool incomplete) { incomplete_ = incomplete; }

 private:
  struct OnePath {
    std::uint32_t first = 0, count = 0;
    std::uint32_t counts[kSegmentStates] = {};
    std::set<std::pair<SegmentSequence, SegmentIndex>> free, sealed;
  };
  void list(SegmentIndex segment);
  void unlist(SegmentIndex segment);

  std::vector<Segment> segments_;
  std::vector<OnePath> paths_;
  bool incomplete_ = false;
};

}  // namespace orbitkv::ssd
