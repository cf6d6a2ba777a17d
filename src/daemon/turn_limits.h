// One turn of the Manager: what a session may ask of it before the others have theirs. The
// request that reaches a bound is answered still; what is left waits for the next turn.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace orbitkv::limits {

inline constexpr std::uint32_t kCommandsPerTurn = 16;
inline constexpr ByteCount kRequestBytesPerTurn = 32 * kKiB;  // of request frames: about 1,000 hashes
inline constexpr std::uint32_t kFramesPerTurn = 4;            // from its socket

}  // namespace orbitkv::limits
