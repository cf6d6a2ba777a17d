// What a coordinator knows of one of its seats, as a table: state x event -> next state. A cell that
// says kIllegal is a bug of ours, never an answer from outside. seat_state_test.cc holds every cell. Pure.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace orbitkv::client {

enum class SeatState : std::uint8_t {
  kBack,        // holds nothing and is to be asked again, when its pause is over or it has its turn
  kRefused,     // likewise; its Manager had no place, so those behind it give way
  kSubmitting,  // parts of the list are under way
  kAsking,      // no place, and no authority to be ordered by: a poll asks for that
  kYielding,    // submitting, and given back as soon as that is answered: a cancel must not overtake it
  kLoading,     // taken; blocks are on their way
  kWaiting,     // taken; it waits for budget or room, so those behind it give way
  kAcquired,
  kCancelling,  // gives back what it has
  kClaiming,
  kClaimed,
  kClosing,
  kClosed,
  kIllegal,
};
enum class SeatEvent : std::uint8_t {
  kSubmit,     // a new operation
  kPart,       // its Manager waits for more of the list
  kNoPlace,    // put off
  kNoneKnown,  // likewise, by a Manager whose authority is not known
  kLoads,
  kWaits,
  kReady,
  kForgotten,  // its Manager has no such operation, or has ended it
  kYield,      // one before it waits
  kCancelled,
  kClaim,
  kLeased,
  kClose,  // the attempt is over
  kGone,   // closed, or its session cannot have it any more
  kCount,
};

inline constexpr std::size_t kSeatStates = static_cast<std::size_t>(SeatState::kIllegal);
inline constexpr std::size_t kSeatEvents = static_cast<std::size_t>(SeatEvent::kCount);

namespace detail {
using S = SeatState;
using SeatRow = std::array<S, kSeatEvents>;
inline constexpr S kNo = S::kIllegal;
// clang-format off
inline constexpr std::array<SeatRow, kSeatStates> kSeatTable{{
    // kSubmit, kPart, kNoPlace, kNoneKnown, kLoads, kWaits, kReady,
    //   kForgotten, kYield, kCancelled, kClaim, kLeased, kClose, kGone
    {S::kSubmitting, kNo, kNo, kNo, kNo, kNo, kNo,
     kNo, kNo, kNo, kNo, kNo, S::kClosing, kNo},                      // kBack
    {S::kSubmitting, kNo, kNo, kNo, kNo, kNo, kNo,
     kNo, kNo, kNo, kNo, kNo, S::kClosing, kNo},                      // kRefused
    {kNo, S::kSubmitting, S::kRefused, S::kAsking, S::kLoading, S::kWaiting, S::kAcquired,
     S::kBack, S::kYielding, kNo, kNo, kNo, S::kClosing, kNo},        // kSubmitting
    {kNo, S::kSubmitting, kNo, S::kRefused, S::kLoading, S::kWaiting, S::kAcquired,
     S::kRefused, kNo, kNo, kNo, kNo, S::kClosing, kNo},              // kAsking
    {kNo, S::kCancelling, S::kRefused, kNo, S::kCancelling, S::kCancelling, S::kCancelling,
     S::kBack, kNo, kNo, kNo, kNo, S::kClosing, kNo},                 // kYielding
    {kNo, kNo, kNo, kNo, S::kLoading, S::kWaiting, S::kAcquired,
     kNo, S::kCancelling, kNo, kNo, kNo, S::kClosing, kNo},           // kLoading
    {kNo, kNo, kNo, kNo, S::kLoading, S::kWaiting, S::kAcquired,
     kNo, S::kCancelling, kNo, kNo, kNo, S::kClosing, kNo},           // kWaiting
    {kNo, kNo, kNo, kNo, kNo, kNo, kNo,
     kNo, S::kCancelling, kNo, S::kClaiming, kNo, S::kClosing, kNo},  // kAcquired
    {kNo, kNo, kNo, kNo, kNo, kNo, kNo,
     kNo, kNo, S::kBack, kNo, kNo, S::kClosing, kNo},                 // kCancelling
    {kNo, kNo, kNo, kNo, kNo, kNo, kNo,
     kNo, kNo, kNo, kNo, S::kClaimed, S::kClosing, kNo},              // kClaiming
    {kNo, kNo, kNo, kNo, kNo, kNo, kNo,
     kNo, kNo, kNo, kNo, kNo, S::kClosing, kNo},                      // kClaimed
    {kNo, kNo, kNo, kNo, kNo, kNo, kNo,
     kNo, kNo, kNo, kNo, kNo, kNo, S::kClosed},                       // kClosing
    {kNo, kNo, kNo, kNo, kNo, kNo, kNo,
     kNo, kNo, kNo, kNo, kNo, kNo, kNo},                              // kClosed
}};
// clang-format on
}  // namespace detail

constexpr SeatState next(SeatState from, SeatEvent event) {
  if (from == SeatState::kIllegal || event == SeatEvent::kCount) return SeatState::kIllegal;
  return detail::kSeatTable[static_cast<std::size_t>(from)][static_cast<std::size_t>(event)];
}

// Which cells this process has passed, by [state][event]: for the simulator's table. Any thread.
using PassedSeatCells = std::array<std::array<std::atomic<bool>, kSeatEvents>, kSeatStates>;
inline PassedSeatCells& passed_seat_cells() {
  static PassedSeatCells cells{};
  return cells;
}

inline void step(SeatState& state, SeatEvent event) {
  const SeatState to = next(state, event);
  ORBITKV_CHECK(to != SeatState::kIllegal, "a seat met an event that its state does not allow");
  passed_seat_cells()[static_cast<std::size_t>(state)][static_cast<std::size_t>(event)].store(
      true, std::memory_order_relaxed);
  state = to;
}

}  // namespace orbitkv::client
