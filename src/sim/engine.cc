#include "sim/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/group_claim.h"
#include "sim/world.h"

namespace orbitkv::sim {

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
  claims_.clear();
  tickets_.clear();
  old_tickets_.clear();
  const std::uint64_t name[2] = {mix(plan_.index, generation_), plan_.index};
  std::memcpy(instance_.bytes.data(), name, sizeof name);
  const std::string title = "engine " + std::to_string(plan_.index) + "." + std::to_string(generation_);
  scheduler_.reset();
  if (!plan_.one_process) scheduler_ = std::make_unique<Process>(world_, title + " scheduler", std::nullopt);
  workers_.clear();
  for (std::uint16_t rank = 0; rank < space().world; ++rank) {
    auto memory = std::make_shared<RankMemory>(space(), rank, plan_.pages);
    client::Registration registration = registration_of(space(), rank, *memory);
    registration.instance = instance_;
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
  for (const auto& each : claims_) each->give_up();
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

bool Engine::schedules() {
  return scheduler().alive();
}

Epoch Engine::session() {
  return scheduler().epoch();
}

bool Engine::idle() const {
  const auto all = processes();
  return std::all_of(all.begin(), all.end(), [](const Process* p) { return !p->alive() || p->idle(); });
}

std::optional<std::string> Engine::overdue() const {
  for (const Process* process : processes())
    if (auto why = process->overdue()) return why;
  for (const auto& claim : claims_)
    if (auto why = claim->overdue()) return why;
  return std::nullopt;
}

Duration Engine::patience(TimePoint started) const {
  auto random = world_.random(0x9A71u, plan_.index, started.ns);
  // A result that nobody fetches goes after a while, and to ask then begins anew.
  const Duration most{std::min(milliseconds(200).ns, world_.config().core.reply_ttl.ns / 2)};
  return random.percent(15) ? random.between(milliseconds(2), most) : milliseconds(2);
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

void Engine::unregister(const Action& action) {
  if (usable() && idle()) workers_[action.words[1] % workers_.size()]->unregister();
}

void Engine::ask_status(const Action& action) {
  if (!usable()) return;
  if (action.words[2] % 2 == 0) return workers_[action.words[1] % workers_.size()]->ask_status();
  scheduler().call(
      wire::Opcode::kPublishActivity,
      [instance = instance_](wire::Buffer& out) { wire::encode(wire::ActivityRequest{instance}, out); },
      [this](const Result<wire::Buffer>& reply) {
        if (reply.ok() && !wire::decode_activity_reply(*reply).ok())
          world_.fail("protocol", "what publishes do cannot be read");
      });
}

}  // namespace orbitkv::sim
