// Restores: a range of a lease becomes a grant with pins of its own; the receipt
// returns them and drops what did not verify. Blocks of an early lease that are on their
// way are awaited, apart from restores that need not wait. Owned by the core;
// single-threaded. A refused restore consumes nothing and pins nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "cache/grants.h"
#include "cache/images.h"
#include "cache/leases.h"
#include "cache/operations.h"
#include "cache/scratch_set.h"
#include "cache/spill.h"

namespace orbitkv::cache {

struct RestoreStats {
  std::uint64_t restored = 0, restored_bytes = 0;  // slots and their bytes, of successes
  std::uint64_t failed_restores = 0, failed_verifications = 0, waits = 0, awaited = 0;
};

class Restorer {
 public:
  struct Parts {
    Ports& ports;
    Images& images;
    Budgets& budgets;
    Leases& leases;
    Leftovers& leftovers;
    Operations& operations;
    Grants& grants;
    Spill& spill;
  };
  explicit Restorer(const Parts& parts) : p_(parts) {}

  Result<std::uint32_t> restore(const RestoreInput& in, Registration& registration, TimePoint now);
  void drained(OperationIndex index, const DrainReport& report);
  void withdraw(OperationIndex index, const Error& why);
  void lost(OperationIndex index);
  // Claimed: its pins on sources on a slab that retires end; the client's own mapping still
  // has their bytes. Without any other the operation is an orphan and returns its credits.
  void detach(OperationIndex index, SlabSlot slab);
  // Loads have ended, a device has room, or time has passed: awaiting ones go on or give up.
  void wake(TimePoint now);

  const RestoreStats& stats() const { return stats_; }

 private:
  Result<Lease*> usable_lease(const RestoreInput& in, const Registration& registration, TimePoint now);
  Status check_targets(const RestoreInput& in, const Registration& registration);
  // True: some are on their way.
  Result<bool> check_sources(const RestoreInput& in, const Lease& lease, TimePoint now) const;
  void take_entries(Operation& op, const RestoreInput& in, const Lease& lease);
  void drop_failed(const Operation& op, const DrainReport& report);
  void grant(OperationIndex index);
  bool go_on(OperationIndex index, TimePoint now);
  void finish(OperationIndex index);
  void drop_charge(Operation& op);

  Parts p_;
  std::vector<OperationIndex> awaiting_;  // oldest first
  ScratchSet targets_;
  RestoreStats stats_;
};

}  // namespace orbitkv::cache
