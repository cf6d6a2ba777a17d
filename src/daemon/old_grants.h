// Extents that an earlier life of the Manager had lent and whose end it did not see. Each is asked
// about where its engine says it, in the session memory of that life: what nobody had claimed is
// taken back, what was drained is free, what is being copied is waited for. Only a receipt frees;
// an engine that ended without one, or that cannot be asked, costs its slab (quarantine). Owned by
// Keep; core thread. Never reads payload, never frees by time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/unique_fd.h"
#include "mem/kept_scan.h"
#include "mem/kept_table.h"
#include "mem/pool.h"
#include "shm/session_memory.h"

namespace orbitkv::daemon {

class OldGrants {
 public:
  struct Counts {
    std::uint64_t released = 0, quarantined = 0;
  };
  // Both outlive it.
  OldGrants(mem::Pool& pool, mem::KeptTable& table) : pool_(pool), table_(table) {}
  ~OldGrants();  // what is left is quarantined: its copies may be under way

  // The memory of a session of an earlier life, and its process.
  void add_session(Epoch epoch, shm::SessionMemory memory, UniqueFd process);
  // The extents become this pool's, and stand in the table. After the sessions.
  void adopt(const std::vector<mem::KeptPool::Lent>& lent);
  // Asks about each.
  void settle();

  // Sessions of which nothing is left, once each.
  std::vector<Epoch> take_ended();
  std::size_t pending() const { return pending_.size(); }
  const Counts& counts() const { return counts_; }

 private:
  struct Session {
    shm::SessionMemory memory;
    UniqueFd process;
    std::uint32_t pending = 0;
  };
  struct Pending {
    mem::Extent::Words extent;
    mem::KeptAt at;
    mem::KeptWriter writer;
  };
  enum class Verdict : std::uint8_t { kWait, kRelease, kQuarantine };
  Verdict ask(const Pending& each);
  static Verdict ask(Session& session, const mem::KeptWriter& writer);
  void end(const Pending& each, Verdict verdict);

  mem::Pool& pool_;
  mem::KeptTable& table_;
  std::map<Epoch, Session> sessions_;
  std::vector<Pending> pending_;
  Counts counts_;
};

}  // namespace orbitkv::daemon
