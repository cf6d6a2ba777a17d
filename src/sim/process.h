// A client process: the production attachment, grant runner and copy queue, driven by
// events where a process has threads that wait. What the production client does by blocking
// (a call, a register, attaching again) is a state here. Owned by its Engine; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fault.h"
#include "client/attachment.h"
#include "client/copy_queue.h"
#include "client/operations.h"
#include "client/transfer.h"
#include "shm/bootstrap.h"
#include "sim/device.h"
#include "sim/manager_node.h"

namespace orbitkv::sim {

// A save or restore of one group, as an engine's rank asks for it.
struct Job {
  model::PlanKind kind = model::PlanKind::kSave;
  GroupId group;
  std::vector<std::uint32_t> pages;  // kHole: leave out (restore)
  std::vector<BlockHash> hashes;     // save
  LeaseId lease;                     // restore
  std::uint32_t first = 0;           // restore: block of the lease
};

class Process final : private client::SlabUser, private SimDevice::Owner {
 public:
  using Reply = std::function<void(const Result<wire::Buffer>&)>;
  using Ended = std::function<void(const client::OperationStatus&)>;

  // A worker has a registration and its pages; a scheduler has none.
  struct Worker {
    client::Registration registration;
    std::shared_ptr<RankMemory> memory;
  };
  Process(World& world, std::string name, std::optional<Worker> worker);
  ~Process() override;

  std::uint32_t number() const { return number_; }
  bool alive() const { return !dead_; }
  // Attached, and its registration stands.
  bool ready() const { return link_ && !link_->lost() && link_->ready(); }
  bool idle() const { return calls_.empty() && running_.empty(); }
  Epoch epoch() const override { return link_ ? link_->epoch() : Epoch(); }
  std::uint32_t life() const override { return static_cast<std::uint32_t>(epoch().value >> 32); }
  std::shared_ptr<RankMemory> memory() override { return worker_ ? worker_->memory : nullptr; }

  // ---- what its engine wants; each ends in exactly one call back, unless it dies ----
  void call(wire::Opcode opcode, client::Attachment::Encode encode, Reply reply);
  void run(Job job, Ended ended);
  void unregister();  // and register again
  void ask_status();
  void leave();  // Bye if no copy runs, and the process ends

  // ---- what happens to it ----
  void on_ring();  // the Manager's bell
  enum class HangUp : std::uint8_t { kUsual, kLate };
  void on_hang_up(Epoch from, HangUp seen);
  void receive(Epoch from, shm::Message message);
  void die();
  void die_at(FaultPoint point, std::uint32_t passes);
  void condemn();                                 // SIGKILL
  void stop(Duration time, std::uint32_t again);  // for moments it goes on, so many times
  void resume();                                  // SIGCONT
  void unmap_slowly(Duration time) { unmap_delay_ = time; }
  bool on_fault_point(FaultPoint point);
  // A wait that ought to have ended.
  std::optional<std::string> overdue() const;
  void lose_wake() { lose_wakes_ = 1; }
  void delay_wake() { delay_wakes_ = 1; }
  void double_wake() { double_wakes_ = 1; }
  void garble_command(std::uint64_t word) { garble_command_ = word; }
  void lose_reply() { lose_replies_ = 1; }

 private:
  // A save or restore ends within its grant's wait and its copies; nothing takes so long.
  static constexpr Duration kEndsWithin = seconds(30);
  struct Call {
    wire::Opcode opcode;
    client::Attachment::Encode encode;
    Reply reply;
    TimePoint deadline;  // 0: not begun
    Duration delays;     // of the world, when it began
    client::Attachment::Call begun;
    bool unheard = false;  // its reply is lost
  };
  struct Running {
    client::OperationHandle handle;
    Ended ended;
    TimePoint due;
    Duration delays;  // of the world, when it began
  };
  // A frame that waits for its answer.
  struct Asked {
    std::uint64_t request = 0;
    TimePoint deadline;
    Reply reply;
  };
  struct Submission;

  std::uint32_t process() const override { return number_; }
  std::shared_ptr<client::Entry> entry() override { return entry_; }
  std::shared_ptr<PoolView> view() override { return view_; }
  void copy_ended() override;
  bool doomed() const override { return !saved_.empty(); }
  void add_slab(std::span<std::byte> slab) override { device_.add_slab(slab); }
  void remove_slab(std::span<std::byte> slab) override;

  void poll();
  void schedule(Duration delay);
  void connect();
  void connect_after(Duration delay);
  void enroll();
  void beat(Epoch session);
  void drop_link();
  void send(std::vector<std::byte> frame);
  void ask(std::uint64_t request, std::vector<std::byte> frame, Reply reply);
  void take_frame(shm::Message message);
  void answer(std::uint64_t request, const Result<wire::Buffer>& reply);
  void step_calls();
  void step_transfers();
  void step_frames();
  void step_slabs();
  void close_slabs();
  void drop_waiting_slabs(Epoch session);
  void take_offer(shm::Message message);
  void let_go_hastily(const shm::Message& message);
  void submit(std::shared_ptr<Submission> submission);
  void on_submitted(const std::shared_ptr<Submission>& submission, const Result<wire::Buffer>& reply);

  World& world_;
  const std::uint32_t number_;
  const std::string name_;
  std::optional<Worker> worker_;
  SimDevice device_;
  std::shared_ptr<client::Entry> entry_;
  std::shared_ptr<PoolView> view_;
  client::OperationTable operations_;
  std::shared_ptr<shm::SessionMemory> memory_of_session_;
  std::unique_ptr<client::Attachment> link_;
  std::unique_ptr<client::SlabTable> slabs_;  // of the last session, for the next one
  TimePoint lost_at_;                         // that session
  std::unique_ptr<client::CopyQueue> queue_;
  std::deque<Call> calls_;
  std::vector<Asked> asked_;
  std::vector<shm::Message> inbox_;
  std::vector<std::unique_ptr<client::Transfer>> transfers_;
  std::vector<Running> running_;

  TimePoint next_poll_;  // 0: none
  std::uint64_t poll_number_ = 0, polls_ = 0, requests_ = 0;
  std::uint32_t submitting_ = 0;
  TimePoint next_frame_out_, next_frame_in_;  // frames do not overtake each other
  TimePoint stopped_until_, unmap_due_;
  Duration unmap_delay_;
  bool dead_ = false, connecting_ = false;
  std::shared_ptr<bool> life_ = std::make_shared<bool>(true);  // for events that outlive it
  struct PointFault {
    FaultPoint point;
    std::uint32_t passes = 0;
  };
  std::optional<PointFault> point_fault_;
  std::vector<std::byte> saved_;  // the session as it was at the point where it died
  std::uint32_t lose_wakes_ = 0, delay_wakes_ = 0, double_wakes_ = 0, lose_replies_ = 0;
  std::optional<std::uint64_t> garble_command_;
};

}  // namespace orbitkv::sim
