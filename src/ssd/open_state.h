// How far a store has been opened, as a table: state x event -> next state. A cell that says
// kIllegal is a bug of ours. open_state_test.cc holds every cell. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace orbitkv::ssd {

enum class OpenState : std::uint8_t {
  kReading,   // segments are being read; nothing is found, nothing is written but superblocks
  kSettling,  // all is read: ends are applied, what the last life left is sealed
  kReady,
  kGivingUp,  // it is to close; reads are on their way still
  kGivenUp,   // nothing of what it has read was written
  kIllegal,
};

enum class OpenEvent : std::uint8_t {
  kRead,     // the last segment
  kSettled,  // and durably
  kClose,
  kQuiet,  // no read is on its way any more
  kCount,
};

inline constexpr std::size_t kOpenStates = static_cast<std::size_t>(OpenState::kIllegal);
inline constexpr std::size_t kOpenEvents = static_cast<std::size_t>(OpenEvent::kCount);

namespace detail {
using O = OpenState;
using OpenRow = std::array<O, kOpenEvents>;
inline constexpr std::array<OpenRow, kOpenStates> kOpenTable{{
    // kRead, kSettled, kClose, kQuiet
    {O::kSettling, O::kIllegal, O::kGivingUp, O::kIllegal},  // kReading
    {O::kIllegal, O::kReady, O::kSettling, O::kIllegal},     // kSettling: a few writes more, and it is ready
    {O::kIllegal, O::kIllegal, O::kReady, O::kIllegal},      // kReady
    {O::kIllegal, O::kIllegal, O::kGivingUp, O::kGivenUp},   // kGivingUp
    {O::kIllegal, O::kIllegal, O::kGivenUp, O::kIllegal},    // kGivenUp
}};
}  // namespace detail

constexpr OpenState next_state(OpenState from, OpenEvent event) {
  if (from == OpenState::kIllegal || event == OpenEvent::kCount) return OpenState::kIllegal;
  return detail::kOpenTable[static_cast<std::size_t>(from)][static_cast<std::size_t>(event)];
}

inline void step(OpenState& state, OpenEvent event) {
  const OpenState next = next_state(state, event);
  ORBITKV_CHECK(next != OpenState::kIllegal, "a store that opens met an event that its state does not allow");
  state = next;
}

}  // namespace orbitkv::ssd
