#include "sim/manager_node.h"

#include <sys/stat.h>

#include <cstring>
#include <utility>

#include "sim/cells.h"
#include "sim/process.h"
#include "sim/world.h"
#include "wire/lifecycle.h"

namespace orbitkv::sim {
namespace {
// As in the production loop.
constexpr Duration kRecheck = milliseconds(shm::kRecheckMs);
constexpr Duration kIdleRecheck = milliseconds(50);
constexpr Duration kIdleAfter = seconds(1);
// What a dead one had just taken back they see, and use again, before the next one looks at it.
constexpr Duration kClientsGoOn = milliseconds(100);
}  // namespace

ManagerNode::ManagerNode(World& world)
    : world_(world), disk_(world), shelf_(world, *this), audit_(world.config()) {}

ManagerNode::~ManagerNode() {
  doomed_ = true;  // the store hears nothing
  disk_.crash(1, std::nullopt);
  if (keep_) keep_->stop();
  control_.reset();
  host_.reset();
  tier_.reset();
  pool_.reset();
}

// ---- lives ----

// In the order of the production Manager.
Status ManagerNode::start() {
  ++life_;
  running_ = true;
  if (next_point_fault_) point_fault_ = std::exchange(next_point_fault_, std::nullopt);
  if (next_store_calls_) store_calls_ = std::exchange(next_store_calls_, std::nullopt);
  const Config& config = world_.config();
  if (config.ssd.on) ORBITKV_RETURN_IF_ERROR(open_store());
  mem::PoolConfig pool;
  pool.bytes = config.pool;
  pool.slab = config.slab;
  pool.prefault = false;
  pool.life = life_;
  pool.numa = false;
  if (tier_) pool.unit = tier_->unit();
  if (config.keep.on) find_kept(pool);
  ORBITKV_ASSIGN_OR_RETURN(pool_, mem::Pool::create(pool));
  if (tier_) tier_->use_pool(*pool_);
  disk_.slabs_follow(pool_->id());
  expected_quarantine_.clear();
  retirements_ = 0;
  retire_state_ = cache::RetireState::kIdle;
  view_ = views_[pool_->id()];
  if (!view_) view_ = views_[pool_->id()] = std::make_shared<PoolView>();
  view_->pool = pool_->id();
  view_->unit = pool.unit;
  mapped_.clear();
  cache::CoreConfig core = config.core;
  core.incarnation = Incarnation(life_);
  core.seed = {mix(config.seed, life_, 1), mix(config.seed, life_, 2)};
  if (world_.plant() == Plant::kLongWait) core.load_wait = core.full_prefix_wait = seconds(60);
  if (keep_) {
    ORBITKV_ASSIGN_OR_RETURN(table_, keep_->make_table(*pool_, core.max_blocks, pool.unit));
    core.kept = table_;
  }
  daemon::Slabs::Config slabs = config.slabs;
  slabs.keep = keep_.get();
  daemon::Host::Owner& owner = *this;
  host_ = std::make_unique<daemon::Host>(core, *pool_, owner, tier_.get(),
                                         Epoch(std::uint64_t{life_} << 32 | 1), slabs);
  host_->watch_stalls(config.stalls);
  control_ = std::make_unique<daemon::Control>(host_->core(), *pool_, tier_.get(), host_->slabs());
  world_.note(World::Note::kManager, life_);
  world_.say("the Manager starts, life %u", life_);
  adopt_kept();
  tick_host();
  if (keep_) keep_->ready();
  return ok_status();
}

// Devices reach what the pool lends from, and what it has lent from.
void ManagerNode::map_slabs() {
  if (doomed_) return;  // nobody has been told of them
  for (const mem::SlabInfo& slab : pool_->slabs())
    if (slab.state == mem::SlabState::kOffered) map_slab(slab);
}

void ManagerNode::map_slab(const mem::SlabInfo& slab) {
  if (!mapped_.insert(slab.id).second) return;
  struct stat status{};
  ORBITKV_CHECK(::fstat(pool_->slab_fd(slab.slot), &status) == 0, "a slab has memory");
  const auto [known, fresh] = view_->inodes.try_emplace(slab.id, status.st_ino);
  if (!fresh && known->second != status.st_ino)
    return world_.fail("slabs", "the name of slab " + std::to_string(slab.id.value) + " is given twice");
  if (!fresh) return;
  auto mapped = mem::MappedSlab::map(pool_->slab_memory(slab.slot), slab.id, slab.bytes);
  ORBITKV_CHECK(mapped.ok(), mapped.ok() ? "" : mapped.error().message().c_str());
  view_->slabs.emplace(slab.id, std::move(*mapped));
}

// Who is told of a slab copies with it, even if this life ends within this very turn.
void ManagerNode::map_offered(std::span<const std::byte> frame) {
  const auto offer = wire::decode_slab_offer(frame);
  if (!offer.ok()) return;
  for (const auto& offered : offer->slabs)
    for (const mem::SlabInfo& slab : pool_->slabs())
      if (slab.id == offered.id && slab.state == mem::SlabState::kOffered) map_slab(slab);
}

SlabId ManagerNode::slab_to_map(const std::function<bool(SlabId)>& known) const {
  for (const mem::SlabInfo& slab : pool_->slabs())
    if (slab.state == mem::SlabState::kOffered && !known(slab.id)) return slab.id;
  ORBITKV_CHECK(false, "the disk is told of a slab that is not in use");
}

Status ManagerNode::open_store() {
  const Config& config = world_.config();
  daemon::SsdTier::Options options;
  for (std::uint32_t i = 0; i < config.ssd.paths; ++i)
    options.store.paths.push_back({"disk" + std::to_string(i), config.ssd.segments * config.ssd.segment});
  options.store.segment = config.ssd.segment;
  options.store.max_records = 1 << 13;
  options.store.flush = config.ssd.flush;
  options.store.reads = config.ssd.reads;
  options.store.recovered_a_step = static_cast<std::uint32_t>(world_.random(0x09E4u, life_).between(1, 64));
  options.store.write_queue = ByteCount(config.pool.value / 8);  // as the daemon
  options.admission.policy = static_cast<ssd::WritePolicy>(config.ssd.policy);
  options.admission.history = 1 << 12;
  options.admission.seed = config.seed;
  ORBITKV_ASSIGN_OR_RETURN(tier_, daemon::SsdTier::open(options, disk_.open(life_)));
  return ok_status();
}

void ManagerNode::die(std::uint64_t word) {
  if (!alive()) return;
  world_.note(World::Note::kManager, life_, 1);
  world_.say("the Manager dies");
  auto random = world_.random(0xDEADu, life_);
  const DurationRange& time = world_.config().restart;
  Duration delay = random.between(time.least, time.most);
  if (taking_back_) {
    delay.ns += random.between(Duration{}, kClientsGoOn).ns;
    world_.go_on(delay);
  }
  end_life(word);
  start_after(delay);
}

void ManagerNode::start_after(Duration delay) {
  world_.events().after(delay, [this] {
    if (const Status started = start(); !started.ok())
      world_.fail("restart", "the next Manager does not start: " + started.error().to_string());
  });
}

// What comes while the store is being read.
void ManagerNode::mark_opening(MetOpening what) const {
  if (tier_ && !tier_->ready()) sim::mark_opening(tier_->store().opening().state, what);
}

// Nothing is taken down for others to see: what the objects say while they go, nobody hears.
void ManagerNode::end_life(std::uint64_t word) {
  mark_opening(MetOpening::kDeath);
  if (!doomed_) tables_ = Frozen(shelf_.all("table-"));
  device_writes_ = disk_.writes();
  disk_.crash(word, doomed_ ? std::optional(disk_log_) : std::nullopt);
  for (const FrozenSession& session : std::exchange(sessions_, {})) session.thaw();
  for (auto& [epoch, peer] : peers_)
    if (peer.client)
      peer.client->on_hang_up(epoch, taking_back_ ? Process::HangUp::kLate : Process::HangUp::kUsual);
  restores_ = world_.dma().make_stale();
  if (world_.plant() == Plant::kLostPlans)
    for (const auto& [epoch, peer] : peers_) std::memset(peer.memory->plan_bank(), 0, limits::kPlanBankBytes);
  doomed_ = true;
  if (keep_) keep_->stop();
  control_.reset();
  host_.reset();
  peers_.clear();
  tier_.reset();
  pool_.reset();
  keep_.reset();
  table_ = nullptr;
  disk_.after_crash();
  std::exchange(tables_, {}).thaw();
  shelf_.end_life(word);
  for (const std::uint64_t damage : std::exchange(damage_, {})) damage_tables(shelf_.all("table-"), damage);
  if (world_.plant() == Plant::kStaleBlock && !view_->slabs.empty()) {
    const mem::MappedSlab& slab = view_->slabs.begin()->second;
    for (std::uint64_t at = 64; at < slab.bytes().value; at += 256) slab.base()[at] ^= std::byte{1};
  }
  next_turn_ = stopped_until_ = {};
  running_ = asleep_ = doomed_ = leaving_ = taking_back_ = false;
  point_fault_.reset();
  store_calls_.reset();
}

void ManagerNode::die_at(FaultPoint point, std::uint32_t passes) {
  point_fault_ = PointFault{point, passes};
}

// What it does after this point has not happened: the words and the tables go back to what they
// were, its frames are not sent, and disk and store have not got what it gave them.
bool ManagerNode::on_fault_point(FaultPoint point) {
  if (point == FaultPoint::kManagerKeptFormat) return std::exchange(other_format_, false);
  if (doomed_ || !running_) return false;
  taking_back_ = dies_taking_back_ && point == FaultPoint::kManagerUnsealed && takes_back();
  if (taking_back_) {
    dies_taking_back_ = false;
  } else {
    if (!point_fault_ || point_fault_->point != point) return false;
    if (point_fault_->passes-- > 0) return false;
  }
  world_.cover_fault(ActionKind::kKillManagerAt);
  doom();
  return false;
}

void ManagerNode::bury() {
  die(world_.random(0xD1Eu, life_).next());
}

// ---- turns ----

void ManagerNode::schedule(Duration delay) {
  const TimePoint time = world_.now() + delay;
  if (next_turn_.ns != 0 && next_turn_ <= time) return;
  next_turn_ = time;
  const std::uint64_t number = ++turn_number_;
  world_.events().at(time, [this, number] {
    if (number == turn_number_ && next_turn_.ns != 0) turn();
  });
}

void ManagerNode::on_ring() {
  if (!alive()) return;
  auto random = world_.random(0xBE11u, ++turns_);
  Duration delay = random.between(world_.config().wake.least, world_.config().wake.most);
  if (const auto fault = std::exchange(wake_fault_, std::nullopt)) {
    world_.note(World::Note::kFault, static_cast<std::uint64_t>(*fault));
    if (*fault == WakeFault::kLose) return;
    if (*fault == WakeFault::kDelay) delay = milliseconds(5);
    if (*fault == WakeFault::kDouble)
      world_.events().after(microseconds(30), [this] {
        if (alive() && !doomed_) turn();
      });
  }
  schedule(delay);
}

void ManagerNode::hear(Epoch from) {
  Peer* peer = peer_of(from);
  if (!peer) return;
  const std::uint64_t bell = peer->memory->header().client_bell.load(std::memory_order_relaxed);
  if (std::exchange(peer->client_bell, bell) != bell) on_ring();
}

void ManagerNode::turn() {
  next_turn_ = {};
  if (!alive() || doomed_) return;
  if (stopped()) return schedule(stopped_until_ - world_.now());
  if (leaving_) return;
  if (std::exchange(asleep_, false)) host_->cancel_sleep();
  bool busy = false;
  for (std::size_t i = 0; i < host_->live().size(); ++i) {
    daemon::Session& session = host_->session(host_->live()[i]);
    if (daemon::Host::rung(session)) busy |= host_->serve(session, false, world_.now());
  }
  note_retirement({});
  busy |= host_->turn(world_.now());
  busy |= control_->poll(world_.now());
  busy |= poll_ssd();
  after_turn();
  if (doomed_) return;
  const DurationRange& time = world_.config().turn;
  auto random = world_.random(0x7074u, ++turns_);
  if (busy) {
    last_busy_ = world_.now();
    // Steps of a retirement lie apart at times, so that others come in between.
    const bool retires = retire_state_ != cache::RetireState::kIdle && random.percent(50);
    return schedule(random.between(time.least, retires ? milliseconds(1) : time.most));
  }
  if (world_.config().sleeps && !host_->prepare_sleep()) {
    host_->cancel_sleep();
    return schedule(time.least);
  }
  asleep_ = world_.config().sleeps;
  if (!host_->live().empty()) schedule(world_.now() - last_busy_ < kIdleAfter ? kRecheck : kIdleRecheck);
}

bool ManagerNode::poll_ssd() {
  if (!tier_) return false;
  disk_.advance();
  const std::uint64_t before = disk_.completions();
  const bool busy = tier_->poll(host_->core(), world_.now());
  control_->poll(world_.now());
  world_.count_operations(disk_.completions() - before);
  const TimePoint next = std::min(disk_.next_result(), tier_->due());
  if (next < world_.now() + seconds(1)) schedule(std::max(next - world_.now(), microseconds(5)));
  return busy;
}

void ManagerNode::tick() {
  if (!listens() || leaving_) return;
  tick_keep();
  plant_in_table();
  if (world_.plant() == Plant::kLeakedExtent)
    if (auto extent = pool_->allocate(ByteCount(64))) extent->dissolve();
  if (world_.plant() == Plant::kDroppedExtent) (void)pool_->allocate(ByteCount(64));
  tick_host();
  if (poll_ssd()) schedule(microseconds(20));
  after_turn();
}

// The tick may begin to retire a slab: what stood on it is seen before.
void ManagerNode::tick_host() {
  const auto& core = host_->core();
  const daemon::Slabs& slabs = host_->slabs();
  const bool soon = slabs.offered() > slabs.wanted() || pool_->stats().quarantined.value > 0;
  const bool idle = core.retiring().state == cache::RetireState::kIdle;
  const cache::Census before = soon && idle ? core.census() : cache::Census{};
  host_->tick(world_.now());
  map_slabs();
  note_retirement(before);
  if (retire_state_ == cache::RetireState::kIdle) return;
  schedule(world_.random(0x2E71u, ++turns_).between(microseconds(20), milliseconds(2)));
}

// `before`: of the tables when no slab retired yet; else nothing. What a retirement is short in is
// looked at each time, what it waits in now and then.
void ManagerNode::note_retirement(const cache::Census& before) {
  const cache::RetireState state = host_->core().retiring().state;
  const std::uint64_t begun = host_->slabs().retired();
  if (std::exchange(retirements_, begun) != begun) mark_retirement(cache::RetireState::kImages, before);
  const bool same = std::exchange(retire_state_, state) == state;
  if (state == cache::RetireState::kIdle) return;
  const bool waits = state == cache::RetireState::kClaims || state == cache::RetireState::kDevice;
  if (!same || !waits || turns_ % 16 == 0) mark_retirement(state, host_->core().census());
}

// Who rang is told; whoever sleeps on the bell hears it after a while.
void ManagerNode::after_turn() {
  if (doomed_) return;
  for (auto& [epoch, peer] : peers_) {
    const std::uint64_t bell = peer.memory->header().manager_bell.load(std::memory_order_relaxed);
    if (bell == peer.bell) continue;
    peer.bell = bell;
    if (peer.client) peer.client->on_ring();
  }
  // The event loop polls after whatever woke it.
  if (alive() && host_->core().works()) schedule(microseconds(20));
}

}  // namespace orbitkv::sim
