// Two sides that are measured by turns, on a device that drifts: ours and the ceiling. Each
// goes first in every other pair. Bench's main thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"

namespace orbitkv::bench {

enum class Side : std::uint8_t { kOurs, kCeiling };

// Calls run(side) for both; the first that fails ends the pair.
template <class Run>
Status by_turns(std::size_t pair, Run run) {
  const bool ours_first = pair % 2 == 0;
  ORBITKV_RETURN_IF_ERROR(run(ours_first ? Side::kOurs : Side::kCeiling));
  return run(ours_first ? Side::kCeiling : Side::kOurs);
}

inline double lower_quartile(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 4];
}

}  // namespace orbitkv::bench
