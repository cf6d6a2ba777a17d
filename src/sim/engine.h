// An engine: an instance of one scheduler and a worker a rank, with pages that hold what
// they should. Carries out the actions of the program that engines do, compares every byte
// that comes back, and starts anew when it has died. Owned by the World; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/actions.h"
#include "sim/config.h"
#include "sim/content.h"
#include "sim/process.h"
#include "wire/messages.h"

namespace orbitkv::sim {

class GroupClaim;
class World;

// For traces.
std::string short_name(LeaseId lease);

class Engine {
  // A query's wait has one deadline; beyond it and this the Manager owes an answer.
  static constexpr Duration kSlack = seconds(2);

 public:
  Engine(World& world, const EnginePlan& plan);
  ~Engine();

  // ---- actions; nothing where there is nothing to act on ----
  void publish(const Action& action);
  void discover(const Action& action);
  void read(const Action& action);
  void recover(const Action& action);
  void prepare(const Action& action);
  void warm(const Action& action);
  void claim(const Action& action);
  void restore(const Action& action);
  void release(const Action& action);
  void cancel(const Action& action);
  void poll_old(const Action& action);
  void hog_metadata(Duration time);
  void hog_tickets(Duration time);
  void unregister(const Action& action);
  void ask_status(const Action& action);
  void leave();
  void kill();
  void kill_worker(const Action& action);

  // Time has passed: a process may have died at a fault point.
  void tick();

  Process* process(std::uint64_t word);  // one that lives; nullptr: none
  std::vector<Process*> processes() const;
  bool usable() const;  // all of its processes are attached and registered
  bool idle() const;
  std::optional<std::string> overdue() const;
  // Pages that no copy is about hold what they should.
  void check_pages();

  // ---- for claims of several engines (sim/group_claim.h) ----
  using RankEnded = std::function<void(std::uint16_t rank, const client::OperationStatus&)>;
  struct Claimed {
    LeaseId lease;
    std::size_t group = 0;
    std::vector<BlockNumber> blocks;
    std::vector<std::uint16_t> ranks;
  };
  std::uint32_t number() const { return plan_.index; }
  std::uint32_t generation() const { return generation_; }
  InstanceId instance() const { return instance_; }
  std::uint16_t ranks() const { return static_cast<std::uint16_t>(workers_.size()); }
  GroupId group_id(std::size_t place) const { return group(place).id; }
  bool whole() const { return !broken_; }  // no process of it has died
  bool schedules();                        // its scheduler lives
  Epoch session();                         // of the scheduler
  void carry(const wire::Buffer& frame, Process::Reply reply);
  // All blocks of a lease, on each of the ranks; `ended` once a rank, unless the engine dies.
  void restore_claimed(const Claimed& what, const RankEnded& ended);
  void check_written(std::size_t group, BlockNumber block);

  // It asks for nothing any more: leases are released, then its processes leave.
  void retire();

 private:
  // A lease and the blocks that it stands for.
  struct Held {
    LeaseId id;
    std::size_t group = 0;
    std::vector<BlockNumber> blocks;
    std::vector<std::uint32_t> consumed;  // by rank
  };
  // What one asks under a name, which others may have, too, and since when it waits.
  struct Asking {
    std::string request_id;
    std::size_t group = 0;
    std::uint32_t asked = 0;  // hashes whose parts have been answered
    std::uint32_t step = 0;   // hashes a part
    Revision revision;        // of the parts so far
    std::uint32_t ends = 0;   // of its name, as known when the wait began
    TimePoint started;
    Duration delays;
  };
  // A question of the scheduler, and the lease that it leads to.
  struct Question : Asking {
    std::vector<BlockNumber> blocks;
    bool read = false, prepare = false, full_prefix = false;
  };
  // A question for all pages of a boundary. `boundary` and `origin`: tokens.
  struct Recovery : Asking {
    std::uint64_t origin = 0, boundary = 0;
    struct Range {
      std::size_t group = 0;
      std::vector<BlockNumber> blocks;
    };
    std::vector<Range> ranges;  // ascending by group
    std::vector<BlockHash> hashes;
    bool prepare = false;
  };
  // A list as a reply named it.
  struct Ticket {
    std::string request_id;
    std::size_t group = 0;
    wire::TicketKind kind = wire::TicketKind::kPrefix;
    Revision revision;
    std::uint32_t ends = 0;  // of the name: answers that ended a query, cancels, replies that were lost
    bool same_name(const Ticket& other) const {
      return request_id == other.request_id && group == other.group && kind == other.kind;
    }
  };
  // A save or a restore over the ranks.
  struct Work {
    std::size_t group = 0;
    std::vector<std::uint32_t> pages;  // kHole: none
    std::vector<BlockNumber> blocks;
    bool save = false;
    std::uint32_t ranks = 0;  // that have not ended
    RankEnded ended;          // nullptr: nobody asks
  };

