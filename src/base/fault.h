// Named fault points, so that tests can stop, kill or break a process at an exact
// place. Off unless ORBITKV_FAULT is set; then "name:action:hit[,...]", where action
// is `stop` (SIGSTOP), `kill` (SIGKILL), `fail` (fault_hit returns true), `flip`
// (returns true; the site damages one bit) and hit is the 1-based count of the pass
// that triggers, or `*` for every pass. Any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace orbitkv {

enum class FaultPoint : std::uint8_t {
  kClientSubmitted,      // "client_submitted": command sent, reply not read
  kClientGranted,        // "client_granted": grant seen, not claimed
  kClientClaimed,        // "client_claimed": Active, no byte copied
  kClientMidCopy,        // "client_mid_copy": between two images of a plan
  kClientBeforeDrained,  // "client_before_drained": all copied, no receipt yet
  kClientAfterDrained,   // "client_after_drained": receipt published, bell not rung
  kClientDigest,         // "client_digest": digests of a save known, receipt not written; `flip`
                         // damages one bit of one digest, so that the image fails its restore
  kManagerBeforeGrant,   // "manager_before_grant": plan written, not granted
  kManagerBeforeReap,    // "manager_before_reap": receipt read, not reaped
  // Only of a Manager whose blocks outlive it:
  kManagerLent,          // "manager_lent": an extent stands as lent, no grant names it
  kManagerSealed,        // "manager_sealed": a slot stands as sealed, its receipt is not reaped
  kManagerUnsealed,      // "manager_unsealed": a slot stands as free, its extent is not free yet
  kManagerRetireMarked,  // "manager_retire_marked": a slab stands as retiring, nothing else is done
  kManagerAdopted,       // "manager_adopted": the new table is complete, and not stored yet
  kManagerKeptFormat,    // "manager_kept_format": `fail`: what was kept counts as of another format
  kManagerKeptOpen,      // "manager_kept_open": a record of kept memory is being written: its seal is gone
  kManagerNotReady,      // "manager_not_ready": `fail`: it cannot start, after it took over what was kept
  kManagerNoMemory,      // "manager_no_memory": `fail`: the pool finds no memory this time
  kManagerOpening,       // "manager_opening": what is on SSD is being read; `fail`: not in this turn
  kCount,
};

// True if an active fault asks the site to fail here.
bool fault_hit(FaultPoint point);

// Replaces what the environment asked for; an empty text switches everything off.
// kReject names the part that cannot be read, and then nothing is active.
Status configure_faults(std::string_view spec);

// Every pass of every point is told to `hook`, and nothing else happens there: its answer is
// that of fault_hit(). nullptr: none any more, and all is off. For simulation.
using FaultHook = bool (*)(FaultPoint point);
void set_fault_hook(FaultHook hook);

}  // namespace orbitkv
