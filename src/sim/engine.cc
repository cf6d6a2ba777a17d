#include "sim/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "sim/world.h"
#include "wire/messages.h"

namespace orbitkv::sim {
namespace {
// A query's wait has one deadline; beyond it and this the Manager owes an answer.
constexpr Duration kSlack = seconds(2);

std::string name_of(LeaseId lease) {
  return hex_text(std::span(lease.bytes).first(4));
}

bool bit(const std::vector<std::uint64_t>& bits, std::size_t i) {
  return i / 64 < bits.size() && (bits[i / 64] >> (i % 64) & 1) != 0;
}
}  // namespace

Engine::Engine(World& world, const EnginePlan& plan) : world_(world), plan_(plan) {
  start();
}

Engine::~Engine() {
  *alive_ = ~0u;
}

const SpacePlan& Engine::space() const {
  return world_.config().spaces[plan_.space];
}

Process& Engine::scheduler() {
  return scheduler_ ? *scheduler_ : *workers_[0];
}

ShardId Engine::shard_of(std::size_t group, std::uint16_t rank) const {
  return ShardId(this->group(group).replicated ? 0 : rank);
}

// ---- life ----

void Engine::start() {
  *alive_ = ++generation_;
  broken_ = false;
  leases_.clear();
  const std::uint64_t name[2] = {mix(plan_.index, generation_), plan_.index};
  std::memcpy(instance_.bytes.data(), name, sizeof name);
  const std::string title = "engine " + std::to_string(plan_.index) + "." + std::to_string(generation_);
  scheduler_.reset();
  if (!plan_.one_process) scheduler_ = std::make_unique<Process>(world_, title + " scheduler", std::nullopt);
  workers_.clear();
  for (std::uint16_t rank = 0; rank < space().world; ++rank) {
    auto memory = std::make_shared<RankMemory>(space(), rank, plan_.pages);
    client::Registration registration;
    registration.instance = instance_;
    registration.name_space = space().name;
    registration.rank = rank;
    registration.world_size = space().world;
    registration.num_blocks = plan_.pages;
    registration.block_tokens = 16;
    registration.groups = memory->groups();
    registration.layers = memory->layers();
    for (std::size_t g = 0; g < space().groups.size(); ++g)
      for (std::uint32_t page = 0; page < plan_.pages; ++page) memory->fill(g, page, world_.filling());
    workers_.push_back(std::make_unique<Process>(world_, title + " rank " + std::to_string(rank),
                                                 Process::Worker{std::move(registration), memory}));
  }
  free_pages_.assign(space().groups.size(), {});
  for (auto& pages : free_pages_)
    for (std::uint32_t page = plan_.pages; page > 0; --page) pages.push_back(page - 1);
}

// The processes go, and after a while another engine takes the place.
void Engine::end(bool politely) {
  broken_ = true;
  for (Process* process : processes())
    if (process->alive()) politely ? process->leave() : process->die();
  if (retired_) return;
  auto random = world_.random(0xE46u, plan_.index, generation_);
  world_.events().after(random.between(milliseconds(1), milliseconds(200)),
                        [this, alive = alive_, generation = generation_] {
                          if (*alive == generation) start();
                        });
}

void Engine::leave() {
  if (!broken_ && idle()) end(true);
}

void Engine::kill() {
  if (!broken_) end(false);
}

// The rest notices after a while, and goes too.
void Engine::kill_worker(const Action& action) {
  if (broken_) return;
  Process* victim = process(action.words[1]);
  if (!victim) return;
  victim->die();
  on_death();
}

// One of its processes has died by itself.
void Engine::on_death() {
  if (std::exchange(broken_, true)) return;
  auto random = world_.random(0xE47u, plan_.index, generation_);
  world_.events().after(random.between(milliseconds(1), milliseconds(50)),
                        [this, alive = alive_, generation = generation_] {
                          if (*alive == generation) end(world_.random(0xE48u, generation).percent(50));
                        });
}

void Engine::tick() {
  const auto all = processes();
  if (std::any_of(all.begin(), all.end(), [](const Process* p) { return !p->alive(); })) on_death();
}

void Engine::retire() {
  retired_ = true;
  for (const Held& lease : leases_) release_lease(lease.id);
  leases_.clear();
}

std::vector<Process*> Engine::processes() const {
  std::vector<Process*> all;
  if (scheduler_) all.push_back(scheduler_.get());
  for (const auto& worker : workers_) all.push_back(worker.get());
  return all;
}

Process* Engine::process(std::uint64_t word) {
  auto all = processes();
  std::erase_if(all, [](const Process* p) { return !p->alive(); });
  return all.empty() ? nullptr : all[word % all.size()];
}

bool Engine::usable() const {
  const auto all = processes();
  return !broken_ &&
         std::all_of(all.begin(), all.end(), [](const Process* p) { return p->alive() && p->ready(); });
}

bool Engine::idle() const {
  const auto all = processes();
  return std::all_of(all.begin(), all.end(), [](const Process* p) { return !p->alive() || p->idle(); });
}

std::optional<std::string> Engine::overdue() const {
  for (const Process* process : processes())
    if (auto why = process->overdue()) return why;
  return std::nullopt;
}

// ---- pages ----

std::vector<std::uint32_t> Engine::take_pages(std::size_t group, std::size_t count) {
  auto& free = free_pages_[group];
  count = std::min(count, free.size());
  std::vector<std::uint32_t> pages(free.end() - static_cast<std::ptrdiff_t>(count), free.end());
  free.resize(free.size() - count);
  return pages;
}

void Engine::give_page(std::size_t group, std::uint32_t page) {
  free_pages_[group].push_back(page);
}

void Engine::check_pages() {
  for (const auto& worker : workers_) {
    const auto memory = worker->memory();
    if (!worker->alive()) continue;
    for (std::size_t g = 0; g < space().groups.size(); ++g)
      for (const std::uint32_t page : free_pages_[g])
        if (!memory->holds(g, page, memory->content(g, page)))
          return world_.fail("bytes", "page " + std::to_string(page) + " of group " + std::to_string(g) +
                                          " changed though nothing was granted");
  }
}

// ---- saves and restores ----

std::vector<BlockNumber> Engine::pick_blocks(const Action& action) const {
  const auto& config = world_.config();
  const auto chain = static_cast<std::uint32_t>(action.words[1] % config.chains);
  const auto count = static_cast<std::uint32_t>(1 + action.words[2] % config.chain_blocks);
  std::vector<BlockNumber> blocks;
  for (std::uint32_t i = 0; i < count; ++i) blocks.push_back(block_at(chain, i));
  return blocks;
}

void Engine::publish(const Action& action) {
  if (!usable()) return;
  auto work = std::make_shared<Work>();
  work->save = true;
  work->group = (action.words[3] >> 8) % space().groups.size();
  work->blocks = pick_blocks(action);
  // Mostly whole prefixes; sometimes what a prefill adds to one.
  if (action.words[3] % 4 == 0 && work->blocks.size() > 1)
    work->blocks.erase(work->blocks.begin(),
                       work->blocks.begin() + static_cast<std::ptrdiff_t>(work->blocks.size() / 2));
  work->pages = take_pages(work->group, work->blocks.size());
  work->blocks.resize(work->pages.size());
  if (work->pages.empty()) return;
  Job job;
  job.group = group(work->group).id;
  job.pages = work->pages;
  for (const BlockNumber block : work->blocks) job.hashes.push_back(hash_of(block));
  work->ranks = group(work->group).replicated ? 1 : space().world;
  for (std::uint16_t rank = 0; rank < work->ranks; ++rank) {
    for (std::size_t i = 0; i < work->pages.size(); ++i)
      workers_[rank]->memory()->fill(
          work->group, work->pages[i],
          content_of({plan_.space, job.group, work->blocks[i], shard_of(work->group, rank)}));
  }
  const std::uint32_t ranks = work->ranks;
  world_.say("engine %u publishes %zu blocks from %llx on, group %zu", plan_.index, work->blocks.size(),
             static_cast<unsigned long long>(work->blocks.front()), work->group);
  for (std::uint16_t rank = 0; rank < ranks; ++rank) start_rank(work, rank, job);
  if (world_.plant() == Plant::kEarlyPages)
    for (const std::uint32_t page : work->pages)
      workers_[0]->memory()->fill(work->group, page, world_.filling());
}

void Engine::restore(const Action& action) {
  if (!usable() || leases_.empty()) return;
  Held& lease = leases_[action.words[1] % leases_.size()];
  auto work = std::make_shared<Work>();
  work->group = lease.group;
  const std::uint16_t only = static_cast<std::uint16_t>((action.words[2] >> 8) % space().world);
  const bool all = action.words[2] % 8 != 0;
  std::vector<std::uint16_t> ranks;
  const std::uint32_t first = lease.consumed[all ? 0 : only];
  for (std::uint16_t rank = 0; rank < space().world; ++rank)
    if ((all || rank == only) && lease.consumed[rank] == first) ranks.push_back(rank);
  const std::uint32_t left = static_cast<std::uint32_t>(lease.blocks.size()) - first;
  if (left == 0 || ranks.empty()) return;
  const std::uint32_t count =
      action.words[2] % 3 == 0 ? 1 + static_cast<std::uint32_t>(action.words[3] % left) : left;
  work->pages = take_pages(work->group, count);
  if (work->pages.size() < count) {
    for (const std::uint32_t page : work->pages) give_page(work->group, page);
    return;
  }
  work->blocks.assign(lease.blocks.begin() + first, lease.blocks.begin() + first + count);
  Job job;
  job.kind = model::PlanKind::kRestore;
  job.group = group(work->group).id;
  job.lease = lease.id;
  job.first = first;
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool hole = (action.words[3] >> (16 + i % 32) & 3) == 3;
    if (hole) give_page(work->group, std::exchange(work->pages[i], kHole));
  }
  job.pages = work->pages;
  world_.say("engine %u restores %u blocks of lease %s from %u on", plan_.index, count,
             name_of(lease.id).c_str(), first);
  bool over = true;
  for (const std::uint16_t rank : ranks) lease.consumed[rank] = first + count;
  for (const std::uint32_t consumed : lease.consumed) over &= consumed == lease.blocks.size();
  if (over) forget_lease(lease.id);
  work->ranks = static_cast<std::uint32_t>(ranks.size());
  for (const std::uint16_t rank : ranks) start_rank(work, rank, job);
}

