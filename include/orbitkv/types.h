// Values that both the client's users and the daemon speak of. Standard library
// only; installed.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace orbitkv {

// The engine's chained block hash, 32 bytes, as the engine gives it.
struct BlockHash {
  std::array<std::byte, 32> bytes{};
  friend auto operator<=>(const BlockHash&, const BlockHash&) = default;
};

// An instance = one engine: its scheduler session and one worker session a rank.
// 128 bits that every rank knows (vLLM's engine_id is a uuid4).
struct InstanceId {
  std::array<std::byte, 16> bytes{};
  friend auto operator<=>(const InstanceId&, const InstanceId&) = default;
};

// Opaque name of pinned bytes in the Manager. All zero = no lease.
struct LeaseId {
  std::array<std::byte, 16> bytes{};
  explicit operator bool() const { return bytes != std::array<std::byte, 16>{}; }
  friend auto operator<=>(const LeaseId&, const LeaseId&) = default;
};

// Which cached tokens a group needs before an engine can go on at token b of a request.
enum class RecoveryRule : std::uint8_t {
  kPrefix = 1,      // all of them. Attention KV, MLA
  kWindow = 2,      // the last ceil(window / page) pages. Sliding windows
  kCheckpoint = 3,  // the page that ends at b. Recurrent and convolution state
};

// What an interest is bound to (docs/tp.md). All zero: whatever it is now.
struct InterestAuthority {
  std::uint64_t incarnation = 0;       // the life of the Manager
  std::uint64_t generation = 0;        // of the instance: rises when a rank registers
  std::array<std::byte, 16> layout{};  // digest of the namespace and the ranks' shards
  std::uint16_t consumers = 0;         // ranks of the instance, each of which restores
  explicit operator bool() const { return *this != InterestAuthority{}; }
  friend bool operator==(const InterestAuthority&, const InterestAuthority&) = default;
};
enum class InterestVerb : std::uint8_t {
  kPoll = 1,
  kClaim = 2,   // leases what is acquired
  kCancel = 3,  // ends the operation
  kClose = 4,   // ends the interest
};
// Of the newest operation of an interest.
enum class InterestPhase : std::uint8_t {
  kUnknown = 0,     // no such interest, or the operation is not its newest: nothing was touched
  kCollecting = 1,  // parts of the list are to come
  kAcquiring = 2,   // blocks are on their way, or it waits for budget
  kAcquired = 3,    // held for the interest; nothing is leased
  kMissing = 4,     // it ended with nothing
  kClaimed = 5,     // leased; held until it is cancelled or closed, also when every rank has restored
  kEnded = 6,       // cancelled, expired, or its instance has left: nothing is held
  kClosed = 7,
};

// Destination "leave this block alone": that block of the lease is not restored.
inline constexpr std::uint32_t kHole = 0xFFFFFFFFu;

}  // namespace orbitkv
