// The place of a living slab in the Manager's tables, 0 .. limits::kSlabs - 1. It is used
// again when its slab is gone; the slab's name (SlabId), which clients know, is not.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace orbitkv {

using SlabSlot = Id<struct SlabSlotTag, std::uint32_t>;

}  // namespace orbitkv
