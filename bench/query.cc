#include "bench/query.h"

#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>

#include "bench/manager.h"
#include "bench/query_core.h"
#include "bench/query_fair.h"
#include "bench/query_turns.h"
#include "cache/residency.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint32_t kSamples = 3000;
constexpr std::uint32_t kManyClients = 64;
constexpr EngineShape kTiny{1, 1, 1024, 64};  // 128 bytes a slot: the table matters, not the payload

// The same keys in a table of this process: what a query would cost without a channel.
class ProbeTable {
 public:
  explicit ProbeTable(std::uint32_t resident) : table_({resident + resident / 4 + 1024, {1, 2}}) {
    for (std::uint32_t i = 0; i < resident; ++i) {
      cache::RecordId record;
      if (table_.insert({hash_of(i), NamespaceIndex(0), GroupId(0)}, record) ==
          cache::Residency::Insert::kInserted)
        table_.hot(record).state = cache::ImageState::kSealed;
    }
  }
  // Median microseconds of a batch lookup.
  double probe(const std::vector<std::vector<BlockHash>>& queries) {
    Samples samples;
    std::vector<cache::Lookup> found(queries[0].size());
    for (const auto& query : queries) {
      const TimePoint start = monotonic_now();
      table_.find_batch(table_.key_space(NamespaceIndex(0), GroupId(0)), query, found);
      samples.add(monotonic_now() - start);
    }
    return static_cast<double>(samples.percentile(0.5).ns) / 1000;
  }

 private:
  cache::Residency table_;
};