  void start();
  Process& scheduler();
  void end(bool politely);
  void on_death();
  const SpacePlan& space() const;
  const GroupPlan& group(std::size_t place) const { return space().groups[place]; }
  ShardId shard_of(std::size_t group, std::uint16_t rank) const;
  std::vector<BlockNumber> pick_blocks(const Action& action) const;
  std::vector<std::uint32_t> take_pages(std::size_t group, std::size_t count);
  void give_page(std::size_t group, std::uint32_t page);
  void publish_group(std::size_t group, const std::vector<BlockNumber>& blocks);
  void ask(std::shared_ptr<Question> question);
  void on_reply(const std::shared_ptr<Question>& question, const Result<wire::Buffer>& reply);
  void wait_for(const std::shared_ptr<Question>& question);
  void poll_ticket(const std::shared_ptr<Question>& question);
  void hold(const Question& question, LeaseId lease, std::uint32_t blocks);
  void check_visible(const Question& question, const wire::QueryReply& reply);
  std::shared_ptr<Question> question_of(const Action& action) const;
  std::shared_ptr<Recovery> recovery_of(const Action& action) const;
  template <class Asked>
  void ask_ahead(const std::shared_ptr<Asked>& question, std::uint64_t word);
  void ask(std::shared_ptr<Recovery> recovery);
  void on_reply(const std::shared_ptr<Recovery>& recovery, const Result<wire::Buffer>& reply);
  void wait_for(const std::shared_ptr<Recovery>& recovery);
  void poll_ticket(const std::shared_ptr<Recovery>& recovery);
  void hold(const Recovery& recovery, const wire::TicketReply& reply);
  static Ticket ticket_of(const Question& question);
  static Ticket ticket_of(const Recovery& recovery);
  void note_wait(Asking& asking, const Ticket& answered);
  void note_end(const Ticket& name);
  bool late(const Asking& asking, Duration wait) const;
  bool replaced(const Ticket& ticket) const;
  bool asks_early() const { return plan_.early; }
  Duration patience(TimePoint started) const;  // until it asks again
  void restore_soon(LeaseId lease);
  void hog(const std::string& request_id, std::uint32_t total);
  void hog(const std::vector<std::string>& names, std::uint32_t total, Duration time);
  void let_go(const std::string& request_id);
  void start_rank(const std::shared_ptr<Work>& work, std::uint16_t rank, Job job);
  void on_rank(const std::shared_ptr<Work>& work, std::uint16_t rank, const client::OperationStatus& status);
  void check_restored(const Work& work, std::uint16_t rank, const client::OperationStatus& status);
  void forget_lease(LeaseId id);
  void release_lease(LeaseId id);

  World& world_;
  const EnginePlan plan_;
  std::uint32_t generation_ = 0;
  InstanceId instance_;
  std::unique_ptr<Process> scheduler_;  // nullptr: the worker is it
  std::vector<std::unique_ptr<Process>> workers_;
  std::vector<std::vector<std::uint32_t>> free_pages_;  // by group
  std::vector<Held> leases_;
  std::vector<std::shared_ptr<GroupClaim>> claims_;
  std::uint32_t last_claim_ = 0;
  std::vector<Ticket> tickets_, old_tickets_;  // the newest of each name, and others
  bool broken_ = false;                        // a part of it has died
  bool retired_ = false;                       // no other takes its place
  std::shared_ptr<std::uint32_t> alive_ = std::make_shared<std::uint32_t>(0);  // generation, for events
};

}  // namespace orbitkv::sim
