// Which edges the slabs of this process have taken, by [from][to]: for the simulator's table.
// Any thread.
#pragma once

#include <array>
#include <atomic>

#include "mem/slab.h"

namespace orbitkv::mem {

using PassedSlabEdges = std::array<std::array<std::atomic<bool>, detail::kSlabStates>, detail::kSlabStates>;
PassedSlabEdges& passed_slab_edges();

}  // namespace orbitkv::mem
