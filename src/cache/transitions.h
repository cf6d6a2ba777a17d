// The state machines of the core as tables: state x event -> next state. A cell that
// says kIllegal is a bug of ours, never an input from outside: step() stops the
// daemon there. transitions_test.cc holds every expected cell. Pure.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace orbitkv::cache {

template <class State, class Event>
struct Transitions {
  static constexpr std::size_t kStates = static_cast<std::size_t>(State::kIllegal);
  static constexpr std::size_t kEvents = static_cast<std::size_t>(Event::kCount);
  std::array<std::array<State, kEvents>, kStates> cells;
  constexpr State next(State from, Event event) const {
    if (from == State::kIllegal || event == Event::kCount) return State::kIllegal;
    return cells[static_cast<std::size_t>(from)][static_cast<std::size_t>(event)];
  }
};

// ---- session ----

enum class SessionState : std::uint8_t {
  kAbsent,   // the slot was never used
  kOpen,     // serves
  kStalled,  // its engine gives no sign of life: no new work, claimed work is outstanding
  kClosing,  // closed; claimed work is outstanding
  kGone,     // closed; holds nothing but quarantine; the slot may be opened again
  kIllegal,
};
enum class SessionEvent : std::uint8_t {
  kOpened,
  kStalled,
  kRevived,
  kClosed,
  kProcessEnded,
  kEmptied,
  kCount
};

namespace detail {
using S = SessionState;
inline constexpr Transitions<SessionState, SessionEvent> kSession{{{
    // kOpened, kStalled, kRevived, kClosed, kProcessEnded, kEmptied
    {{S::kOpen, S::kIllegal, S::kIllegal, S::kIllegal, S::kIllegal, S::kIllegal}},     // kAbsent
    {{S::kIllegal, S::kStalled, S::kIllegal, S::kClosing, S::kClosing, S::kIllegal}},  // kOpen
    {{S::kIllegal, S::kIllegal, S::kOpen, S::kClosing, S::kClosing, S::kIllegal}},     // kStalled
    {{S::kIllegal, S::kIllegal, S::kIllegal, S::kClosing, S::kClosing, S::kGone}},     // kClosing
    {{S::kOpen, S::kIllegal, S::kIllegal, S::kGone, S::kGone, S::kIllegal}},           // kGone
}}};
}  // namespace detail

// ---- publish ----

enum class PublishState : std::uint8_t {
  kSubmitted,  // validated, nothing reserved
  kWaiting,    // another operation has one of its blocks in flight; nothing reserved
  kReserved,   // extents lent, grant not written (plan bank full)
  kGranted,    // the client may claim it or may have
  kClaimed,    // a revoke came too late: only a receipt or the process's end frees it
  kOrphaned,   // likewise, and every slot was taken away with its slab: nothing will be kept
  kEnded,
  kIllegal,
};
enum class PublishEvent : std::uint8_t {
  kWait,     // blocked by another publisher
  kReserve,  // extents were lent
  kNothing,  // nothing is left to copy
  kBankFull,
  kGrant,
  kCommit,     // receipt: success
  kFail,       // receipt: failure
  kWithdraw,   // session closed, client had not claimed
  kClaimSeen,  // session closed, client had claimed
  kLost,       // process ended without a receipt
  kDetach,     // its last slot goes with a slab
  kCount,
};

namespace detail {
using P = PublishState;
inline constexpr Transitions<PublishState, PublishEvent> kPublish{{{
    // kWait, kReserve, kNothing, kBankFull, kGrant, kCommit, kFail, kWithdraw, kClaimSeen, kLost, kDetach
    {{P::kWaiting, P::kReserved, P::kEnded, P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal,
      P::kIllegal, P::kIllegal, P::kIllegal}},  // kSubmitted
    {{P::kWaiting, P::kReserved, P::kEnded, P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal, P::kEnded,
      P::kIllegal, P::kIllegal, P::kIllegal}},  // kWaiting
    {{P::kIllegal, P::kIllegal, P::kIllegal, P::kReserved, P::kGranted, P::kIllegal, P::kIllegal, P::kEnded,
      P::kIllegal, P::kIllegal, P::kIllegal}},  // kReserved
    {{P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal, P::kEnded, P::kEnded, P::kEnded,
      P::kClaimed, P::kIllegal, P::kIllegal}},  // kGranted
    {{P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal, P::kEnded, P::kEnded, P::kIllegal,
      P::kClaimed, P::kEnded, P::kOrphaned}},  // kClaimed
    {{P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal, P::kEnded, P::kEnded, P::kIllegal,
      P::kOrphaned, P::kEnded, P::kIllegal}},  // kOrphaned
    {{P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal, P::kIllegal,
      P::kIllegal, P::kIllegal, P::kIllegal}},  // kEnded
}}};
}  // namespace detail