void Engine::start_rank(const std::shared_ptr<Work>& work, std::uint16_t rank, Job job) {
  workers_[rank]->run(std::move(job), [this, work, rank, alive = alive_,
                                       generation = generation_](const client::OperationStatus& status) {
    if (*alive == generation) on_rank(work, rank, status);
  });
}

// The rank's pages are the engine's again, and it uses them at once.
void Engine::on_rank(const std::shared_ptr<Work>& work, std::uint16_t rank,
                     const client::OperationStatus& status) {
  const auto memory = workers_[rank]->memory();
  world_.say("engine %u rank %u: %s of %zu blocks %s %s", plan_.index, rank, work->save ? "save" : "restore",
             work->pages.size(), status.success ? "done" : "failed:", status.message.c_str());
  if (!work->save && status.success) check_restored(*work, rank, status);
  for (const std::uint32_t page : work->pages) {
    if (page == kHole) continue;
    if (memory->copies(work->group, page) > 0)
      world_.fail("pages", "page " + std::to_string(page) + " is the engine's again while a copy of it runs");
    memory->fill(work->group, page, world_.filling());
  }
  if (--work->ranks > 0) return;
  for (const std::uint32_t page : work->pages)
    if (page != kHole) give_page(work->group, page);
}

void Engine::check_restored(const Work& work, std::uint16_t rank, const client::OperationStatus& status) {
  const auto memory = workers_[rank]->memory();
  std::uint32_t wanted = 0;
  for (std::size_t i = 0; i < work.pages.size(); ++i) {
    if (work.pages[i] == kHole) continue;
    ++wanted;
    const Content content =
        content_of({plan_.space, group(work.group).id, work.blocks[i], shard_of(work.group, rank)});
    if (!memory->holds(work.group, work.pages[i], content))
      return world_.fail("bytes", "rank " + std::to_string(rank) + " of engine " +
                                      std::to_string(plan_.index) + " restored block " +
                                      std::to_string(work.blocks[i]) + " of group " +
                                      std::to_string(work.group) + " with other bytes than were published");
  }
  if (status.blocks != wanted)
    world_.fail("bytes", "a restore of " + std::to_string(wanted) + " blocks says that it copied " +
                             std::to_string(status.blocks));
}

