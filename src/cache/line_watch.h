// The line of those who wait (cache/waiting.h) as this process has seen it, for simulation: how
// many later ones were admitted before one that was the first of its instance, at most, while what
// they took was what it lacked. And how to make a line that is not fair. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace orbitkv::cache {

struct LineWatch {
  std::atomic<std::uint32_t> overtaken{0};
  std::atomic<bool> reserves{true};  // false: nobody is reserved for, and some may starve
};
LineWatch& line_watch();

}  // namespace orbitkv::cache
