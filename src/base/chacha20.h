// A stream of numbers that nobody foretells without its key (RFC 8439's block function). Pure; any thread.
#pragma once

#include <array>
#include <cstdint>

namespace orbitkv {

// Block `number` of the stream of a key; others have other nonces.
std::array<std::uint32_t, 16> chacha20_block(const std::array<std::uint32_t, 8>& key, std::uint64_t number,
                                             std::uint64_t nonce = 0);

}  // namespace orbitkv
