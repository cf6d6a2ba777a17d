// printf into a std::string, for error texts. Any thread.
#pragma once

#include <string>

namespace orbitkv {

[[gnu::format(printf, 1, 2)]] std::string format_text(const char* format, ...);

}  // namespace orbitkv
