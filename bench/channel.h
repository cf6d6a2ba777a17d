// `orbitkv bench channel`: round trips to a Manager over a session's channel. `ping`:
// full command and reply, encode, CRC and ring, both sides spinning on pinned cores;
// `ping_asleep`: both sides sleep between calls, so that each call pays for both wakes.
// The ceiling of both is a bare 64-byte ring ping between the same two cores in one run.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "bench/harness.h"
#include "shm/channel.h"

namespace orbitkv::bench {

// An attached client end, whatever answers on the other one.
struct PingTarget {
  shm::ClientChannel& channel;
  Epoch epoch;
};
enum class PingMode : std::uint8_t { kSpinning, kAsleep };

// p50 and p99 of a run of pings; the caller is pinned already. kReconnect: no answer
// within a second; kBug: an answer that does not belong to the ping.
Result<Run> measure_pings(PingTarget target, PingMode mode);

// Returns the exit status: 0, or 1 on a wrong answer or a dead Manager.
int run_channel_bench(const Options& options);

}  // namespace orbitkv::bench
