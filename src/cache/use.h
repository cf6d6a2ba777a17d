// Why memory is used: somebody waits for it, or it is done ahead of need. What only speculative
// uses touch goes first when memory is short, and they refresh nothing.
#pragma once

#include <cstdint>

namespace orbitkv::cache {

enum class Use : std::uint8_t { kForeground, kSpeculative };

}  // namespace orbitkv::cache
