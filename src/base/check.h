// ORBITKV_CHECK: invariants that stay on in release builds. A failed check stops
// the process with file, line and text; it is never used for input from outside.
#pragma once

namespace orbitkv {
[[noreturn]] void check_failed(const char* file, int line, const char* expr, const char* text);
}  // namespace orbitkv

#define ORBITKV_CHECK(expr, text)                                                               \
  do {                                                                                          \
    if (__builtin_expect(!(expr), 0)) ::orbitkv::check_failed(__FILE__, __LINE__, #expr, text); \
  } while (0)
