#include "sim/manager_node.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/process.h"
#include "sim/session_memories.h"
#include "sim/world.h"
#include "wire/messages.h"

namespace orbitkv::sim {
namespace {
// As in the production loop.
constexpr Duration kRecheck = milliseconds(shm::kRecheckMs);
constexpr Duration kIdleRecheck = milliseconds(50);
constexpr Duration kIdleAfter = seconds(1);

// Quarantine retires no slab here: the client lets go of one with a thread of its own.
constexpr Duration kNever = seconds(1'000'000'000);

UniqueFd duplicate(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}
// The part of a session's memory that holds its state; slots and plan bank mean nothing
// without it.
std::span<std::byte> state_of(const shm::SessionMemory& memory) {
  return {reinterpret_cast<std::byte*>(&memory.header()), shm::SessionLayout::kSlots};
}
}  // namespace

ManagerNode::ManagerNode(World& world) : world_(world), disk_(world) {}

ManagerNode::~ManagerNode() {
  disk_.crash(1, std::nullopt);
  control_.reset();
  host_.reset();
  tier_.reset();
}

// ---- lives ----

Status ManagerNode::start() {
  ++life_;
  const Config& config = world_.config();
  if (config.ssd.on) ORBITKV_RETURN_IF_ERROR(open_store());
  mem::PoolConfig pool;
  pool.bytes = config.pool;
  pool.prefault = false;
  pool.life = life_;
  pool.numa = false;
  if (tier_) pool.unit = tier_->unit();
  ORBITKV_ASSIGN_OR_RETURN(pool_, mem::Pool::create(pool));
  if (tier_) tier_->use_pool(*pool_);
  disk_.slabs_follow();
  expected_quarantine_ = ByteCount();
  view_ = std::make_shared<PoolView>();
  view_->life = life_;
  view_->unit = pool.unit;
  for (const mem::SlabInfo& slab : pool_->slabs()) {
    ORBITKV_ASSIGN_OR_RETURN(auto mapped,
                             mem::MappedSlab::map(pool_->slab_memory(slab.slot), slab.id, slab.bytes));
    view_->slabs.push_back(std::move(mapped));
  }
  cache::CoreConfig core = config.core;
  core.seed = {mix(config.seed, life_, 1), mix(config.seed, life_, 2)};
  daemon::Host::Owner& owner = *this;
  host_ =
      std::make_unique<daemon::Host>(core, *pool_, owner, tier_.get(), Epoch(std::uint64_t{life_} << 32 | 1),
                                     daemon::Slabs::Config{kNever, {}, {}});
  control_ = std::make_unique<daemon::Control>(host_->core(), *pool_, tier_.get(), host_->slabs());
  world_.note(World::Note::kManager, life_);
  world_.say("the Manager starts, life %u", life_);
  host_->tick(world_.now());
  return ok_status();
}

Status ManagerNode::open_store() {
  const Config& config = world_.config();
  daemon::SsdTier::Options options;
  for (std::uint32_t i = 0; i < config.ssd.paths; ++i)
    options.store.paths.push_back({"disk" + std::to_string(i), config.ssd.segments * config.ssd.segment});
  options.store.segment = config.ssd.segment;
  options.store.max_records = 1 << 16;
  options.store.flush = config.ssd.flush;
  options.store.write_queue = ByteCount(std::max<std::uint64_t>(config.pool.value / 8, 64 * 1024));
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
  disk_.crash(word, std::nullopt);
  for (auto& [epoch, peer] : peers_) {
    if (!peer.saved.empty()) std::memcpy(state_of(*peer.memory).data(), peer.saved.data(), peer.saved.size());
    if (peer.client) peer.client->on_hang_up(epoch);
  }
  control_.reset();
  host_.reset();
  peers_.clear();
  tier_.reset();
  pool_.reset();
  disk_.after_crash();
  next_turn_ = {};
  asleep_ = doomed_ = false;
  point_fault_.reset();
  auto random = world_.random(0xDEADu, life_);
  world_.events().after(random.between(milliseconds(1), milliseconds(400)), [this] {
    if (const Status started = start(); !started.ok())
      world_.fail("restart", "the next Manager does not start: " + started.error().to_string());
  });
}

void ManagerNode::die_at(FaultPoint point, std::uint32_t passes) {
  point_fault_ = PointFault{point, passes};
}

// What it does after this point has not happened: the words go back to what they were, its
// frames are not sent, and the disk has not got what it wrote.
bool ManagerNode::on_fault_point(FaultPoint point) {
  if (!point_fault_ || point_fault_->point != point || doomed_ || !alive()) return false;
  if (point_fault_->passes-- > 0) return false;
  doomed_ = true;
  for (auto& [epoch, peer] : peers_) {
    const auto state = state_of(*peer.memory);
    peer.saved.assign(state.begin(), state.end());
  }
  world_.cover_fault(ActionKind::kKillManagerAt);
  world_.events().at(world_.now(), [this] { die(world_.random(0xD1Eu, life_).next()); });
  return false;
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
  if (std::exchange(asleep_, false)) host_->cancel_sleep();
  bool busy = false;
  for (std::size_t i = 0; i < host_->live().size(); ++i) {
    daemon::Session& session = host_->session(host_->live()[i]);
    if (daemon::Host::rung(session)) busy |= host_->serve(session, false, world_.now());
  }
  busy |= host_->turn(world_.now());
  busy |= poll_ssd();
  after_turn();
  if (doomed_) return;
  const DurationRange& time = world_.config().turn;
  auto random = world_.random(0x7074u, ++turns_);
  if (busy) {
    last_busy_ = world_.now();
    return schedule(random.between(time.least, time.most));
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
  if (!alive() || doomed_) return;
  if (world_.plant() == Plant::kLeakedExtent)
    if (auto extent = pool_->allocate(ByteCount(64))) extent->dissolve();
  host_->tick(world_.now());
  if (poll_ssd()) schedule(microseconds(20));
  after_turn();
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
}

// ---- clients ----

Result<ManagerNode::Seat> ManagerNode::attach(Process& process) {
  if (!alive() || doomed_) return reconnect("nobody listens");
  ORBITKV_ASSIGN_OR_RETURN(const daemon::Host::Place place, host_->place());
  auto memory = session_memory(place.id, place.epoch);
  ORBITKV_ASSIGN_OR_RETURN(auto bell, shm::make_bell());
  UniqueFd their_bell = duplicate(bell.get());
  peers_.emplace(place.epoch, Peer{place.id, process.number(), &process, memory, 0, 0, {}, {}});
  wire::HelloReply hello{place.id, place.epoch, Incarnation(life_), shm::SessionLayout::kBytes, "sim"};
  daemon::Session& session =
      host_->open({place.id, place.epoch, "process " + std::to_string(process.number()),
                   static_cast<int>(process.number()), shm::ManagerChannel(memory->alias(), std::move(bell)),
                   daemon::ProcessId(process.number()), world_.config().bank_bytes},
                  world_.now());
  host_->offer_slabs(session, world_.now());
  return Seat{hello, std::move(memory), std::move(their_bell), view_};
}

ManagerNode::Peer* ManagerNode::peer_of(Epoch epoch) {
  const auto it = peers_.find(epoch);
  return it == peers_.end() ? nullptr : &it->second;
}

daemon::Session* ManagerNode::session_of(Epoch epoch) {
  if (!alive() || doomed_) return nullptr;
  const Peer* peer = peer_of(epoch);
  daemon::Session* session = peer ? host_->find(peer->session) : nullptr;
  return session && session->epoch() == epoch ? session : nullptr;
}

void ManagerNode::on_frame(Epoch from, const std::vector<std::byte>& frame) {
  daemon::Session* session = session_of(from);
  if (!session || session->life != daemon::Session::Life::kOpen) return;
  host_->on_frame(*session, frame, world_.now());
  after_turn();
}

void ManagerNode::on_hang_up(Epoch from) {
  if (world_.plant() == Plant::kUnheardDeath) return;
  daemon::Session* session = session_of(from);
  if (!session) return;
  host_->close(*session, "it closed its socket", world_.now());
  after_turn();
}

void ManagerNode::on_process_ended(std::uint32_t process) {
  if (world_.plant() == Plant::kUnheardDeath) return;
  for (const Epoch epoch : epochs()) {
    Peer* peer = peer_of(epoch);
    daemon::Session* session = session_of(epoch);
    if (!peer || !session || peer->process != process) continue;
    const ByteCount claimed = claimed_saves(*peer, session->poisoned());
    expected_quarantine_ += claimed;
    world_.say("the Manager hears of the end of %s, %llu bytes claimed", session->name().c_str(),
               static_cast<unsigned long long>(claimed.value));
    host_->on_process_ended(*session, world_.now());
  }
  if (alive() && !doomed_) host_->on_process_ended(daemon::ProcessId(process));
  after_turn();
}

Status ManagerNode::send(SessionId session, std::vector<std::byte> frame, std::vector<int> fds) {
  const auto epoch = epoch_of(session);
  Peer* peer = epoch ? peer_of(*epoch) : nullptr;
  if (doomed_ || !peer || !peer->client) return ok_status();
  const bool offer = !fds.empty();
  if (!offer && lose_frames_ > 0) {
    --lose_frames_;
    return ok_status();
  }
  if (!offer && garble_frame_) {
    frame[*garble_frame_ % frame.size()] ^= std::byte{32};
    garble_frame_.reset();
  }
  std::vector<UniqueFd> descriptors;
  for (const int fd : fds) descriptors.push_back(duplicate(fd));
  peer->client->receive(*epoch, {std::move(frame), std::move(descriptors)});
  return ok_status();
}

std::optional<Epoch> ManagerNode::epoch_of(SessionId session) const {
  // The newest: an older one of the same place is gone.
  for (auto it = peers_.rbegin(); it != peers_.rend(); ++it)
    if (it->second.session == session) return it->first;
  return std::nullopt;
}

void ManagerNode::on_closed(daemon::Session& session) {
  Peer* peer = peer_of(session.epoch());
  if (peer) note_plans(*peer);
  if (!doomed_ && peer && peer->client) peer->client->on_hang_up(session.epoch());
}

void ManagerNode::on_gone(daemon::Session& session) {
  if (!doomed_) peers_.erase(session.epoch());
}

// ---- the operator ----

void ManagerNode::ask(const std::string& question) {
  if (!alive() || doomed_) return;
  control_->ask(question, world_.now(), [](const Result<std::string>&) {});
  after_turn();
  schedule(microseconds(20));
}

void ManagerNode::evict(ByteCount bytes) {
  ask(R"({"command": "evict", "bytes": )" + std::to_string(bytes.value) + "}");
}

void ManagerNode::drop_space(std::uint32_t space) {
  if (!alive() || !tier_) return;
  const auto spaces = tier_->store().spaces();
  if (spaces.empty()) return;
  std::string digest;
  constexpr char kHex[] = "0123456789abcdef";
  for (const std::byte b : spaces[space % spaces.size()].digest.bytes) {
    digest += kHex[std::to_integer<unsigned>(b) >> 4];
    digest += kHex[std::to_integer<unsigned>(b) & 15];
  }
  ask(R"({"command": "ssd_drop", "digest": ")" + digest + "\"}");
}

void ManagerNode::flip_image(std::uint64_t word) {
  if (!alive()) return;
  const mem::MappedSlab& slab = view_->slabs[word % view_->slabs.size()];
  const std::uint64_t at = (word >> 8) % slab.bytes().value;
  // Not under a disk, which is checked for that.
  if (world_.ledger().free({life_, slab.id(), at, ByteCount(1)})) slab.base()[at] ^= std::byte{2};
}

// ---- for those who watch ----

// Sizes of plans, while their places can be read: a revocation that comes too late writes
// its text over them.
void ManagerNode::note_plans(Peer& peer) {
  for (std::uint32_t i = 0; i < limits::kRecords; ++i) {
    const shm::RecordLayout& record = peer.memory->record(RecordIndex(i));
    const auto word = shm::unpack(record.word.load(std::memory_order_acquire));
    if (!word) continue;
    if (word->state == shm::RecordState::kFree) return;  // clients take the lowest first
    const bool granted = word->state == shm::RecordState::kGranted ||
                         word->state == shm::RecordState::kActive ||
                         word->state == shm::RecordState::kDrained;
    if (!granted || record.manager.plan_bytes == 0) continue;
    const std::byte* bytes = peer.memory->plan_bank() + record.manager.plan_offset;
    const std::vector<std::byte> frame(bytes, bytes + record.manager.plan_bytes);
    const auto plan = wire::decode_plan(frame);
    if (!plan.ok() || plan->operation != word->operation) continue;
    const bool save = plan->kind == model::PlanKind::kSave;
    const std::uint64_t entries = save ? plan->entries.size() : 0;
    peer.plans[word->operation] = entries * view_->rounded(plan->slot_bytes);
  }
}

// Nobody reads the receipts of a session that broke the protocol.
ByteCount ManagerNode::claimed_saves(Peer& peer, bool poisoned) {
  note_plans(peer);
  ByteCount sum;
  for (std::uint32_t i = 0; i < limits::kRecords; ++i) {
    const auto word = shm::unpack(peer.memory->record(RecordIndex(i)).word.load(std::memory_order_acquire));
    if (!word) continue;
    const bool unread = word->state == shm::RecordState::kDrained && poisoned;
    if (word->state != shm::RecordState::kActive && !unread) continue;
    const auto plan = peer.plans.find(word->operation);
    if (plan != peer.plans.end()) sum += plan->second;
  }
  return sum;
}

std::vector<shm::RecordState> ManagerNode::record_states(Epoch epoch) const {
  std::vector<shm::RecordState> states;
  const auto it = peers_.find(epoch);
  if (it == peers_.end()) return states;
  for (std::uint32_t i = 0; i < limits::kRecords; ++i) {
    const auto word =
        shm::unpack(it->second.memory->record(RecordIndex(i)).word.load(std::memory_order_relaxed));
    if (!word) continue;
    if (word->state == shm::RecordState::kFree) break;  // clients take the lowest first
    states.push_back(word->state);
  }
  return states;
}

std::vector<std::byte> ManagerNode::state_of_session(Epoch epoch) {
  const Peer* peer = peer_of(epoch);
  if (!peer) return {};
  const auto state = state_of(*peer->memory);
  return {state.begin(), state.end()};
}

void ManagerNode::restore_session(Epoch epoch, const std::vector<std::byte>& state) {
  const Peer* peer = peer_of(epoch);
  if (peer && state.size() == shm::SessionLayout::kSlots)
    std::memcpy(state_of(*peer->memory).data(), state.data(), state.size());
}

void ManagerNode::forget_client(std::uint32_t process) {
  for (auto& [epoch, peer] : peers_)
    if (peer.process == process) peer.client = nullptr;
}

// Another bit in an entry of a ring that has been written and not read.
void ManagerNode::garble_command(Epoch epoch, std::uint64_t word) {
  const Peer* peer = peer_of(epoch);
  if (!peer) return;
  const std::uint64_t tail = peer->memory->header().command_tail.load();
  std::byte* entry =
      peer->memory->ring(shm::Side::kClient) + (tail - 1) % limits::kRingEntries * wire::kCommandBytes;
  entry[word % wire::kCommandBytes] ^= std::byte{8};
}

void ManagerNode::garble_reply(Epoch epoch, std::uint64_t word) {
  const Peer* peer = peer_of(epoch);
  if (!peer) return;
  const std::uint64_t tail = peer->memory->header().reply_tail.load();
  if (tail == 0 || tail == peer->memory->header().reply_head.load()) return;
  std::byte* entry =
      peer->memory->ring(shm::Side::kManager) + (tail - 1) % limits::kRingEntries * wire::kCommandBytes;
  entry[word % wire::kCommandBytes] ^= std::byte{8};
}

std::vector<Epoch> ManagerNode::epochs() const {
  std::vector<Epoch> out;
  for (const auto& [epoch, peer] : peers_) out.push_back(epoch);
  return out;
}

}  // namespace orbitkv::sim
