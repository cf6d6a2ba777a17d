#include "bench/ssd_manager.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "base/text.h"
#include "bench/fio.h"
#include "bench/manager.h"
#include "bench/pairs.h"

namespace orbitkv::bench {
namespace {

constexpr ByteCount kPool = 1 * kGiB;
constexpr ByteCount kAsked = 256 * kMiB;     // by one query; the Manager loads half of its pool at once
constexpr std::uint32_t kQueries = 8;        // that differ; between two of the same all is evicted
constexpr ByteCount kPublished = 32 * kMiB;  // at a time: its queue of writes holds more
constexpr Duration kPatience = seconds(60);
constexpr std::uint32_t kDepth = 32;  // of fio

struct BlockSize {
  const char* name;
  ByteCount bytes;
};
constexpr BlockSize kSizes[] = {
    {"manager_read_256KiB", 256 * kKiB}, {"manager_read_1MiB", 1 * kMiB}, {"manager_read_4MiB", 4 * kMiB}};

// A Manager whose store holds kQueries x kAsked bytes, and the client that put them there.
class Stand {
 public:
  static Result<std::unique_ptr<Stand>> make(const Options& options, const std::string& directory,
                                             ByteCount block) {
    std::unique_ptr<Stand> stand(new Stand);
    stand->store_ = UniqueFd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!stand->store_.valid()) return errno_error("making a file without a name in " + directory);
    const std::string store =
        format_text("/proc/%d/fd/%d", static_cast<int>(::getpid()), stand->store_.get());
    stand->per_query_ = static_cast<std::uint32_t>(kAsked.value / block.value);
    const auto size_flag = [](ByteCount bytes) { return std::to_string(bytes.value); };
    auto manager =
        BenchManager::start(options, {"--pool-size", size_flag(kPool), "--ssd-path", store, "--ssd-size",
                                      size_flag(2 * kQueries * kAsked), "--ssd-write-policy", "all"});
    if (!manager.ok()) return manager.error();
    stand->manager_ = std::move(*manager);
    const auto blocks = static_cast<std::uint32_t>(kPublished.value / block.value);
    ORBITKV_ASSIGN_OR_RETURN(stand->engine_,
                             BenchEngine::attach(*stand->manager_, EngineShape{1, 1, blocks, block.value}));
    ORBITKV_RETURN_IF_ERROR(stand->wait_until("the pool is ready", [](const nlohmann::json& status) {
      return status.at("pool").at("capacity").get<std::uint64_t>() >= kPool.value;
    }));
    ORBITKV_RETURN_IF_ERROR(stand->publish_all());
    return stand;
  }

  // Seconds from the query to its lease.
  Result<double> load(std::uint32_t query) {
    const auto hashes = hashes_from(std::uint64_t{query} * per_query_, per_query_);
    const std::string id = format_text("load-%llu", static_cast<unsigned long long>(++asked_));
    const TimePoint start = monotonic_now();
    client::Ready ready;
    do {
      ORBITKV_RETURN_IF_ERROR(
          to_status(engine_->client().query_prefetch(engine_->instance(), hashes, id, 0, ready)));
      if (ready.loading) std::this_thread::sleep_for(std::chrono::microseconds(200));
    } while (ready.loading && monotonic_now() - start < kPatience);
    const double took = static_cast<double>((monotonic_now() - start).ns) / 1e9;
    if (ready.hit_blocks != per_query_)
      return bug(format_text("%u of %u blocks came from SSD", ready.hit_blocks, per_query_));
    ORBITKV_RETURN_IF_ERROR(to_status(engine_->client().release(ready.lease)));
    return took;
  }

 private:
  Status publish_all() {
    std::vector<std::uint32_t> blocks(engine_->shape().blocks);
    std::iota(blocks.begin(), blocks.end(), 0u);
    const std::uint32_t all = kQueries * per_query_;
    for (std::uint32_t at = 0; at < all; at += engine_->shape().blocks) {
      const auto hashes = hashes_from(at, std::min(engine_->shape().blocks, all - at));
      for (std::uint32_t i = 0; i < hashes.size(); ++i) engine_->fill(hashes[i], i);
      ORBITKV_RETURN_IF_ERROR(engine_->save(hashes, std::span(blocks).first(hashes.size())));
      const std::uint64_t stored = at + hashes.size();
      ORBITKV_RETURN_IF_ERROR(wait_until("blocks are on SSD", [&](const nlohmann::json& status) {
        return status.at("ssd").at("records").get<std::uint64_t>() >= stored;
      }));
    }
    return ok_status();
  }

