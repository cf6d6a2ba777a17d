// The Manager's side of what outlives its process: finds what an earlier life left in a FdStore,
// makes the table that this life writes, and keeps the descriptors of slabs and sessions in the
// store. Owned by the Manager; core thread. The table of the last life is the one that counts until
// this one serves; nothing is lent before. Without it (serve without --keep)
// nothing of this runs.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "cache/core.h"
#include "daemon/fd_store.h"
#include "daemon/old_grants.h"
#include "daemon/processes.h"
#include "mem/kept_scan.h"
#include "mem/kept_table.h"
#include "mem/pool.h"
#include "shm/session_memory.h"

namespace orbitkv::daemon {

// Who may map what since an earlier life.
struct KeptMappings {
  std::vector<OldProcess> processes;  // that live, each once
  std::vector<SlabId> slabs;
  std::vector<mem::KeptRetired> retired;  // slabs that are gone
};

class Keep {
 public:
  explicit Keep(std::unique_ptr<FdStore> store) : store_(std::move(store)) {}

  // The start goes on, and with what; nullptr: as before. For whoever would end a start that hangs. Nothing
  // after ready().
  void starting(const char* what = nullptr);
  void fails(const Error& why) { store_->fails(why.message()); }

  // ---- the start, in this order ----
  // Under a service manager, which is no process of ours: the claim to the socket's path is stored with the
  // rest, and so it is nobody else's between two lives. kBusy: another one has it.
  Status claim(const std::string& socket);
  const UniqueFd& claimed() const { return claim_; }
  enum class Start : bool { kAny, kSuccessor };
  enum class Found : std::uint8_t { kNothing, kKept, kLetGo };
  // What the store holds. What cannot be gone on with is let go of, and said; a successor leaves it
  // to others: kRecompute. Any other error: the store did not say what it holds. `unit`: of extents.
  // `locked`: the files of the SSD store that this process has locked, so that nothing that an
  // earlier life asked of them goes on; after that.
  Result<Found> find(std::uint32_t unit, mem::DeviceFiles locked = {}, Start start = Start::kAny);
  mem::KeptPool* pool() { return pool_ ? &*pool_ : nullptr; }  // nullptr: a cold start
  // For the pool that was made of it: the table that the core writes to.
  Result<mem::KeptTable*> make_table(mem::Pool& pool, std::uint32_t max_blocks, std::uint32_t unit);
  // The blocks become the core's. The new table is complete and stored. `name`: of processes whose
  // sessions are found; without it nobody's mappings are known.
  using NameProcess = std::function<OldProcess(const UniqueFd& pidfd)>;
  void adopt(cache::Core& core, const NameProcess& name = {});
  const KeptMappings& mappings() const { return mappings_; }  // of adopt()
  // The Manager serves: from here on the new table counts, and no older one.
  void ready();
  // Engines of earlier lives are judged like those of this one; before make_table().
  void watch_stalls(const StallWatch::Options& options) { stalls_ = options; }
  // Before the pool and the core go.
  void stop();

  // ---- sessions (keep_sessions.cc) ----
  struct Opened {
    SessionId session;
    Epoch epoch;
    ProcessId process;
  };
  void open_session(const Opened& opened, const shm::SessionMemory& memory, const UniqueFd& pidfd);
  // Its process is kept as long as forget_processes() is told that it may map slabs.
  void close_session(Epoch epoch);
  void forget_processes(const std::function<bool(ProcessId)>& may_map);

  // ---- slabs ----
  // A slab that is offered. False: it will not outlive the process.
  bool offer(const mem::SlabInfo& slab, const UniqueFd& memory);
  // One that is about to be abandoned: the next life counts its bytes until let_go().
  void abandon(const mem::KeptRetired& slab);
  // One that no process maps any more. True: the store has closed it too, and its bytes are free.
  bool let_go(SlabId slab);
  // How many slabs are wanted of how many that are configured; what the operator asked for last.
  void note_wanted(std::uint32_t wanted, std::uint32_t configured);
  std::optional<std::uint32_t> wanted(std::uint32_t configured) const;

  // ---- turns ----
  void poll();  // also when the store's descriptor is readable
  void tick();
  int fd() const { return store_->fd(); }
  bool leave_asked() { return store_->leave_asked(); }
  // An error: an upgrade now would find nothing.
  Status may_succeed() const;
  Status succeed(const FdStore::Successor& successor);
  std::optional<Status> succeeded() { return store_->succeeded(); }
  // Processes of earlier lives that stand still in a copy: the operator wants them ended.
  std::vector<OldGrants::Condemned> take_condemned();

  struct View {
    const char* kind = "";
    bool alive = false;
    bool stored = false;         // the table, and a slab if any stands: else the next life starts cold
    std::uint64_t blocks = 0;    // adopted at the start
    std::size_t old_grants = 0;  // whose end is not known yet
    std::uint64_t not_kept = 0;  // descriptors that the store did not take
    std::vector<OldGrants::View> old;
  };
  View view() const;

 private:
  struct OldSession {
    UniqueFd memory, process;
    bool unbounded = false;  // the store has its process without a bound
  };
  struct Session {
    SessionId id;
    ProcessId process;
    bool open = false;  // of this life
    SlabId below{};     // of an earlier one: its process knows of no slab from this name on
  };
  struct Parted {
    Epoch epoch;
    ProcessId process;
    SlabId below;
  };
  void sort_in(std::vector<FdStore::Named> found);
  std::string read_tables(std::uint32_t unit);
  void let_go_of_all();
  void forget(const std::string& name) { store_->forget(name); }
  bool put(const std::string& name, const UniqueFd& fd);
  std::string table_name() const;
  bool all_stored() const;
  void store_table_again();
  void name_processes(const NameProcess& name);
  void bound_process(Epoch epoch, OldSession& session);
  void adopt_sessions();
  void say_adopted() const;
  void relieve();

  std::unique_ptr<FdStore> store_;
  std::string doing_ = "starts";
  TimePoint said_;
  bool serves_ = false;
  std::optional<std::vector<FdStore::Named>> taken_;  // by claim()
  UniqueFd claim_;
  std::map<std::uint64_t, UniqueFd> tables_;  // of earlier lives, by number
  std::vector<mem::KeptMemory> memories_;
  std::map<Epoch, OldSession> old_sessions_;
  std::map<Epoch, Session> sessions_;       // whose memory the store has, old ones too
  std::deque<Parted> parted_;               // whose process alone it has
  std::vector<mem::KeptTable> superseded_;  // those of them that could be read
  std::optional<mem::KeptPool> pool_;
  std::uint64_t number_ = 0;  // of this life's table
  std::optional<mem::KeptTable> table_;
  bool table_stored_ = false;
  TimePoint table_again_;  // is put then
  std::optional<OldGrants> old_grants_;
  StallWatch::Options stalls_;
  cache::Core* core_ = nullptr;  // from adopt() to stop()
  KeptMappings mappings_;
  mem::DeviceFiles locked_;
  std::optional<std::uint64_t> refused_;  // for want of memory, as of the last look
  std::map<SlabId, FdStore::Ticket> going_;
  std::set<SlabId> stored_;   // slabs
  std::set<SlabId> lacking_;  // slabs that were refused, and are not abandoned
  std::optional<std::uint32_t> wanted_, noted_;
  std::uint64_t blocks_ = 0, not_kept_ = 0;
  bool said_not_kept_ = false;
};

}  // namespace orbitkv::daemon