// ---- block image ----

enum class ImageState : std::uint8_t {
  kFree,
  kLent,        // publishers write it: a slot is lent or committed, not all are committed
  kSealed,      // every shard has committed or landed: visible
  kDropped,     // failed verification; out of the index, still pinned or being stored
  kLoading,     // the tier writes it, or it waits for that; a place that leases may pin
  kLoadFailed,  // no bytes any more, out of the index; pinned by those who waited for it
  kIllegal,
};
enum class ImageEvent : std::uint8_t {
  kLend,      // a first slot to a publisher
  kLoad,      // all slots to the tier
  kSeal,      // the last shard has committed
  kGone,      // its last slot was given back, or it is abandoned; nothing pins it
  kLanded,    // the tier has filled every slot
  kLoadFail,  // it has not, and somebody still pins the record
  kDrop,
  kUnheld,  // the last pin or store of an image that is out of sight has ended
  kEvict,
  kClose,  // the core ends
  kCount,
};

namespace detail {
using I = ImageState;
inline constexpr Transitions<ImageState, ImageEvent> kImage{{{
    // kLend, kLoad, kSeal, kGone, kLanded, kLoadFail, kDrop, kUnheld, kEvict, kClose
    {{I::kLent, I::kLoading, I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal,
      I::kIllegal, I::kIllegal}},  // kFree
    {{I::kIllegal, I::kIllegal, I::kSealed, I::kFree, I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal,
      I::kIllegal, I::kFree}},  // kLent
    {{I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal, I::kDropped, I::kIllegal,
      I::kFree, I::kFree}},  // kSealed
    {{I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal, I::kFree,
      I::kIllegal, I::kFree}},  // kDropped
    {{I::kIllegal, I::kIllegal, I::kIllegal, I::kFree, I::kSealed, I::kLoadFailed, I::kIllegal, I::kIllegal,
      I::kIllegal, I::kFree}},  // kLoading
    {{I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal, I::kIllegal, I::kFree,
      I::kIllegal, I::kFree}},  // kLoadFailed
}}};
}  // namespace detail

// ---- a load of one image from the tier ----

enum class LoadState : std::uint8_t {
  kQueued,     // slots are lent, the tier has not been told
  kSubmitted,  // the tier writes; only its word ends it
  kEnded,
  kIllegal,
};
enum class LoadEvent : std::uint8_t {
  kAccept,   // the tier has taken it
  kGone,     // the tier has it no more
  kAbandon,  // the last one who waited left before it was submitted
  kLanded,
  kFailed,
  kCount,
};

namespace detail {
using Q = LoadState;
inline constexpr Transitions<LoadState, LoadEvent> kLoad{{{
    // kAccept, kGone, kAbandon, kLanded, kFailed
    {{Q::kSubmitted, Q::kEnded, Q::kEnded, Q::kIllegal, Q::kIllegal}},    // kQueued
    {{Q::kIllegal, Q::kIllegal, Q::kIllegal, Q::kEnded, Q::kEnded}},      // kSubmitted
    {{Q::kIllegal, Q::kIllegal, Q::kIllegal, Q::kIllegal, Q::kIllegal}},  // kEnded
}}};
}  // namespace detail

// ---- query and lease: one object from the first part of a read to its retirement ----

enum class LeaseState : std::uint8_t {
  kCollecting,  // parts are still to come; what is in memory of the run so far is pinned
  kWaiting,     // all parts are there, but no budget: holds nothing, its hashes are kept
  kTaking,      // charged; what was kept of the run is looked up, pinned and loaded over turns
  kLoading,     // blocks of the run are on their way from the tier
  kReady,       // leased, no shard has consumed anything; of an early lease some blocks may be on their way
  kConsuming,   // some rank has consumed some range
  kMissed,      // ended with nothing to lease, and nobody has been told: holds no pin
  kRetired,     // pins returned; the object is about to be reused
  kIllegal,
};
enum class LeaseEvent : std::uint8_t {
  kPart,         // a part that is not the last
  kLastPart,     // all is there, with a run to lease
  kLastLoading,  // all parts are there, blocks of the run are on their way
  kLastEmpty,    // the last part, nothing to lease
  kLastWaits,    // the last part, and no budget for the run
  kTakes,        // it has its charge, and too much was kept to be looked up at once
  kLanded,       // what is left of the run is in memory, or (early lease) as good as
  kLandedEmpty,  // and nothing is left of it
  kSameList,     // the whole list was asked again, unchanged
  kNewList,      // another list under the same identity, or the same after a consumption
  kConsume,      // a rank took a range, more is left for some rank
  kConsumeLast,  // the last range of the last rank
  kRelease,
  kCancel,  // by name, or its session or instance ended
  kExpire,
  kTold,  // a reply says that there is nothing
  kCount,
};

