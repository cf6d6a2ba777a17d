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

void Leases::pin_page(const Exact& set, std::uint32_t i) {
  Lease& lease = leases_[set.member.value];
  const RecordId record = set.pages[i].record;
  lease.records[i] = record;
  images_.pin({&record, 1}, use_of(lease));
  if (!images_.loading(record)) return;
  loads_.join(record, {set.member, i});
  ++lease.pending;
}

// What was stored only is lent its slots, which evicts: nothing of these sets any more.
bool Leases::take_stored(std::span<const Exact> sets) {
  for (const Exact& set : sets) {
    const KeySpace& space = set.target.space;
    for (std::uint32_t i = 0; i < set.pages.size(); ++i) {
      if (leases_[set.member.value].records[i] != kNoRecord) continue;
      const BlockKey key{set.hashes[i], space.name_space, space.group};
      PageAt& page = set.pages[i];
      page.record = loads_.start({key, page.stored, set.target.shards, set.target.slot_bytes,
                                  &set.target.near, use_of(leases_[set.member.value])},
                                 set.member);
      if (page.record == kNoRecord) return false;
      pin_page(set, i);
    }
  }
  return true;
}

Leases::Took Leases::take_exact(std::span<const Exact> sets) {
  for (const Exact& set : sets) {
    Lease& lease = leases_[set.member.value];
    lease.records.assign(set.pages.size(), kNoRecord);
    for (std::uint32_t i = 0; i < set.pages.size(); ++i) {
      if (set.pages[i].record != kNoRecord) pin_page(set, i);
    }
  }
  if (!take_stored(sets)) {
    for (const Exact& set : sets) unpin_pages(set);
    return Took::kNoRoom;
  }
  bool loads = false;
  for (const Exact& set : sets) {
    Lease& lease = leases_[set.member.value];
    lease.total = lease.next = lease.hits = static_cast<std::uint32_t>(set.pages.size());
    lease.block_bytes = set.target.block_bytes();
    loads = loads || lease.pending > 0;
  }
  for (const Exact& set : sets) {
    Lease& lease = leases_[set.member.value];
    if (loads) step(lease.state, LeaseEvent::kLastLoading);
  }
  return loads ? Took::kLoads : Took::kAll;
}

// Nothing of them has been submitted, or others had it done.
void Leases::unpin_pages(const Exact& set) {
  Lease& lease = leases_[set.member.value];
  for (std::uint32_t i = 0; i < lease.records.size(); ++i) {
    const RecordId record = lease.records[i];
    if (record == kNoRecord) continue;
    if (images_.loading(record)) {
      loads_.leave(record, {set.member, i}, lease.account);
      --lease.pending;
    }
    images_.unpin({&record, 1});
  }
  lease.records.clear();
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
  images_.mark_read(lease.records);
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
