#include "bench/footprint.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>

#include "base/text.h"
#include "bench/manager.h"

namespace orbitkv::bench {
namespace {

// First number after `key` in /proc/<pid>/<file>; -1 if there is none.
long long proc_number(int pid, const char* file, const char* key) {
  FILE* in = std::fopen(format_text("/proc/%d/%s", pid, file).c_str(), "r");
  if (!in) return -1;
  char line[512];
  long long value = -1;
  while (std::fgets(line, sizeof line, in)) {
    if (std::strncmp(line, key, std::strlen(key)) != 0) continue;
    std::sscanf(line + std::strlen(key), " %lld", &value);
    break;
  }
  std::fclose(in);
  return value;
}

std::size_t mapped_slabs() {
  FILE* in = std::fopen("/proc/self/maps", "r");
  if (!in) return 0;
  char line[512];
  std::size_t count = 0;
  while (std::fgets(line, sizeof line, in)) count += std::strstr(line, "orbitkv-slab") != nullptr;
  std::fclose(in);
  return count;
}

void print_figure(const Options& options, const char* bench, const char* name, const char* unit, double value,
                  double bar) {
  if (!options.wants(name)) return;
  count_report();
  if (options.json)
    std::printf("{\"bench\":\"%s\",\"case\":\"%s\",\"%s\":%.6g,\"bar\":%.6g}\n", bench, name, unit, value,
                bar);
  else
    std::printf("%-8s %-20s %s %.6g (bar %.6g)\n", bench, name, unit, value, bar);
  std::fflush(stdout);
}

int failed(const char* bench, const Error& error) {
  std::fprintf(stderr, "bench %s: %s\n", bench, error.message().c_str());
  return 1;
}

// CPU time of the Manager while one session is attached and silent.
Result<double> idle_share(const Options& options) {
  ORBITKV_ASSIGN_OR_RETURN(auto manager, BenchManager::start(options, {"--pool-size", "64MiB"}));
  ORBITKV_ASSIGN_OR_RETURN(auto engine, BenchEngine::attach(*manager, {}));
  usleep(1'000'000);
  const long long before = proc_number(manager->pid(), "schedstat", "");
  const TimePoint start = monotonic_now();
  usleep(4'000'000);
  const long long used = proc_number(manager->pid(), "schedstat", "") - before;
  return static_cast<double>(used) / static_cast<double>((monotonic_now() - start).ns);
}

Result<double> bytes_per_block(const Options& options) {
  constexpr std::uint32_t kFirst = 1'000'000, kSecond = 2'000'000;
  ORBITKV_ASSIGN_OR_RETURN(
      auto manager, BenchManager::start(options, {"--pool-size", "320MiB", "--no-prefault", "--max-blocks",
                                                  std::to_string(kSecond)}));
  ORBITKV_ASSIGN_OR_RETURN(auto engine, BenchEngine::attach(*manager, {1, 1, 1024, 64}));
  ORBITKV_RETURN_IF_ERROR(engine->make_resident(kFirst));
  const long long before = proc_number(manager->pid(), "status", "RssAnon:");
  ORBITKV_RETURN_IF_ERROR(engine->make_resident(kSecond));
  client::Candidates found;
  const auto first = hashes_from(0, 1024);
  ORBITKV_RETURN_IF_ERROR(
      to_status(engine->client().query_candidates(engine->instance(), first, "kept?", 0, found)));
  if (found.hit_blocks != first.size()) return bug("blocks were evicted: the figure would be too good");
  const long long after = proc_number(manager->pid(), "status", "RssAnon:");
  return static_cast<double>(after - before) * 1024 / (kSecond - kFirst);
}

struct AttachTimes {
  double registered_s = 0, mapped_s = 0;
};
Result<AttachTimes> attach_times(const Options& options) {
  ORBITKV_ASSIGN_OR_RETURN(auto manager,
                           BenchManager::start(options, {"--pool-size", "1TiB", "--no-prefault"}));
  const TimePoint start = monotonic_now();
  ORBITKV_ASSIGN_OR_RETURN(auto engine, BenchEngine::attach(*manager, {}));
  AttachTimes times;
  times.registered_s = static_cast<double>((monotonic_now() - start).ns) / 1e9;
  while (mapped_slabs() < 1024 && monotonic_now() - start < seconds(30)) usleep(1000);
  times.mapped_s = static_cast<double>((monotonic_now() - start).ns) / 1e9;
  return times;
}
}  // namespace

int run_idle_bench(const Options& options) {
  std::vector<double> shares;
  for (int i = 0; i < options.runs; ++i) {
    auto share = idle_share(options);
    if (!share.ok()) return failed("idle", share.error());
    shares.push_back(*share);
  }
  print_figure(options, "idle", "one_session", "core_share", median(shares), 0.005);
  return 0;
}

int run_memory_bench(const Options& options) {
  auto bytes = bytes_per_block(options);
  if (!bytes.ok()) return failed("memory", bytes.error());
  print_figure(options, "memory", "1e6_to_2e6", "bytes_per_block", *bytes, 120);
  return 0;
}

int run_attach_bench(const Options& options) {
  std::vector<double> registered, mapped;
  for (int i = 0; i < options.runs; ++i) {
    auto times = attach_times(options);
    if (!times.ok()) return failed("attach", times.error());
    registered.push_back(times->registered_s);
    mapped.push_back(times->mapped_s);
  }
  print_figure(options, "attach", "1TiB_registered", "seconds", median(registered), 1);
  print_figure(options, "attach", "1TiB_all_mapped", "seconds", median(mapped), 1);
  return 0;
}

}  // namespace orbitkv::bench
