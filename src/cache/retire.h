// The retirement of a slab, as far as the core holds something there: takes its images out
// of sight, its grants back, waits a bounded time for claimed copies and then goes on
// without them, and for the tier as long as that takes. Owned by the core; single-threaded;
// one slab at a time, bounded work a turn. Never gives a byte of the slab to anybody again.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "cache/images.h"
#include "cache/leases.h"
#include "cache/loads.h"
#include "cache/operations.h"
#include "cache/publish.h"
#include "cache/restore.h"
#include "cache/transitions.h"
#include "mem/pool.h"

namespace orbitkv::cache {

class Retirer {
 public:
  struct Parts {
    mem::Pool& pool;
    Images& images;
    Loads& loads;
    Leases& leases;
    Operations& operations;
    Publisher& publisher;
    Restorer& restorer;
    Duration store_wait;  // for the tier to take what is worth storing
    Duration claim_wait;  // for claimed copies, from when no more can begin
    std::uint32_t looks;  // records and slots that a turn looks at
  };
  explicit Retirer(const Parts& parts) : p_(parts) {}

  // kBusy: another one retires. kReject: the slab is not offered.
  Status begin(SlabSlot slab, TimePoint now);
  // True: there is more to do at once; false: time, a receipt or the tier must come first.
  bool turn(TimePoint now);
  // From kDrained: the pool lets go of it.
  void abandon();

  RetireReport report() const;
  // Claimed copies of the session that may be under way on the slab.
  std::uint32_t claims(SessionId session) const;
  const RetireStats& stats() const { return stats_; }

 private:
  bool sweep_images(TimePoint now);
  bool sweep_grants(TimePoint now);
  void take_grant_back(OperationIndex index, TimePoint now);
  void settle_claims(TimePoint now);
  bool strip();
  bool touches(const Operation& op) const;

  Parts p_;
  RetireState state_ = RetireState::kIdle;
  SlabSlot slab_;
  std::uint32_t next_ = 0;  // record, operation or entry of left_ that is looked at next
  TimePoint store_end_, claims_end_;
  std::vector<RecordId> left_;  // had slots there when the sweep passed them
  std::vector<OperationKey> claimed_;
  RetireStats stats_;
};

}  // namespace orbitkv::cache
