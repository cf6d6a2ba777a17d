// The Manager of a run: the production host, SSD tier and operator's commands, and around
// them what a loop, sockets and a kernel do: turns, wakes, frames, ends of processes, its
// own death and its next life over what the disk kept. Owned by the World; one thread.
// manager_node.cc: lives and turns; manager_clients.cc: clients and their ends;
// manager_acts.cc: the operator and faults; manager_watch.cc: for those who check;
// manager_keep.cc: what outlives a life.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/fault.h"
#include "daemon/control.h"
#include "daemon/host.h"
#include "daemon/keep.h"
#include "daemon/ssd_tier.h"
#include "mem/pool.h"
#include "shm/session_memory.h"
#include "sim/cells.h"
#include "sim/device.h"
#include "sim/disk.h"
#include "sim/kept_memory.h"
#include "sim/shelf.h"
#include "ssd/memory_disk.h"
#include "wire/lifecycle.h"

namespace orbitkv::sim {

class World;
class Process;

class ManagerNode final : private daemon::Host::Owner {
 public:
  explicit ManagerNode(World& world);
  ~ManagerNode() override;

  // A new life. An error is a finding: what it starts from is its own work.
  Status start();
  bool alive() const { return host_ != nullptr; }
  bool doomed() const { return doomed_; }  // dead at a point of the event at hand
  void bury();                             // one that is doomed, when the event is over
  std::uint32_t life() const { return life_; }

  // ---- what a client's kernel does ----
  struct Seat {
    wire::HelloReply hello;
    std::shared_ptr<shm::SessionMemory> memory;
    UniqueFd bell;
    std::shared_ptr<PoolView> view;
  };
  Result<Seat> attach(Process& process);
  // Frames and ends of connections arrive; nothing if that connection is over.
  void on_frame(Epoch from, const std::vector<std::byte>& frame);
  void on_hang_up(Epoch from);
  void on_process_ended(std::uint32_t process);
  void hear(Epoch from);  // it may have rung

  // ---- what happens to it ----
  void tick();
  void evict(ByteCount bytes);
  void drop_space(std::uint32_t space);
  void drop(std::uint64_t word);
  void add_slab();
  void drain_slab(std::uint64_t word);
  void press();              // memory is short
  void stop(Duration time);  // SIGSTOP, and then SIGCONT
  // Other processes take all places that are left, for a while.
  void crowd(Duration time);
  void die(std::uint64_t word);  // `word` picks what the disk keeps
  void die_at(FaultPoint point, std::uint32_t passes);
  // In the middle of taking back what it has lent: as soon as the client has been told, and the table
  // does not know.
  void die_taking_back();
  void die_twice(std::uint64_t word);  // and again while it starts
  void upgrade();                      // it makes place for its successor
  void next_reads_nothing() { other_format_ = true; }
  void damage_kept(std::uint64_t word) { damage_.push_back(word); }  // when it has died
  bool on_fault_point(FaultPoint point);                             // from inside its turn
  bool on_store_call();                                              // likewise; true: it has died before
  void on_store();                                                   // the store has something to say
  enum class WakeFault : std::uint8_t { kLose, kDelay, kDouble };
  void fault_wake(WakeFault fault) { wake_fault_ = fault; }
  void flip_image(std::uint64_t word);  // one bit of the pool
  void lose_frame() { lose_frames_ = 1; }
  void garble_frame(std::uint64_t word) { garble_frame_ = word; }
  Disk& disk() { return disk_; }
  Shelf& shelf() { return shelf_; }

  daemon::Host& host() { return *host_; }
  mem::Pool& pool() { return *pool_; }
  daemon::SsdTier* tier() { return tier_.get(); }
  // What must be out of use: claimed saves of this life's dead, by their record words, on
  // slabs that are still there.
  ByteCount expected_quarantine() const;
  // A copy may begin there: the slab is in use, or its grants have not been taken back. Of
  // another life everything may.
  bool lends(const Place& place) const;
  bool retires() const;  // quarantine ends by itself
  // The next slab that the disk is to know, of those that it does not.
  SlabId slab_to_map(const std::function<bool(SlabId)>& known) const;
  // What it knows of the end of claims is all that there is: no earlier life has left any.
  bool knows_quarantine() const { return !keep_ || life_ == 1; }

  // ---- of what outlives it ----
  // What the next life would find now does not hurt anybody.
  void check_kept();
  std::size_t old_grants() const { return keep_ ? keep_->view().old_grants : 0; }
  ByteCount old_bytes() const;  // of them
  // Names in the store of which nothing is left.
  std::uint64_t kept_too_much() const;
  // States of the records that hold an operation now.
  void see_records(Met& met) const;
  std::vector<Epoch> epochs() const;

  // ---- for faults: the memory of a session, past all protocol ----
  void garble_command(Epoch epoch, std::uint64_t word);  // the last one
  void garble_reply(Epoch epoch, std::uint64_t word);
  void forget_client(std::uint32_t process);

