// Writes superblocks while the store runs: the list of dropped namespaces, on every path,
// one copy after the other with a sync behind each; and the probe of a path that stopped
// writing. Owned by the store; its thread only. Never has both copies on their way.
#pragma once

#include <cstdint>
#include <vector>

#include "ssd/durability.h"
#include "ssd/store_state.h"

namespace orbitkv::ssd {

class Superblocks {
 public:
  Superblocks(StoreState& state, Durability& durability)
      : state_(state), durability_(durability), lanes_(state.paths.size()) {}

  // As found at open(): the same on every path.
  void recovered(const std::vector<SpaceDrop>& drops, SegmentSequence newest);
  // Adds to the list and writes it; `transfer` is reported as flushed when every path has it.
  // kBusy: limits::kSpaceDrops, none of which can go.
  Status drop(const SpaceDrop& drop, TransferId transfer);
  // Tries paths whose time has come.
  void step();
  TimePoint due() const;  // of the next try
  bool idle() const { return waiting_.empty() && in_flight_ == 0; }

 private:
  struct Entry {
    SpaceDrop drop;
    SegmentSequence newest;  // life that may hold records of it
  };
  struct Lane {
    bool busy = false, again = false;
    std::uint64_t version = 0;  // of the list that is being written
    PageBuffer page;
  };
  struct Waiting {
    TransferId transfer;
    std::uint64_t version = 0;
    std::uint32_t paths = 0;  // still to come
    std::uint64_t done = 0;   // a bit a path: limits::kStorePaths fit
    bool ok = true;
  };

  void forget_old();
  bool may_try(PathIndex path) const;  // it has stopped, and nothing of it is on its way
  void write(PathIndex path);
  void write_copy(PathIndex path, std::uint32_t nth);
  void copy_ended(PathIndex path, std::uint32_t nth, int error);
  void ended(PathIndex path, bool ok);

  StoreState& state_;
  Durability& durability_;
  std::vector<Entry> drops_;
  std::vector<Lane> lanes_;
  std::vector<Waiting> waiting_;
  std::uint64_t version_ = 0;
  std::uint32_t in_flight_ = 0;
};

}  // namespace orbitkv::ssd
