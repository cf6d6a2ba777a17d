// The word of a grant record: which operation, in which state, and who may move it
// where. Authority over lent memory lies in this word alone and changes hands only by
// compare-and-swap. Pure values; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/ids.h"

namespace orbitkv::shm {

// Reserved → Preparing → Granted → Active → Drained → Reaped → Acknowledged; Failed
// and Revoked end a record that nobody claimed. Every edge has one owner; the only
// race is Granted → {Active by the client, Revoked by the Manager}.
enum class RecordState : std::uint8_t {
  kFree = 0,          // fresh memory: operation 0
  kReserved = 1,      // client: about to be submitted
  kPreparing = 2,     // Manager: accepted, no grant yet
  kGranted = 3,       // Manager: plan bytes are in the bank
  kActive = 4,        // client: claimed; from here only a receipt ends it
  kDrained = 5,       // client: all copies ended; result fields are valid
  kReaped = 6,        // Manager: sources and destinations are released
  kFailed = 7,        // Manager: ended before a grant; code and text are valid
  kRevoked = 8,       // Manager: grant withdrawn before a claim; code and text are valid
  kAcknowledged = 9,  // client: the record may serve another operation
};
inline constexpr std::size_t kRecordStates = 10;
enum class Side : std::uint8_t { kClient, kManager };

struct RecordEdge {
  RecordState from, to;
  Side owner;
};
inline constexpr std::array kRecordEdges = {
    RecordEdge{RecordState::kFree, RecordState::kReserved, Side::kClient},
    RecordEdge{RecordState::kReserved, RecordState::kPreparing, Side::kManager},
    RecordEdge{RecordState::kReserved, RecordState::kFailed, Side::kManager},
    RecordEdge{RecordState::kPreparing, RecordState::kGranted, Side::kManager},
    RecordEdge{RecordState::kPreparing, RecordState::kReaped, Side::kManager},  // nothing to copy
    RecordEdge{RecordState::kPreparing, RecordState::kFailed, Side::kManager},
    RecordEdge{RecordState::kGranted, RecordState::kActive, Side::kClient},
    RecordEdge{RecordState::kGranted, RecordState::kRevoked, Side::kManager},
    RecordEdge{RecordState::kActive, RecordState::kDrained, Side::kClient},
    RecordEdge{RecordState::kDrained, RecordState::kReaped, Side::kManager},
    RecordEdge{RecordState::kReaped, RecordState::kAcknowledged, Side::kClient},
    RecordEdge{RecordState::kFailed, RecordState::kAcknowledged, Side::kClient},
    RecordEdge{RecordState::kRevoked, RecordState::kAcknowledged, Side::kClient},
    // The command never reached the Manager: the client takes the record back.
    RecordEdge{RecordState::kReserved, RecordState::kAcknowledged, Side::kClient},
    RecordEdge{RecordState::kAcknowledged, RecordState::kReserved, Side::kClient},
};

constexpr bool may_move(RecordState from, RecordState to, Side side) {
  for (const RecordEdge& edge : kRecordEdges) {
    if (edge.from == from && edge.to == to && edge.owner == side) return true;
  }
  return false;
}

struct RecordWord {
  OperationId operation;  // low 56 bits
  RecordState state = RecordState::kFree;
  friend bool operator==(const RecordWord&, const RecordWord&) = default;
};

// The edge, and the operation: a new Reserved takes a higher id, every other edge keeps it.
constexpr bool may_move(RecordWord from, RecordWord to, Side side) {
  const bool operation_fits =
      to.state == RecordState::kReserved ? to.operation > from.operation : to.operation == from.operation;
  return operation_fits && may_move(from.state, to.state, side);
}

inline constexpr OperationId kMaxOperationId{(std::uint64_t{1} << 56) - 1};

// Precondition: operation <= kMaxOperationId.
std::uint64_t pack(RecordWord word);
// nullopt: a state that does not exist.
std::optional<RecordWord> unpack(std::uint64_t word);

}  // namespace orbitkv::shm
