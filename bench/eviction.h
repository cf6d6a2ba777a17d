// What the protected share of the pool does to the hit rate: a trace of requests through
// cache/images.h with room for so many blocks, by share. Main thread of the bench; blocks
// are a few bytes each, nothing is copied and there is no SSD behind.
#pragma once

#include <memory>

#include "bench/endurance_replay.h"
#include "bench/harness.h"
#include "cache/images.h"

namespace orbitkv::bench {

int run_eviction_bench(const Options& options);

// A request reads the leading run that is there and saves the rest, its end first.
class EvictionReplay {
 public:
  struct Room {
    std::uint32_t blocks = 0;
    std::uint32_t protected_percent = 0;
  };
  static Result<std::unique_ptr<EvictionReplay>> make(Room room);
  void request(const Request& request);
  const ReplayCounts& counts() const { return counts_; }
  const cache::Images& images() const { return images_; }

 private:
  EvictionReplay(Room room, std::unique_ptr<mem::Pool> pool);
  cache::BlockKey key_of(BlockNumber block) const;

  std::unique_ptr<mem::Pool> pool_;
  cache::Namespaces namespaces_;
  NamespaceIndex name_space_;
  cache::Images images_;
  std::vector<cache::RecordId> run_;
  ReplayCounts counts_;
};

}  // namespace orbitkv::bench
