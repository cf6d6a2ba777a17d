// Spilling: sealed images on their way to the tier. Asks its admission when an image
// seals and again before DRAM lets it go, in a window at the least recent end that is kept
// considered while memory is short, so that eviction finds images that may go. Owned by
// the core; core thread. Never waits: what the tier does not take may be lost to DRAM.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "cache/images.h"
#include "cache/namespaces.h"
#include "cache/tier.h"
#include "mem/pool.h"

namespace orbitkv::cache {

struct SpillStats {
  std::uint64_t stored = 0, failed = 0, refused = 0;  // refused: the tier took it not, once or more
  ByteCount stored_bytes;
};

class Spill : public Keeper {
 public:
  struct Parts {
    Images& images;
    const Namespaces& namespaces;
    const mem::Pool& pool;
    Tier* tier;
  };
  explicit Spill(const Parts& parts) : p_(parts) {}

  // An engine has saved it.
  void sealed(RecordId record);
  // A bounded piece of the window at the least recent end.
  void write_behind();
  // The tier's word on a store of ours. False: not one of ours.
  bool stored(TransferId transfer, bool ok);
  // It did not verify. Before it is dropped.
  void suspect(RecordId record);
  Leave leaving(RecordId record) override;

  const SpillStats& stats() const { return stats_; }

 private:
  Tier::Key key_of(RecordId record) const;
  bool store(RecordId record, const Tier::Key& key);
  ByteCount window() const;

  Parts p_;
  std::unordered_map<TransferId, RecordId> under_way_;
  std::vector<SlotWords> words_;
  SpillStats stats_;
};

}  // namespace orbitkv::cache
