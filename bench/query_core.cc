#include "bench/query_core.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/manager.h"
#include "cache/core.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint32_t kSessions = 8;
constexpr std::uint32_t kHashes = 64;
constexpr std::uint32_t kEach = 12'500;  // blocks of a session
constexpr std::uint32_t kQueries = 50'000;

// Grants everything; the core's owner says at once that it was copied.
class Instant : public cache::Ports {
 public:
  std::vector<std::pair<cache::OperationKey, std::size_t>> granted;  // with its entries

  Grant grant(const cache::OperationKey& op, const model::Plan& plan) override {
    granted.emplace_back(op, plan.entries.size());
    return Grant::kGranted;
  }
  Revoke revoke(const cache::OperationKey&, const Error&) override { return Revoke::kRevoked; }
  void fail(const cache::OperationKey&, const Error&) override {}
  void reap(const cache::OperationKey&) override {}
  void drop(const cache::OperationKey&, const Dropped&) override {}
};

model::RankRegistration rank_of(std::uint32_t engine) {
  model::GroupShape group;
  group.fragments = {{0, 0, ByteCount(64)}};
  model::RankRegistration rank;
  rank.instance.bytes[0] = static_cast<std::byte>(engine + 1);
  rank.name_space = "bench";
  rank.device = "cpu:0";
  rank.num_blocks = kEach;
  rank.block_tokens = 16;
  rank.groups = {group};
  return rank;
}

class CoreBench {
 public:
  Status open() {
    mem::PoolConfig config;
    config.bytes = 64 * kMiB;
    config.huge_pages = mem::HugePages::kOff;
    config.prefault = false;
    ORBITKV_ASSIGN_OR_RETURN(pool_, mem::Pool::create(config));
    pool_->collect_offered();
    cache::CoreConfig core;
    core.max_blocks = kSessions * kEach * 5 / 4;
    core_ = std::make_unique<cache::Core>(core, *pool_, ports_);
    for (std::uint32_t s = 0; s < kSessions; ++s) {
      core_->open_session(SessionId(s), now_);
      ORBITKV_ASSIGN_OR_RETURN(const auto registration, core_->register_rank(SessionId(s), rank_of(s), now_));
      ORBITKV_RETURN_IF_ERROR(fill(SessionId(s), registration));
    }
    return ok_status();
  }

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
          rank_of(session.value).instance, GroupId(0), cache::QueryMode::kRead, id, 0, kHashes, list};
      const TimePoint begin = monotonic_now();
      ORBITKV_ASSIGN_OR_RETURN(const auto answer, core_->query(session, part, begin));
      ORBITKV_RETURN_IF_ERROR(core_->release(session, answer.lease));
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
  Status fill(SessionId session, RegistrationId registration) {
    constexpr std::uint32_t kPiece = 500;
    std::vector<std::uint32_t> blocks(kPiece);
    for (std::uint32_t at = 0; at < kEach; at += kPiece) {
      for (std::uint32_t i = 0; i < kPiece; ++i) blocks[i] = at + i;
      const auto list = hashes_from(session.value * kEach + at, kPiece);
      const cache::OperationKey op{session, RecordIndex(0), OperationId(++operations_)};
      ORBITKV_RETURN_IF_ERROR(to_status(core_->publish({op, registration, GroupId(0), blocks, list}, now_)));
      for (const auto& [granted, entries] : std::exchange(ports_.granted, {})) {
        const std::vector<std::uint64_t> digests(entries, 1);
        core_->drained(granted, {true, digests, {}, {}}, now_);
      }
    }
    return ok_status();
  }
  template <class T>
  static Status to_status(const Result<T>& result) {
    return result.ok() ? ok_status() : Status(result.error());
  }

  Instant ports_;
  std::unique_ptr<mem::Pool> pool_;
  std::unique_ptr<cache::Core> core_;
  TimePoint now_ = monotonic_now();
  std::uint64_t operations_ = 0;
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
