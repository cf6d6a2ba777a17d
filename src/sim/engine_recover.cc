// Recoveries of an engine: all pages of a boundary, of all groups, or nothing; and what it asks ahead
// of need.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "model/recovery.h"
#include "sim/engine.h"
#include "sim/world.h"

namespace orbitkv::sim {
namespace {
model::RecoveryContract contract_of(const SpacePlan& space) {
  std::vector<model::GroupRule> rules;
  for (const GroupPlan& group : space.groups) rules.push_back({group.id, group.rule, group.window_tokens});
  auto made = model::RecoveryContract::make(space.name, kBlockTokens, std::move(rules));
  ORBITKV_CHECK(made.ok(), made.ok() ? "" : made.error().message().c_str());
  return std::move(*made);
}
}  // namespace

std::shared_ptr<Engine::Recovery> Engine::recovery_of(const Action& action) const {
  const auto chain = static_cast<std::uint32_t>(action.words[1] % world_.config().chains);
  const std::uint64_t pages = pick_blocks(action).size();
  auto r = std::make_shared<Recovery>();
  r->request_id = "v" + std::to_string(action.words[3] % 6);
  r->origin = (action.words[3] >> 8) % 4 == 0 ? (action.words[3] >> 16) % pages * kBlockTokens : 0;
  r->boundary = pages * kBlockTokens;
  const auto ranges = contract_of(space()).required_ranges(space().name, {r->origin, r->boundary});
  ORBITKV_CHECK(ranges.ok(), ranges.ok() ? "" : ranges.error().message().c_str());
  for (const model::GroupRange& range : *ranges) {
    Recovery::Range& needed = r->ranges.emplace_back();
    while (group(needed.group).id != range.group) ++needed.group;
    for (std::uint64_t token = range.tokens.begin; token < range.tokens.end; token += kBlockTokens) {
      needed.blocks.push_back(block_at(chain, static_cast<std::uint32_t>(token / kBlockTokens)));
      r->hashes.push_back(hash_of(needed.blocks.back()));
    }
  }
  if (action.words[3] % 5 == 0) r->step = 1 + static_cast<std::uint32_t>(r->hashes.size() / 2);
  return r;
}

void Engine::recover(const Action& action) {
  if (usable()) ask(recovery_of(action));
}

void Engine::ask(std::shared_ptr<Recovery> r) {
  const auto total = static_cast<std::uint32_t>(r->hashes.size());
  const std::uint32_t count = std::min(r->step == 0 ? total : r->step, total - r->asked);
  const auto encode = [this, r, total, count](wire::Buffer& out) {
    wire::RecoveryRequest request{instance_, r->request_id, r->origin, r->boundary, r->asked, total, {},
                                  {},        false};
    request.hashes = std::span(r->hashes).subspan(r->asked, count);
    if (r->asked > 0) request.revision = r->revision;
    request.prepare = r->prepare;
    wire::encode(request, out);
  };
  scheduler().call(
      wire::Opcode::kReadRecovery, encode,
      [this, r, count, alive = alive_, generation = generation_](const Result<wire::Buffer>& reply) {
        if (*alive != generation) return;
        r->asked += count;
        on_reply(r, reply);
      });
}

void Engine::on_reply(const std::shared_ptr<Recovery>& r, const Result<wire::Buffer>& frame) {
  if (!frame.ok()) return note_end(ticket_of(*r));
  const auto reply = wire::decode_ticket_reply(*frame);
  if (!reply.ok()) return world_.fail("protocol", "a recovery's reply: " + reply.error().message());
  world_.say("engine %u recovers as %s, %zu pages up to token %llu: state %u, %zu leases", plan_.index,
             r->request_id.c_str(), r->hashes.size(), static_cast<unsigned long long>(r->boundary),
             static_cast<unsigned>(reply->state), reply->leases.size());
  if (reply->state == wire::TicketState::kUnknown) return;
  Ticket answered = ticket_of(*r);
  answered.revision = reply->revision;
  note_wait(*r, answered);
  const bool last = r->asked == r->hashes.size();
  if (!last && reply->state != wire::TicketState::kLoading)
    return world_.fail("protocol", "a part of a recovery has a result");
  if (!last) return ask(r);
  if (r->prepare && !reply->leases.empty()) return world_.fail("protocol", "a preparation has leases");
  if (r->prepare) return;
  if (reply->state == wire::TicketState::kLoading) return wait_for(r);
  note_end(answered);
  if (reply->state == wire::TicketState::kReady) hold(*r, *reply);
}

// Asks again after a while: by its ticket, or with the whole list, but not if another one
// has its name.
void Engine::wait_for(const std::shared_ptr<Recovery>& r) {
  if (late(*r, world_.config().core.load_wait))
    return world_.fail("waits", "a recovery is still loading after its deadline");
  world_.events().after(patience(r->started), [this, r, alive = alive_, generation = generation_] {
    if (*alive != generation || !usable()) return;
    if (r->hashes.size() % 2 == 0 || replaced(ticket_of(*r))) return poll_ticket(r);
    r->asked = 0;
    ask(r);
  });
}

void Engine::poll_ticket(const std::shared_ptr<Recovery>& r) {
  const auto encode = [this, r](wire::Buffer& out) {
    wire::encode(wire::PollRequest{instance_, {}, r->request_id, r->revision, wire::TicketKind::kRecovery},
                 out);
  };
  scheduler().call(wire::Opcode::kPoll, encode,
                   [this, r, alive = alive_, generation = generation_](const Result<wire::Buffer>& reply) {
                     if (*alive == generation) on_reply(r, reply);
                   });
}

// One lease for each group that the boundary needs pages of, and whole.
void Engine::hold(const Recovery& r, const wire::TicketReply& reply) {
  if (reply.leases.size() != r.ranges.size())
    return world_.fail("protocol", std::to_string(reply.leases.size()) + " leases for a boundary of " +
                                       std::to_string(r.ranges.size()) + " groups");
  for (std::size_t i = 0; i < r.ranges.size(); ++i) {
    const wire::TicketLease& lease = reply.leases[i];
    const Recovery::Range& range = r.ranges[i];
    if (lease.group != group(range.group).id || lease.blocks != range.blocks.size())
      return world_.fail("protocol", "a recovery leases other pages than the boundary needs");
    for (const BlockNumber block : range.blocks) check_written(range.group, block);
    forget_lease(lease.lease);
    leases_.push_back({lease.lease, range.group, range.blocks, std::vector<std::uint32_t>(space().world, 0)});
  }
}

// ---- ahead of need ----

// Most of what is prepared is asked for soon.
template <class Asked>
void Engine::ask_ahead(const std::shared_ptr<Asked>& question, std::uint64_t word) {
  question->prepare = true;
  ask(question);
  if (word % 5 == 0) return;
  auto again = std::make_shared<Asked>(*question);
  again->prepare = false;
  const Duration soon = microseconds(static_cast<std::int64_t>((word >> 8) % 20'000));
  world_.events().after(soon, [this, again, alive = alive_, generation = generation_] {
    if (*alive == generation && usable()) ask(again);
  });
}

void Engine::prepare(const Action& action) {
  if (!usable()) return;
  if ((action.words[3] >> 30) % 3 == 0) return ask_ahead(recovery_of(action), action.words[2]);
  ask_ahead(question_of(action), action.words[2]);
}

void Engine::warm(const Action& action) {
  if (!usable()) return;
  const std::uint64_t word = action.words[3];
  const GroupId named = group((word >> 8) % space().groups.size()).id;
  std::vector<BlockHash> hashes;
  for (const BlockNumber block : pick_blocks(action)) hashes.push_back(hash_of(block));
  const auto encode = [instance = instance_, named, word, hashes = std::move(hashes)](wire::Buffer& out) {
    const std::string request_id = "w" + std::to_string(word % 6);
    wire::WarmRequest request;
    request.instance = instance;
    request.group = named;
    request.request_id = request_id;
    request.first_use_ms = static_cast<std::uint32_t>((word >> 16) % 1000);
    request.max_wait_ms = (word >> 32) % 2 ? static_cast<std::uint32_t>((word >> 32) % 500) : 0;
    request.priority = static_cast<std::uint32_t>((word >> 42) % 4);
    request.confidence = static_cast<std::uint8_t>((word >> 44) % 101);
    request.hashes = hashes;
    wire::encode(request, out);
  };
  scheduler().call(wire::Opcode::kWarm, encode, [](const auto&) {});
}

// ---- bounds ----

// The first part of a list whose others never come, and which nobody wants any more after a while.
void Engine::hog(const std::string& request_id, std::uint32_t total) {
  const auto encode = [instance = instance_, named = group(0).id, request_id, total](wire::Buffer& out) {
    const BlockHash hash = hash_of(block_at(0, 0));
    wire::QueryRequest request;
    request.instance = instance;
    request.group = named;
    request.mode = wire::QueryMode::kRead;
    request.request_id = request_id;
    request.total = total;
    request.hashes = std::span(&hash, 1);
    wire::encode(request, out);
  };
  scheduler().call(wire::Opcode::kQuery, encode, [](const auto&) {});
}

void Engine::let_go(const std::string& request_id) {
  const auto encode = [instance = instance_, named = group(0).id, request_id](wire::Buffer& out) {
    wire::encode(wire::CancelQueryRequest{instance, named, request_id, {}, wire::TicketKind::kPrefix}, out);
  };
  scheduler().call(wire::Opcode::kCancelQuery, encode, [](const auto&) {});
}

void Engine::hog(const std::vector<std::string>& names, std::uint32_t total, Duration time) {
  if (!usable()) return;
  for (const std::string& name : names) hog(name, total);
  world_.events().after(time, [this, names, alive = alive_, generation = generation_] {
    if (*alive != generation || !usable()) return;
    for (const std::string& name : names) let_go(name);
  });
}

void Engine::hog_metadata(Duration time) {
  hog({"m0", "m1", "m2"}, limits::kTailPages, time);
}

void Engine::hog_tickets(Duration time) {
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i <= limits::kTicketsPerSession; ++i) names.push_back("t" + std::to_string(i));
  hog(names, 2, time);
}

}  // namespace orbitkv::sim
