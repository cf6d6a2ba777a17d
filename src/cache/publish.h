// Publishes: filter what is there, wait for other publishers of the same block, for the tier where
// it loads one and at the start for memory, lend slots, commit or return them by receipt. Owned by the core;
// single-threaded. While it waits an operation holds nothing; lent slots never come back on a timer.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "cache/grants.h"
#include "cache/images.h"
#include "cache/instances.h"
#include "cache/leases.h"
#include "cache/operations.h"
#include "cache/scratch_set.h"
#include "cache/spill.h"

namespace orbitkv::cache {

struct PublishStats {
  std::uint64_t published = 0, published_bytes = 0;  // slots and their bytes
  std::uint64_t filtered = 0, dropped = 0, waits = 0;
};

class Publisher final : public Publishing {
 public:
  struct Parts {
    Ports& ports;
    Images& images;
    Instances& instances;
    Operations& operations;
    Grants& grants;
    Spill& spill;
    Duration wait;
    std::uint32_t turn_hashes = limits::kLookUpsPerTurn;  // of those that look again
  };
  explicit Publisher(const Parts& parts) : p_(parts) {}

  Result<PublishAnswer> publish(const PublishInput& in, Registration& registration, TimePoint now);
  // Granted or claimed: the client's receipt.
  void drained(OperationIndex index, const DrainReport& report, TimePoint now);
  // The session closed. Claimed work stays.
  void withdraw(OperationIndex index, const Error& why, TimePoint now);
  // The process ended without a receipt: what was claimed is quarantined.
  void lost(OperationIndex index, TimePoint now);
  // Claimed: its slots on a slab that retires are quarantined there. What is on other slabs
  // may still be committed; without any the operation is an orphan and returns its credits.
  void detach(OperationIndex index, SlabSlot slab, TimePoint now);
  // A load of the image that some wait for has ended: it is there, or theirs to write. The
  // record may be gone.
  void wake(RecordId record, TimePoint now);
  // Those that have waited long enough go on without the blocks of others; those that waited for
  // memory when there is some.
  void tick(TimePoint now);
  // Those whose wait is over look again, as many as a turn looks up; the others with the next one.
  bool more() const { return !woken_.empty(); }
  void begin_call() { looks_ = p_.turn_hashes; }
  void turn(TimePoint now);

  bool saved_by_others(RecordId record, const InstanceId& instance, TimePoint now) const override;

  const PublishStats& stats() const { return stats_; }

 private:
  Status check(const PublishInput& in, const Registration& registration) const;
  std::uint32_t take_list(Operation& op, const PublishInput& in);
  PublishAnswer advance(OperationIndex index, TimePoint now);
  // Whom an operation waits for: another one, the load of an image, or the first memory.
  struct Blocker {
    OperationIndex operation = kNoOperation;
    RecordId load = kNoRecord;
    bool memory = false;
    explicit operator bool() const { return operation != kNoOperation || load != kNoRecord || memory; }
  };
  PublishAnswer classify(const Operation& op, Blocker& blocker) const;
  void lend_wanted(OperationIndex index, PublishAnswer& answer);
  void wait_for(OperationIndex index, const Blocker& blocker);
  template <class Which>
  void wake_if(Which which);
  void stop_waiting(OperationIndex index);
  void look_up(const Operation& op);
  SlotState state_of(const Operation& op, std::size_t i, OperationIndex* owner) const;
  void commit(const Operation& op, std::size_t i, std::uint64_t digest, TimePoint now);
  void finish(OperationIndex index, TimePoint now);
  void wake_waiting(OperationIndex index, TimePoint now);

  Parts p_;
  struct Waiting {
    OperationIndex index;
    Blocker blocker;
  };
  std::vector<Waiting> waiting_;      // oldest first
  std::deque<OperationIndex> woken_;  // that look again
  bool looking_ = false;
  std::size_t looks_ = limits::kLookUpsPerTurn;  // left of this call
  std::vector<Lookup> lookups_;                  // of the list at hand
  ScratchSet repeats_;
  PublishStats stats_;
};

}  // namespace orbitkv::cache
