// printf into a std::string and bytes as hex, for error texts and lists. Any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace orbitkv {

[[gnu::format(printf, 1, 2)]] std::string format_text(const char* format, ...);

// Two lower-case digits a byte.
std::string hex_text(std::span<const std::byte> bytes);

}  // namespace orbitkv