 private:
  struct Peer {
    SessionId session;
    std::uint32_t process = 0;
    Process* client = nullptr;  // nullptr: it has died
    std::shared_ptr<shm::SessionMemory> memory;
    std::uint64_t bell = 0, client_bell = 0;                   // as last heard
    std::map<OperationId, std::map<SlabId, ByteCount>> plans;  // bytes that a save may write
  };

  Status send(SessionId session, std::vector<std::byte> frame, std::vector<int> fds) override;
  void on_closed(daemon::Session& session) override;
  void on_gone(daemon::Session& session) override;
  std::string status_json() const override { return "{}"; }
  void end_process(daemon::Session& session) override;

  bool stopped() const;
  bool listens() const { return alive() && !doomed_ && !stopped(); }
  Status open_store();
  Status make_host(const cache::CoreConfig& core);
  Result<Seat> seat(Process* client, std::uint32_t process);
  void turn();
  bool poll_ssd();
  void tick_host();
  void map_slabs();
  void map_slab(const mem::SlabInfo& slab);
  void map_offered(std::span<const std::byte> frame);
  void find_kept(mem::PoolConfig& pool);
  void adopt_kept();
  void tick_keep();
  void check_found(const mem::KeptPool& found);
  void check_writers(const mem::KeptPool& found, const std::vector<Place>& writers);
  void check_blocks(const mem::KeptPool& found);
  void hold_sources(const mem::KeptPool& found);
  void mark_found(const mem::KeptPool& found);
  void doom();
  bool takes_back();
  void leave_when_quiet();
  void end_life(std::uint64_t word);
  void mark_opening(MetOpening what) const;
  void start_after(Duration delay);
  void plant_in_table();
  void note_retirement(const cache::Census& before);
  void schedule(Duration delay);
  void after_turn();
  void on_ring();
  Peer* peer_of(Epoch epoch);
  daemon::Session* session_of(Epoch epoch);
  std::optional<Epoch> epoch_of(SessionId session) const;
  void ask(
      const std::string& question,
      const std::function<void(const Result<std::string>&)>& answered = [](const Result<std::string>&) {});
  void note_drop(bool aged, const std::string& answer);
  void note_plans(Peer& peer);
  ByteCount expect_claimed_saves(Peer& peer, bool poisoned);
  const mem::SlabInfo* slab_of(SlabId name) const;  // nullptr: it has gone

  World& world_;
  Disk disk_;
  Shelf shelf_;
  KeptAudit audit_;
  std::uint32_t life_ = 0;
  std::unique_ptr<daemon::Keep> keep_;  // nullptr: nothing outlives it
  mem::KeptTable* table_ = nullptr;     // of keep_
  std::unique_ptr<mem::Pool> pool_;
  std::unique_ptr<daemon::SsdTier> tier_;
  std::unique_ptr<daemon::Host> host_;
  std::unique_ptr<daemon::Control> control_;
  std::shared_ptr<PoolView> view_;
  std::map<std::uint64_t, std::shared_ptr<PoolView>> views_;  // by pool
  std::set<SlabId> mapped_;                                   // in this life
  std::map<Epoch, Peer> peers_;
  std::map<SlabId, ByteCount> expected_quarantine_;
  cache::RetireState retire_state_ = cache::RetireState::kIdle;  // as last seen

  std::uint64_t turn_number_ = 0, turns_ = 0, retirements_ = 0;
  TimePoint next_turn_;  // 0: none
  TimePoint last_busy_, stopped_until_;
  bool asleep_ = false;
  std::optional<WakeFault> wake_fault_;
  std::uint32_t lose_frames_ = 0;
  std::optional<std::uint64_t> garble_frame_;
  struct PointFault {
    FaultPoint point;
    std::uint32_t passes = 0;
  };
  std::optional<PointFault> point_fault_, next_point_fault_;  // of this life, of the next
  std::optional<std::uint32_t> store_calls_, next_store_calls_;
  bool running_ = false;           // from the start on
  bool doomed_ = false;            // died at a point of the turn at hand
  bool dies_taking_back_ = false;  // as soon as it, or the one after it, does that
  using Taken = std::set<std::pair<std::uint64_t, std::uint64_t>>;  // session and operation
  Taken looked_for_;                                                // in vain
  bool taking_back_ = false;                                        // it has died in the middle of it
  bool leaving_ = false, other_format_ = false;
  TimePoint leave_deadline_;
  std::vector<std::uint64_t> damage_;
  // As it was when it died.
  Frozen tables_;
  std::vector<FrozenSession> sessions_;
  std::size_t disk_log_ = 0;
  std::vector<Place> device_writes_;
  std::vector<std::shared_ptr<const CopyJob>> restores_;
};

}  // namespace orbitkv::sim