namespace detail {
using L = LeaseState;
inline constexpr Transitions<LeaseState, LeaseEvent> kLease{{{
    // kPart, kLastPart, kLastLoading, kLastEmpty, kLastWaits, kTakes, kLanded, kLandedEmpty, kSameList,
    // kNewList, kConsume, kConsumeLast, kRelease, kCancel, kExpire, kTold
    {{L::kCollecting, L::kReady, L::kLoading, L::kRetired, L::kWaiting, L::kTaking, L::kIllegal, L::kIllegal,
      L::kIllegal, L::kCollecting, L::kIllegal, L::kIllegal, L::kIllegal, L::kRetired, L::kRetired,
      L::kIllegal}},  // kCollecting
    {{L::kIllegal, L::kReady, L::kLoading, L::kIllegal, L::kIllegal, L::kTaking, L::kIllegal, L::kMissed,
      L::kWaiting, L::kCollecting, L::kIllegal, L::kIllegal, L::kIllegal, L::kRetired, L::kIllegal,
      L::kIllegal}},  // kWaiting
    {{L::kIllegal, L::kReady, L::kLoading, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kMissed,
      L::kTaking, L::kCollecting, L::kIllegal, L::kIllegal, L::kIllegal, L::kRetired, L::kIllegal,
      L::kIllegal}},  // kTaking
    {{L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kReady, L::kMissed,
      L::kLoading, L::kCollecting, L::kIllegal, L::kIllegal, L::kIllegal, L::kRetired, L::kRetired,
      L::kIllegal}},  // kLoading
    {{L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal,
      L::kReady, L::kCollecting, L::kConsuming, L::kRetired, L::kRetired, L::kRetired, L::kRetired,
      L::kIllegal}},  // kReady
    {{L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal,
      L::kIllegal, L::kCollecting, L::kConsuming, L::kRetired, L::kRetired, L::kRetired, L::kRetired,
      L::kIllegal}},  // kConsuming
    {{L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal,
      L::kIllegal, L::kCollecting, L::kIllegal, L::kIllegal, L::kIllegal, L::kRetired, L::kRetired,
      L::kRetired}},  // kMissed
    {{L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal,
      L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal, L::kIllegal,
      L::kIllegal}},  // kRetired
}}};
}  // namespace detail

// ---- recovery: one object for one list ----

enum class RecoveryState : std::uint8_t {
  kCollecting,  // parts are still to come; nothing is held
  kWaiting,     // there is no budget or no room now; nothing is held
  kTaking,      // charged; all of it is looked up, and pinned where it is in memory, over turns
  kLoading,     // all of it is pinned, some of it is on its way from the tier
  kReady,       // leased, one lease a group
  kMissed,      // ended without, and nobody has been told: nothing is held
  kRetired,
  kIllegal,
};
enum class RecoveryEvent : std::uint8_t {
  kPart,      // a part that is not the last
  kInMemory,  // all of it was in memory, and is leased
  kLoads,     // all of it is pinned, the rest is being loaded
  kTakes,     // it has its charge, and is too long to be looked up at once
  kNoRoom,    // no budget, or it could not be pinned and loaded as a whole
  kLanded,    // the last page has landed
  kFail,      // a page is nowhere or did not come; the wait is over; it is too large
  kSameList,  // the whole list was asked again, unchanged
  kEmptied,   // the last of its leases has ended
  kTold,      // a reply says that there is nothing
  kCancel,    // by name or by another list, or its session or instance ended
  kExpire,
  kCount,
};

