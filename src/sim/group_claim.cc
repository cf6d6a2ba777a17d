#include "sim/group_claim.h"

#include <algorithm>
#include <utility>

#include "sim/engine.h"
#include "sim/world.h"

namespace orbitkv::sim {
namespace {
constexpr Duration kSlack = seconds(2);

// What a carrier makes of a frame and of its answer that claims less than it says.
wire::Buffer claim_one_less(const wire::Buffer& frame) {
  auto call = wire::decode_interest_call(frame);
  if (!call.ok() || call->verb != InterestVerb::kClaim || call->blocks < 2) return frame;
  --call->blocks;
  wire::Buffer out;
  wire::encode(*call, out);
  return out;
}
Result<wire::Buffer> say_one_more(const Result<wire::Buffer>& answer) {
  auto reply = answer.ok() ? wire::decode_interest_reply(*answer) : answer.error();
  if (!reply.ok() || reply->phase != InterestPhase::kClaimed) return answer;
  ++reply->blocks;
  for (wire::TicketLease& lease : reply->leases) ++lease.blocks;
  wire::Buffer out;
  wire::encode(*reply, out);
  return out;
}
bool calls(const wire::Buffer& frame, InterestVerb verb) {
  const auto call = wire::decode_interest_call(frame);
  return call.ok() && call->verb == verb;
}
wire::Buffer closed(InterestId interest) {
  wire::InterestReply reply;
  reply.interest = interest;
  reply.phase = InterestPhase::kClosed;
  wire::Buffer out;
  wire::encode(reply, out);
  return out;
}
}  // namespace

GroupClaim::GroupClaim(World& world, InterestId id, std::vector<Engine*> engines, Wanted wanted)
    : world_(world),
      id_(id),
      wanted_(std::move(wanted)),
      random_(world.random(0x61A1u, id.value)),
      begun_(world.now()),
      delays_(world.delays()) {
  for (std::uint64_t seat = 0; seat < engines.size(); ++seat) {
    Engine* engine = engines[seat];
    const InterestId interest(id.value + (seat << 32));  // as the coordinator names them
    members_.push_back({engine, engine->generation(), engine->session(), interest, {}, {}, {}, {}, {}});
    members_.back().ranks.resize(engine->ranks());
  }
  times_.wait = milliseconds(random_.one_of<std::int64_t>({20, 500, 2000}));
  times_.hold = milliseconds(random_.one_of<std::int64_t>({200, 5000}));
  times_.close = seconds(1);
  times_.resend = milliseconds(300);
  times_.keep = Duration{world.config().core.interest_idle.ns / 5};
  lost_ = random_.one_of<std::uint64_t>({0, 0, 10});
  doubled_ = random_.one_of<std::uint64_t>({0, 20, 40});
  cut_ = random_.one_of<std::uint64_t>({0, 50});
  late_ = random_.one_of<std::uint64_t>({0, 0, 20, 50});
  overtaken_ = random_.one_of<std::uint64_t>({0, 0, 50});
}

GroupClaim::~GroupClaim() = default;

std::size_t GroupClaim::blocks() const {
  std::size_t all = 0;
  for (const Range& range : wanted_.ranges) all += range.blocks.size();
  return all;
}

client::Attempt GroupClaim::attempt() const {
  client::Attempt out;
  out.interest = id_;
  std::uint16_t rank = 0;
  for (const Member& member : members_) {
    client::Seat& seat = out.seats.emplace_back();
    seat.instance = member.engine->instance();
    for (std::size_t i = 0; i < member.ranks.size(); ++i) seat.ranks.push_back(rank++);
  }
  out.kind = wanted_.kind;
  if (wanted_.kind == wire::InterestKind::kPrefix)
    out.group = members_[0].engine->group_id(wanted_.ranges[0].group);
  out.origin = wanted_.origin;
  out.boundary = wanted_.boundary;
  for (const Range& range : wanted_.ranges)
    for (const BlockNumber block : range.blocks) out.hashes.push_back(hash_of(block));
  out.times = times_;
  return out;
}

void GroupClaim::begin() {
  coordinator_ = std::make_unique<client::Coordinator>(attempt(), world_.now());
  look();
}

bool GroupClaim::there(const Member& member) const {
  return member.engine->generation() == member.generation && member.engine->whole();
}

// A rank of it may have died; while the scheduler lives, it speaks.
bool GroupClaim::alive() const {
  Engine& engine = *members_[0].engine;
  return engine.generation() == members_[0].generation && engine.schedules();
}

void GroupClaim::give_up() {
  if (!alive()) return;
  coordinator_->give_up(world_.now());
  look();
}

bool GroupClaim::over() const {
  return finished_ && coordinator_->quiet();
}

void GroupClaim::fail(const std::string& text) {
  world_.fail("claims", text);
}

// ---- frames ----

void GroupClaim::flush() {
  for (client::Coordinator::Send& out : coordinator_->take_sends()) {
    if (random_.percent(lost_)) continue;
    const wire::Buffer frame = cut(out.frame);
    const auto later = [&] {
      if (random_.percent(overtaken_)) overtake(out.seat, frame);
      const Duration late = random_.between(microseconds(1), milliseconds(50));
      world_.events().after(late, [self = shared_from_this(), seat = out.seat, token = out.token, frame] {
        if (self->alive()) self->carry(seat, token, frame);
      });
    };
    random_.percent(late_) ? later() : carry(out.seat, out.token, frame);
    if (random_.percent(doubled_)) later();
  }
}

// Somebody cancels what is under way.
void GroupClaim::overtake(client::ParticipantIndex seat, const wire::Buffer& frame) {
  const auto submit = wire::decode_interest_submit(frame);
  if (!submit.ok()) return;
  wire::Buffer cancel;
  wire::encode(wire::InterestCall{submit->name, {}, InterestVerb::kCancel, 0}, cancel);
  carry(seat, {}, cancel);
}

// Shorter frames than the coordinator would send: a list in parts.
wire::Buffer GroupClaim::cut(const wire::Buffer& frame) {
  auto submit = wire::decode_interest_submit(frame);
  if (!submit.ok() || submit->hashes.size() < 2 || !random_.percent(cut_)) return frame;
  submit->hashes = submit->hashes.first(1 + random_.below(submit->hashes.size() - 1));
  wire::Buffer out;
  wire::encode(*submit, out);
  return out;
}

// Over a process that has died nothing goes, nor comes. One that took its place has another session.
void GroupClaim::carry(client::ParticipantIndex seat, client::FrameToken token, const wire::Buffer& frame) {
  Engine& engine = *members_[seat.value].engine;
  if (!engine.schedules()) return;
  if (world_.plant() == Plant::kSwallowedClose && calls(frame, InterestVerb::kClose))
    return arrive(seat, token, frame, closed(members_[seat.value].interest));
  if (submitted_again(seat, token, frame)) return;
  const bool less = world_.plant() == Plant::kShortClaim;
  engine.carry(less ? claim_one_less(frame) : frame,
               [self = shared_from_this(), seat, token, frame, less](const Result<wire::Buffer>& reply) {
                 if (self->alive()) self->arrive(seat, token, frame, less ? say_one_more(reply) : reply);
               });
}

// A submit that was put off may come twice, and find a place the second time: before the poll that asks
// after it, which is as late.
bool GroupClaim::submitted_again(client::ParticipantIndex seat, client::FrameToken token,
                                 const wire::Buffer& frame) {
  if (doubled_ == 0 || !calls(frame, InterestVerb::kPoll)) return false;
  const wire::Buffer again = std::exchange(members_[seat.value].refused, {});
  if (again.empty()) return false;
  const Duration late = random_.between(microseconds(1), milliseconds(200));
  world_.events().after(late, [self = shared_from_this(), seat, token, frame, again] {
    if (!self->alive()) return;
    self->carry(seat, {}, again);
    self->carry(seat, token, frame);
  });
  return true;
}

// As production carriers bring an answer.
void GroupClaim::arrive(client::ParticipantIndex seat, client::FrameToken token, const wire::Buffer& frame,
                        const Result<wire::Buffer>& reply) {
  wire::Buffer answer;
  if (reply.ok()) {
    check(seat.value, frame, *reply);
    answer = *reply;
  } else {
    wire::encode(wire::ErrorReply{reply.error().code(), reply.error().message()}, answer);
    const bool put_off = reply.error().code() == Code::kBusy && wire::decode_interest_submit(frame).ok();
    if (put_off && token != client::FrameToken{}) members_[seat.value].refused = frame;
  }
  if (token == client::FrameToken{}) return;
  coordinator_->arrive(seat, token, answer, world_.now());
  look();
}

void GroupClaim::meddle(std::uint64_t word) {
  if (!alive()) return;
  const auto seat = static_cast<std::uint32_t>(word % members_.size());
  const Member& member = members_[seat];
  wire::Buffer frame;
  const std::uint32_t newest = member.operation.value;
  if (newest == 0 || newest + 1 > limits::kInterestOperations) return;
  const wire::InterestName name{member.engine->instance(), member.interest, member.operation};
  constexpr InterestVerb kVerbs[] = {InterestVerb::kCancel, InterestVerb::kPoll, InterestVerb::kClaim};
  if (word >> 8 & 1) {
    wire::InterestCall call{name, {}, kVerbs[(word >> 16) % std::size(kVerbs)], 0};
    if (call.verb == InterestVerb::kClaim) call.blocks = static_cast<std::uint32_t>(blocks());
    if (word >> 24 & 1 && newest > 1) call.name.operation = InterestOperation(newest - 1);
    wire::encode(call, frame);
  } else {
    client::Attempt wanted = attempt();
    wire::InterestSubmit submit{name, {}, wanted.kind, wanted.group, wanted.origin, wanted.boundary,
                                0,    0,  {}};
    submit.name.operation = InterestOperation(newest + 1);
    submit.total = static_cast<std::uint32_t>(wanted.hashes.size());
    submit.hashes = wanted.hashes;
    wire::encode(submit, frame);
  }
  carry({seat}, {}, frame);
}

// ---- what is told ----

void GroupClaim::check(std::uint32_t seat, const wire::Buffer& frame, const wire::Buffer& answer) {
  Member& member = members_[seat];
  const auto reply = wire::decode_interest_reply(answer);
  if (!reply.ok()) return world_.fail("protocol", "an interest's reply: " + reply.error().message());
  const auto submit = wire::decode_interest_submit(frame);
  const auto call = wire::decode_interest_call(frame);
  const wire::InterestName& name = submit.ok() ? submit->name : call->name;
  constexpr const char* kVerbs[] = {"submitted", "polled", "claimed", "cancelled", "closed"};
  const std::size_t verb = call.ok() ? static_cast<std::size_t>(call->verb) : 0;
  world_.say("engine %u, interest %llx operation %u %s: newest %u, phase %u, %u blocks, %zu leases",
             member.engine->number(), static_cast<unsigned long long>(name.interest.value),
             name.operation.value, kVerbs[verb], reply->newest.value, static_cast<unsigned>(reply->phase),
             reply->blocks, reply->leases.size());
  if (reply->interest != name.interest || reply->operation != name.operation)
    return fail("an answer is about another operation than was named");
  if (name.operation > member.operation || member.since.ns == 0) {
    member.operation = std::max(member.operation, name.operation);
    member.since = world_.now();
    member.delays = world_.delays();
  }
  if (reply->phase == InterestPhase::kAcquired || reply->phase == InterestPhase::kClaimed)
    check_acquired(member, *reply);
  const Duration waited = world_.now() - member.since - (world_.delays() - member.delays);
  if (reply->phase == InterestPhase::kAcquiring && waited.ns > world_.config().core.load_wait.ns + kSlack.ns)
    world_.fail("waits", "an interest is acquiring after its deadline");
  if (!reply->leases.empty() && (!call.ok() || call->verb != InterestVerb::kClaim))
    fail("leases are told that nobody has claimed");
}

// What is acquired is there, on every shard, and a recovery has all of its pages.
void GroupClaim::check_acquired(Member& member, const wire::InterestReply& reply) {
  const bool whole = wanted_.kind == wire::InterestKind::kRecovery;
  if (reply.blocks == 0 || reply.blocks > blocks() || (whole && reply.blocks < blocks()))
    return fail(std::to_string(reply.blocks) + " blocks are acquired of " + std::to_string(blocks()));
  std::size_t left = reply.blocks;
  for (const Range& range : wanted_.ranges)
    for (const BlockNumber block : range.blocks)
      if (left > 0) member.engine->check_written(range.group, block), --left;
  std::size_t leased = 0;
  for (const wire::TicketLease& lease : reply.leases) leased += lease.blocks;
  if (!reply.leases.empty() && leased != reply.blocks)
    fail("a claim of " + std::to_string(reply.blocks) + " blocks leases " + std::to_string(leased));
}

// Whatever the attempt was, nothing of it is there any more: the session knows which ids were closed. A
// later one does not, and may have taken a late frame for a new interest.
void GroupClaim::check_closed(std::uint32_t seat) {
  const Member& member = members_[seat];
  if (!there(member) || member.engine->session() != member.session) return;
  if (member.operation.value == 0) return;
  wire::Buffer frame;
  wire::encode(wire::InterestCall{{member.engine->instance(), member.interest, member.operation}, {}}, frame);
  member.engine->carry(frame, [self = shared_from_this()](const Result<wire::Buffer>& answer) {
    const auto reply = answer.ok() ? wire::decode_interest_reply(*answer) : answer.error();
    if (reply.ok() && reply->phase != InterestPhase::kUnknown)
      self->fail("an interest that was closed is still there");
  });
}

// ---- the attempt ----

void GroupClaim::look() {
  flush();
  using Phase = client::Coordinator::Phase;
  if (coordinator_->phase() == Phase::kHolding && !telling_) {
    telling_ = true;
    if (random_.percent(20) && coordinator_->report(0, true, world_.now()))
      fail("a rank has restored what no lease was told of");
    const Duration late = random_.between(microseconds(1), milliseconds(30));
    if (random_.percent(95)) world_.events().after(late, [self = shared_from_this()] { self->tell(); });
  }
  if (coordinator_->phase() == Phase::kDone) finish();
  schedule_tick();
}

void GroupClaim::schedule_tick() {
  if (finished_ || world_.plant() == Plant::kTimelessClaim) return;
  const TimePoint due = std::max(coordinator_->next_due(world_.now()), world_.now() + microseconds(100));
  if (next_tick_ > world_.now() && next_tick_ <= due) return;
  next_tick_ = due;
  world_.events().at(due, [self = shared_from_this(), due] {
    if (self->next_tick_ == due && self->alive()) self->tick();
  });
}

std::optional<std::string> GroupClaim::overdue() const {
  const TimePoint most = begun_ + times_.wait + times_.hold + times_.close + kSlack;
  if (finished_ || !alive() || world_.now() <= most + (world_.delays() - delays_)) return std::nullopt;
  return "a claim of engine " + std::to_string(members_[0].engine->number()) + " has not ended in its times";
}

// An engine whose process has died tells of all its ranks that have not told.
void GroupClaim::tick() {
  next_tick_ = {};
  for (std::uint32_t seat = 0; seat < members_.size() && told_; ++seat) {
    if (there(members_[seat])) continue;
    for (std::uint16_t rank = 0; rank < members_[seat].engine->ranks(); ++rank) report(seat, rank, false);
  }
  coordinator_->tick(world_.now());
  look();
}

// The engine asks what has become of it, and its ranks go.
void GroupClaim::tell() {
  if (!alive() || coordinator_->phase() != client::Coordinator::Phase::kHolding) return;
  const auto leases = coordinator_->take_leases();
  told_ = true;
  for (const auto& of_one : leases) check_common(of_one, leases[0]);
  for (std::uint32_t seat = 0; seat < members_.size() && !world_.failed(); ++seat)
    restore(seat, leases[seat]);
}

// What all of them restore is the same part of the list, group by group.
void GroupClaim::check_common(const std::vector<wire::TicketLease>& leases,
                              const std::vector<wire::TicketLease>& others) {
  if (leases.size() != wanted_.ranges.size() || leases.size() != others.size())
    return fail("a claim has not one lease a group");
  for (std::size_t i = 0; i < leases.size(); ++i) {
    const Range& range = wanted_.ranges[i];
    if (leases[i].group != members_[0].engine->group_id(range.group) ||
        leases[i].blocks > range.blocks.size())
      return fail("a claim leases other blocks than were asked for");
    if (leases[i].blocks != others[i].blocks)
      return fail("a claim leases more of one engine than of another");
  }
}

void GroupClaim::restore(std::uint32_t seat, const std::vector<wire::TicketLease>& leases) {
  Member& member = members_[seat];
  std::vector<std::uint16_t> ranks;
  for (std::uint16_t rank = 0; rank < member.engine->ranks(); ++rank) {
    if (random_.percent(2)) continue;  // it hangs
    if (random_.percent(4) || !there(member) || !member.engine->usable()) {
      report(seat, rank, false);
      continue;
    }
    member.ranks[rank].left = leases.size();
    ranks.push_back(rank);
  }
  for (std::size_t i = 0; i < leases.size(); ++i) {
    Range range = wanted_.ranges[i];
    range.blocks.resize(leases[i].blocks);
    member.engine->restore_claimed(
        {leases[i].lease, range.group, range.blocks, ranks},
        [self = shared_from_this(), seat](std::uint16_t rank, const client::OperationStatus& status) {
          self->on_rank(seat, rank, status.success, status.message);
        });
  }
}

void GroupClaim::on_rank(std::uint32_t seat, std::uint16_t rank, bool success, const std::string& message) {
  if (message.find("may restore blocks") != std::string::npos)
    return fail("a lease has less than was claimed: " + message);
  Rank& it = members_[seat].ranks[rank];
  it.well &= success;
  if (--it.left == 0) report(seat, rank, it.well);
}

void GroupClaim::report(std::uint32_t seat, std::uint16_t rank, bool success) {
  Rank& it = members_[seat].ranks[rank];
  if (!alive() || std::exchange(it.told, true)) return;
  it.well = success;
  std::size_t number = rank;
  for (std::uint32_t before = 0; before < seat; ++before) number += members_[before].ranks.size();
  coordinator_->report(static_cast<std::uint16_t>(number), success, world_.now());
  look();
}

void GroupClaim::finish() {
  if (std::exchange(finished_, true)) return;
  const client::Coordinator::Outcome& outcome = coordinator_->outcome();
  world_.say("engine %u, claim %llx ends: %s%s", members_[0].engine->number(),
             static_cast<unsigned long long>(id_.value),
             outcome.verdict == client::Coordinator::Verdict::kRestored ? "restored" : "not restored: ",
             outcome.message.c_str());
  for (std::uint32_t seat = 0; seat < members_.size(); ++seat) {
    for (const Rank& rank : members_[seat].ranks)
      if (outcome.verdict == client::Coordinator::Verdict::kRestored && (!rank.told || !rank.well))
        fail("a claim is restored, and a rank has not");
    if (coordinator_->unclosed() == 0) check_closed(seat);
  }
}

}  // namespace orbitkv::sim