// ---- queries ----

void Engine::discover(const Action& action) {
  if (!usable()) return;
  auto question = std::make_shared<Question>();
  question->request_id = "d" + std::to_string(action.words[3] % 4);
  question->group = (action.words[3] >> 8) % space().groups.size();
  question->blocks = pick_blocks(action);
  ask(question);
}

void Engine::read(const Action& action) {
  if (!usable()) return;
  const std::string request_id = "r" + std::to_string(action.words[3] % 6);
  const std::size_t group = (action.words[3] >> 8) % space().groups.size();
  // Others of the same name may be under way: the parts of their lists interleave.
  auto question = std::make_shared<Question>();
  question->read = true;
  question->request_id = request_id;
  question->group = group;
  question->blocks = pick_blocks(action);
  if (action.words[3] % 5 == 0) question->step = 1 + static_cast<std::uint32_t>(question->blocks.size() / 2);
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
    request.early_lease = plan_.index % 2 == 1;
    wire::encode(request, out);
  };
  scheduler().call(wire::Opcode::kQuery, encode,
                   [this, q, alive = alive_, generation = generation_](const Result<wire::Buffer>& reply) {
                     if (*alive == generation) on_reply(q, reply);
                   });
}

void Engine::on_reply(const std::shared_ptr<Question>& q, const Result<wire::Buffer>& frame) {
  if (!frame.ok()) return;
  if (q->started.ns == 0) {
    q->started = world_.now();
    q->delays = world_.delays();
  }
  auto reply = wire::decode_query_reply(*frame);
  if (!reply.ok()) return world_.fail("protocol", "a query's reply: " + reply.error().message());
  world_.say("engine %u asks %s for %zu blocks up to %llx: %u, lease %s%s", plan_.index,
             q->request_id.c_str(), q->blocks.size(), static_cast<unsigned long long>(q->blocks.back()),
             reply->hit_blocks, name_of(reply->lease).c_str(), reply->loading ? ", loading" : "");
  check_visible(*q, *reply);
  q->asked = reply->first + reply->count;
  q->revision = reply->revision;
  if (q->asked < q->blocks.size()) return ask(q);
  if (reply->loading) return wait_for(q, reply->revision);
  if (reply->lease) hold(*q, reply->lease, reply->hit_blocks);
}