namespace detail {
using V = RecoveryState;
inline constexpr Transitions<RecoveryState, RecoveryEvent> kRecovery{{{
    // kPart, kInMemory, kLoads, kTakes, kNoRoom, kLanded, kFail, kSameList, kEmptied, kTold, kCancel, kExpire
    {{V::kCollecting, V::kReady, V::kLoading, V::kTaking, V::kWaiting, V::kIllegal, V::kMissed, V::kIllegal,
      V::kIllegal, V::kIllegal, V::kRetired, V::kRetired}},  // kCollecting
    {{V::kIllegal, V::kReady, V::kLoading, V::kTaking, V::kWaiting, V::kIllegal, V::kMissed, V::kWaiting,
      V::kIllegal, V::kIllegal, V::kRetired, V::kIllegal}},  // kWaiting
    {{V::kIllegal, V::kReady, V::kLoading, V::kIllegal, V::kWaiting, V::kIllegal, V::kMissed, V::kTaking,
      V::kIllegal, V::kIllegal, V::kRetired, V::kIllegal}},  // kTaking
    {{V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kReady, V::kMissed, V::kLoading,
      V::kIllegal, V::kIllegal, V::kRetired, V::kIllegal}},  // kLoading
    {{V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kReady,
      V::kRetired, V::kIllegal, V::kRetired, V::kRetired}},  // kReady
    {{V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal,
      V::kIllegal, V::kRetired, V::kRetired, V::kRetired}},  // kMissed
    {{V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal,
      V::kIllegal, V::kIllegal, V::kIllegal, V::kIllegal}},  // kRetired
}}};
}  // namespace detail

// ---- interest: the newest operation of one ----

enum class InterestState : std::uint8_t {
  kCollecting,  // parts of its list are to come
  kAcquiring,   // its query or recovery waits or loads
  kAcquired,    // what it asks for is held, and nobody has been given a lease
  kMissed,      // there is nothing to hold
  kClaimed,     // leased; held over the last consumption
  kEnded,       // nothing is held, or there was no operation yet
  kClosed,      // the object is about to be reused
  kIllegal,
};
enum class InterestEvent : std::uint8_t {
  kPart,   // a part that is not the last
  kLoads,  // all parts are there, and it is waited for
  kReady,
  kMiss,
  kNewer,  // a newer operation takes its place
  kClaim,
  kCancel,
  kLost,  // its query or recovery has ended by itself
  kClose,
  kCount,
};

namespace detail {
using N = InterestState;
inline constexpr Transitions<InterestState, InterestEvent> kInterest{{{
    // kPart, kLoads, kReady, kMiss, kNewer, kClaim, kCancel, kLost, kClose
    {{N::kCollecting, N::kAcquiring, N::kAcquired, N::kMissed, N::kCollecting, N::kIllegal, N::kEnded,
      N::kEnded, N::kClosed}},  // kCollecting
    {{N::kIllegal, N::kIllegal, N::kAcquired, N::kMissed, N::kCollecting, N::kIllegal, N::kEnded, N::kEnded,
      N::kClosed}},  // kAcquiring
    {{N::kIllegal, N::kIllegal, N::kIllegal, N::kIllegal, N::kCollecting, N::kClaimed, N::kEnded, N::kEnded,
      N::kClosed}},  // kAcquired
    {{N::kIllegal, N::kIllegal, N::kIllegal, N::kIllegal, N::kCollecting, N::kIllegal, N::kEnded, N::kIllegal,
      N::kClosed}},  // kMissed
    {{N::kIllegal, N::kIllegal, N::kIllegal, N::kIllegal, N::kIllegal, N::kClaimed, N::kEnded, N::kEnded,
      N::kClosed}},  // kClaimed
    {{N::kIllegal, N::kIllegal, N::kIllegal, N::kIllegal, N::kCollecting, N::kIllegal, N::kEnded, N::kIllegal,
      N::kClosed}},  // kEnded
    {{N::kIllegal, N::kIllegal, N::kIllegal, N::kIllegal, N::kIllegal, N::kIllegal, N::kIllegal, N::kIllegal,
      N::kIllegal}},  // kClosed
}}};
}  // namespace detail

// ---- warm hint ----

enum class WarmState : std::uint8_t {
  kQueued,   // nothing of it is on its way
  kLoading,  // a piece of its list is
  kEnded,
  kIllegal,
};
enum class WarmEvent : std::uint8_t {
  kLoads,   // the next piece is begun
  kLanded,  // the piece has ended, and more may follow
  kEnd,     // nothing is left to load; cancelled, over, given way, or its session or instance ended
  kCount,
};

