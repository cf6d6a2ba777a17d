#include "base/fault.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <string>

#include "base/log.h"

namespace orbitkv {
namespace {

constexpr std::size_t kPoints = static_cast<std::size_t>(FaultPoint::kCount);
constexpr std::array<std::string_view, kPoints> kNames = {
    "client_submitted",      "client_granted",       "client_claimed",      "client_mid_copy",
    "client_before_drained", "client_after_drained", "client_digest",       "manager_before_grant",
    "manager_before_reap",   "manager_lent",         "manager_sealed",      "manager_unsealed",
    "manager_retire_marked", "manager_adopted",      "manager_kept_format", "manager_kept_open",
    "manager_not_ready",     "manager_no_memory",    "manager_opening"};

enum class Action : std::uint8_t { kNone, kStop, kKill, kFail, kFlip };
constexpr std::array<std::string_view, 5> kActions = {"", "stop", "kill", "fail", "flip"};

constexpr std::uint32_t kEveryPass = 0;

struct Fault {
  std::atomic<Action> action{Action::kNone};
  std::atomic<std::uint32_t> trigger{kEveryPass};
  std::atomic<std::uint32_t> passes{0};
};
std::array<Fault, kPoints> g_faults;

// The one word of the hot path.
enum class Mode : std::uint8_t { kUnread, kOff, kOn, kHooked };
std::atomic<Mode> g_mode{Mode::kUnread};
std::atomic<FaultHook> g_hook{nullptr};

struct Parsed {
  std::size_t point = 0;
  Action action = Action::kNone;
  std::uint32_t trigger = kEveryPass;
};

template <std::size_t N>
std::size_t index_of(const std::array<std::string_view, N>& names, std::string_view name) {
  std::size_t i = 0;
  while (i < N && (name.empty() || names[i] != name)) ++i;
  return i;
}

Result<Parsed> parse_one(std::string_view item) {
  const auto bad = [&](std::string_view why) {
    return reject("ORBITKV_FAULT: '" + std::string(item) + "' " + std::string(why));
  };
  const std::size_t first = item.find(':');
  const std::size_t second = first == item.npos ? item.npos : item.find(':', first + 1);
  if (second == item.npos) return bad("is not name:action:hit");
  Parsed out;
  out.point = index_of(kNames, item.substr(0, first));
  if (out.point == kPoints) return bad("names no fault point (base/fault.h lists them)");
  const std::size_t action = index_of(kActions, item.substr(first + 1, second - first - 1));
  if (action == kActions.size()) return bad("has no action; use stop, kill, fail or flip");
  out.action = static_cast<Action>(action);
  const std::string_view hit = item.substr(second + 1);
  if (hit == "*") return out;
  const auto [end, error] = std::from_chars(hit.data(), hit.data() + hit.size(), out.trigger);
  if (error != std::errc{} || end != hit.data() + hit.size() || out.trigger == kEveryPass)
    return bad("has no hit; use a count from 1 or *");
  return out;
}

Status apply(std::string_view spec) {
  for (Fault& fault : g_faults) fault.action.store(Action::kNone, std::memory_order_relaxed);
  while (!spec.empty()) {
    const std::size_t comma = spec.find(',');
    ORBITKV_ASSIGN_OR_RETURN(const Parsed parsed, parse_one(spec.substr(0, comma)));
    Fault& fault = g_faults[parsed.point];
    if (fault.action.load(std::memory_order_relaxed) != Action::kNone)
      return reject("ORBITKV_FAULT: " + std::string(kNames[parsed.point]) + " is named twice; name it once");
    fault.trigger.store(parsed.trigger, std::memory_order_relaxed);
    fault.passes.store(0, std::memory_order_relaxed);
    fault.action.store(parsed.action, std::memory_order_release);
    spec = comma == spec.npos ? std::string_view{} : spec.substr(comma + 1);
  }
  return ok_status();
}

// A test that misspells its fault must not pass for want of it.
bool read_environment() {
  const char* spec = std::getenv("ORBITKV_FAULT");
  if (Status status = configure_faults(spec ? spec : ""); !status.ok()) {
    ORBITKV_ERROR("%s", status.error().message().c_str());
    std::abort();
  }
  return true;
}

bool slow_hit(FaultPoint point) {
  Fault& fault = g_faults[static_cast<std::size_t>(point)];
  const Action action = fault.action.load(std::memory_order_acquire);
  if (action == Action::kNone) return false;
  const std::uint32_t pass = fault.passes.fetch_add(1, std::memory_order_relaxed) + 1;
  const std::uint32_t trigger = fault.trigger.load(std::memory_order_relaxed);
  if (trigger != kEveryPass && trigger != pass) return false;
  // To this thread, so that not another instruction of it runs.
  if (action == Action::kStop) ::raise(SIGSTOP);
  if (action == Action::kKill) ::kill(::getpid(), SIGKILL);
  return action == Action::kFail || action == Action::kFlip;
}

}  // namespace

Status configure_faults(std::string_view spec) {
  const Status status = apply(spec);
  g_mode.store(spec.empty() || !status.ok() ? Mode::kOff : Mode::kOn, std::memory_order_release);
  return status;
}

void set_fault_hook(FaultHook hook) {
  g_hook.store(hook, std::memory_order_relaxed);
  g_mode.store(hook ? Mode::kHooked : Mode::kOff, std::memory_order_release);
}

bool fault_hit(FaultPoint point) {
  const Mode mode = g_mode.load(std::memory_order_relaxed);
  if (__builtin_expect(mode == Mode::kOff, 1)) return false;
  if (mode == Mode::kHooked) {
    const FaultHook hook = g_hook.load(std::memory_order_relaxed);
    return hook != nullptr && hook(point);
  }
  if (mode == Mode::kUnread) {
    static const bool once = read_environment();
    (void)once;
  }
  return g_mode.load(std::memory_order_acquire) == Mode::kOn && slow_hit(point);
}

}  // namespace orbitkv
