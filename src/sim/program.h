// The program of a seed: its actions in the order of time, drawn by the weights of its
// configuration. Pure.
#pragma once

#include <cstdint>

#include "sim/actions.h"
#include "sim/config.h"

namespace orbitkv::sim {

Program draw_program(const Config& config, std::uint32_t actions);

}  // namespace orbitkv::sim
