// Which participant of a prefix group, and which frame: what a carrier brings from one to the other, and
// back. Standard library only; installed.
#pragma once

#include <compare>
#include <cstdint>

namespace orbitkv::client {

// Of a group, in the order in which it was given them: from 0.
struct ParticipantIndex {
  std::uint32_t value = 0;
  friend auto operator<=>(ParticipantIndex, ParticipantIndex) = default;
};

// Of a frame, and of the one that answers it. Never 0; another group's may be the same.
struct FrameToken {
  std::uint64_t value = 0;
  friend auto operator<=>(FrameToken, FrameToken) = default;
};

}  // namespace orbitkv::client
