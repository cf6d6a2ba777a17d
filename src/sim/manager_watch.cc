// What those who check know of the Manager: record words, plans, what must be out of use.
#include "sim/manager_node.h"
#include "sim/world.h"
#include "wire/messages.h"

namespace orbitkv::sim {

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
    auto& bytes_on = peer.plans[word->operation];
    bytes_on.clear();
    if (plan->kind != model::PlanKind::kSave) continue;
    for (const model::PlanEntry& entry : plan->entries)
      bytes_on[entry.slab] += view_->rounded(plan->slot_bytes);
  }
}

// Nobody reads the receipts of a session that broke the protocol. What lies on a slab whose
// retirement went on without it is out of use with the slab.
ByteCount ManagerNode::expect_claimed_saves(Peer& peer, bool poisoned) {
  note_plans(peer);
  ByteCount sum;
  for (std::uint32_t i = 0; i < limits::kRecords; ++i) {
    const auto word = shm::unpack(peer.memory->record(RecordIndex(i)).word.load(std::memory_order_acquire));
    if (!word) continue;
    const bool unread = word->state == shm::RecordState::kDrained && poisoned;
    if (word->state != shm::RecordState::kActive && !unread) continue;
    const auto plan = peer.plans.find(word->operation);
    if (plan == peer.plans.end()) continue;
    for (const auto& [name, bytes] : plan->second) {
      const mem::SlabInfo* slab = slab_of(name);
      if (slab == nullptr) continue;
      const bool detached = slab->state == mem::SlabState::kRetiring &&
                            host_->core().retiring().state >= cache::RetireState::kDevice;
      if (detached) continue;
      expected_quarantine_[name] += bytes;
      sum += bytes;
    }
  }
  return sum;
}

ByteCount ManagerNode::expected_quarantine() const {
  ByteCount sum;
  for (const auto& [name, bytes] : expected_quarantine_)
    if (slab_of(name) != nullptr) sum += bytes;
  return sum;
}

const mem::SlabInfo* ManagerNode::slab_of(SlabId name) const {
  for (const mem::SlabInfo& slab : pool_->slabs())
    if (slab.id == name && slab.state != mem::SlabState::kGone) return &slab;
  return nullptr;
}

bool ManagerNode::lends(const Place& place) const {
  if (!alive() || doomed_ || place.pool != pool_->id()) return true;
  const mem::SlabInfo* slab = slab_of(place.slab);
  if (slab == nullptr) return false;
  return slab->state == mem::SlabState::kOffered ||
         host_->core().retiring().state < cache::RetireState::kClaims;
}

bool ManagerNode::retires() const {
  return world_.config().slabs.retire_after < kNever;
}

void ManagerNode::see_records(Met& met) const {
  for (const auto& [epoch, peer] : peers_) {
    for (std::uint32_t i = 0; i < limits::kRecords; ++i) {
      const auto word = shm::unpack(peer.memory->record(RecordIndex(i)).word.load(std::memory_order_relaxed));
      if (!word) continue;
      if (word->state == shm::RecordState::kFree) break;  // clients take the lowest first
      see(met, word->state);
    }
  }
}

void ManagerNode::forget_client(std::uint32_t process) {
  for (auto& [epoch, peer] : peers_)
    if (peer.process == process) peer.client = nullptr;
}

std::vector<Epoch> ManagerNode::epochs() const {
  std::vector<Epoch> out;
  for (const auto& [epoch, peer] : peers_) out.push_back(epoch);
  return out;
}

}  // namespace orbitkv::sim
