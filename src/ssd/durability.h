// When what was written is durable: one fdatasync a path at a time, asked for or due by
// age, and who waits for it. Owned by the store; its thread only. Never calls a sync that
// failed a success later: the path stops writing until the next start, and the records
// that it covered go.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ssd/store_state.h"

namespace orbitkv::ssd {

class Durability {
 public:
  using Done = std::function<void(bool ok)>;

  // `failed`: what else was not durable on a path that failed is lost or written again.
  Durability(StoreState& state, std::function<void(PathIndex)> failed)
      : state_(state), failed_(std::move(failed)), lanes_(state.paths.size()) {}

  // `done` after a sync that starts from now on. At the earliest in step().
  void sync(PathIndex path, Done done);
  // After such a sync of every path on which something is not durable.
  void sync_all(Done done);
  // A write ended; of its batch, these are in the index now.
  void written(PathIndex path, std::span<const StoredRef> records);

  void step();
  bool idle() const;      // nothing is not durable, nobody waits
  TimePoint due() const;  // of the next sync by age

 private:
  struct Lane {
    std::vector<Done> waiting, running;
    std::vector<StoredRef> written, syncing;  // the latter: covered by the sync in flight
    bool dirty = false;                       // written, and no sync in flight covers it
    bool in_flight = false;
    TimePoint since;  // when it became dirty
  };
  void start(PathIndex path);
  void ended(PathIndex path, int error);
  void fail(PathIndex path, int error);

  StoreState& state_;
  std::function<void(PathIndex)> failed_;
  std::vector<Lane> lanes_;
};

}  // namespace orbitkv::ssd
