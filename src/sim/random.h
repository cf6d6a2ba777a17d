// Randomness of a run: small generators, each named by the run's seed and by what it
// decides, so that leaving out one action does not change what the others meet. Pure.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace orbitkv::sim {

constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}
template <class... More>
constexpr std::uint64_t mix(std::uint64_t first, More... more) {
  return mix(first ^ mix(static_cast<std::uint64_t>(more)...));
}

class Random {
 public:
  template <class... Names>
  explicit Random(std::uint64_t seed, Names... names) : state_(mix(seed, names...)) {}
  std::uint64_t next() { return mix(state_ += 0x9E3779B97F4A7C15u); }
  // 0 <= result < n; n > 0.
  std::uint64_t below(std::uint64_t n) { return static_cast<std::uint64_t>(__uint128_t{next()} * n >> 64); }
  std::uint64_t between(std::uint64_t least, std::uint64_t most) { return least + below(most - least + 1); }
  bool percent(std::uint64_t p) { return below(100) < p; }
  bool per_mille(std::uint64_t p) { return below(1000) < p; }
  Duration between(Duration least, Duration most) {
    return {least.ns + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(most.ns - least.ns) + 1))};
  }
  template <class T, std::size_t N>
  T one_of(const T (&values)[N]) {
    return values[below(N)];
  }

 private:
  std::uint64_t state_;
};

}  // namespace orbitkv::sim
