#include "base/chacha20.h"

#include <algorithm>
#include <bit>

namespace orbitkv {

namespace {

using Block = std::array<std::uint32_t, 16>;

inline void quarter(Block& x, std::size_t a, std::size_t b, std::size_t c, std::size_t d) {
  x[a] += x[b], x[d] = std::rotl(x[d] ^ x[a], 16);
  x[c] += x[d], x[b] = std::rotl(x[b] ^ x[c], 12);
  x[a] += x[b], x[d] = std::rotl(x[d] ^ x[a], 8);
  x[c] += x[d], x[b] = std::rotl(x[b] ^ x[c], 7);
}

}  // namespace

Block chacha20_block(const std::array<std::uint32_t, 8>& key, std::uint64_t number, std::uint64_t nonce) {
  Block in = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
  std::copy(key.begin(), key.end(), in.begin() + 4);
  in[12] = static_cast<std::uint32_t>(number);
  in[13] = static_cast<std::uint32_t>(number >> 32);
  in[14] = static_cast<std::uint32_t>(nonce);
  in[15] = static_cast<std::uint32_t>(nonce >> 32);
  Block x = in;
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < 4; ++i) quarter(x, i, 4 + i, 8 + i, 12 + i);
    for (std::size_t i = 0; i < 4; ++i) quarter(x, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4);
  }
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += in[i];
  return x;
}

}  // namespace orbitkv
