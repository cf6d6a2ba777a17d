#include "base/time.h"

#include <ctime>

namespace orbitkv {

TimePoint monotonic_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return {std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec};
}

}  // namespace orbitkv