namespace detail {
using H = WarmState;
inline constexpr Transitions<WarmState, WarmEvent> kWarm{{{
    // kLoads, kLanded, kEnd
    {{H::kLoading, H::kIllegal, H::kEnded}},    // kQueued
    {{H::kIllegal, H::kQueued, H::kEnded}},     // kLoading
    {{H::kIllegal, H::kIllegal, H::kIllegal}},  // kEnded
}}};
}  // namespace detail

// ---- restore ----

enum class RestoreState : std::uint8_t {
  kSubmitted,  // validated, nothing pinned
  kAwaiting,   // sources pinned, some of them are on their way from the tier
  kPinned,     // sources pinned, grant not written (plan bank full)
  kGranted,    // the client may claim it or may have
  kClaimed,    // a revoke came too late: only a receipt or the process's end frees it
  kOrphaned,   // likewise, and every source has gone with its slab; the client's mapping still has them
  kEnded,
  kIllegal,
};
enum class RestoreEvent : std::uint8_t {
  kAwait,  // pinned, not all there
  kPin,
  kGiveUp,   // one did not come, or not in time
  kNothing,  // every target is a hole
  kBankFull,
  kGrant,
  kVerified,   // receipt: success
  kFail,       // receipt: failure
  kWithdraw,   // session closed, client had not claimed
  kClaimSeen,  // session closed, client had claimed
  kLost,       // process ended without a receipt
  kDetach,     // its last source goes with a slab
  kCount,
};

namespace detail {
using R = RestoreState;
inline constexpr Transitions<RestoreState, RestoreEvent> kRestore{{{
    // kAwait, kPin, kGiveUp, kNothing, kBankFull, kGrant, kVerified, kFail, kWithdraw, kClaimSeen, kLost,
    // kDetach
    {{R::kAwaiting, R::kPinned, R::kIllegal, R::kEnded, R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal,
      R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal}},  // kSubmitted
    {{R::kIllegal, R::kPinned, R::kEnded, R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal,
      R::kEnded, R::kIllegal, R::kIllegal, R::kIllegal}},  // kAwaiting
    {{R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kPinned, R::kGranted, R::kIllegal, R::kIllegal,
      R::kEnded, R::kIllegal, R::kIllegal, R::kIllegal}},  // kPinned
    {{R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kEnded, R::kEnded,
      R::kEnded, R::kClaimed, R::kIllegal, R::kIllegal}},  // kGranted
    {{R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kEnded, R::kEnded,
      R::kIllegal, R::kClaimed, R::kEnded, R::kOrphaned}},  // kClaimed
    {{R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kEnded, R::kEnded,
      R::kIllegal, R::kOrphaned, R::kEnded, R::kIllegal}},  // kOrphaned
    {{R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal,
      R::kIllegal, R::kIllegal, R::kIllegal, R::kIllegal}},  // kEnded
}}};
}  // namespace detail

// ---- the retirement of a slab ----

enum class RetireState : std::uint8_t {
  kIdle,     // no slab retires
  kImages,   // what stands on it goes out of sight, step by step
  kGrants,   // grants that name it are taken back, or seen to be claimed
  kClaims,   // claimed copies on it are waited for, not for long
  kDevice,   // the tier still reads or writes it
  kDrained,  // nothing but quarantine is left
  kIllegal,
};
enum class RetireEvent : std::uint8_t {
  kBegin,
  kSwept,     // nothing on it can be found, and nothing new can come
  kRevoked,   // nobody may begin a copy on it
  kDetached,  // claims have ended, or do without it
  kQuiet,     // the tier has let go of it
  kAbandon,
  kCount,
};

namespace detail {
using T = RetireState;
inline constexpr Transitions<RetireState, RetireEvent> kRetire{{{
    // kBegin, kSwept, kRevoked, kDetached, kQuiet, kAbandon
    {{T::kImages, T::kIllegal, T::kIllegal, T::kIllegal, T::kIllegal, T::kIllegal}},   // kIdle
    {{T::kIllegal, T::kGrants, T::kIllegal, T::kIllegal, T::kIllegal, T::kIllegal}},   // kImages
    {{T::kIllegal, T::kIllegal, T::kClaims, T::kIllegal, T::kIllegal, T::kIllegal}},   // kGrants
    {{T::kIllegal, T::kIllegal, T::kIllegal, T::kDevice, T::kIllegal, T::kIllegal}},   // kClaims
    {{T::kIllegal, T::kIllegal, T::kIllegal, T::kIllegal, T::kDrained, T::kIllegal}},  // kDevice
    {{T::kIllegal, T::kIllegal, T::kIllegal, T::kIllegal, T::kIllegal, T::kIdle}},     // kDrained
}}};
}  // namespace detail

