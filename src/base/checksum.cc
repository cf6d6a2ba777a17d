#include "base/checksum.h"

#include <bit>
#include <cstring>

namespace orbitkv::checksum {
namespace {

// A bijection of the word for each index, so that no change of one word is missed.
std::uint64_t mix(std::uint64_t word, std::uint64_t index) {
  std::uint64_t x = word ^ ((index + 1) * kGolden);
  x ^= std::rotr(x, 25) ^ std::rotr(x, 50);
  x *= kMul1;
  x ^= x >> 32;
  x *= kMul2;
  return x ^ (x >> 32);
}

}  // namespace

std::uint64_t raw(std::span<const std::byte> bytes, std::uint64_t first_word) {
  std::uint64_t sum = 0, index = first_word;
  std::size_t at = 0;
  for (; bytes.size() - at >= 8; at += 8, ++index) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    sum += mix(word, index);
  }
  if (at < bytes.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, bytes.size() - at);
    sum += mix(word, index);
  }
  return sum;
}

std::uint64_t finish(std::uint64_t x) {
  x ^= x >> 32;
  x *= kMul1;
  x ^= x >> 29;
  x *= kMul2;
  return x ^ (x >> 32);
}

std::uint64_t fragment_id(std::uint64_t seed, FragmentName name) {
  const std::uint64_t packed =
      std::uint64_t{name.layer} << 32 | std::uint64_t{name.component} << 16 | name.encoding;
  return finish(seed ^ finish(packed + kGolden));
}

std::uint64_t check(std::uint64_t raw_sum, std::uint64_t id, std::uint64_t length) {
  return finish(raw_sum ^ finish(id + length * kGolden));
}

}  // namespace orbitkv::checksum
