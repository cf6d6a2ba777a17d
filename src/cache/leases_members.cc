// Members of recoveries: leases of exactly the pages that a boundary needs.
#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "base/text.h"
#include "cache/leases.h"

namespace orbitkv::cache {

std::uint32_t Leases::take_object() {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(leases_.size()));
    leases_.emplace_back();
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  return index;
}

LeaseIndex Leases::add_member(const Member& member) {
  const std::uint32_t index = take_object();
  Lease& lease = leases_[index];
  lease.begin();
  lease.name = {member.instance, member.group, QueryMode::kRead, {}};
  lease.recovery = member.recovery;
  lease.session = member.session;
  lease.state = LeaseState::kCollecting;
  lease.revision = member.revision;
  lease.run_open = false;
  lease.ranks = member.ranks;
  lease.started = member.started;
  lease.account = member.account;
  lease.charge = member.charge;
  lease.prepared = member.prepared;
  loads_.lanes().open(LeaseIndex(index), {member.account, use_of(lease)});
  return LeaseIndex(index);
}

Lease* Leases::member(LeaseIndex index, Revision revision) {
  Lease& lease = leases_[index.value];
  return lease.state != LeaseState::kRetired && lease.revision == revision ? &lease : nullptr;
}

void Leases::begin_exact(LeaseIndex member, const Target& target, std::uint32_t pages) {
  Lease& lease = leases_[member.value];
  lease.records.clear();
  lease.records.reserve(pages);
  lease.total = lease.next = lease.hits = pages;
  lease.block_bytes = target.block_bytes();
}

void Leases::pin_exact(LeaseIndex member, std::uint32_t position, RecordId record) {
  Lease& lease = leases_[member.value];
  if (lease.records.size() <= position) lease.records.resize(position + 1, kNoRecord);
  lease.records[position] = record;
  images_.pin({&record, 1});
  if (images_.loading(record)) await_load(member.value, position);
}

// Lending slots evicts: nothing of these sets any more. What was stored when it was looked up may have
// been loaded by somebody else since.
Leases::Took Leases::load_exact(std::span<const Exact> sets) {
  for (const Exact& set : sets) {
    const KeySpace& space = set.target.space;
    for (const StoredPage& page : set.stored) {
      const BlockKey key{set.hashes[set.first + page.position], space.name_space, space.group};
      const Use use = use_of(leases_[set.member.value]);
      RecordId record = images_.table().find(key);
      if (record == kNoRecord || !images_.serves(record, key))
        record = loads_.start(
            {key, page.stored, set.target.shards, set.target.slot_bytes, &set.target.near, use}, set.member);
      if (record == kNoRecord) return Took::kNoRoom;
      pin_exact(set.member, page.position, record);
    }
  }
  const auto loads = [&](const Exact& set) { return leases_[set.member.value].pending > 0; };
  if (std::none_of(sets.begin(), sets.end(), loads)) return Took::kAll;
  for (const Exact& set : sets) step(leases_[set.member.value].state, LeaseEvent::kLastLoading);
  return Took::kLoads;
}

void Leases::open_member(LeaseIndex index) {
  Lease& lease = leases_[index.value];
  step(lease.state, lease.state == LeaseState::kLoading ? LeaseEvent::kLanded : LeaseEvent::kLastPart);
  lease.id = make_id();
  lease.consumed.assign(lease.ranks, 0);
  lease.ranks_left = lease.ranks;
  by_id_.emplace(lease.id, index.value);
  ++stats_.leases;
  if (!lease.prepared) stats_.hits += lease.hits;
}

void Leases::claim_member(LeaseIndex index) {
  Lease& lease = leases_[index.value];
  lease.prepared = false;
  budgets_.promote(lease.charge);
  loads_.lanes().promote(index);
  if (lease.id) stats_.hits += lease.hits;
}

void Leases::end_member(LeaseIndex index, Revision revision) {
  if (member(index, revision) == nullptr) return;
  retire(index.value, LeaseEvent::kCancel);
  // Who ends it knows, and its place may have a member of the same list next.
  const Lease& ended = leases_[index.value];
  std::erase_if(member_events_, [&](const MemberEvent& event) {
    return event.revision == revision && event.group == ended.name.group;
  });
}

}  // namespace orbitkv::cache
