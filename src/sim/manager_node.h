// The Manager of a run: the production host, SSD tier and operator's commands, and around
// them what a loop, sockets and a kernel do: turns, wakes, frames, ends of processes, its
// own death and its next life over what the disk kept. Owned by the World; one thread.
// manager_node.cc: lives and turns; manager_clients.cc: clients and their ends;
// manager_acts.cc: the operator and faults; manager_watch.cc: for those who check.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fault.h"
#include "daemon/control.h"
#include "daemon/host.h"
#include "daemon/ssd_tier.h"
#include "mem/pool.h"
#include "shm/session_memory.h"
#include "sim/device.h"
#include "sim/disk.h"
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
  bool on_fault_point(FaultPoint point);  // from inside its turn
  enum class WakeFault : std::uint8_t { kLose, kDelay, kDouble };
  void fault_wake(WakeFault fault) { wake_fault_ = fault; }
  void flip_image(std::uint64_t word);  // one bit of the pool
  void lose_frame() { lose_frames_ = 1; }
  void garble_frame(std::uint64_t word) { garble_frame_ = word; }
  Disk& disk() { return disk_; }

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
  // States of the records of a session that hold an operation now.
  std::vector<shm::RecordState> record_states(Epoch epoch) const;
  std::vector<Epoch> epochs() const;

  // ---- for faults: the memory of a session, past all protocol ----
  std::vector<std::byte> state_of_session(Epoch epoch);  // empty: there is none
  void restore_session(Epoch epoch, const std::vector<std::byte>& state);
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
    std::vector<std::byte> saved;                              // as it was when the Manager died
  };

  Status send(SessionId session, std::vector<std::byte> frame, std::vector<int> fds) override;
  void on_closed(daemon::Session& session) override;
  void on_gone(daemon::Session& session) override;
  std::string status_json() const override { return "{}"; }
  void end_process(daemon::Session& session) override;

  bool stopped() const;
  bool listens() const { return alive() && !doomed_ && !stopped(); }
  Status open_store();
  Result<Seat> seat(Process* client, std::uint32_t process);
  // The part of a session's memory that holds its state; slots and plan bank mean nothing
  // without it.
  static std::span<std::byte> words_of(const shm::SessionMemory& memory) {
    return {reinterpret_cast<std::byte*>(&memory.header()), shm::SessionLayout::kSlots};
  }
  void turn();
  bool poll_ssd();
  void tick_host();
  void map_slabs();
  void note_retirement(const cache::Census& before);
  void schedule(Duration delay);
  void after_turn();
  void on_ring();
  Peer* peer_of(Epoch epoch);
  daemon::Session* session_of(Epoch epoch);
  std::optional<Epoch> epoch_of(SessionId session) const;
  void ask(const std::string& question);
  void note_plans(Peer& peer);
  ByteCount expect_claimed_saves(Peer& peer, bool poisoned);
  const mem::SlabInfo* slab_of(SlabId name) const;  // nullptr: it has gone

  World& world_;
  Disk disk_;
  std::uint32_t life_ = 0;
  std::unique_ptr<mem::Pool> pool_;
  std::unique_ptr<daemon::SsdTier> tier_;
  std::unique_ptr<daemon::Host> host_;
  std::unique_ptr<daemon::Control> control_;
  std::shared_ptr<PoolView> view_;
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
  std::optional<PointFault> point_fault_;
  bool doomed_ = false;  // died at a point of the turn at hand
};

}  // namespace orbitkv::sim
