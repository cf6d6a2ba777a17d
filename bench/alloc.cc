#include "bench/alloc.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "mem/pool.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint64_t kReplacements = 1'000'000;
constexpr std::uint64_t kBatch = 50;  // replacements between two looks at the clock
constexpr std::uint64_t kFragments = 72;

// As slot images have it: 32 bytes and a checksum a fragment, in whole 64 bytes.
constexpr ByteCount kHeader((32 + 8 * kFragments + 63) / 64 * 64);
constexpr ByteCount kSlots[] = {64 * kKiB, 144 * kKiB, 1152 * kKiB, 2304 * kKiB, 4608 * kKiB};

struct PoolCase {
  const char* name;
  ByteCount bytes;
};
constexpr PoolCase kCases[] = {{"1GiB", kGiB}, {"8GiB", 8 * kGiB}, {"64GiB", 64 * kGiB}};

struct Outcome {
  double utilisation = 0;     // lent bytes, headers counted, at the first refusal
  Duration p50;               // of one release and allocation, this bench's own part included
  Duration p99;               // likewise; both over means of kBatch replacements
  std::uint64_t refused = 0;  // replacements that needed a second release
};

class Churn {
 public:
  Churn(mem::Pool& pool, std::uint64_t seed) : pool_(pool), random_(seed) {
    const std::uint64_t capacity = pool.stats().capacity.value;
    target_ = ByteCount(capacity / 10 * 9);
    lent_.reserve(capacity / kKiB.value / 64);
  }
  ~Churn() {
    while (!lent_.empty()) release_any();
  }
  Churn(const Churn&) = delete;
  Churn& operator=(const Churn&) = delete;

  void fill() {
    while (pool_.stats().used < target_ && lend(draw())) continue;
  }
  void replace_one() {
    const ByteCount bytes = draw();
    do release_any();
    while (live_ + bytes > target_);
    while (!lend(bytes)) {
      ++refused_;
      release_any();
    }
    // Large for small leaves room: so many more are lent that 90 % stay live.
    while (live_ + kSlots[4] + kHeader <= target_ && lend(draw())) continue;
  }
  void until_refused() {
    while (lend(draw())) continue;
  }
  std::uint64_t refused() const { return refused_; }
  std::uint64_t calls() const { return calls_; }  // of allocate and release

 private:
  ByteCount draw() { return kSlots[random_() % std::size(kSlots)] + kHeader; }
  bool lend(ByteCount bytes) {
    auto extent = pool_.allocate(bytes);
    if (!extent) return false;
    ++calls_;
    live_ += extent->bytes();
    lent_.push_back(std::move(*extent));
    return true;
  }
  void release_any() {
    std::swap(lent_[random_() % lent_.size()], lent_.back());
    live_ -= pool_.release(std::move(lent_.back())).bytes;
    lent_.pop_back();
    ++calls_;
  }

  mem::Pool& pool_;
  std::mt19937_64 random_;
  ByteCount target_, live_;
  std::vector<mem::Extent> lent_;
  std::uint64_t refused_ = 0;
  std::uint64_t calls_ = 0;
};

Result<Outcome> run_once(const PoolCase& which, std::uint64_t seed) {
  mem::PoolConfig config;
  config.bytes = which.bytes;
  config.prefault = false;
  ORBITKV_ASSIGN_OR_RETURN(const auto pool, mem::Pool::create(config));
  pool->collect_offered();
  Churn churn(*pool, seed);
  Samples samples;
  samples.reserve(kReplacements / kBatch);
  churn.fill();
  for (std::uint64_t done = 0; done < kReplacements; done += kBatch) {
    const TimePoint begin = monotonic_now();
    const std::uint64_t calls = churn.calls();
    for (std::uint64_t i = 0; i < kBatch; ++i) churn.replace_one();
    const auto made = static_cast<std::int64_t>(churn.calls() - calls);
    samples.add(nanoseconds((monotonic_now() - begin).ns * 2 / made));
  }
  churn.until_refused();
  const mem::PoolStats stats = pool->stats();
  Outcome outcome;
  outcome.utilisation = static_cast<double>(stats.used.value) / static_cast<double>(stats.capacity.value);
  outcome.p50 = samples.percentile(0.5);
  outcome.p99 = samples.percentile(0.99);
  outcome.refused = churn.refused();
  return outcome;
}

template <class F>
double median_of(const std::vector<Outcome>& outcomes, F figure) {
  std::vector<double> values;
  for (const Outcome& each : outcomes) values.push_back(figure(each));
  return median(std::move(values));
}

void print(const PoolCase& which, const std::vector<Outcome>& outcomes, bool json) {
  const double utilisation = median_of(outcomes, [](const Outcome& o) { return o.utilisation; });
  const double p50 = median_of(outcomes, [](const Outcome& o) { return static_cast<double>(o.p50.ns); });
  const double p99 = median_of(outcomes, [](const Outcome& o) { return static_cast<double>(o.p99.ns); });
  double worst = 1;
  std::uint64_t refused = 0;
  for (const Outcome& each : outcomes) {
    worst = std::min(worst, each.utilisation);
    refused += each.refused;
  }
  const char* const format =
      json ? "{\"bench\":\"alloc\",\"case\":\"%s\",\"utilisation\":%.4f,\"utilisation_min\":%.4f,\"p50_ns\":%"
             ".0f,"
             "\"p99_ns\":%.0f,\"bytes\":%llu,\"replacements\":%llu,\"refused\":%llu,\"runs\":%zu}\n"
           : "alloc %-6s utilisation %.4f (min %.4f)  p50 %.0f ns  p99 %.0f ns a pair  bytes %llu  "
             "replacements %llu  "
             "refused %llu  runs %zu\n";
  std::printf(format, which.name, utilisation, worst, p50, p99,
              static_cast<unsigned long long>(which.bytes.value),
              static_cast<unsigned long long>(kReplacements), static_cast<unsigned long long>(refused),
              outcomes.size());
  std::fflush(stdout);
}

}  // namespace

int run_alloc_bench(const Options& options) {
  pin_thread(usable_cpus().front());
  for (const PoolCase& which : kCases) {
    if (!options.wants(which.name)) continue;
    std::vector<Outcome> outcomes;
    for (int run = 0; run < options.runs; ++run) {
      auto outcome = run_once(which, static_cast<std::uint64_t>(run) + 1);
      if (!outcome.ok()) {
        std::fprintf(stderr, "alloc: %s\n", outcome.error().message().c_str());
        return 1;
      }
      outcomes.push_back(*outcome);
    }
    print(which, outcomes, options.json);
  }
  return 0;
}

}  // namespace orbitkv::bench
