// Commands of the operator: one JSON object in, one out. {"command": "evict", "bytes": n, "wait": bool},
// {"command": "ssd_list", "after": digest},
// {"command": "ssd_drop", "digest": hex prefix | "unasked": true, "force": bool},
// {"command": "pool_list", "after": name}, {"command": "pool_add", "bytes": n},
// {"command": "pool_drain", "bytes": n | "slab": name}.
// A drop is answered when it would survive a power loss, an eviction that waits when what was
// being written has left; until then their questions wait here. Owned by the Manager; core thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "daemon/slabs.h"
#include "daemon/ssd_tier.h"

namespace orbitkv::daemon {

class Control {
 public:
  // tier: nullptr without an SSD.
  Control(cache::Core& core, const mem::Pool& pool, SsdTier* tier, Slabs& slabs)
      : core_(core), pool_(pool), tier_(tier), slabs_(slabs) {}

  // Called once, at once or in a later poll(): the answer's JSON or why not.
  using Answer = std::function<void(const Result<std::string>&)>;
  void ask(const std::string& question, TimePoint now, Answer answer);
  // Goes on with what waits: after the tier's events, and from time to time.
  void poll(TimePoint now);

 private:
  // A drop whose namespaces are not all durably gone.
  struct Drop {
    std::vector<ssd::TransferId> flushes;
    std::vector<ssd::SpaceStatus> dropped;
    std::uint64_t records = 0, evicted = 0;
    std::uint64_t left = 0;  // namespaces that could not be dropped, and why
    std::string why_left;
    bool failed = false;
    Answer answer;
  };
  // One that goes on while blocks of it are being written.
  struct Eviction {
    ByteCount left;
    cache::EvictReport sum;  // its counts of what stays: of the last turn
    std::uint64_t written_at_turn = 0;
    TimePoint turn_at, give_up;
    Answer answer;
  };
  void evict(ByteCount bytes, bool wait, TimePoint now, Answer answer);
  void evict_more(Eviction& eviction, TimePoint now);
  bool over(const Eviction& eviction, TimePoint now) const;
  void poll_evictions(TimePoint now);
  // Commands of the pool's slabs (control_slabs.cc).
  Result<std::string> pool_list(std::uint64_t after) const;
  Result<std::string> pool_wanted(const Result<std::uint32_t>& slabs) const;
  Result<std::string> list(const std::string& after) const;
  enum class Unasked : std::uint8_t { kNo, kYes, kForced };
  Result<std::vector<ssd::SpaceStatus>> chosen(const std::string& prefix, Unasked unasked) const;
  void drop(const std::vector<ssd::SpaceStatus>& spaces, TimePoint now, Answer answer);
  void poll_drops();

  cache::Core& core_;
  const mem::Pool& pool_;
  SsdTier* tier_;
  Slabs& slabs_;
  std::vector<Drop> drops_;
  std::vector<Eviction> evictions_;
};

}  // namespace orbitkv::daemon
