// What the core's tables hold, counted object by object and not from running counters: for
// those who check that the counters are right, and which states there are. Pure values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/ids.h"
#include "cache/transitions.h"

namespace orbitkv::cache {

struct Census {
  template <class State>
  using Counts = std::array<std::uint32_t, static_cast<std::size_t>(State::kIllegal)>;

  Counts<SessionState> sessions{};
  Counts<PublishState> publishes{};
  Counts<RestoreState> restores{};
  Counts<ImageState> images{};  // kFree: not counted
  Counts<LoadState> loads{};    // kEnded: not counted
  Counts<LeaseState> leases{};  // kRetired: not counted
  // Likewise.
  Counts<RecoveryState> recoveries{};
  Counts<InterestState> interests{};  // kClosed: there are none
  std::uint32_t owned = 0;            // queries and recoveries of interests
  std::uint32_t owners = 0;           // interests that have one, as they know
  RetireState retire = RetireState::kIdle;
  ByteCount held;                  // extents of the pool that images have, in any state
  ByteCount charged;               // by leases, restores of leases that ended, and reads that drain
  std::uint32_t tickets = 0;       // unfinished: prefixes and recoveries
  std::uint64_t load_waiters = 0;  // a lease and a load that it waits for once
  std::uint64_t pins = 0;          // as the records count them
  std::uint64_t pinned = 0;        // as leases, queries and restores hold them
};

}  // namespace orbitkv::cache
