// Loads: block images on their way from the tier. Lends the slots, queues them in lanes
// (cache/lanes.h), submits as far as the tier takes them, and knows who waits for which; one
// read serves all who ask. Owned by cache/leases.h; core thread. Never gives back a slot that
// the tier has been told of before the tier says so; bounded by limits::kLoads and half of the
// pool as configured.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "cache/budgets.h"
#include "cache/images.h"
#include "cache/lanes.h"
#include "cache/namespaces.h"
#include "cache/tier.h"
#include "cache/transitions.h"

namespace orbitkv::cache {

// A lease that has a load in its run, at this position first.
struct LoadWaiter {
  LeaseIndex lease;
  std::uint32_t position = 0;
};

struct LoadStats {
  std::uint64_t started = 0, shared = 0;  // shared: joined one that was there
  std::uint64_t landed = 0, failed = 0, gone = 0, abandoned = 0;
  std::uint64_t refused_memory = 0, refused_bounds = 0;
  ByteCount landed_bytes;
};

class Loads {
 public:
  struct Parts {
    Images& images;
    Namespaces& namespaces;
    Budgets& budgets;
    ByteCount most;  // on their way at once
    Tier* tier;
  };
  explicit Loads(const Parts& parts) : p_(parts) {}

  struct Want {
    const BlockKey& key;
    TierRef stored;
    std::uint16_t shards = 1;
    ByteCount slot_bytes;
    const ShardNodes* near = nullptr;  // of who asks
    Use use = Use::kForeground;        // kSpeculative: it lands reclaimable
  };
  // Lends the slots of an absent image and queues it, or finds that it is queued already.
  // kNoRecord: no memory, a bound, or publishers have the image in hand. Evicts.
  RecordId start(const Want& want, LeaseIndex lane);
  // Its turn comes as soon as that of the most urgent of those who wait. Positions rise. False: the
  // lease waits for it already.
  bool join(RecordId record, const LoadWaiter& waiter);
  // The last one who leaves takes along what the tier has not been told of. What it has been told of is
  // charged to `account` until it ends.
  void leave(RecordId record, LeaseIndex lease, AccountIndex account);
  Lanes& lanes() { return lanes_; }

  bool submitted(RecordId record) const {
    return loads_[p_.images.tag(record)].state == LoadState::kSubmitted;
  }

  // What has ended; its record may be gone, or is kept by the pins of its waiters.
  struct Ended {
    bool ok = false;
    std::vector<LoadWaiter> waiters;
  };
  bool queued() const { return !lanes_.empty() && !busy_; }
  // Tells the tier of those next in line until it is busy, or one turns out to be gone: that
  // one, and there may be more. nullptr: nothing to do now.
  const Ended* submit();
  const Ended* end(TransferId transfer, bool ok);  // nullptr: not one of ours
  void tier_ready() { busy_ = false; }
  // Of namespaces that are dropped: whatever lands is not what is asked for any more.
  void doom(const std::vector<bool>& name_spaces);
  // Those with a slot on a slab that retires.
  void doom(SlabSlot slab);
  // One of the doomed that the tier has not been told of, and there may be more. nullptr: none.
  const Ended* fail_doomed();
  // Records whose loads have ended since the last call, however: publishers may wait for them.
  std::vector<RecordId> take_ended() { return std::exchange(ended_records_, {}); }

  const LoadStats& stats() const { return stats_; }
  void count(Census& census) const;
  std::uint32_t count() const { return static_cast<std::uint32_t>(loads_.size() - free_.size()); }
  ByteCount bytes() const { return bytes_; }
  ByteCount draining() const;  // recounted

 private:
  struct Load {
    RecordId record = kNoRecord;
    TierRef stored;
    LoadState state = LoadState::kEnded;
    bool doomed = false;
    ByteCount bytes;
    ByteCount charge;                   // as whoever asks is charged
    AccountIndex drainer = kNoAccount;  // whom it is charged to though nobody waits
    TransferId transfer;
    std::vector<LoadWaiter> waiters;
  };

  Load& load_of(RecordId record) { return loads_[p_.images.tag(record)]; }
  bool within_bounds(ByteCount bytes) const;
  std::uint32_t take();
  void move(std::uint32_t index, LeaseIndex lane);
  template <class Of>
  void doom_if(Of of);
  void go_on_without(std::uint32_t index, LeaseIndex left);
  void stop_draining(Load& load);
  Result<TransferId> tell(const Load& load);
  const Ended* report(std::uint32_t index, LoadEvent event);
  void finish(std::uint32_t index, LoadEvent event);
  static std::vector<LoadWaiter>::iterator waiter_of(Load& load, LeaseIndex lease);

  Parts p_;
  std::deque<Load> loads_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<TransferId, std::uint32_t> by_transfer_;
  std::size_t next_doomed_ = 0;  // of loads_, those before it have been looked at since the last doom()
  Lanes lanes_;                  // those that are queued
  bool busy_ = false;            // the tier said so
  ByteCount bytes_;              // on their way, queued included
  Ended ended_;                  // the last one reported
  std::vector<RecordId> ended_records_;
  std::vector<mem::Extent::Words> words_;
  std::vector<LoadedSlot> marks_;
  LoadStats stats_;
};

}  // namespace orbitkv::cache
