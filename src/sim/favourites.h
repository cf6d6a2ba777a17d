// Seeds with a favourite: a state that is met too seldom by chance. Sizes, times and weights of such
// a seed make it frequent and long, and most of its faults wait for it. Pure.
#pragma once

#include <cstdint>

#include "sim/config.h"

namespace orbitkv::sim {

// More than half of the seeds have one. All else has been drawn.
void draw_favourite(Config& config);
// `state`: of a Met (sim/cells.h).
void lean_towards(Config& config, std::size_t state);

}  // namespace orbitkv::sim
