// The ceiling of the channel bench: 64-byte entries with a sequence number in their
// last word, copied once, no checksum, no bell, no records. Two processes that spin.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "bench/harness.h"

namespace orbitkv::bench {

struct PinnedPair {
  int near_cpu = 0;
  int far_cpu = 0;
};
// The first two usable cores. kReject if there is only one: two spinners on one core
// would measure the scheduler.
Result<PinnedPair> pinned_pair();

// p50 of `pings` round trips between a forked far side and the caller, both pinned.
Result<Duration> bare_ring_ping(PinnedPair cpus, std::size_t pings);

}  // namespace orbitkv::bench