struct QueryCase {
  const char* name;
  std::uint32_t hashes;
  std::uint32_t resident;
  bool hit;
};
constexpr QueryCase kCases[] = {{"miss_1", 1, 100'000, false},
                                {"hit_1", 1, 100'000, true},
                                {"hit_64", 64, 100'000, true},
                                {"hit_1024", 1024, 100'000, true},
                                {"hit_1024_1e6", 1024, 1'000'000, true}};

std::vector<std::vector<BlockHash>> make_queries(const QueryCase& what, std::uint32_t count) {
  std::vector<std::vector<BlockHash>> queries;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t first = std::uint64_t{i} * 7919 * what.hashes % (what.resident - what.hashes);
    queries.push_back(hashes_from(first, what.hashes, what.hit ? 0 : 1));
  }
  return queries;
}

Result<Run> run_once(const QueryCase& what, BenchEngine& engine, ProbeTable& table) {
  const std::uint32_t count = what.hashes > 256 ? kSamples / 5 : kSamples;
  const auto queries = make_queries(what, count);
  Samples samples;
  static std::uint64_t request = 0;
  for (const auto& query : queries) {
    client::Ready ready;
    const std::string id = "q" + std::to_string(++request);
    const TimePoint start = monotonic_now();
    const auto outcome = engine.client().query_prefetch(engine.instance(), query, id, 0, ready);
    samples.add(monotonic_now() - start);
    ORBITKV_RETURN_IF_ERROR(to_status(outcome));
    if (ready.hit_blocks != (what.hit ? what.hashes : 0))
      return bug("a query of the bench found the wrong blocks");
    if (ready.lease) ORBITKV_RETURN_IF_ERROR(to_status(engine.client().release(ready.lease)));
  }
  Run run;
  run.p50 = samples.percentile(0.5);
  run.p99 = samples.percentile(0.99);
  run.ceiling = table.probe(queries);
  return run;
}

Status run_resident(const Options& options, std::uint32_t resident) {
  bool wanted = false;
  for (const QueryCase& what : kCases) wanted |= what.resident == resident && options.wants(what.name);
  if (!wanted) return ok_status();
  const std::uint64_t pool = std::uint64_t{resident} * 192 + (64 << 20);
  ORBITKV_ASSIGN_OR_RETURN(auto manager,
                           BenchManager::start(options, {"--pool-size", std::to_string(pool), "--max-blocks",
                                                         std::to_string(resident + resident / 4 + 1024)}));
  ORBITKV_ASSIGN_OR_RETURN(auto engine, BenchEngine::attach(*manager, kTiny));
  ORBITKV_RETURN_IF_ERROR(engine->make_resident(resident));
  ProbeTable table(resident);
  pin_thread(usable_cpus()[0]);
  for (const QueryCase& what : kCases) {
    if (what.resident != resident || !options.wants(what.name)) continue;
    std::vector<Run> runs;
    for (int i = 0; i < options.runs; ++i) {
      ORBITKV_ASSIGN_OR_RETURN(auto run, run_once(what, *engine, table));
      runs.push_back(run);
    }
    report({"query", what.name, {}, {}, resident, Ceiling{"probe_in_process"}}, runs, options);
  }
  return ok_status();
}

// Many sessions: by one thread in turn (rings), or by a thread each (clients). The
// figure is wall time over queries: its inverse is the Manager's query rate.
Result<Run> run_many(std::vector<std::unique_ptr<BenchEngine>>& engines, bool threads, double ceiling) {
  constexpr std::uint32_t kEach = 200;
  const auto query = hashes_from(0, 64);
  std::atomic<std::uint64_t> failures{0};
  const auto ask = [&](BenchEngine& engine, std::uint32_t i) {
    client::Ready ready;
    const auto outcome =
        engine.client().query_prefetch(engine.instance(), query, "m" + std::to_string(i), 0, ready);
    const bool good = outcome.ok() && ready.hit_blocks == 64 && engine.client().release(ready.lease).ok();
    if (!good && failures++ == 0)
      std::fprintf(stderr, "bench query: %u hits, %s\n", ready.hit_blocks, outcome.message.c_str());
  };
  const TimePoint start = monotonic_now();
  if (threads) {
    std::vector<std::thread> workers;
    for (auto& engine : engines)
      workers.emplace_back([&] {
        for (std::uint32_t i = 0; i < kEach; ++i) ask(*engine, i);
      });
    for (auto& worker : workers) worker.join();
  } else {
    for (std::uint32_t i = 0; i < kEach; ++i)
      for (auto& engine : engines) ask(*engine, i);
  }
  if (failures > 0) return bug("queries of the bench failed");
  const std::int64_t each =
      (monotonic_now() - start).ns / (kEach * static_cast<std::int64_t>(engines.size()));
  Run run;
  run.p50 = run.p99 = nanoseconds(each);
  run.ceiling = ceiling;
  return run;
}

Status run_qps(const Options& options) {
  if (!options.wants("qps_64_clients") && !options.wants("qps_64_rings")) return ok_status();
  constexpr std::uint32_t kResident = 100'000;
  ORBITKV_ASSIGN_OR_RETURN(auto manager,
                           BenchManager::start(options, {"--pool-size", "128MiB", "--max-blocks", "131072"}));
  std::vector<std::unique_ptr<BenchEngine>> engines;
  for (std::uint32_t i = 0; i < kManyClients; ++i) {
    ORBITKV_ASSIGN_OR_RETURN(auto engine, BenchEngine::attach(*manager, kTiny, {}));
    engines.push_back(std::move(engine));
  }
  ORBITKV_RETURN_IF_ERROR(engines[0]->make_resident(kResident));
  ProbeTable table(kResident);
  const double ceiling = table.probe(make_queries({"", 64, kResident, true}, 1000));
  for (const bool threads : {true, false}) {
    const char* name = threads ? "qps_64_clients" : "qps_64_rings";
    if (!options.wants(name)) continue;
    std::vector<Run> runs;
    for (int i = 0; i < options.runs; ++i) {
      ORBITKV_ASSIGN_OR_RETURN(auto run, run_many(engines, threads, ceiling));
      runs.push_back(run);
    }
    report({"query", name, {}, {}, kResident, Ceiling{"probe_in_process"}}, runs, options);
  }
  return ok_status();
}
}  // namespace

int run_query_bench(const Options& options) {
  for (const auto& part :
       {run_resident(options, 100'000), run_resident(options, 1'000'000), run_qps(options),
        run_core_queries(options), run_fair_queries(options), run_longest_turns(options)}) {
    if (part.ok()) continue;
    std::fprintf(stderr, "bench query: %s\n", part.error().message().c_str());
    return 1;
  }
  return 0;
}

}  // namespace orbitkv::bench
