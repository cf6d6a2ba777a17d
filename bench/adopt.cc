#include "bench/adopt.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "cache/core.h"
#include "mem/kept_scan.h"
#include "mem/kept_table.h"
#include "mem/slab.h"

namespace orbitkv::bench {
namespace {

constexpr ByteCount kSlot = 64 * kKiB;
constexpr std::uint32_t kSlotsOfSlab = static_cast<std::uint32_t>(limits::kSlabBytes.value / kSlot.value);

struct AdoptCase {
  const char* name;
  std::uint32_t blocks;
  std::uint16_t shards;
};
constexpr AdoptCase kCases[] = {{"1e5", 100'000, 1}, {"1e6", 1'000'000, 1}, {"2.5e5x4", 250'000, 4}};

class Instant : public cache::Ports {
 public:
  Grant grant(const cache::OperationKey&, const model::Plan&) override { return Grant::kGranted; }
  Revoke revoke(const cache::OperationKey&, const Error&) override { return Revoke::kRevoked; }
  void fail(const cache::OperationKey&, const Error&) override {}
  void reap(const cache::OperationKey&) override {}
  void drop(const cache::OperationKey&, const Dropped&) override {}
};

// What the last life left.
struct Left {
  mem::KeptTable table;
  std::vector<mem::KeptMemory> memories;
};

mem::KeptImage slot_of(const AdoptCase& which, std::uint32_t number, std::uint32_t place) {
  mem::KeptImage image;
  const std::uint64_t block = number / which.shards;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t word = (block + 1) * 0x9E3779B97F4A7C15 * (2 * i + 1);
    std::memcpy(image.hash.data() + 8 * i, &word, sizeof word);
  }
  image.shard = ShardId(static_cast<std::uint16_t>(number % which.shards));
  image.shards = which.shards;
  image.place = {SlabId(place / kSlotsOfSlab), place % kSlotsOfSlab * kSlot.value, kSlot};
  image.digest = number;
  image.revision = AllocationId(place + 1);
  return image;
}

Result<Left> leave(const AdoptCase& which) {
  const std::uint32_t slots = which.blocks * which.shards;
  ORBITKV_ASSIGN_OR_RETURN(
      auto table,
      mem::KeptTable::create({1, 64, which.blocks, which.blocks * (which.shards - 1u) + 1, 1024}));
  Left left{std::move(table), {}};
  for (std::uint32_t s = 0; s * kSlotsOfSlab < slots; ++s) {
    ORBITKV_ASSIGN_OR_RETURN(auto memory,
                             mem::make_slab_memory(SlabId(s), limits::kSlabBytes, mem::PageSource::kShared));
    left.table.put_slab(SlabSlot(s),
                        {SlabId(s), limits::kSlabBytes, {}, kAnyNode, mem::KeptSlabState::kLive});
    left.memories.push_back({SlabId(s), std::move(memory)});
  }
  left.table.put_name_space(NamespaceIndex(0), std::array<std::byte, 32>{});
  std::vector<std::uint32_t> places(slots);
  std::iota(places.begin(), places.end(), 0u);
  std::shuffle(places.begin(), places.end(), std::mt19937_64(1));
  for (std::uint32_t n = 0; n < slots; ++n) {
    const bool first = n % which.shards == 0;
    const std::uint32_t block = n / which.shards;
    const std::uint32_t further = block * (which.shards - 1u) + n % which.shards - 1;
    left.table.seal(
        first ? mem::KeptAt{mem::KeptRegion::kFirst, block} : mem::KeptAt{mem::KeptRegion::kFurther, further},
        slot_of(which, n, places[n]));
  }
  left.table.set_complete();
  return left;
}

struct Outcome {
  Duration read, all, copy;
  std::uint64_t blocks = 0;
};

Result<Outcome> take_over(const AdoptCase& which, Left left) {
  UniqueFd fd(::fcntl(left.table.memory().get(), F_DUPFD_CLOEXEC, 0));
  const TimePoint begin = monotonic_now();
  ORBITKV_ASSIGN_OR_RETURN(auto table, mem::KeptTable::open(std::move(fd)));
  ORBITKV_ASSIGN_OR_RETURN(mem::KeptPool kept, mem::scan_kept(table, left.memories, 64));
  const TimePoint scanned = monotonic_now();
  mem::PoolConfig config;
  config.bytes = kept.slabs.size() * limits::kSlabBytes;
  config.prefault = false;
  config.kept = &kept;
  ORBITKV_ASSIGN_OR_RETURN(const auto pool, mem::Pool::create(config));
  ORBITKV_ASSIGN_OR_RETURN(auto next, mem::KeptTable::create(table.shape()));
  pool->keep_in(next);
  cache::CoreConfig core_config;
  core_config.max_blocks = which.blocks;
  core_config.kept = &next;
  Instant ports;
  cache::Core core(core_config, *pool, ports);
  Outcome outcome;
  outcome.blocks = core.adopt(kept, monotonic_now());
  outcome.read = scanned - begin;
  outcome.all = monotonic_now() - begin;
  const std::size_t bytes = std::size_t{which.blocks} * which.shards * mem::KeptTable::kRecordWords * 8;
  const std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes);
  const TimePoint copied = monotonic_now();
  std::memcpy(to.data(), from.data(), bytes);
  outcome.copy = monotonic_now() - copied;
  return outcome;
}

template <class F>
double median_ms(const std::vector<Outcome>& outcomes, F figure) {
  std::vector<double> values;
  for (const Outcome& each : outcomes) values.push_back(static_cast<double>(figure(each).ns) / 1e6);
  return median(std::move(values));
}

void print(const AdoptCase& which, const std::vector<Outcome>& outcomes, bool json) {
  const char* const format = json
                                 ? "{\"bench\":\"adopt\",\"case\":\"%s\",\"p50_ms\":%.1f,\"read_ms\":%.1f,"
                                   "\"resident\":%u,\"shards\":%u,"
                                   "\"runs\":%zu,\"ceiling\":{\"name\":\"memcpy_table_ms\",\"value\":%.1f}}\n"
                                 : "adopt %-8s %8.1f ms, of it reading %.1f ms  blocks %u of %u shards  runs "
                                   "%zu  memcpy of the table "
                                   "%.1f ms\n";
  std::printf(format, which.name, median_ms(outcomes, [](const Outcome& o) { return o.all; }),
              median_ms(outcomes, [](const Outcome& o) { return o.read; }), which.blocks, which.shards,
              outcomes.size(), median_ms(outcomes, [](const Outcome& o) { return o.copy; }));
  std::fflush(stdout);
  count_report();
}

}  // namespace

int run_adopt_bench(const Options& options) {
  pin_thread(usable_cpus().front());
  for (const AdoptCase& which : kCases) {
    if (!options.wants(which.name)) continue;
    std::vector<Outcome> outcomes;
    for (int run = 0; run < options.runs; ++run) {
      auto left = leave(which);
      auto outcome = left.ok() ? take_over(which, std::move(left).value()) : Result<Outcome>(left.error());
      if (!outcome.ok() || outcome->blocks != which.blocks) {
        std::fprintf(stderr, "adopt: %s\n",
                     outcome.ok() ? "not every block was taken over" : outcome.error().message().c_str());
        return 1;
      }
      outcomes.push_back(*outcome);
    }
    print(which, outcomes, options.json);
  }
  return 0;
}

}  // namespace orbitkv::bench
