// The fragment checksum "mixR": 64 bits, computed in any lane order, so that CPU
// SIMD and a GPU kernel agree. Not a MAC. Any damage confined to one aligned 8-byte
// word is always detected. Definition and golden values: docs/protocol.md.
// This is the scalar reference; device/host has the vector forms. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace orbitkv::checksum {

inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
inline constexpr std::uint64_t kMul1 = 0xD6E8FEB86659FD93;
inline constexpr std::uint64_t kMul2 = 0x9FB21C651E98DF25;

// What a fragment is, for its id. The header itself counts as layer ~0.
struct FragmentName {
  std::uint32_t layer = 0;
  std::uint16_t component = 0;
  std::uint16_t encoding = 0;
};
inline constexpr FragmentName kHeaderName{0xFFFFFFFFu, 0, 0};

// Sum of the mixed words; word index starts at `first_word`, so that a fragment may
// be summed in pieces (pieces but the last are multiples of 8 bytes).
std::uint64_t raw(std::span<const std::byte> bytes, std::uint64_t first_word = 0);
std::uint64_t finish(std::uint64_t x);
std::uint64_t fragment_id(std::uint64_t seed, FragmentName name);
// The stored value: a bijection of raw for each id and length.
std::uint64_t check(std::uint64_t raw_sum, std::uint64_t id, std::uint64_t length);

}  // namespace orbitkv::checksum
