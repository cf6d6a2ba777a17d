#include "base/result.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace orbitkv {

void check_failed(const char* file, int line, const char* expr, const char* text) {
  std::fprintf(stderr, "orbitkv: check failed at %s:%d: %s (%s)\n", file, line, text, expr);
  std::abort();
}

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kBusy: return "busy";
    case Code::kRecompute: return "recompute";
    case Code::kReconnect: return "reconnect";
    case Code::kReject: return "rejected";
    case Code::kBug: return "bug";
  }
  return "unknown";
}

std::string Error::to_string() const {
  return std::string(code_name(code_)) + ": " + message_;
}

Error errno_error(std::string_view what) {
  const int saved = errno;
  return reject(std::string(what) + ": " + std::strerror(saved));
}

}  // namespace orbitkv
