#include "bench/query_core.h"

#include <string>
#include <vector>

#include "bench/core_rig.h"
#include "bench/manager.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint32_t kSessions = 8;
constexpr std::uint32_t kHashes = 64;
constexpr std::uint32_t kEach = 12'500;  // blocks of a session
constexpr std::uint32_t kQueries = 50'000;

class CoreBench {
 public:
  Status open() { return rig_.open({kSessions, kEach}); }

  struct Figures {
    Run run;
    double per_s = 0;
  };
  // Each sample is a query of resident blocks and the release of its lease.
  Result<Figures> run() {
    Samples samples;
    samples.reserve(kQueries);
    std::int64_t spent = 0;
    for (std::uint32_t i = 0; i < kQueries; ++i) {
      const SessionId session(i % kSessions);
      const auto list = hashes_from(session.value * kEach + i * 61 % (kEach - kHashes), kHashes);
      const std::string id = "q" + std::to_string(i);
      const cache::QueryPart part{
          CoreRig::instance(session.value), GroupId(0), cache::QueryMode::kRead, id, 0, kHashes, list};
      const TimePoint begin = monotonic_now();
      ORBITKV_ASSIGN_OR_RETURN(const auto answer, rig_.core().query(session, part, begin));
      ORBITKV_RETURN_IF_ERROR(rig_.core().release(session, answer.lease));
      const Duration took = monotonic_now() - begin;
      samples.add(took);
      spent += took.ns;
      if (answer.hit_blocks != kHashes) return bug("a query of the bench found the wrong blocks");
    }
    Figures out;
    out.run.p50 = samples.percentile(0.5);
    out.run.p99 = samples.percentile(0.99);
    out.per_s = 1e9 * kQueries / static_cast<double>(spent);
    return out;
  }

 private:
  CoreRig rig_;
};

}  // namespace

Status run_core_queries(const Options& options) {
  constexpr const char* kName = "core_8x64";
  if (!options.wants(kName)) return ok_status();
  pin_thread(usable_cpus()[0]);
  CoreBench bench;
  ORBITKV_RETURN_IF_ERROR(bench.open());
  std::vector<Run> runs;
  std::vector<double> rates;
  for (int i = 0; i < options.runs; ++i) {
    ORBITKV_ASSIGN_OR_RETURN(const auto figures, bench.run());
    runs.push_back(figures.run);
    rates.push_back(figures.per_s);
  }
  const auto rate = static_cast<std::uint64_t>(median(rates));
  report({"query", kName, {}, {}, kSessions * kEach, {}, false, {{"per_s", std::to_string(rate)}}}, runs,
         options);
  return ok_status();
}

}  // namespace orbitkv::bench