// What is done with whatever has a slot on a slab that retires.
enum class RetireAction : std::uint8_t {
  kNothing,   // it holds no bytes there
  kTakeBack,  // committed slots of an image that others still write: theirs to save again
  kDrop,      // out of sight; stored first if it is worth that and can be
  kStrip,     // out of sight already: once no copy is under way its slots there go, pinned or not
  kDoom,      // a load: fails, when the tier has ended it or at once if it has not begun
  kWithdraw,  // no copy has begun: it fails, and the client is told
  kDetach,    // a copy may be under way: waited for, then it goes on without us
};

constexpr RetireAction retire_action(ImageState state) {
  switch (state) {
    case ImageState::kLent: return RetireAction::kTakeBack;
    case ImageState::kSealed: return RetireAction::kDrop;
    case ImageState::kDropped: return RetireAction::kStrip;
    case ImageState::kLoading: return RetireAction::kDoom;
    case ImageState::kFree:
    case ImageState::kLoadFailed:
    case ImageState::kIllegal: break;
  }
  return RetireAction::kNothing;
}
constexpr RetireAction retire_action(PublishState state) {
  switch (state) {
    case PublishState::kReserved:
    case PublishState::kGranted: return RetireAction::kWithdraw;
    case PublishState::kClaimed: return RetireAction::kDetach;
    case PublishState::kSubmitted:
    case PublishState::kWaiting:
    case PublishState::kOrphaned:
    case PublishState::kEnded:
    case PublishState::kIllegal: break;
  }
  return RetireAction::kNothing;
}
constexpr RetireAction retire_action(RestoreState state) {
  switch (state) {
    case RestoreState::kAwaiting:
    case RestoreState::kPinned:
    case RestoreState::kGranted: return RetireAction::kWithdraw;
    case RestoreState::kClaimed: return RetireAction::kDetach;
    case RestoreState::kSubmitted:
    case RestoreState::kOrphaned:
    case RestoreState::kEnded:
    case RestoreState::kIllegal: break;
  }
  return RetireAction::kNothing;
}

constexpr SessionState next(SessionState s, SessionEvent e) {
  return detail::kSession.next(s, e);
}
constexpr PublishState next(PublishState s, PublishEvent e) {
  return detail::kPublish.next(s, e);
}
constexpr ImageState next(ImageState s, ImageEvent e) {
  return detail::kImage.next(s, e);
}
constexpr LoadState next(LoadState s, LoadEvent e) {
  return detail::kLoad.next(s, e);
}
constexpr LeaseState next(LeaseState s, LeaseEvent e) {
  return detail::kLease.next(s, e);
}
constexpr RecoveryState next(RecoveryState s, RecoveryEvent e) {
  return detail::kRecovery.next(s, e);
}
constexpr InterestState next(InterestState s, InterestEvent e) {
  return detail::kInterest.next(s, e);
}
constexpr WarmState next(WarmState s, WarmEvent e) {
  return detail::kWarm.next(s, e);
}
constexpr RestoreState next(RestoreState s, RestoreEvent e) {
  return detail::kRestore.next(s, e);
}

constexpr RetireState next(RetireState s, RetireEvent e) {
  return detail::kRetire.next(s, e);
}

// Which cells this process has passed, for the simulator's table: one store a step.
template <class State, class Event>
struct Passed {
  static constexpr std::size_t kStates = static_cast<std::size_t>(State::kIllegal);
  static constexpr std::size_t kEvents = static_cast<std::size_t>(Event::kCount);
  static inline std::array<std::atomic<bool>, kStates * kEvents> cells{};
  static void mark(State from, Event event) {
    cells[static_cast<std::size_t>(from) * kEvents + static_cast<std::size_t>(event)].store(
        true, std::memory_order_relaxed);
  }
};

template <class State, class Event>
void step(State& state, Event event) {
  const State to = next(state, event);
  ORBITKV_CHECK(to != State::kIllegal, "event not allowed in this state (cache/transitions.h)");
  Passed<State, Event>::mark(state, event);
  state = to;
}

}  // namespace orbitkv::cache
