// The most later ones that the lines of this thread (cache/waiting.h) have admitted before one that
// was the first of its instance, while what they took was what it lacked. For the simulator, which
// sets it to 0 for each run; as with the cells that were passed, nothing depends on it.
#pragma once

#include <cstdint>

namespace orbitkv::cache {

std::uint32_t& most_overtaken();

}  // namespace orbitkv::cache
