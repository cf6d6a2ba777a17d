// Monotonic time as plain values, so that headers need no <chrono>.
#pragma once

#include <compare>
#include <cstdint>

namespace orbitkv {

struct Duration {
  std::int64_t ns = 0;
  friend constexpr auto operator<=>(Duration, Duration) = default;
};
constexpr Duration nanoseconds(std::int64_t n) {
  return {n};
}
constexpr Duration microseconds(std::int64_t n) {
  return {n * 1000};
}
constexpr Duration milliseconds(std::int64_t n) {
  return {n * 1'000'000};
}
constexpr Duration seconds(std::int64_t n) {
  return {n * 1'000'000'000};
}

struct TimePoint {
  std::int64_t ns = 0;  // CLOCK_MONOTONIC
  friend constexpr auto operator<=>(TimePoint, TimePoint) = default;
};
constexpr TimePoint operator+(TimePoint t, Duration d) {
  return {t.ns + d.ns};
}
constexpr Duration operator-(TimePoint a, TimePoint b) {
  return {a.ns - b.ns};
}

TimePoint monotonic_now();
// From now on monotonic_now() of the calling thread reads this instead of the machine's clock;
// nullptr: the machine's again. For simulation. `now` outlives its use.
void set_virtual_clock(const TimePoint* now);

}  // namespace orbitkv
