// Commands of the operator: one JSON object in, one out. {"command": "evict", "bytes": n, "wait": bool},
// {"command": "ssd_list", "after": digest},
// {"command": "ssd_drop", "digest": hex prefix | "unasked": true, "force": bool},
// {"command": "drop", "digests": [hex prefix], "scope": name, "unasked": true, "force": bool,
//  "unused_s": n, "where": "all" | "memory" | "ssd", "dry_run": bool},
// {"command": "pool_list", "after": name}, {"command": "pool_add", "bytes": n},
// {"command": "pool_drain", "bytes": n | "slab": name},
// {"command": "upgrade", "binary": path, "cold": bool}.
// A drop is answered when memory was walked and it would survive a power loss, an eviction that waits
// when what was being written has left; until then their questions wait here. A drop that is of the SSD,
// too, begins when all of that has been read: before, what it names is not known. Owned by the Manager;
// core thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "daemon/fd_store.h"
#include "daemon/slabs.h"
#include "daemon/ssd_tier.h"
#include "model/geometry.h"
#include "ssd/unused_drop.h"

namespace orbitkv::daemon {

class Control {
 public:
  // tier: nullptr without an SSD.
  Control(cache::Core& core, const mem::Pool& pool, SsdTier* tier, Slabs& slabs)
      : core_(core), pool_(pool), tier_(tier), slabs_(slabs) {}

  // Called once, at once or in a later poll(): the answer's JSON or why not.
  using Answer = std::function<void(const Result<std::string>&)>;
  void ask(const std::string& question, TimePoint now, Answer answer);
  // What "upgrade" does, and answers when it is decided; without it there is no successor to make
  // place for.
  using Succeed = std::function<void(const FdStore::Successor& successor, Answer answer)>;
  void set_succeed(Succeed succeed) { succeed_ = std::move(succeed); }
  // Goes on with what waits: after the tier's events and the host's turns.
  // True: there is more to do at once.
  bool poll(TimePoint now);

 private:
  // What a drop is to take (control_drop.cc).
  struct DropAsked {
    std::vector<std::string> digests;  // or their beginnings
    std::string scope;
    bool unasked = false, force = false;
    Duration unused;  // 0: of any age
    bool memory = true, ssd = true, dry_run = false;
    bool everything() const { return digests.empty() && scope.empty() && !unasked; }
  };
  // A namespace, and what was dropped of it or would be.
  struct Space {
    model::NamespaceDigest digest;
    std::string text;
    bool stored = false, asked = true;
    std::uint64_t blocks = 0, records = 0;  // in memory, on SSD
    ByteCount bytes, stored_bytes;
  };
  // A drop that goes on: in memory first by age, for what is read meanwhile is in use; else on the
  // SSD first, so that nothing comes back.
  struct Drop {
    DropAsked asked;
    std::optional<cache::DropId> memory;  // its walk
    bool then_unused = false;             // by age, on the SSD
    std::optional<ssd::UnusedDrop> unused;
    std::vector<ssd::TransferId> flushes;
    std::vector<Space> dropped;
    std::uint64_t left = 0;  // namespaces that could not be dropped, and why
    std::uint64_t left_records = 0;
    std::string why_left;
    bool failed = false;
    Answer answer;
    bool over() const { return !memory && !then_unused && !unused && flushes.empty(); }
  };
  // One that has not begun: the SSD is being read.
  struct Waiting {
    DropAsked asked;
    TimePoint give_up;
    Answer answer;
  };
  // One that goes on while blocks of it are being written.
  struct Eviction {
    ByteCount left;
    cache::EvictReport sum;  // its counts of what stays: of the last turn
    std::uint64_t written_at_turn = 0;
    bool takes_at_turn = true;  // the tier did take something
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
  std::vector<Space> spaces() const;
  Result<std::vector<Space>> chosen(const DropAsked& asked) const;
  void drop(const DropAsked& asked, TimePoint now, Answer answer);
  void begin_drop(const DropAsked& asked, TimePoint now, Answer answer);
  void poll_waiting(TimePoint now);
  void drop_stored(Drop& drop) const;
  void begin_unused(Drop& drop) const;
  void go_on_unused(Drop& drop) const;
  void begin_memory(Drop& drop, TimePoint now);
  void go_on(Drop& drop);
  static std::string answer_of(const Drop& drop);
  void poll_drops();

  cache::Core& core_;
  const mem::Pool& pool_;
  SsdTier* tier_;
  Slabs& slabs_;
  void upgrade(const FdStore::Successor& successor, Answer answer) const;
  Succeed succeed_;
  std::vector<Waiting> waiting_;
  std::vector<Drop> drops_;
  std::vector<Eviction> evictions_;
};

}  // namespace orbitkv::daemon
