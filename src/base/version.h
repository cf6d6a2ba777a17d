// The release of this tree. Constant.
#pragma once

namespace orbitkv {
inline constexpr const char* kVersion = "0.1.0";
}
