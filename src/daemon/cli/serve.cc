#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/heap.h"
#include "base/limits.h"
#include "base/text.h"
#include "base/version.h"
#include "daemon/cli/commands.h"
#include "daemon/exits.h"
#include "daemon/keeper.h"
#include "daemon/keeper_protocol.h"
#include "daemon/keeper_store.h"
#include "daemon/manager.h"
#include "daemon/systemd_store.h"
#include "mem/kept_table.h"
#include "ssd/open_paths.h"

namespace orbitkv::daemon::cli {
namespace {
constexpr std::uint32_t kStallAfterLeast = 3;
constexpr std::uint64_t kBytesPerBlockGuess = 16 * 1024;  // a table for blocks no smaller than this

Result<mem::HugePages> parse_huge_pages(const std::string& text) {
  if (text == "auto") return mem::HugePages::kAuto;
  if (text == "on") return mem::HugePages::kOn;
  if (text == "off") return mem::HugePages::kOff;
  return reject("--hugepages is auto, on or off, not '" + text + "'");
}

Result<bool> parse_numa(const std::string& text) {
  if (text == "auto") return true;
  if (text == "off") return false;
  return reject("--numa is auto or off, not '" + text + "'");
}

Result<LogLevel> parse_log_level(const std::string& text) {
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "warning") return LogLevel::kWarning;
  if (text == "error") return LogLevel::kError;
  return reject("--log-level is debug, info, warning or error, not '" + text + "'");
}

std::uint32_t default_max_blocks(ByteCount pool) {
  const std::uint64_t guess = pool.value / kBytesPerBlockGuess;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(guess, 1u << 16, 1u << 24));
}

Result<ssd::IoKind> parse_io(const std::string& text) {
  if (text == "auto") return ssd::IoKind::kAuto;
  if (text == "uring") return ssd::IoKind::kUring;
  if (text == "threads") return ssd::IoKind::kThreads;
  return reject("--ssd-io is auto, uring or threads, not '" + text + "'");
}

Result<ssd::WritePolicy> parse_policy(const std::string& text) {
  if (text == "auto") return ssd::WritePolicy::kAuto;
  if (text == "reuse") return ssd::WritePolicy::kReuse;
  if (text == "all") return ssd::WritePolicy::kAll;
  return reject("--ssd-write-policy is auto, reuse or all, not '" + text + "'");
}

// What was given that only means something with --ssd-path; nullptr: nothing.
const char* first_ssd_option(const ServeFlags& flags) {
  const ServeFlags unset;
  if (flags.ssd_size != unset.ssd_size) return "--ssd-size";
  if (flags.ssd_segment_size != unset.ssd_segment_size) return "--ssd-segment-size";
  if (flags.ssd_io != unset.ssd_io) return "--ssd-io";
  if (flags.ssd_write_policy != unset.ssd_write_policy) return "--ssd-write-policy";
  if (flags.ssd_daily_write_budget != unset.ssd_daily_write_budget) return "--ssd-daily-write-budget";
  if (flags.ssd_scrub_rate != unset.ssd_scrub_rate) return "--ssd-scrub-rate";
  if (flags.load_wait_ms != unset.load_wait_ms) return "--load-wait";
  return nullptr;
}

// nullopt: no SSD.
Result<std::optional<SsdTier::Options>> ssd_options(const ServeFlags& flags, ByteCount pool) {
  SsdTier::Options options;
  if (flags.ssd_paths.empty()) {
    if (const char* option = first_ssd_option(flags))
      return reject(std::string(option) + " needs --ssd-path: without it there is no SSD store");
    return std::optional<SsdTier::Options>();
  }
  ByteCount each;
  if (!flags.ssd_size.empty()) {
    ORBITKV_ASSIGN_OR_RETURN(each, parse_size(flags.ssd_size));
    each = ByteCount(each.value / flags.ssd_paths.size());
  }
  for (const std::string& path : flags.ssd_paths) options.store.paths.push_back({path, each});
  ORBITKV_ASSIGN_OR_RETURN(options.store.segment, parse_size(flags.ssd_segment_size));
  ORBITKV_RETURN_IF_ERROR(ssd::check_segment_size(options.store.segment));
  if (!flags.ssd_scrub_rate.empty()) {
    ORBITKV_ASSIGN_OR_RETURN(options.store.scrub_per_second, parse_size(flags.ssd_scrub_rate));
  }
  if (!flags.ssd_daily_write_budget.empty()) {
    ORBITKV_ASSIGN_OR_RETURN(options.admission.daily_budget, parse_size(flags.ssd_daily_write_budget));
  }
  ORBITKV_ASSIGN_OR_RETURN(options.io, parse_io(flags.ssd_io));
  ORBITKV_ASSIGN_OR_RETURN(options.admission.policy, parse_policy(flags.ssd_write_policy));
  // Blocks that wait to be written stay in memory: a small pool must not be full of them.
  options.store.write_queue = std::min(options.store.write_queue, ByteCount(pool.value / 8));
  return std::optional(std::move(options));
}

