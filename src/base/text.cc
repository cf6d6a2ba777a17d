#include "base/text.h"

#include <cstdarg>
#include <cstdio>

namespace orbitkv {

std::string format_text(const char* format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return text;
}

}  // namespace orbitkv
