#include "base/time.h"

#include <ctime>

namespace orbitkv {

namespace {
constinit thread_local const TimePoint* virtual_now = nullptr;
}  // namespace

void set_virtual_clock(const TimePoint* now) {
  virtual_now = now;
}

TimePoint monotonic_now() {
  if (virtual_now != nullptr) return *virtual_now;
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return {std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec};
}

}  // namespace orbitkv
