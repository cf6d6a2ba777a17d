// Tickets of an engine: which list its names stand for, which were replaced, and how long who asks
// under one may have to wait.
#include <algorithm>
#include <utility>

#include "sim/engine.h"
#include "sim/world.h"

namespace orbitkv::sim {
namespace {
constexpr std::size_t kOldTickets = 16;
}  // namespace

Engine::Ticket Engine::ticket_of(const Question& q) {
  return {q.request_id, q.group, wire::TicketKind::kPrefix, q.revision};
}

Engine::Ticket Engine::ticket_of(const Recovery& r) {
  return {r.request_id, 0, wire::TicketKind::kRecovery, r.revision};
}

// ---- waits ----

// A wait has one deadline, and its end is told once. So what is asked anew waits anew: after an end
// that another one heard, and after another list under the name. To change the list by asking again
// wins no time.
void Engine::note_wait(Asking& asking, const Ticket& answered) {
  auto known = std::find_if(tickets_.begin(), tickets_.end(),
                            [&](const Ticket& each) { return each.same_name(answered); });
  if (known == tickets_.end()) known = tickets_.insert(known, answered);
  const bool mine = asking.revision == known->revision && asking.ends == known->ends;
  if (asking.started.ns == 0 || !mine) {
    asking.started = world_.now();
    asking.delays = world_.delays();
  }
  if (known->revision != answered.revision) {
    if (old_tickets_.size() == kOldTickets) old_tickets_.erase(old_tickets_.begin());
    old_tickets_.push_back(*known);
    known->revision = answered.revision;
  }
  asking.revision = known->revision;
  asking.ends = known->ends;
}

void Engine::note_end(const Ticket& name) {
  for (Ticket& each : tickets_)
    if (each.same_name(name)) ++each.ends;
}

bool Engine::late(const Asking& asking, Duration wait) const {
  return world_.now() > asking.started + wait + kSlack + (world_.delays() - asking.delays);
}

bool Engine::replaced(const Ticket& ticket) const {
  return std::any_of(tickets_.begin(), tickets_.end(), [&](const Ticket& each) {
    return each.same_name(ticket) && each.revision != ticket.revision;
  });
}

// ---- lists that were replaced ----

// Nothing is touched, and nobody is answered for another list.
void Engine::poll_old(const Action& action) {
  if (!usable() || old_tickets_.empty()) return;
  const Ticket old = old_tickets_[action.words[1] % old_tickets_.size()];
  const GroupId named = old.kind == wire::TicketKind::kPrefix ? group(old.group).id : GroupId();
  if (action.words[2] % 4 == 0) {
    return scheduler().call(
        wire::Opcode::kCancelQuery,
        [instance = instance_, named, old](wire::Buffer& out) {
          wire::encode(wire::CancelQueryRequest{instance, named, old.request_id, old.revision, old.kind},
                       out);
        },
        [](const auto&) {});
  }
  scheduler().call(
      wire::Opcode::kPoll,
      [instance = instance_, named, old](wire::Buffer& out) {
        wire::encode(wire::PollRequest{instance, named, old.request_id, old.revision, old.kind}, out);
      },
      [this](const Result<wire::Buffer>& frame) {
        if (!frame.ok()) return;
        const auto reply = wire::decode_ticket_reply(*frame);
        if (!reply.ok() || reply->state != wire::TicketState::kUnknown)
          world_.fail("protocol", "a poll for a list that was replaced is answered");
      });
}

void Engine::cancel(const Action& action) {
  if (!usable()) return;
  constexpr wire::TicketKind kKinds[] = {wire::TicketKind::kPrefix, wire::TicketKind::kPrefix,
                                         wire::TicketKind::kRecovery, wire::TicketKind::kWarm};
  constexpr const char* kNames[] = {"r", "r", "v", "w"};
  const std::size_t which = (action.words[3] >> 20) % std::size(kKinds);
  const std::string request_id = kNames[which] + std::to_string(action.words[3] % 6);
  const wire::TicketKind kind = kKinds[which];
  const bool recovery = kind == wire::TicketKind::kRecovery;
  const std::size_t group = recovery ? 0 : (action.words[3] >> 8) % space().groups.size();
  const GroupId named = recovery ? GroupId() : this->group(group).id;
  scheduler().call(
      wire::Opcode::kCancelQuery,
      [instance = instance_, named, request_id, kind](wire::Buffer& out) {
        wire::encode(wire::CancelQueryRequest{instance, named, request_id, {}, kind}, out);
      },
      [this, name = Ticket{request_id, group, kind, {}}, alive = alive_,
       generation = generation_](const auto&) {
        if (*alive == generation) note_end(name);
      });
}

}  // namespace orbitkv::sim
