#include "sim/world.h"

#include <cstdarg>
#include <cstdio>
#include <utility>

#include "base/fault.h"
#include "cache/overtaken.h"
#include "sim/checkers.h"
#include "sim/engine.h"
#include "sim/manager_node.h"
#include "sim/process.h"

namespace orbitkv::sim {
namespace {
constexpr Duration kTick = milliseconds(250);
// Longer than every lease, image and wait of a run.
constexpr Duration kQuiet = seconds(20);
// A slab retires within this.
constexpr Duration kRetired = seconds(6);
constexpr int kSlabsMost = 16;
constexpr Duration kBack = milliseconds(700);  // a Manager is, and so are its engines
constexpr std::uint64_t kRecountEvery = 1024;  // events
constexpr std::uint64_t kKeptEvery = 16 * 1024;
constexpr std::uint64_t kLookEvery = 8;

thread_local World* g_world = nullptr;
bool on_fault_point(FaultPoint point) {
  return g_world != nullptr && g_world->on_fault_point(point);
}
}  // namespace

World::World(const Config& config, const Options& options)
    : config_(config),
      options_(options),
      dma_(std::make_unique<Dma>(*this)),
      manager_(std::make_unique<ManagerNode>(*this)) {
  g_world = this;
  set_fault_hook(&sim::on_fault_point);
  cache::most_overtaken() = 0;
  outcome_.digest = mix(config.seed);
}

World::~World() {
  set_fault_hook(nullptr);
  engines_.clear();
  manager_.reset();
  g_world = nullptr;
}

// ---- notes ----

void World::note(Note note, std::uint64_t a, std::uint64_t b) {
  outcome_.digest =
      mix(outcome_.digest, static_cast<std::uint64_t>(note), a, b, static_cast<std::uint64_t>(now().ns));
}

void World::say(const char* format, ...) {
  if (!options_.trace) return;
  char text[400];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  char line[440];
  std::snprintf(line, sizeof line, "%12.3f ms  %s", static_cast<double>(now().ns - 1'000'000'000) / 1e6,
                text);
  outcome_.trace.emplace_back(line);
}

void World::fail(const char* checker, const std::string& text) {
  if (outcome_.finding) return;
  outcome_.finding = Finding{checker, text, now()};
  say("FINDING %s: %s", checker, text.c_str());
}

bool World::on_fault_point(FaultPoint point) {
  if (point >= FaultPoint::kManagerBeforeGrant) return manager_->on_fault_point(point);
  return current_ != nullptr && current_->on_fault_point(point);
}

// What there is when a fault strikes.
void World::cover_fault(ActionKind kind) {
  mark_fault(kind, look());
}

Met World::look() const {
  Met met;
  if (!manager_->alive()) return met;
  see(met, manager_->host().core().census());
  manager_->see_records(met);
  if (const daemon::SsdTier* tier = manager_->tier()) see(met, tier->store().opening().state);
  return met;
}

// Over as soon as it has begun. The program goes on behind it.
void World::jump(Duration time) {
  events_.jump(time);
  delays_.ns += time.ns;
  late_.ns += time.ns;
}

// ---- running ----

Engine& World::engine(std::uint64_t word) {
  return *engines_[word % engines_.size()];
}

Engine* World::usable_engine(std::uint64_t word) {
  std::vector<Engine*> usable;
  for (const auto& engine : engines_)
    if (engine->usable()) usable.push_back(engine.get());
  return usable.empty() ? nullptr : usable[word % usable.size()];
}

// Where nobody is there to do it, some of what is asked for is not done; then the program waits for a
// while.
void World::wait_for_engines(const Action& action) {
  if (action.kind >= ActionKind::kEvict || action.words[0] >> 61 != 0) return;
  const TimePoint begun = now();
  while (!failed() && now() < begun + kBack && usable_engine(0) == nullptr)
    run_until(now() + milliseconds(1));
  late_.ns += (now() - begun).ns;
}

void World::run_until(TimePoint end) {
  while (!failed() && events_.step(end)) {
    if (manager_->doomed()) manager_->bury();
    if (!aimed_.empty() && events_.count() % kLookEvery == 0) strike_aimed();
    if (events_.count() % kRecountEvery == 0) check_tables();
    if (events_.count() % kKeptEvery == 0) manager_->check_kept();
  }
}

void World::check_tables() {
  if (!manager_->alive() || manager_->doomed()) return;
  // One that has died is there until its process has ended, beside the one that follows it.
  const Known known{manager_->old_bytes(), static_cast<std::uint32_t>(2 * engines_.size())};
  const auto wrong = recount(manager_->host().core(), manager_->pool(), known);
  if (wrong) fail(wrong->checker, wrong->text);
}

void World::tick() {
  manager_->tick();
  for (const auto& engine : engines_) {
    engine->tick();
    if (const auto why = engine->overdue()) fail("waits", *why);
  }
  events_.after(kTick, [this] { tick(); });
}

Outcome World::run(const Program& program) {
  if (const Status started = manager_->start(); !started.ok()) {
    fail("restart", started.error().to_string());
    return outcome_;
  }
  for (const EnginePlan& plan : config_.engines) engines_.push_back(std::make_unique<Engine>(*this, plan));
  events_.after(kTick, [this] { tick(); });
  run_until(now() + milliseconds(5));
  for (const Action& action : program) {
    run_until(action.time + late_);
    wait_for_engines(action);
    if (failed()) break;
    act(action);
  }
  if (!failed()) quiesce();
  outcome_.events = events_.count();
  return outcome_;
}

// Nobody asks for anything: engines let go, time passes, and nothing may be held.
void World::quiesce() {
  say("the program is over");
  for (const Aimed& each : std::exchange(aimed_, {})) strike(each.action);
  for (const auto& engine : engines_) engine->retire();
  run_until(now() + seconds(3));
  for (const auto& engine : engines_) engine->check_pages();
  for (const auto& engine : engines_) engine->leave();
  run_until(now() + kQuiet);
  for (const auto& engine : engines_) engine->kill();
  run_until(now() + kQuiet);
  for (int i = 0; i < kSlabsMost && !slabs_settled(); ++i) run_until(now() + kRetired);
  if (!failed()) check_quiet();
}

// One slab after the other.
bool World::slabs_settled() const {
  if (failed() || !manager_->alive() || !manager_->retires()) return true;
  const daemon::Slabs& slabs = manager_->host().slabs();
  return manager_->pool().stats().quarantined.value == 0 && slabs.offered() == slabs.wanted() &&
         slabs.retired_bytes().value == 0;
}

// Nobody maps anything any more: quarantine has ended, and the pool is as large as it should be.
void World::check_slabs_quiet() {
  const daemon::Slabs& slabs = manager_->host().slabs();
  if (slabs.retired_bytes().value != 0)
    return fail("quiet: slabs", std::to_string(slabs.retired_bytes().value) +
                                    " bytes of retired slabs count as taken though nobody maps them");
  if (manager_->retires() && slabs.offered() != slabs.wanted())
    return fail("quiet: slabs", std::to_string(slabs.offered()) + " slabs are in use, " +
                                    std::to_string(slabs.wanted()) + " are wanted");
  if (manager_->retires() && manager_->pool().stats().quarantined.value != 0)
    return fail("quiet: slabs", "quarantine does not end");
}

void World::check_quiet() {
  if (!manager_->alive()) return fail("quiet", "the Manager did not come back");
  const cache::CoreStats stats = manager_->host().core().stats();
  const auto nothing = [&](std::uint64_t value, const char* what) {
    if (value != 0)
      fail(("quiet: " + std::string(what)).c_str(),
           std::to_string(value) + " are held though nobody is there");
  };
  check_tables();
  nothing(manager_->host().live().size(), "sessions");
  nothing(stats.sessions, "sessions of the core");
  nothing(stats.instances, "instances");
  nothing(stats.operations, "operations");
  nothing(stats.leases, "leases");
  nothing(stats.tickets, "tickets");
  nothing(stats.budgets.used.value, "charged bytes");
  nothing(stats.budgets.waiting, "queries in line");
  nothing(stats.budgets.prepared, "preparations");
  nothing(stats.budgets.warms, "hints");
  nothing(stats.interests.interests, "interests");
  nothing(stats.leased.value, "leased bytes");
  nothing(stats.inflight_images, "images in flight");
  nothing(stats.loading, "loads");
  nothing(stats.spilling, "stores");
  nothing(manager_->old_grants(), "grants of earlier lives");
  nothing(manager_->kept_too_much(), "names in the store");
  manager_->check_kept();
  if (failed()) return;
  check_slabs_quiet();
  if (manager_->knows_quarantine() && stats.quarantined != manager_->expected_quarantine())
    fail("quiet", std::to_string(stats.quarantined.value) +
                      " bytes are quarantined, the claims of the dead were " +
                      std::to_string(manager_->expected_quarantine().value));
  manager_->host().core().evict(ByteCount(~std::uint64_t{0}), now());
  run_until(now() + seconds(3));
  manager_->host().core().evict(ByteCount(~std::uint64_t{0}), now());
  const cache::CoreStats after = manager_->host().core().stats();
  const ByteCount used = manager_->pool().stats().used;
  if (after.blocks == 0 && used != after.quarantined)
    fail("quiet", std::to_string(used.value) + " bytes of the pool are used and " +
                      std::to_string(after.quarantined.value) + " quarantined, with no block left");
}

}  // namespace orbitkv::sim
