// What a program is made of. An action names its place in time and carries words that are
// read against whatever is there when its turn comes (the how-manieth lease, which chain),
// so that any subset of a program is a program. Pure values. A new action: a kind here, a
// row in actions.cc, and its function in engine.cc or world_faults.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"

namespace orbitkv::sim {

enum class ActionKind : std::uint8_t {
  // What engines do.
  kPublish,
  kDiscover,
  kRead,
  kRecover,  // all pages of a boundary, of all groups
  kPrepare,  // either of them, ahead of need
  kWarm,     // a hint
  kClaim,    // alone or with another one, of what all ranks have; or it ends one, or somebody meddles
  kRestore,
  kRelease,
  kCancel,
  kPollOld,  // a ticket of a list that another one has replaced
  kUnregister,
  kStatus,
  kLeave,  // an engine says goodbye; another one takes its place
  // What the operator does.
  kEvict,
  kDropSpace,
  kDrop,
  kPoolAdd,
  kPoolDrain,
  kUpgrade,  // the Manager makes place for its successor
  kPass,     // seconds in which nobody asks for anything
  // Faults.
  kKillEngine,     // all of its processes, between two of their steps
  kKillWorker,     // one process of it
  kKillAtPoint,    // one process, at a fault point inside the client
  kKillManager,    // between two of its turns
  kKillManagerAt,  // at a fault point inside the Manager
  kLoseWake,
  kDelayWake,
  kDoubleWake,
  kLoseReply,
  kGarbleReply,
  kGarbleCommand,
  kLoseFrame,
  kGarbleFrame,
  kFailCopy,
  kSlowCopy,
  kFlipImage,   // a bit of an image in memory
  kStopEngine,  // its processes do nothing for a while
  kIoError,
  kIoShort,
  kIoDelay,
  kIoFull,
  kIoFlip,
  kJump,           // the clock, over everything that was due
  kStopManager,    // it does nothing for a while
  kPressure,       // the machine has too little memory
  kSlowUnmap,      // a device takes its time to let go of a slab
  kCrowdSessions,  // other processes take all sessions that are left
  kHogMetadata,    // lists so long that the session's metadata is full, and never complete
  kHogTickets,     // more questions than a session may have open
  // Of Managers that leave something to the next.
  kKillStart,     // the Manager dies, and so does the next while it starts
  kLoseStored,    // the store loses what it is given
  kRefuseStored,  // it does not take it, and says so at once or later
  kStallStore,    // it does nothing for a while
  kOtherFormat,   // the next Manager cannot read what is there
  kDamageKept,    // bits flip in what a dead Manager left
  kCount,
};
inline constexpr std::size_t kActionKinds = static_cast<std::size_t>(ActionKind::kCount);

struct Action {
  ActionKind kind = ActionKind::kPass;
  TimePoint time;
  std::uint32_t number = 0;  // in the whole program; names its randomness
  std::array<std::uint64_t, 4> words{};
};
using Program = std::vector<Action>;

struct ActionInfo {
  const char* name;
  bool fault;
  std::uint32_t weight;  // in the usual program
  bool kept = false;     // only where something outlives the Manager
};
const ActionInfo& info_of(ActionKind kind);

}  // namespace orbitkv::sim
