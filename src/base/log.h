// One-line logging to stderr (or a sink of the embedding process). printf formats,
// checked by the compiler. Whoever decides an error logs it, once. Any thread.
#pragma once

#include <cstdint>

namespace orbitkv {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);
LogLevel log_level();
// `line` has no newline. nullptr restores stderr: "2026-01-02T03:04:05.678Z W text".
using LogSink = void (*)(LogLevel level, const char* line);
void set_log_sink(LogSink sink);

[[gnu::format(printf, 2, 3)]] void log_line(LogLevel level, const char* format, ...);

}  // namespace orbitkv

#define ORBITKV_LOG(level, ...) \
  ((level) >= ::orbitkv::log_level() ? ::orbitkv::log_line(level, __VA_ARGS__) : void())
#define ORBITKV_DEBUG(...) ORBITKV_LOG(::orbitkv::LogLevel::kDebug, __VA_ARGS__)
#define ORBITKV_INFO(...) ORBITKV_LOG(::orbitkv::LogLevel::kInfo, __VA_ARGS__)
#define ORBITKV_WARN(...) ORBITKV_LOG(::orbitkv::LogLevel::kWarning, __VA_ARGS__)
#define ORBITKV_ERROR(...) ORBITKV_LOG(::orbitkv::LogLevel::kError, __VA_ARGS__)
