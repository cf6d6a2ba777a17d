// Recoveries: from a complete list to its leases.
#include <algorithm>

#include "base/limits.h"
#include "cache/recoveries.h"

namespace orbitkv::cache {

// ---- one transaction ----

// What of one group is in memory, on its way or stored, into `pages_`. False: one is nowhere.
bool Recoveries::look_up_group(const Recovery& r, const GroupPages& group) {
  const auto hashes = std::span(r.hashes).subspan(group.first, group.count);
  const auto pages = std::span(pages_).subspan(group.first, group.count);
  if (lookups_.size() < hashes.size()) lookups_.resize(hashes.size());
  p_.images.table().find_batch(group.target.space, hashes, lookups_);
  resident_.assign((hashes.size() + 63) / 64, 0);
  stored_.assign(resident_.size(), 0);
  const auto mark = [](std::vector<std::uint64_t>& bits, std::size_t i) {
    bits[i / 64] |= std::uint64_t{1} << (i % 64);
  };
  asked_.clear();
  asked_at_.clear();
  for (std::uint32_t i = 0; i < hashes.size(); ++i) {
    const RecordId record = lookups_[i].record;
    const bool sealed = record != kNoRecord && p_.images.sealed(record);
    pages[i] = {};
    if (sealed || (record != kNoRecord && p_.images.loading(record))) {
      pages[i].record = record;
      mark(sealed ? resident_ : stored_, i);
    } else {
      asked_.push_back(hashes[i]);
      asked_at_.push_back(i);
    }
  }
  const bool tier = p_.tier != nullptr && group.target.tier != kNoTierSpace;
  asked_found_.assign(asked_.size(), {});
  if (tier && !asked_.empty()) p_.tier->find(group.target.tier, asked_, asked_found_);
  bool all = true;
  for (std::size_t k = 0; k < asked_.size(); ++k) {
    pages[asked_at_[k]].stored = asked_found_[k];
    if (asked_found_[k]) {
      mark(stored_, asked_at_[k]);
    } else {
      all = false;
    }
  }
  if (tier && !r.told_tier && !r.prepared) {
    p_.tier->asked(group.target.tier, {hashes, resident_, stored_}, {0, group.count});
  }
  return all;
}

// All of it is looked up before any of it is touched: what is incomplete reads nothing.
bool Recoveries::look_up(Recovery& r) {
  pages_.assign(r.total, {});
  bool all = true;
  for (const GroupPages& group : r.plan) {
    if (look_up_group(r, group) || !all) continue;
    all = false;
    r.miss = {group.group, Missing::kGone};
  }
  r.told_tier = !r.prepared;
  return all;
}

// What it needs of the tier fits the bounds of cache/loads.h: else it would wait for nothing.
bool Recoveries::may_load(const Recovery& r) const {
  std::uint32_t loads = 0;
  ByteCount bytes;
  for (const GroupPages& g : r.plan) {
    for (const PageAt& page : std::span(pages_).subspan(g.first, g.count)) {
      if (page.record != kNoRecord) continue;
      ++loads;
      bytes += std::uint64_t{g.target.shards} * g.target.slot_bytes;
    }
  }
  return loads <= limits::kLoads && bytes <= ByteCount(config_.pool.value / 2);
}

Recoveries::Room Recoveries::room() const {
  const ImageStats images = p_.images.stats();
  return {looks_, images.pinned, p_.loads.bytes(), images.sealed, images.inflight, images.held};
}

bool Recoveries::charge(const Recovery& r, Full& full) {
  const AccountIndex account = r.plan.front().target.account;
  const ByteCount bytes = bytes_of(r);
  full = p_.leases.full_for(account, bytes, use_of(r));
  return full == Full::kNothing;
}

// All of it or nothing. kTotalFull also where memory has no room: the line treats them alike.
Admitting::Attempt Recoveries::admit(std::uint32_t index, TimePoint now) {
  using Outcome = Admitting::Attempt::Outcome;
  Recovery& r = recoveries_[index];
  Full full = Full::kNothing;
  if (!charge(r, full)) return {full == Full::kInstance ? Outcome::kInstanceFull : Outcome::kTotalFull, 0};
  if (r.no_room.look != 0 && r.no_room == room()) return {Outcome::kTotalFull, 0};
  const std::uint64_t pages = r.total;
  if (!look_up(r)) {
    fail(index, r.miss, now);
    return {Outcome::kGone, pages};
  }
  if (!may_load(r)) {
    fail(index, {r.plan.front().group, Missing::kTooLarge}, now);
    return {Outcome::kGone, pages};
  }
  if (take(index, now)) return {Outcome::kAdmitted, pages};
  end_members(r);
  step(r.state, RecoveryEvent::kNoRoom);
  ++stats_.waits;
  r.no_room = room();
  return {Outcome::kTotalFull, pages};
}

// Its members, each with its charge. False: there is no room; they are to be ended.
bool Recoveries::take(std::uint32_t index, TimePoint now) {
  Recovery& r = recoveries_[index];
  std::vector<Leases::Exact> sets;
  for (const GroupPages& g : r.plan) {
    const ChargeIndex charge = p_.budgets.take(g.target.account, g.count * g.target.block_bytes(), use_of(r));
    r.members.push_back(
        p_.leases.add_member({RecoveryIndex(index), r.revision, r.session, r.instance, g.group,
                              g.target.ranks, r.started, g.target.account, charge, r.prepared}));
    sets.push_back({r.members.back(), g.target, std::span(r.hashes).subspan(g.first, g.count),
                    std::span(pages_).subspan(g.first, g.count)});
  }
  switch (p_.leases.take_exact(sets)) {
    case Leases::Took::kAll:
      leave_line(r);
      become_ready(index, RecoveryEvent::kInMemory, now);
      return true;
    case Leases::Took::kLoads:
      leave_line(r);
      step(r.state, RecoveryEvent::kLoads);
      return true;
    case Leases::Took::kNoRoom: break;
  }
  return false;
}

void Recoveries::become_ready(std::uint32_t index, RecoveryEvent event, TimePoint now) {
  Recovery& r = recoveries_[index];
  step(r.state, event);
  for (const LeaseIndex m : r.members) p_.leases.open_member(m);
  r.members_left = static_cast<std::uint32_t>(r.members.size());
  p_.leases.places().finish(r.places);
  if (r.prepared) {
    deadlines_.set(index, Term::kPrepared, now + config_.prepare_ttl);
    return;
  }
  ++stats_.ready;
  deadlines_.set(index, Term::kUndelivered, now + config_.reply_ttl);
}

// A result as well: it waits to be told.
void Recoveries::fail(std::uint32_t index, const Miss& miss, TimePoint now) {
  Recovery& r = recoveries_[index];
  leave_line(r);
  end_members(r);
  step(r.state, RecoveryEvent::kFail);
  r.miss = miss;
  if (r.prepared) return retire(index, RecoveryEvent::kExpire);
  p_.leases.places().miss(r.places);
  ++stats_.missed;
  deadlines_.set(index, Term::kUndelivered, now + config_.reply_ttl);
}

// ---- ahead of need ----

void Recoveries::end_preparation(Recovery& r) {
  if (!r.prepared) return;
  r.prepared = false;
  p_.leases.places().end_preparation(r.places);
}

// What was prepared is asked for: no second charge, a wait of its own.
void Recoveries::claim(std::uint32_t index, TimePoint now) {
  Recovery& r = recoveries_[index];
  end_preparation(r);
  ++p_.leases.places().prepared().claimed;
  r.started = now;
  for (const LeaseIndex m : r.members) p_.leases.claim_member(m);
  if (r.state == RecoveryState::kReady) {
    ++stats_.ready;
    deadlines_.set(index, Term::kUndelivered, now + config_.reply_ttl);
  } else {
    deadlines_.set(index, Term::kWait, wait_end(r));
  }
}

bool Recoveries::end_prepared(AccountIndex account, Full full) {
  bool ended = false;
  for (std::uint32_t i = 0; i < recoveries_.size(); ++i) {
    const Recovery& r = recoveries_[i];
    if (r.state == RecoveryState::kRetired || !r.prepared || r.members.empty()) continue;
    if (full == Full::kInstance && r.plan.front().target.account != account) continue;
    ++p_.leases.places().prepared().gave_way;
    retire(i, RecoveryEvent::kCancel);
    ended = true;
  }
  return ended;
}

// ---- what becomes of members ----

void Recoveries::note(const MemberEvent& event, TimePoint now) {
  const std::uint32_t index = event.recovery.value;
  Recovery& r = recoveries_[index];
  if (r.revision != event.revision) return;  // it has ended, and another list has its place
  if (r.state == RecoveryState::kReady) {
    if (event.kind == MemberEvent::Kind::kEnded && --r.members_left == 0) {
      retire(index, RecoveryEvent::kEmptied);
    }
    return;
  }
  if (r.state != RecoveryState::kLoading) return;
  if (event.kind == MemberEvent::Kind::kFailed) {
    return fail(index, {event.group, Missing::kGone}, now);
  }
  const auto landed = [&](LeaseIndex m) { return p_.leases.member(m, r.revision)->pending == 0; };
  if (std::all_of(r.members.begin(), r.members.end(), landed)) {
    become_ready(index, RecoveryEvent::kLanded, now);
  }
}

void Recoveries::settle(TimePoint now) {
  for (auto events = p_.leases.take_member_events(); !events.empty();
       events = p_.leases.take_member_events()) {
    for (const MemberEvent& event : events) note(event, now);
  }
}

}  // namespace orbitkv::cache