  template <class Condition>
  Status wait_until(const char* what, Condition holds) {
    const TimePoint give_up = monotonic_now() + kPatience;
    while (monotonic_now() < give_up) {
      std::string text;
      ORBITKV_RETURN_IF_ERROR(to_status(engine_->client().status(text)));
      const auto status = nlohmann::json::parse(text, nullptr, false);
      if (status.is_object() && holds(status)) return ok_status();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return bug(std::string("waited a minute in vain until ") + what);
  }

  UniqueFd store_;  // without a name: nothing is left whatever happens
  std::uint32_t per_query_ = 0;
  std::uint64_t asked_ = 0;
  std::unique_ptr<BenchManager> manager_;
  std::unique_ptr<BenchEngine> engine_;
};

// Every query once, so that it takes about as long as fio does.
Status run_loads(Stand& stand, Run& out) {
  Samples samples;
  double seconds = 0;
  for (std::uint32_t query = 0; query < kQueries; ++query) {
    ORBITKV_ASSIGN_OR_RETURN(const double took, stand.load(query));
    samples.add(nanoseconds(static_cast<std::int64_t>(took * 1e9)));
    seconds += took;
  }
  out.p50 = samples.percentile(0.5);
  out.p99 = samples.percentile(0.99);
  out.gb_per_s = static_cast<double>(kQueries * kAsked.value) / seconds / 1e9;
  return ok_status();
}

Status run_size(const Options& options, const ManagerReads& where, const BlockSize& size) {
  ORBITKV_ASSIGN_OR_RETURN(auto stand, Stand::make(options, where.directory, size.bytes));
  ORBITKV_ASSIGN_OR_RETURN(auto memory, SsdMemory::make(ByteCount(size.bytes.value * kDepth)));
  const FioJob job{false, where.file.path(), where.file.bytes(), size.bytes, kDepth, memory.fio_memory()};
  std::vector<Run> runs(static_cast<std::size_t>(options.runs));
  std::vector<double> ratios;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ORBITKV_RETURN_IF_ERROR(by_turns(i, [&](Side side) -> Status {
      if (side == Side::kOurs) return run_loads(*stand, runs[i]);
      if (!where.fio) return ok_status();
      ORBITKV_ASSIGN_OR_RETURN(const FioFigures figures, run_fio(job));
      runs[i].ceiling = figures.gb_per_s;
      return ok_status();
    }));
    if (where.fio) ratios.push_back(*runs[i].gb_per_s / runs[i].ceiling);
  }
  Case line{"ssd", size.name, kAsked, {}, {}, {}};
  line.spread = true;
  if (where.fio) {
    line.ceiling = Ceiling{"fio", Ceiling::Unit::kGigabytesPerSecond};
    line.extras.push_back({"lower_quartile", format_text("%.3f", lower_quartile(ratios))});
  }
  report(line, std::move(runs), options);
  return ok_status();
}

}  // namespace

std::string manager_read_names() {
  std::string out;
  for (const BlockSize& size : kSizes) out += std::string(out.empty() ? "" : " ") + size.name;
  return out;
}

bool wants_manager_reads(const Options& options) {
  return std::any_of(std::begin(kSizes), std::end(kSizes),
                     [&](const BlockSize& size) { return options.wants(size.name); });
}

int run_manager_reads(const Options& options, const ManagerReads& where) {
  int status = 0;
  for (const BlockSize& size : kSizes) {
    if (!options.wants(size.name)) continue;
    const Status done = run_size(options, where, size);
    if (done.ok()) continue;
    std::fprintf(stderr, "bench ssd %s: %s\n", size.name, done.error().message().c_str());
    status = 1;
  }
  return status;
}

}  // namespace orbitkv::bench
