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

// Destination "leave this block alone": that block of the lease is not restored.
inline constexpr std::uint32_t kHole = 0xFFFFFFFFu;

}  // namespace orbitkv
