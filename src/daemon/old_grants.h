// Extents that an earlier life of the Manager had lent and whose end it did not see. Each is asked
// about where its engine says it, in the session memory of that life: what nobody had claimed is
// taken back, what was drained is free, what is being copied is waited for. Only a receipt frees;
// an engine that ended without one, that cannot be asked, or that stands still while room is needed, costs
// its slab (quarantine). What restores under way read stays until they end, or for a while. Owned by Keep;
// core thread. Never reads payload, never frees by time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/time.h"
#include "base/unique_fd.h"
#include "daemon/stall.h"
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
  OldGrants(mem::Pool& pool, mem::KeptTable& table, const StallWatch::Options& stalls)
      : pool_(pool), table_(table), stalls_(stalls) {}
  ~OldGrants();  // what is left is quarantined: its copies may be under way

  // The memory of a session of an earlier life, and its process; `pid` for those who read status.
  // What is granted there and not claimed is taken back.
  struct Process {
    UniqueFd fd;
    int pid = 0;
  };
  void add_session(Epoch epoch, shm::SessionMemory memory, Process process);
  // What restores read that engines have claimed there.
  const std::vector<mem::KeptRead>& reads() const { return reads_; }
  // The extents become this pool's, and stand in the table. After the sessions.
  enum class Device : bool { kUnknown, kEnded };  // its reads of earlier lives
  void adopt(const std::vector<mem::KeptPool::Lent>& lent, Device device);
  // Asks about each.
  void settle(TimePoint now);

  // Sessions of which nothing is left, once each; likewise the readers of reads().
  std::vector<Epoch> take_ended();
  std::vector<mem::KeptReader> take_read();
  std::size_t pending() const { return count_; }
  const Counts& counts() const { return counts_; }

  // ---- engines that give no sign of life, though they hold extents ----
  bool stalled() const;
  // Room is needed: what such engines hold costs its slabs.
  void relieve();
  // Whose processes are to be ended, as StallWatch says it, once each but for those that are spared.
  struct Condemned {
    int pid = 0;
    int process = -1;  // its pidfd
  };
  std::vector<Condemned> take_condemned(const std::function<bool(Epoch)>& spared);

  struct View {
    int pid = 0;
    std::size_t extents = 0, restores = 0;
    ByteCount bytes;
    Duration silent;
    bool stalled = false;
  };
  std::vector<View> view() const;  // of each session of which something is left

 private:
  struct Reading {
    mem::KeptReader reader;
    RecordIndex record;
    OperationId operation;
  };
  struct Session {
    shm::SessionMemory memory;
    Process process;
    std::size_t pending = 0;  // extents
    ByteCount bytes = {};
    std::vector<Reading> reading = {};
    std::uint32_t plan_bytes = limits::kPlanBankBytes;  // that are looked at: plans do not overlap
    bool ended = false;                                 // as of the last look
    bool given_up = false, condemned = false;
    std::uint64_t signs = 0;
    Duration silent{0};
  };
  struct Lent {
    mem::Extent::Words extent;
    mem::KeptAt at;
  };
  struct Operation {
    mem::KeptWriter writer;
    std::vector<Lent> extents;
  };
  enum class Verdict : std::uint8_t { kWait, kRelease, kQuarantine };
  void read_plan(Session& session, RecordIndex record, OperationId operation);
  void look(Session& session, TimePoint now);
  bool stalled(const Session& session) const;
  Verdict ask(const mem::KeptWriter& writer);
  static Verdict ask(Session& session, const mem::KeptWriter& writer);
  bool settle(Operation& operation);
  void end(const mem::KeptWriter& writer, const Lent& each, Verdict verdict);

  mem::Pool& pool_;
  mem::KeptTable& table_;
  const StallWatch::Options stalls_;
  std::map<Epoch, Session> sessions_;
  std::vector<Operation> operations_;
  std::size_t count_ = 0;  // of their extents
  std::vector<mem::KeptRead> reads_;
  std::uint32_t readers_ = 0;
  std::vector<mem::KeptReader> read_;
  TimePoint begun_, last_;
  Duration step_{0};
  Counts counts_;
};

}  // namespace orbitkv::daemon
