#include "base/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <ctime>

namespace orbitkv {
namespace {
std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::atomic<LogSink> g_sink{nullptr};

void to_stderr(LogLevel level, const char* line) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &parts);
  std::fprintf(stderr, "%s.%03ldZ %c %s\n", stamp, now.tv_nsec / 1'000'000, "DIWE-"[static_cast<int>(level)],
               line);
}
}  // namespace

void set_log_level(LogLevel level) {
  g_level.store(level, std::memory_order_relaxed);
}
LogLevel log_level() {
  return g_level.load(std::memory_order_relaxed);
}
void set_log_sink(LogSink sink) {
  g_sink.store(sink);
}

void log_line(LogLevel level, const char* format, ...) {
  char line[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  LogSink sink = g_sink.load();
  (sink ? sink : to_stderr)(level, line);
}

}  // namespace orbitkv
