// What outlives a life of the Manager: what the next one finds, and whether that is safe; how it
// makes place for it; and deaths at any moment of it.
#include <fcntl.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/check.h"
#include "mem/kept_table.h"
#include "sim/cells.h"
#include "sim/engine.h"
#include "sim/manager_node.h"
#include "sim/world.h"

namespace orbitkv::sim {
namespace {
// As the production Manager does it.
constexpr Duration kAnswerFirst = milliseconds(2), kDeviceWithin = milliseconds(500);
constexpr Duration kHeld = seconds(25);  // the production Manager holds sources a little longer

std::string text_of(const Place& place) {
  return std::to_string(place.bytes.value) + " bytes at " + std::to_string(place.offset) + " of slab " +
         std::to_string(place.slab.value);
}
bool covers(const mem::KeptPlace& outer, const Place& inner) {
  return outer.slab == inner.slab && outer.offset <= inner.offset &&
         inner.offset + inner.bytes.value <= outer.offset + outer.bytes.value;
}
bool overlap(const mem::KeptPlace& a, const Place& b) {
  return a.slab == b.slab && a.offset < b.offset + b.bytes.value && b.offset < a.offset + a.bytes.value;
}
}  // namespace

// ---- what the next life finds ----

void ManagerNode::find_kept(mem::PoolConfig& pool) {
  keep_ = std::make_unique<daemon::Keep>(shelf_.open());
  keep_->watch_stalls(world_.config().stalls);
  const auto read = keep_->find(pool.unit, tier_ ? tier_->files() : mem::DeviceFiles());
  ORBITKV_CHECK(read.ok(), "the simulated store answers");
  const std::vector<Place> device = std::exchange(device_writes_, {});
  pool.kept = keep_->pool();
  if (pool.kept == nullptr) return world_.say("nothing is kept for life %u", life_);
  world_.say("life %u finds %zu blocks, %zu extents lent", life_, pool.kept->oldest_first.size(),
             pool.kept->lent.size());
  if (doomed_) return;
  check_found(*pool.kept);
  check_writers(*pool.kept, device);
  check_blocks(*pool.kept);
  mark_found(*pool.kept);
  hold_sources(*pool.kept);
}

// Processes of earlier lives by their numbers, as those of this one.
void ManagerNode::adopt_kept() {
  if (!keep_) return;
  keep_->adopt(host_->core(), [this](const UniqueFd& process) {
    const std::uint32_t number = shelf_.number_of(process.get());
    return daemon::OldProcess{daemon::ProcessId(number), static_cast<int>(number)};
  });
  host_->slabs().inherit(keep_->mappings());
}

void ManagerNode::tick_keep() {
  if (!keep_) return;
  keep_->tick();
  for (const daemon::OldGrants::Condemned& each : keep_->take_condemned()) {
    const std::uint32_t number = shelf_.number_of(each.process);
    for (const auto& engine : world_.engines())
      for (Process* process : engine->processes())
        if (process->number() == number) process->condemn();
  }
}

void ManagerNode::check_found(const mem::KeptPool& found) {
  check_writers(found, world_.ledger().writers(found.id));
}

// Whoever may write somewhere stands there as somebody who does, or nothing is lent on that
// slab any more. Nothing is a block that somebody writes.
void ManagerNode::check_writers(const mem::KeptPool& found, const std::vector<Place>& writers) {
  for (const Place& writer : writers) {
    if (writer.pool != found.id) continue;
    const auto slab = std::find_if(found.slabs.begin(), found.slabs.end(),
                                   [&](const auto& each) { return each.name == writer.slab; });
    if (slab == found.slabs.end()) continue;
    for (const mem::KeptSlot& image : found.images)
      if (overlap(image.slot.place, writer))
        return world_.fail("kept: sealed", "the next Manager would take " + text_of(writer) +
                                               " for a block, and somebody writes there");
    const auto lent = [&](const auto& each) { return covers(each.lent.place, writer); };
    if (slab->tainted || std::any_of(found.lent.begin(), found.lent.end(), lent)) continue;
    return world_.fail("kept: lent",
                       "the next Manager would lend " + text_of(writer) + ", and somebody may write there");
  }
}

void ManagerNode::check_blocks(const mem::KeptPool& found) {
  const auto view = views_.find(found.id);
  for (const mem::KeptSlot& each : found.images) {
    const mem::KeptPlace& at = each.slot.place;
    if (world_.ledger().damaged({found.id, at.slab, at.offset, at.bytes})) continue;
    if (view == views_.end() || !view->second->slabs.contains(at.slab))
      return world_.fail("kept: bytes", "a block lies on a slab that was never in use");
    std::byte* image = view->second->slabs.at(at.slab).base() + at.offset;
    if (!audit_.verifies(each.slot, found.names[each.slot.name_space.value].digest, image))
      return world_.fail("kept: bytes", "the next Manager takes over a block at " +
                                            std::to_string(at.offset) + " of slab " +
                                            std::to_string(at.slab.value) + " whose bytes are others");
  }
}

// Restores that had begun are not made to fail: what they read stays for as long as that takes, but
// not for ever, and not on a slab that retires.
void ManagerNode::hold_sources(const mem::KeptPool& found) {
  const auto memories = shelf_.memories();
  for (const auto& job : std::exchange(restores_, {})) {
    const bool heard = std::any_of(memories.begin(), memories.end(), [&](const shm::SessionMemory* memory) {
      return memory->header().identity.epoch == job->session.value;
    });
    if (!heard) continue;
    for (const CopyItem& item : job->items) {
      const auto there = [&](const mem::KeptSlot& image) {
        return covers(image.slot.place, item.place) && image.slot.revision == item.slot.allocation;
      };
      if (item.place.pool != found.id || std::none_of(found.images.begin(), found.images.end(), there))
        continue;
      world_.ledger().hold(
          item.place, [this, job, place = item.place, life = life_, end = world_.now() + kHeld] {
            return life == life_ && alive() && !job->ended && !job->orphan && world_.now() < end &&
                   lends(place) && slab_of(place.slab)->state == mem::SlabState::kOffered;
          });
    }
  }
}

// What those were who have been lent something, and did not say that they are done.
void ManagerNode::mark_found(const mem::KeptPool& found) {
  const auto memories = shelf_.memories();
  for (const mem::KeptPool::Lent& each : found.lent) {
    const mem::KeptWriter& writer = each.lent.writer;
    const auto memory = std::find_if(memories.begin(), memories.end(), [&](const shm::SessionMemory* m) {
      return m->header().identity.epoch == writer.session.value;
    });
    if (writer.operation.value == 0) {
      mark_kept(KeptLender::kDevice);
    } else if (memory == memories.end() || writer.record.value >= limits::kRecords) {
      mark_kept(KeptLender::kUnheard);
    } else {
      const auto word = shm::unpack((*memory)->record(writer.record).word.load(std::memory_order_acquire));
      if (!word || word->operation < writer.operation)
        mark_kept(KeptLender::kWrong);
      else if (word->operation > writer.operation)
        mark_kept(KeptLender::kLater);
      else
        mark_kept(word->state);
    }
  }
}

// Were this its last moment.
void ManagerNode::check_kept() {
  if (!alive() || doomed_ || table_ == nullptr) return;
  std::vector<mem::KeptMemory> memories;
  bool all = host_->core().retiring().state == cache::RetireState::kIdle;
  for (const mem::SlabInfo& slab : pool_->slabs()) {
    if (slab.state != mem::SlabState::kOffered) continue;
    const mem::KeptSlabState state = table_->slab(slab.slot).state;
    all &= state == mem::KeptSlabState::kLive || state == mem::KeptSlabState::kTainted;
    memories.push_back({slab.id, UniqueFd(::fcntl(pool_->slab_fd(slab.slot), F_DUPFD_CLOEXEC, 0))});
  }
  const auto found = mem::scan_kept(*table_, memories, view_->unit);
  if (!found.ok()) return;
  check_found(*found);
  const std::uint64_t blocks = host_->core().stats().blocks;
  const std::uint64_t kept = found->oldest_first.size();
  if (kept > blocks || (all && kept < blocks))
    world_.fail("kept: blocks", std::to_string(blocks) +
                                    " blocks are in memory, and the next Manager would find " +
                                    std::to_string(kept));
}

ByteCount ManagerNode::old_bytes() const {
  ByteCount sum;
  if (old_grants() == 0) return sum;
  const std::uint32_t end = table_->high_water(mem::KeptRegion::kPending);
  mem::KeptLent lent;
  mem::KeptImage image;
  for (std::uint32_t i = 0; i < end; ++i)
    if (table_->read({mem::KeptRegion::kPending, i}, lent, image) == mem::KeptTable::Found::kLent)
      sum += lent.place.bytes;
  return sum;
}

// One table, and the slabs that there are.
std::uint64_t ManagerNode::kept_too_much() const {
  if (!keep_) return 0;
  std::set<std::string> slabs;
  for (const mem::SlabInfo& slab : pool_->slabs())
    if (slab.state != mem::SlabState::kGone) {
      char name[32];
      std::snprintf(name, sizeof name, "slab-%x", slab.id.value);
      slabs.insert(name);
    }
  std::uint64_t too_much = 0, tables = 0;
  for (const std::string& name : shelf_.names()) {
    if (name.starts_with("table-"))
      ++tables;
    else
      too_much += slabs.contains(name) ? 0 : 1;
  }
  return too_much + (tables > 1 ? tables - 1 : 0);
}

// ---- deaths ----

void ManagerNode::doom() {
  doomed_ = true;
  tables_ = Frozen(shelf_.all("table-"));
  disk_log_ = disk_.log();
  std::set<const shm::SessionMemory*> memories;
  for (const auto& [epoch, peer] : peers_) memories.insert(peer.memory.get());
  for (const shm::SessionMemory* memory : shelf_.memories()) memories.insert(memory);
  for (const shm::SessionMemory* memory : memories) sessions_.emplace_back(*memory);
}

void ManagerNode::die_taking_back() {
  dies_taking_back_ = true;
}

// Records say that what the table has lent is the client's no more.
bool ManagerNode::takes_back() {
  Taken taken;
  for (const auto& [epoch, peer] : peers_) {
    for (std::uint32_t i = 0; i < limits::kRecords; ++i) {
      const auto word = shm::unpack(peer.memory->record(RecordIndex(i)).word.load(std::memory_order_relaxed));
      if (!word) continue;
      if (word->state == shm::RecordState::kFree) break;  // clients take the lowest first
      if (word->state == shm::RecordState::kRevoked || word->state == shm::RecordState::kFailed)
        taken.emplace(epoch.value, word->operation.value);
    }
  }
  // What was taken is lent no more, or never again.
  if (taken.empty() || taken == looked_for_ || table_ == nullptr) return false;
  mem::KeptLent lent;
  mem::KeptImage image;
  for (const mem::KeptRegion region : {mem::KeptRegion::kFirst, mem::KeptRegion::kFurther})
    for (std::uint32_t i = 0; i < table_->high_water(region); ++i)
      if (table_->read({region, i}, lent, image) == mem::KeptTable::Found::kLent &&
          taken.contains({lent.writer.session.value, lent.writer.operation.value}))
        return true;
  looked_for_ = std::move(taken);
  return false;
}

bool ManagerNode::on_store_call() {
  if (doomed_ || !store_calls_) return doomed_;
  if ((*store_calls_)-- > 0) return false;
  store_calls_.reset();
  doom();
  return true;
}

void ManagerNode::die_twice(std::uint64_t word) {
  if (!alive() || !keep_) return;
  if (word % 4 == 0)
    next_point_fault_ = PointFault{FaultPoint::kManagerAdopted, 0};
  else
    next_store_calls_ = static_cast<std::uint32_t>((word >> 2) % 12);
  die(word >> 8);
}

void ManagerNode::on_store() {
  if (!listens() || leaving_) return;
  keep_->poll();
  tick();
}

// ---- upgrade ----

void ManagerNode::upgrade() {
  if (!listens() || !keep_ || leaving_ || !keep_->succeed({}).ok()) return;
  leaving_ = true;
  mark_opening(MetOpening::kUpgrade);
  if (tier_) tier_->stop_loads();
  leave_deadline_ = world_.now() + kDeviceWithin;
  world_.events().after(kAnswerFirst, [this, life = life_] {
    if (life == life_) leave_when_quiet();
  });
}

// Loads that the device has begun end first, if that does not take long.
void ManagerNode::leave_when_quiet() {
  if (!alive() || !leaving_ || doomed_) return;
  poll_ssd();
  const bool loads = tier_ && tier_->active() && host_->core().stats().loading > 0;
  if (loads && world_.now() < leave_deadline_) {
    world_.events().after(microseconds(100), [this, life = life_] {
      if (life == life_) leave_when_quiet();
    });
    return;
  }
  world_.note(World::Note::kManager, life_, 3);
  world_.say("the Manager has made place for the next");
  auto random = world_.random(0x0B6Du, life_);
  end_life(random.next() * 4 + 1);  // a process that ends, not a loss of power
  start_after(random.between(milliseconds(1), milliseconds(20)));
}

// ---- planted ----

// A memory that forgets, or says what is not.
void ManagerNode::plant_in_table() {
  if (table_ == nullptr) return;
  const Plant plant = world_.plant();
  if (plant == Plant::kNamesAgain) table_->name_given(SlabId(0));
  const bool lent = plant == Plant::kForgottenLent || plant == Plant::kEarlySeal;
  if (!lent && plant != Plant::kForgottenBlock) return;
  mem::KeptLent writer;
  mem::KeptImage image;
  std::optional<mem::KeptImage> sealed;
  std::optional<mem::KeptAt> victim;
  for (std::uint32_t i = 0; i < table_->high_water(mem::KeptRegion::kFirst); ++i) {
    const mem::KeptAt at{mem::KeptRegion::kFirst, i};
    const auto found = table_->read(at, writer, image);
    if (found == mem::KeptTable::Found::kSealed) sealed = image;
    if (found == (lent ? mem::KeptTable::Found::kLent : mem::KeptTable::Found::kSealed)) victim = at;
  }
  if (!victim) return;
  if (plant != Plant::kEarlySeal) return table_->free(*victim);
  (void)table_->read(*victim, writer, image);
  if (!sealed) return;
  sealed->shards = 1;
  sealed->shard = ShardId(0);
  sealed->place = writer.place;
  table_->seal(*victim, *sealed);
}

}  // namespace orbitkv::sim
