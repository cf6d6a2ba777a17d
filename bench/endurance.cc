#include "bench/endurance.h"

#include <cstdio>

#include "base/text.h"
#include "bench/endurance_replay.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint32_t kDramBlocks[] = {1000, 3000, 10'000};
constexpr double kGiBytes = 1 << 30;

struct Policy {
  const char* name;
  ssd::WritePolicy policy;
};
constexpr Policy kPolicies[] = {
    {"all", ssd::WritePolicy::kAll}, {"reuse", ssd::WritePolicy::kReuse}, {"auto", ssd::WritePolicy::kAuto}};

ReplayCounts replayed(const std::vector<Request>& trace, std::uint32_t dram_blocks, Writer& writer) {
  EnduranceReplay replay(dram_blocks, writer);
  for (const Request& request : trace) replay.request(request);
  return replay.counts();
}

class DramSize {
 public:
  DramSize(const Options& options, const std::vector<Request>& trace, std::uint32_t dram_blocks)
      : options_(options), trace_(trace), dram_blocks_(dram_blocks) {}

  void run() {
    all_ = of_policy(kPolicies[0], {});
    ChosenWriter chosen(clairvoyant_choice(trace_, dram_blocks_, {}));
    clairvoyant_ = replayed(trace_, dram_blocks_, chosen);
    for (const Policy& policy : kPolicies) show(policy.name, of_policy(policy, {}), {});
    show("clairvoyant", clairvoyant_, {});
    const ByteCount budget = daily_budget();
    for (const Policy& policy : kPolicies)
      show(std::string(policy.name) + "_budget", of_policy(policy, budget), budget);
  }

 private:
  ReplayCounts of_policy(const Policy& policy, ByteCount budget) const {
    ssd::AdmissionConfig config;
    config.policy = policy.policy;
    config.daily_budget = budget;
    PolicyWriter writer(config, options_.block_bytes);
    return replayed(trace_, dram_blocks_, writer);
  }
  // Unless one is named: that half of what `all` writes may be written during the trace, the
  // burst counted.
  ByteCount daily_budget() const {
    if (options_.daily_budget.value > 0) return options_.daily_budget;
    const double days = static_cast<double>((trace_.back().at - trace_.front().at).ns) / (24 * 3600e9);
    const double bytes = static_cast<double>(all_.written) * static_cast<double>(options_.block_bytes.value);
    return ByteCount(static_cast<std::uint64_t>(bytes / 2 / (1.0 / 8 + std::max(days, 0.0) * 7 / 8)));
  }
  double saving(const ReplayCounts& counts) const {
    return 1 - static_cast<double>(counts.written) /
                   static_cast<double>(std::max(all_.written, std::uint64_t{1}));
  }

  void show(const std::string& policy, const ReplayCounts& counts, ByteCount budget) const {
    const std::string name = format_text("%u_%s", dram_blocks_, policy.c_str());
    if (!options_.wants(name)) return;
    count_report();
    const std::uint64_t bytes = counts.written * options_.block_bytes.value;
    const double lost = 100 * (all_.hit_rate() - counts.hit_rate());
    const double best = saving(clairvoyant_);
    const double share = best > 0 ? saving(counts) / best : 0;
    if (options_.json)
      std::printf(
          "{\"bench\":\"endurance\",\"case\":\"%s\",\"dram_blocks\":%u,\"blocks_asked\":%llu,"
          "\"blocks_written\":%llu,\"bytes_written\":%llu,\"hit_percent\":%.2f,\"points_lost\":%.2f,"
          "\"saved_percent\":%.1f,\"of_clairvoyant_percent\":%.1f,\"daily_budget\":%llu}\n",
          name.c_str(), dram_blocks_, static_cast<unsigned long long>(counts.asked),
          static_cast<unsigned long long>(counts.written), static_cast<unsigned long long>(bytes),
          100 * counts.hit_rate(), lost, 100 * saving(counts), 100 * share,
          static_cast<unsigned long long>(budget.value));
    else
      std::printf(
          "endurance %-20s %9.1f GiB written, %5.1f %% saved (%5.1f %% of clairvoyant), hits %5.2f %%, "
          "%5.2f points lost\n",
          name.c_str(), static_cast<double>(bytes) / kGiBytes, 100 * saving(counts), 100 * share,
          100 * counts.hit_rate(), lost);
    std::fflush(stdout);
  }

  const Options& options_;
  const std::vector<Request>& trace_;
  std::uint32_t dram_blocks_;
  ReplayCounts all_, clairvoyant_;
};

int complain(const std::string& text) {
  std::fprintf(stderr, "bench endurance: %s\n", text.c_str());
  return 1;
}

}  // namespace

int run_endurance_bench(const Options& options) {
  if (options.file.empty()) {
    complain("name the trace: orbitkv bench endurance FILE");
    return kUsageError;
  }
  const auto trace = read_requests(options.file);
  if (!trace.ok()) return complain(trace.error().message());
  if (trace->empty()) return complain(options.file + " holds no request");
  for (const std::uint32_t dram_blocks : kDramBlocks) DramSize(options, *trace, dram_blocks).run();
  return 0;
}

}  // namespace orbitkv::bench
