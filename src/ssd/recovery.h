// The second half of opening a store: from what the scan finds to index, spaces, tombstones
// and segment states; then seals what the last life left unsealed. Owned by the store, which
// steps it in its turns; each step is a bounded piece of work and none waits. Of two records of
// a key the higher sequence wins; drops of namespaces and tombstones are applied before anybody
// can look. Never appends to a segment that it found.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "ssd/durability.h"
#include "ssd/open_state.h"
#include "ssd/scan.h"
#include "ssd/store_state.h"
#include "ssd/tombstones.h"

namespace orbitkv::ssd {

class Recovery {
 public:
  struct Parts {
    StoreState& state;
    Tombstones& tombstones;
    Durability& durability;
    bool incomplete = false;  // a path of the set is not here
  };
  // `drops`: of open_paths().
  Recovery(const Parts& parts, const std::vector<SpaceDrop>& drops);

  OpenState state() const { return open_; }
  void step();
  // Only the device brings it on: step() had nothing to do.
  bool rests() const { return rests_; }
  // A namespace is dropped meanwhile: what is found of it from now on is gone. What was found is
  // the caller's.
  void drop(const SpaceDrop& drop);
  // The store is to close. While it reads: nothing is written of what it found.
  void close() { ssd::step(open_, OpenEvent::kClose); }
  OpenProgress progress() const;

 private:
  // What is left when all is read, in this order.
  enum class Settle : std::uint8_t { kTombstones, kDrops, kSync, kSeal, kFree, kHeat, kEnd };
  struct Unsealed {
    SegmentIndex segment;
    SegmentFound found;
    EntryList entries;
  };
  // The segment whose entries are being taken.
  struct InHand {
    SegmentIndex index;
    SegmentFound found;
    std::size_t record = 0, tombstone = 0;  // the next ones
  };

  void read();
  void begin(const SegmentFound& segment);
  std::uint32_t take_some(std::uint32_t most);
  void end_segment();
  void take_spaces(const EntryList& entries);
  void take(SegmentIndex segment, const RecordEntry& entry, std::span<const ImageMark> marks);
  void tell_progress();
  void settle();
  bool apply_tombstones();
  void apply(const Tombstone& tombstone);
  bool drop_some();
  bool sync_all();
  bool seal_all();
  void seal(const Unsealed& each);
  void sync(PathIndex path);
  bool free_some();
  bool heat_some();
  void end();

  StoreState& state_;
  Tombstones& tombstones_;
  Durability& durability_;
  const bool incomplete_;
  Scan scan_;
  OpenState open_ = OpenState::kReading;
  bool rests_ = false;
  std::map<model::NamespaceDigest, RecordSequence> drops_;
  std::optional<InHand> in_hand_;
  std::map<LocalSpace, SpaceIndex> local_;  // of the segment in hand
  std::vector<Unsealed> unsealed_;
  SegmentSequence newest_;
  std::uint64_t index_full_ = 0;  // blocks that found no place in the index
  TimePoint begun_;

  Settle settle_ = Settle::kTombstones;
  TombstoneId last_tombstone_;
  bool drops_of_log_ = false;
  bool syncs_begun_ = false;
  std::uint32_t under_way_ = 0;  // writes and syncs
  std::size_t next_unsealed_ = 0;
  PageBuffer seal_;
  std::uint32_t next_segment_ = 0;
  std::size_t hot_ = 0;  // of hardly_filled
};

}  // namespace orbitkv::ssd
