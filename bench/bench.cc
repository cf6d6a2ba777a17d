#include "bench/bench.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

#include "bench/adopt.h"
#include "bench/alloc.h"
#include "bench/channel.h"
#include "bench/copy_gpu.h"
#include "bench/copy_host.h"
#include "bench/endurance.h"
#include "bench/eviction.h"
#include "bench/footprint.h"
#include "bench/harness.h"
#include "bench/query.h"
#include "bench/replay.h"
#include "bench/ssd.h"
#include "bench/transfer.h"

namespace orbitkv::bench {
namespace {

struct Bench {
  const char* name;
  int (*run)(const Options& options);
  bool apart = false;  // not one of "all": it needs a file, or writes gigabytes
};
int run_copy_bench(const Options& options) {
  return options.on_gpu() ? run_copy_gpu_bench(options) : run_copy_host_bench(options);
}

constexpr std::array kBenches = {
    Bench{"channel", run_channel_bench},
    Bench{"copy", run_copy_bench},
    Bench{"alloc", run_alloc_bench},
    Bench{"query", run_query_bench},
    Bench{"adopt", run_adopt_bench},
    Bench{"restore", run_restore_bench},
    Bench{"publish", run_publish_bench},
    Bench{"idle", run_idle_bench},
    Bench{"memory", run_memory_bench},
    Bench{"attach", run_attach_bench},
    Bench{"replay", run_replay_bench, true},
    Bench{"ssd", run_ssd_bench, true},
    Bench{"endurance", run_endurance_bench, true},
    Bench{"eviction", run_eviction_bench, true},
};

constexpr std::uint32_t kRuns = 5;
constexpr std::uint32_t kSsdRuns = 15;  // the device drifts

// What nobody knows must not be measured as something else.
bool names_device(std::string_view name) {
  if (name == "cpu:0") return true;
  if (!name.starts_with("cuda:") || name.size() == 5) return false;
  return name.find_first_not_of("0123456789", 5) == name.npos;
}

// A failure says more than a bench that could not run, that more than one that did.
int worse(int a, int b) {
  for (const int status : {a, b})
    if (status != 0 && status != kSkipped) return status;
  return std::max(a, b);
}

}  // namespace

std::string names() {
  std::string out;
  for (const Bench& bench : kBenches) out += std::string(bench.name) + ", ";
  return out + "all";
}

std::string case_names() {
  return ssd_case_names();
}

int run(const Flags& flags, const char* self) {
  Options options;
  options.json = flags.json;
  const std::uint32_t runs = flags.name == "ssd" ? kSsdRuns : kRuns;
  options.runs = static_cast<int>(std::clamp(flags.runs == 0 ? runs : flags.runs, 1u, 1000u));
  options.only_case = flags.only;
  options.self = self;
  options.device = flags.device;
  options.file = flags.file;
  options.window = flags.window;
  options.path = flags.path;
  options.file_bytes = ByteCount(flags.file_bytes);
  options.block_bytes = ByteCount(flags.block_bytes);
  options.daily_budget = ByteCount(flags.daily_budget);
  if (!names_device(options.device)) {
    std::fprintf(stderr, "bench: no device is called \"%s\"; use cpu:0 or cuda:<number>\n",
                 options.device.c_str());
    return kUsageError;
  }
  int status = 0;
  bool known = false;
  for (const Bench& bench : kBenches) {
    const bool of_all = flags.name == "all" && !bench.apart;
    if (!of_all && flags.name != bench.name) continue;
    known = true;
    status = worse(status, bench.run(options));
  }
  if (known && status == 0 && reports() == 0) {
    std::fprintf(stderr, "bench %s has no case \"%s\"; run it without --case to see their names\n",
                 flags.name.c_str(), flags.only.c_str());
    return kUsageError;
  }
  if (known) return status;
  std::fprintf(stderr, "no bench is called \"%s\"; there are: %s\n", flags.name.c_str(), names().c_str());
  return kUsageError;
}

}  // namespace orbitkv::bench
