// What a segment of the store is, as a table: state x event -> next state. A cell that says
// kIllegal is a bug of ours. segment_state_test.cc holds every cell. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace orbitkv::ssd {

enum class SegmentState : std::uint8_t {
  kFree,           // may be opened; an older life may still lie on the disk
  kOpening,        // its header is being written and made durable
  kOpen,           // takes batches
  kSealing,        // takes no more; footer and trailer are on their way
  kSealed,         // read only; without a footer where sealing failed
  kReclaiming,     // what is kept of it is being copied forward
  kAwaitingFlush,  // what superseded its records is not durable yet, or it is being read
  kBad,            // its header could not be written; left alone until the next start
  kIllegal,
};

enum class SegmentEvent : std::uint8_t {
  kRecovered,  // found with content at open()
  kOpen,
  kOpened,
  kOpenFailed,
  kPutBack,  // opening was given up before its header was written, or the path stopped
  kSeal,
  kSealed,  // or sealing failed
  kReclaim,
  kCopied,
  kDurable,
  kCount,
};

inline constexpr std::size_t kSegmentStates = static_cast<std::size_t>(SegmentState::kIllegal);
inline constexpr std::size_t kSegmentEvents = static_cast<std::size_t>(SegmentEvent::kCount);

namespace detail {
using S = SegmentState;
using SegmentRow = std::array<S, kSegmentEvents>;
inline constexpr S kNo = S::kIllegal;
inline constexpr std::array<SegmentRow, kSegmentStates> kSegmentTable{{
    // kRecovered, kOpen, kOpened, kOpenFailed, kPutBack, kSeal, kSealed, kReclaim, kCopied, kDurable
    {S::kSealed, S::kOpening, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo},  // kFree
    {kNo, kNo, S::kOpen, S::kBad, S::kFree, kNo, kNo, kNo, kNo, kNo},   // kOpening
    {kNo, kNo, kNo, kNo, kNo, S::kSealing, kNo, kNo, kNo, kNo},         // kOpen
    {kNo, kNo, kNo, kNo, kNo, kNo, S::kSealed, kNo, kNo, kNo},          // kSealing
    {kNo, kNo, kNo, kNo, kNo, kNo, kNo, S::kReclaiming, kNo, kNo},      // kSealed
    {kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, S::kAwaitingFlush, kNo},   // kReclaiming
    {kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, S::kFree},            // kAwaitingFlush
    {kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo},                 // kBad
}};
}  // namespace detail

constexpr SegmentState next_state(SegmentState from, SegmentEvent event) {
  if (from == SegmentState::kIllegal || event == SegmentEvent::kCount) return SegmentState::kIllegal;
  return detail::kSegmentTable[static_cast<std::size_t>(from)][static_cast<std::size_t>(event)];
}

inline void step(SegmentState& state, SegmentEvent event) {
  const SegmentState next = next_state(state, event);
  ORBITKV_CHECK(next != SegmentState::kIllegal, "a segment met an event that its state does not allow");
  state = next;
}

}  // namespace orbitkv::ssd
