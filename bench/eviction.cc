#include "bench/eviction.h"

#include <cstdio>
#include <cstring>

#include "base/text.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint32_t kRooms[] = {1000, 3000, 10'000, 30'000};
constexpr std::uint32_t kShares[] = {0, 10, 20, 40, 60, 80, 100};
constexpr ByteCount kBlock{64};

int complain(const std::string& text) {
  std::fprintf(stderr, "bench eviction: %s\n", text.c_str());
  return 1;
}

void show(const EvictionReplay::Room& room, const ReplayCounts& counts, double recency, bool json) {
  const std::string name = format_text("%u_protected_%u", room.blocks, room.protected_percent);
  const double hits = 100 * counts.hit_rate();
  if (json)
    std::printf(
        "{\"bench\":\"eviction\",\"case\":\"%s\",\"blocks\":%u,\"protected_percent\":%u,\"blocks_asked\":%"
        "llu,"
        "\"hit_percent\":%.2f,\"points_gained\":%.2f}\n",
        name.c_str(), room.blocks, room.protected_percent, static_cast<unsigned long long>(counts.asked),
        hits, hits - recency);
  else
    std::printf("eviction %-22s hits %5.2f %%, %+5.2f points beside plain recency\n", name.c_str(), hits,
                hits - recency);
  std::fflush(stdout);
}

}  // namespace

Result<std::unique_ptr<EvictionReplay>> EvictionReplay::make(Room room) {
  mem::PoolConfig config;
  config.bytes = 4 * kMiB + room.blocks * (4 * kBlock);
  config.huge_pages = mem::HugePages::kOff;
  config.prefault = false;
  ORBITKV_ASSIGN_OR_RETURN(auto pool, mem::Pool::create(config));
  pool->collect_offered();
  return std::unique_ptr<EvictionReplay>(new EvictionReplay(room, std::move(pool)));
}

EvictionReplay::EvictionReplay(Room room, std::unique_ptr<mem::Pool> pool)
    : pool_(std::move(pool)),
      name_space_(*namespaces_.intern(model::NamespaceDigest{})),
      images_({{room.blocks, {1, 2}}, ByteCount(1), room.protected_percent}, *pool_, namespaces_) {}

cache::BlockKey EvictionReplay::key_of(BlockNumber block) const {
  cache::BlockKey key{{}, name_space_, GroupId(0)};
  std::memcpy(key.hash.bytes.data(), &block, sizeof block);
  return key;
}

void EvictionReplay::request(const Request& request) {
  run_.clear();
  for (const BlockNumber block : request.blocks) {
    const cache::RecordId record = images_.table().find(key_of(block));
    if (record == cache::kNoRecord) break;
    run_.push_back(record);
  }
  images_.pin(run_);
  counts_.asked += request.blocks.size();
  counts_.found += run_.size();
  for (std::size_t i = request.blocks.size(); i-- > run_.size();) {
    const cache::BlockKey key = key_of(request.blocks[i]);
    if (images_.table().find(key) != cache::kNoRecord) continue;
    const auto slot = images_.lend({key, ShardId(0), 1, kBlock, cache::OperationIndex(0)});
    if (slot) images_.commit(*slot, 0, request.at);
  }
  images_.unpin(run_);
}

int run_eviction_bench(const Options& options) {
  if (options.file.empty()) {
    complain("name the trace: orbitkv bench eviction FILE");
    return kUsageError;
  }
  const auto trace = read_requests(options.file);
  if (!trace.ok()) return complain(trace.error().message());
  if (trace->empty()) return complain(options.file + " holds no request");
  for (const std::uint32_t blocks : kRooms) {
    double recency = 0;
    for (const std::uint32_t percent : kShares) {
      if (percent > 0 && !options.wants(format_text("%u_protected_%u", blocks, percent))) continue;
      auto replay = EvictionReplay::make({blocks, percent});
      if (!replay.ok()) return complain(replay.error().message());
      for (const Request& request : *trace) (*replay)->request(request);
      const ReplayCounts& counts = (*replay)->counts();
      if (percent == 0) recency = 100 * counts.hit_rate();
      if (!options.wants(format_text("%u_protected_%u", blocks, percent))) continue;
      count_report();
      show({blocks, percent}, counts, recency, options.json);
    }
  }
  return 0;
}

}  // namespace orbitkv::bench