// Asks again after a while: by its ticket, or with the whole list.
void Engine::wait_for(const std::shared_ptr<Question>& q, Revision revision) {
  if (world_.now() > q->started + world_.config().core.load_wait + kSlack + (world_.delays() - q->delays))
    return world_.fail("waits", "a query is still loading after its deadline");
  q->asked = 0;
  world_.events().after(milliseconds(2), [this, q, revision, alive = alive_, generation = generation_] {
    if (*alive != generation || !usable()) return;
    if (q->blocks.size() % 2 == 0) return poll_ticket(q, revision);
    ask(q);
  });
}

void Engine::poll_ticket(const std::shared_ptr<Question>& q, Revision revision) {
  const auto encode = [this, q, revision](wire::Buffer& out) {
    wire::encode(wire::PollRequest{instance_, group(q->group).id, q->request_id, revision}, out);
  };
  scheduler().call(wire::Opcode::kPoll, encode,
                   [this, q, alive = alive_, generation = generation_](const Result<wire::Buffer>& frame) {
                     if (*alive != generation || !frame.ok()) return;
                     auto reply = wire::decode_ticket_reply(*frame);
                     if (!reply.ok())
                       return world_.fail("protocol", "a poll's reply: " + reply.error().message());
                     if (reply->state == wire::TicketState::kLoading) return wait_for(q, reply->revision);
                     if (reply->state == wire::TicketState::kReady && reply->leases.size() == 1)
                       hold(*q, reply->leases[0].lease, reply->hit_blocks);
                   });
}

void Engine::hold(const Question& q, LeaseId lease, std::uint32_t blocks) {
  if (blocks == 0 || blocks > q.blocks.size())
    return world_.fail("protocol", "a lease of " + std::to_string(blocks) + " blocks");
  for (std::size_t i = 0; i < blocks; ++i) check_written(q, i);
  world_.say("engine %u holds lease %s: %u of %zu blocks up to %llx, asked as %s", plan_.index,
             name_of(lease).c_str(), blocks, q.blocks.size(),
             static_cast<unsigned long long>(q.blocks.back()), q.request_id.c_str());
  forget_lease(lease);
  Held held{lease, q.group, {}, std::vector<std::uint32_t>(space().world, 0)};
  held.blocks.assign(q.blocks.begin(), q.blocks.begin() + blocks);
  leases_.push_back(std::move(held));
}

// What can be seen has been written on every shard.
void Engine::check_visible(const Question& q, const wire::QueryReply& reply) {
  if (reply.hit_blocks > q.blocks.size()) return world_.fail("protocol", "more hits than blocks");
  for (std::size_t i = 0; i < reply.hit_blocks; ++i) check_written(q, i);
  for (std::size_t i = 0; i < reply.count; ++i)
    if (bit(reply.resident, i) || bit(reply.stored, i)) check_written(q, reply.first + i);
}

void Engine::check_written(const Question& q, std::size_t i) {
  const auto shards = static_cast<std::uint16_t>(group(q.group).replicated ? 1 : space().world);
  for (std::uint16_t shard = 0; shard < shards; ++shard) {
    const Content content = content_of({plan_.space, group(q.group).id, q.blocks[i], ShardId(shard)});
    if (world_.ledger().was_written(content)) continue;
    world_.fail("visible", "block " + std::to_string(q.blocks[i]) + " of group " + std::to_string(q.group) +
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

void Engine::cancel(const Action& action) {
  if (!usable()) return;
  const std::string request_id = "r" + std::to_string(action.words[3] % 6);
  const GroupId named = group((action.words[3] >> 8) % space().groups.size()).id;
  scheduler().call(
      wire::Opcode::kCancelQuery,
      [instance = instance_, named, request_id](wire::Buffer& out) {
        wire::encode(wire::CancelQueryRequest{instance, named, request_id, {}}, out);
      },
      [](const auto&) {});
}

void Engine::unregister(const Action& action) {
  if (usable() && idle()) workers_[action.words[1] % workers_.size()]->unregister();
}

void Engine::ask_status(const Action& action) {
  if (usable()) workers_[action.words[1] % workers_.size()]->ask_status();
}

}  // namespace orbitkv::sim
