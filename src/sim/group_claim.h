// One claim of a prefix group: the production coordinator over the schedulers of the engines that
// take part, what their ranks restore of it, and what must hold of all that. Its frames are lost,
// doubled, late and cut into parts; ranks restore, will not, or hang; at times somebody else speaks
// of its interests. Owned by the engine that began it, with whose scheduler it ends; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/coordinator.h"
#include "sim/config.h"
#include "sim/content.h"
#include "wire/messages.h"

namespace orbitkv::sim {

class Engine;
class World;

class GroupClaim : public std::enable_shared_from_this<GroupClaim> {
 public:
  // Of one group, blocks of the list in order.
  struct Range {
    std::size_t group = 0;
    std::vector<BlockNumber> blocks;
  };
  struct Wanted {
    wire::InterestKind kind = wire::InterestKind::kPrefix;
    std::uint64_t origin = 0, boundary = 0;  // of a recovery: tokens
    std::vector<Range> ranges;               // of a prefix: one
  };
  // The first engine is the one that asks.
  GroupClaim(World& world, InterestId id, std::vector<Engine*> engines, Wanted wanted);
  ~GroupClaim();

  void begin();
  void give_up();
  // A frame that its coordinator did not send: of an older life of it, or of another one.
  void meddle(std::uint64_t word);
  // Its outcome is known, and no rank may be copying.
  bool over() const;
  // It ought to have ended.
  std::optional<std::string> overdue() const;

 private:
  struct Rank {
    std::size_t left = 0;  // restores that have not ended
    bool well = true, told = false;
  };
  struct Member {
    Engine* engine = nullptr;
    std::uint32_t generation = 0;
    Epoch session;  // as it was when the claim began
    InterestId interest;
    InterestOperation operation;  // the newest that was heard of, and since when it acquires
    TimePoint since;
    Duration delays;
    std::vector<Rank> ranks;
    wire::Buffer refused;  // the submit that was put off last
  };

  std::size_t blocks() const;
  client::Attempt attempt() const;
  bool alive() const;  // the scheduler that asks
  bool there(const Member& member) const;
  void flush();
  void carry(client::ParticipantIndex seat, client::FrameToken token, const wire::Buffer& frame);
  void arrive(client::ParticipantIndex seat, client::FrameToken token, const wire::Buffer& frame,
              const Result<wire::Buffer>& reply);
  void overtake(client::ParticipantIndex seat, const wire::Buffer& frame);
  bool submitted_again(client::ParticipantIndex seat, client::FrameToken token, const wire::Buffer& frame);
  void check(std::uint32_t seat, const wire::Buffer& frame, const wire::Buffer& reply);
  void check_acquired(Member& member, const wire::InterestReply& reply);
  void check_closed(std::uint32_t seat);
  wire::Buffer cut(const wire::Buffer& frame);
  void look();
  void schedule_tick();
  void tick();
  void tell();
  void check_common(const std::vector<wire::TicketLease>& leases,
                    const std::vector<wire::TicketLease>& others);
  void restore(std::uint32_t seat, const std::vector<wire::TicketLease>& leases);
  void on_rank(std::uint32_t seat, std::uint16_t rank, bool success, const std::string& message);
  void report(std::uint32_t seat, std::uint16_t rank, bool success);
  void finish();
  void fail(const std::string& text);

  World& world_;
  const InterestId id_;
  Wanted wanted_;
  std::vector<Member> members_;
  Random random_;
  client::AttemptTimes times_;
  std::unique_ptr<client::Coordinator> coordinator_;
  TimePoint begun_, next_tick_;
  Duration delays_;
  std::uint64_t lost_ = 0, doubled_ = 0, late_ = 0, cut_ = 0;  // of a hundred frames
  std::uint64_t overtaken_ = 0;                                // of those that are late
  bool telling_ = false, told_ = false, finished_ = false;
};

}  // namespace orbitkv::sim
