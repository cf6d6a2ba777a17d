// What an engine's scheduler asks for, prefix by prefix, and the leases that it holds.
#include <algorithm>
#include <utility>

#include "base/text.h"
#include "sim/engine.h"
#include "sim/world.h"
#include "wire/messages.h"

namespace orbitkv::sim {
namespace {
bool bit(const std::vector<std::uint64_t>& bits, std::size_t i) {
  return i / 64 < bits.size() && (bits[i / 64] >> (i % 64) & 1) != 0;
}
}  // namespace

std::string short_name(LeaseId lease) {
  return hex_text(std::span(lease.bytes).first(4));
}

void Engine::discover(const Action& action) {
  if (!usable()) return;
  auto question = std::make_shared<Question>();
  question->request_id = "d" + std::to_string(action.words[3] % 4);
  question->group = (action.words[3] >> 8) % space().groups.size();
  question->blocks = pick_blocks(action);
  ask(question);
}

std::shared_ptr<Engine::Question> Engine::question_of(const Action& action) const {
  auto question = std::make_shared<Question>();
  question->read = true;
  question->request_id = "r" + std::to_string(action.words[3] % 6);
  question->group = (action.words[3] >> 8) % space().groups.size();
  question->blocks = pick_blocks(action);
  if (action.words[3] % 5 == 0) question->step = 1 + static_cast<std::uint32_t>(question->blocks.size() / 2);
  return question;
}

// Others of the same name may be under way: the parts of their lists interleave.
void Engine::read(const Action& action) {
  if (!usable()) return;
  auto question = question_of(action);
  question->full_prefix = (action.words[3] >> 24) % 10 == 0;
  ask(question);
}

void Engine::ask(std::shared_ptr<Question> q) {
  const auto total = static_cast<std::uint32_t>(q->blocks.size());
  const std::uint32_t count = std::min(q->step == 0 ? total : q->step, total - q->asked);
  std::vector<BlockHash> hashes;
  for (std::uint32_t i = 0; i < count; ++i) hashes.push_back(hash_of(q->blocks[q->asked + i]));
  const auto encode = [this, q, total, hashes = std::move(hashes)](wire::Buffer& out) {
    wire::QueryRequest request;
    request.instance = instance_;
    request.group = group(q->group).id;
    request.mode = q->read ? wire::QueryMode::kRead : wire::QueryMode::kDiscover;
    request.request_id = q->request_id;
    request.first = q->asked;
    request.total = total;
    request.hashes = hashes;
    if (q->read && q->asked > 0) request.revision = q->revision;
    request.prepare = q->prepare;
    request.full_prefix = q->full_prefix;
    request.early_lease = asks_early() && !q->prepare && !q->full_prefix;
    wire::encode(request, out);
  };
  scheduler().call(wire::Opcode::kQuery, encode,
                   [this, q, alive = alive_, generation = generation_](const Result<wire::Buffer>& reply) {
                     if (*alive == generation) on_reply(q, reply);
                   });
}

void Engine::on_reply(const std::shared_ptr<Question>& q, const Result<wire::Buffer>& frame) {
  if (!frame.ok()) return note_end(ticket_of(*q));
  auto reply = wire::decode_query_reply(*frame);
  if (!reply.ok()) return world_.fail("protocol", "a query's reply: " + reply.error().message());
  world_.say("engine %u asks %s for %zu blocks up to %llx: %u, lease %s%s", plan_.index,
             q->request_id.c_str(), q->blocks.size(), static_cast<unsigned long long>(q->blocks.back()),
             reply->hit_blocks, short_name(reply->lease).c_str(), reply->loading ? ", loading" : "");
  check_visible(*q, *reply);
  q->asked = reply->first + reply->count;
  Ticket answered = ticket_of(*q);
  answered.revision = reply->revision;
  if (q->read && reply->revision.value != 0) note_wait(*q, answered);
  if (q->asked < q->blocks.size()) return ask(q);
  if (q->prepare && reply->lease) return world_.fail("protocol", "a preparation has a lease");
  if (q->prepare) return;
  if (reply->loading) return wait_for(q);
  note_end(answered);
  if (reply->lease) hold(*q, reply->lease, reply->hit_blocks);
}

// Asks again after a while: by its ticket, or with the whole list.
void Engine::wait_for(const std::shared_ptr<Question>& q) {
  const cache::CoreConfig& core = world_.config().core;
  const Duration wait = q->full_prefix ? std::max(core.load_wait, core.full_prefix_wait) : core.load_wait;
  if (late(*q, wait)) return world_.fail("waits", "a query is still loading after its deadline");
  q->asked = 0;
  world_.events().after(patience(q->started), [this, q, alive = alive_, generation = generation_] {
    if (*alive != generation || !usable()) return;
    if (q->blocks.size() % 2 == 0 || replaced(ticket_of(*q))) return poll_ticket(q);
    ask(q);
  });
}

void Engine::poll_ticket(const std::shared_ptr<Question>& q) {
  const auto encode = [this, q](wire::Buffer& out) {
    wire::encode(wire::PollRequest{instance_, group(q->group).id, q->request_id, q->revision}, out);
  };
  scheduler().call(wire::Opcode::kPoll, encode,
                   [this, q, alive = alive_, generation = generation_](const Result<wire::Buffer>& frame) {
                     if (*alive != generation) return;
                     if (!frame.ok()) return note_end(ticket_of(*q));
                     auto reply = wire::decode_ticket_reply(*frame);
                     if (!reply.ok())
                       return world_.fail("protocol", "a poll's reply: " + reply.error().message());
                     if (reply->state == wire::TicketState::kLoading) return wait_for(q);
                     if (reply->state != wire::TicketState::kUnknown) note_end(ticket_of(*q));
                     if (reply->state == wire::TicketState::kReady && reply->leases.size() == 1)
                       hold(*q, reply->leases[0].lease, reply->hit_blocks);
                   });
}

void Engine::hold(const Question& q, LeaseId lease, std::uint32_t blocks) {
  if (blocks == 0 || blocks > q.blocks.size())
    return world_.fail("protocol", "a lease of " + std::to_string(blocks) + " blocks");
  for (std::size_t i = 0; i < blocks; ++i) check_written(q.group, q.blocks[i]);
  world_.say("engine %u holds lease %s: %u of %zu blocks up to %llx, asked as %s", plan_.index,
             short_name(lease).c_str(), blocks, q.blocks.size(),
             static_cast<unsigned long long>(q.blocks.back()), q.request_id.c_str());
  forget_lease(lease);
  Held held{lease, q.group, {}, std::vector<std::uint32_t>(space().world, 0)};
  held.blocks.assign(q.blocks.begin(), q.blocks.begin() + blocks);
  leases_.push_back(std::move(held));
  if (asks_early() && blocks % 4 != 0) restore_soon(lease);
}

// What can be seen has been written on every shard.
void Engine::check_visible(const Question& q, const wire::QueryReply& reply) {
  if (reply.hit_blocks > q.blocks.size()) return world_.fail("protocol", "more hits than blocks");
  for (std::size_t i = 0; i < reply.hit_blocks; ++i) check_written(q.group, q.blocks[i]);
  for (std::size_t i = 0; i < reply.count; ++i)
    if (bit(reply.resident, i) || bit(reply.stored, i)) check_written(q.group, q.blocks[reply.first + i]);
}

void Engine::check_written(std::size_t place, BlockNumber block) {
  const auto shards = static_cast<std::uint16_t>(group(place).replicated ? 1 : space().world);
  for (std::uint16_t shard = 0; shard < shards; ++shard) {
    const Content content = content_of({plan_.space, group(place).id, block, ShardId(shard)});
    if (world_.ledger().was_written(content)) continue;
    world_.fail("visible", "block " + std::to_string(block) + " of group " + std::to_string(place) +
                               " is visible, but nobody has written shard " + std::to_string(shard));
  }
}

void Engine::forget_lease(LeaseId id) {
  std::erase_if(leases_, [&](const Held& lease) { return lease.id == id; });
}

void Engine::release_lease(LeaseId id) {
  if (!scheduler().alive()) return;
  scheduler().call(
      wire::Opcode::kRelease, [id](wire::Buffer& out) { wire::encode(wire::ReleaseRequest{id}, out); },
      [](const auto&) {});
}

void Engine::release(const Action& action) {
  if (!usable() || leases_.empty()) return;
  const LeaseId id = leases_[action.words[1] % leases_.size()].id;
  forget_lease(id);
  release_lease(id);
}

}  // namespace orbitkv::sim