Result<StallWatch::Options> parse_stall(const ServeFlags& flags) {
  if (flags.stall_after_s != 0 && (flags.stall_after_s < kStallAfterLeast || flags.stall_after_s > 86400))
    return reject(
        format_text("--stall-after is 0 (off) or %u to 86400 seconds: an engine gives a sign a second",
                    kStallAfterLeast));
  if (flags.stalled_engine != "report" && flags.stalled_engine != "kill")
    return reject("--stalled-engine is report or kill, not '" + flags.stalled_engine + "'");
  return StallWatch::Options{seconds(flags.stall_after_s), flags.stalled_engine == "kill"};
}

Status check_durations(const ServeFlags& flags) {
  if (flags.lease_ttl_s == 0 || flags.lease_ttl_s > 86400)
    return reject("--lease-ttl is 1 to 86400 seconds: a scheduler must be able to use what it was promised");
  if (flags.publish_wait_ms > flags.incomplete_ttl_s * 1000ull)
    return reject("--publish-wait is longer than --incomplete-ttl: a wait would outlive what it waits for");
  if (flags.incomplete_ttl_s == 0) return reject("--incomplete-ttl is at least 1 second");
  if (flags.load_wait_ms > 60'000)
    return reject("--load-wait is at most 60000 milliseconds: a request would hang");
  if (flags.full_prefix_wait_s == 0 || flags.full_prefix_wait_s > 30)
    return reject("--full-prefix-wait is 1 to 30 seconds: a request would hang");
  if (flags.spin_us > 1'000'000) return reject("--spin is at most 1000000 microseconds");
  return ok_status();
}

Result<ByteCount> parse_share(const std::string& text, ByteCount whole) {
  if (text.back() != '%') {
    const auto size = parse_size(text);
    if (size.ok()) return size;
    return reject("'" + echo_of(text) +
                  "' is neither a size nor a share of the pool; write for example 30GiB or 150%");
  }
  char* end = nullptr;
  const double percent = std::strtod(text.c_str(), &end);
  const double bytes = percent / 100 * static_cast<double>(whole.value);
  if (text.find_first_not_of("0123456789.") != text.size() - 1 || end != text.c_str() + text.size() - 1 ||
      !(bytes >= 1) || bytes > 9e18)
    return reject("'" + echo_of(text) + "' is no share of the pool; write for example 150%");
  return ByteCount(static_cast<std::uint64_t>(bytes));
}

Status set_budgets(const ServeFlags& flags, ByteCount pool, cache::CoreConfig& core) {
  core.query_budget = cache::kPoolsInQueryBudget * pool;
  if (!flags.query_budget.empty()) {
    ORBITKV_ASSIGN_OR_RETURN(core.query_budget, parse_share(flags.query_budget, pool));
  }
  core.query_instance_budget = ByteCount(std::max<std::uint64_t>(1, core.query_budget.value / 2));
  if (flags.query_instance_budget.empty()) return ok_status();
  ORBITKV_ASSIGN_OR_RETURN(core.query_instance_budget, parse_share(flags.query_instance_budget, pool));
  if (core.query_instance_budget > core.query_budget)
    return reject(
        "--query-instance-budget is more than --query-budget: one engine cannot have more than all");
  return ok_status();
}

Result<ServeOptions> check_together(const ServeFlags& flags) {
  ServeOptions options;
  options.socket = flags.socket.empty() ? shm::default_socket_path() : flags.socket;
  options.pool.bytes = mem::default_pool_bytes();
  if (!flags.pool_size.empty()) {
    ORBITKV_ASSIGN_OR_RETURN(options.pool.bytes, parse_size(flags.pool_size));
  }
  if (options.pool.bytes < kMiB)
    return reject("--pool-size is at least 1MiB; less holds no block of any model");
  ORBITKV_ASSIGN_OR_RETURN(options.pool.huge_pages, parse_huge_pages(flags.huge_pages));
  ORBITKV_ASSIGN_OR_RETURN(options.pool.numa, parse_numa(flags.numa));
  options.pool.prefault = flags.prefault;
  if (!flags.prefault && options.pool.huge_pages == mem::HugePages::kOn)
    return reject("--hugepages on needs --prefault: pages become huge before a slab is offered");
  ORBITKV_RETURN_IF_ERROR(check_durations(flags));
  if (flags.max_blocks > limits::kBlocks)
    return reject(format_text("--max-blocks is at most %u, not %u", limits::kBlocks, flags.max_blocks));
  options.core.max_blocks = flags.max_blocks ? flags.max_blocks : default_max_blocks(options.pool.bytes);
  if (flags.protected_percent > 100) return reject("--cache-protected-percent is 0 to 100");
  options.core.protected_percent = flags.protected_percent;
  options.core.lease_ttl = seconds(flags.lease_ttl_s);
  options.core.publish_wait = milliseconds(flags.publish_wait_ms);
  options.core.incomplete_ttl = seconds(flags.incomplete_ttl_s);
  options.slabs.retire_after = milliseconds(flags.retire_after_ms);
  if (!flags.pool_min.empty()) {
    ORBITKV_ASSIGN_OR_RETURN(options.slabs.least, parse_size(flags.pool_min));
    if (options.slabs.least > options.pool.bytes) return reject("--pool-min is more than --pool-size");
  }
  if (!flags.retire_headroom.empty()) {
    ORBITKV_ASSIGN_OR_RETURN(options.slabs.headroom, parse_size(flags.retire_headroom));
  }
  ORBITKV_RETURN_IF_ERROR(set_budgets(flags, options.pool.bytes, options.core));
  options.core.full_prefix_wait = seconds(flags.full_prefix_wait_s);
  options.core.load_wait = milliseconds(flags.load_wait_ms);
  ORBITKV_ASSIGN_OR_RETURN(options.ssd, ssd_options(flags, options.pool.bytes));
  options.spin = microseconds(flags.spin_us);
  options.drain = seconds(flags.drain_s);
  ORBITKV_ASSIGN_OR_RETURN(options.stall, parse_stall(flags));
  return options;
}

// Who keeps what outlives the process. nullopt: this process becomes a keeper.
Result<std::optional<ServeOptions::Keeping>> keeping(const ServeFlags& flags) {
  using Keeping = ServeOptions::Keeping;
  if (flags.keep_with != "auto" && flags.keep_with != "keeper" && flags.keep_with != "systemd")
    return reject("--keep-with is auto, keeper or systemd, not '" + flags.keep_with + "'");
  if (!flags.keep && flags.keep_with != "auto") return reject("--keep-with needs --keep");
  if (flags.start_silence_s > 86400) return reject("--start-silence is 1 to 86400 seconds, or 0 (off)");
  if (!flags.keep) return std::optional(Keeping::kNothing);
  if (life_start_of(flags.keeper_says) == LifeStart::kCount) return reject("--keeper-says is for the keeper");
  if (flags.keeper_fd >= 0) return std::optional(Keeping::kKeeper);
  const bool stores = SystemdStore::offered();
  if (flags.keep_with == "systemd" || (flags.keep_with == "auto" && stores))
    return std::optional(Keeping::kSystemd);
  return std::optional<Keeping>();
}

// Of a Manager that could not start. Only a keeper knows what to do with more than that it failed.
int failed_start(ServeOptions::Keeping keeping, const Error& error) {
  if (keeping != ServeOptions::Keeping::kKeeper) return kExitFailed;
  if (error.code() == Code::kBusy || error.code() == Code::kReconnect) return kExitTryAgain;
  return error.code() == Code::kRecompute ? kExitCannotKeep : kExitFailed;
}

std::string text_of_environment(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

std::uint64_t number_of_environment(const char* name) {
  return std::strtoull(text_of_environment(name).c_str(), nullptr, 10);
}

int keep(const std::string& socket, Duration silence, const std::vector<std::string>& arguments) {
  std::error_code error;
  const std::string binary = std::filesystem::read_symlink("/proc/self/exe", error);
  auto keeper =
      error
          ? Result<std::unique_ptr<Keeper>>(reject("/proc/self/exe cannot be read"))
          : Keeper::create({.binary = binary, .arguments = arguments, .socket = socket, .silence = silence});
  if (!keeper.ok()) {
    std::fprintf(stderr, "orbitkv serve: %s\n", keeper.error().message().c_str());
    return 1;
  }
  return (*keeper)->run();
}
}  // namespace

std::string echo_of(const std::string& text) {
  constexpr std::size_t kShown = 64;
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

// Digits, perhaps a point and more of them, and a unit: strtod alone would take 0x1, nan and 1e5, too.
Result<ByteCount> parse_size(const std::string& text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string written = text.substr(0, digits);
  char* end = nullptr;
  const double number = std::strtod(written.c_str(), &end);
  std::string unit = text.substr(digits);
  unit.erase(std::remove_if(unit.begin(), unit.end(), [](unsigned char c) { return std::isspace(c); }),
             unit.end());
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  double scale = 0;
  if (unit.empty() || unit == "b") scale = 1;
  if (unit == "k" || unit == "kb" || unit == "kib") scale = 1024.0;
  if (unit == "m" || unit == "mb" || unit == "mib") scale = 1024.0 * 1024;
  if (unit == "g" || unit == "gb" || unit == "gib") scale = 1024.0 * 1024 * 1024;
  if (unit == "t" || unit == "tb" || unit == "tib") scale = 1024.0 * 1024 * 1024 * 1024;
  const double bytes = number * scale;
  if (digits == 0 || *end != '\0' || scale == 0 || !(bytes >= 1) || bytes > 9e18)
    return reject("'" + echo_of(text) + "' is not a size; write for example 512MiB or 30GiB");
  return ByteCount(static_cast<std::uint64_t>(bytes));
}

std::string format_size(ByteCount bytes) {
  const double value = static_cast<double>(bytes.value);
  if (bytes >= kGiB) return format_text("%.1f GiB", value / static_cast<double>(kGiB.value));
  if (bytes >= kMiB) return format_text("%.1f MiB", value / static_cast<double>(kMiB.value));
  return format_text("%.1f KiB", value / 1024);
}

int serve(const ServeFlags& flags, const std::vector<std::string>& arguments) {
  if (flags.can_keep) {
    std::printf("{\"kept_format\":%u,\"kept_format_from\":%u,\"keeper\":%u}\n", mem::kKeptFormat,
                mem::kKeptFormatFrom, kKeeperVersion);
    return kExitDone;
  }
  auto level = parse_log_level(flags.log_level);
  auto options = check_together(flags);
  auto keeper = keeping(flags);
  if (!level.ok() || !options.ok() || !keeper.ok()) {
    const Error& error = !level.ok() ? level.error() : !options.ok() ? options.error() : keeper.error();
    std::fprintf(stderr, "orbitkv serve: %s\n", error.message().c_str());
    return kExitUsage;
  }
  set_log_level(*level);
  ::signal(SIGPIPE, SIG_IGN);  // the pool outlives whoever reads the log
  ::signal(SIGXFSZ, SIG_IGN);  // ulimit -f is an error of the call, which is told
  if (!*keeper) return keep(options->socket, seconds(flags.start_silence_s), arguments);
  options->keeping = **keeper;
  options->keeper_fd = flags.keeper_fd;
  options->keeper = flags.keeper_fd >= 0 ? keeper_of(flags.keeper_fd) : 0;
  options->start = life_start_of(flags.keeper_says);
  options->came = text_of_environment(kLifeCame);
  options->why_came = text_of_environment(kLifeWhy);
  options->hung = number_of_environment(kLifeHung);
  options->silence = seconds(flags.start_silence_s);
  keep_heap();
  auto manager = Manager::create(*options);
  if (!manager.ok()) {
    std::fprintf(stderr, "orbitkv serve: %s\n", manager.error().message().c_str());
    const int code = failed_start(options->keeping, manager.error());
    if (options->keeping != ServeOptions::Keeping::kNothing) ::_exit(code);
    return code;
  }
  ORBITKV_INFO("orbitkv %s serves at %s with a pool of %s (huge pages %s)", kVersion, options->socket.c_str(),
               format_size((*manager)->wanted_bytes()).c_str(), flags.huge_pages.c_str());
  const int code = (*manager)->run();
  if ((*manager)->left()) ::_exit(kExitMadePlace);
  ORBITKV_INFO("stopped");
  // What systemd stores may be gone on with: by a restart, which is a stop and a start.
  if (options->keeping == ServeOptions::Keeping::kSystemd) ::_exit(code);
  // A device that does not answer would hold up the end, and may write until the process is gone.
  if ((*manager)->device_busy()) ::_exit(code);
  return code;
}

}  // namespace orbitkv::daemon::cli
