// Recoveries: from a complete list to its leases.
#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "cache/recoveries.h"

namespace orbitkv::cache {

// ---- one transaction ----

Recoveries::Slice Recoveries::part_of(const GroupPages& group, const Slice& slice) {
  return {std::max(group.first, slice.begin), std::min(group.first + group.count, slice.end)};
}

// What of one group is in memory, on its way or stored, into `pages_`, which are those of `slice`.
// False: one is nowhere.
bool Recoveries::look_up_group(const Recovery& r, const GroupPages& group, const Slice& slice) {
  const Slice part = part_of(group, slice);
  if (part.begin >= part.end) return true;
  hashes_.clear();
  while (hashes_.size() < part.end - part.begin) {
    const auto more = r.hashes.from(part.begin + hashes_.size(), part.end - part.begin - hashes_.size());
    hashes_.insert(hashes_.end(), more.begin(), more.end());
  }
  const std::span<const BlockHash> hashes(hashes_);
  const auto pages = std::span(pages_).subspan(part.begin - slice.begin, hashes.size());
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
    const TierContext where{part.begin - group.first, group.count};
    p_.tier->asked(group.target.tier, {hashes, resident_, stored_}, where);
  }
  return all;
}

void Recoveries::look_up(Recovery& r, const Slice& slice) {
  pages_.assign(slice.end - slice.begin, {});
  stats_.looked_up += pages_.size();
  for (const GroupPages& group : r.plan) {
    if (look_up_group(r, group, slice) || r.miss.why == Missing::kGone) continue;
    r.miss = {group.group, Missing::kGone};
  }
}

// What it needs of the tier must fit the bounds of cache/loads.h: else it would wait for nothing.
void Recoveries::note_stored(Recovery& r, const Slice& slice) {
  for (const GroupPages& group : r.plan) {
    const Slice part = part_of(group, slice);
    for (std::uint32_t i = part.begin; i < part.end; ++i) {
      if (pages_[i - slice.begin].record != kNoRecord) continue;
      ++r.taking.stored_pages;
      r.taking.stored_bytes += group.target.block_bytes();
    }
  }
  const bool fits =
      r.taking.stored_pages <= limits::kLoads && r.taking.stored_bytes <= ByteCount(config_.pool.value / 2);
  if (!fits && r.miss.why == Missing::kNone) r.miss = {r.plan.front().group, Missing::kTooLarge};
}

void Recoveries::pin(Recovery& r, const Slice& slice) {
  for (std::size_t g = 0; g < r.plan.size(); ++g) {
    const Slice part = part_of(r.plan[g], slice);
    for (std::uint32_t i = part.begin; i < part.end; ++i) {
      const PageAt& page = pages_[i - slice.begin];
      const std::uint32_t position = i - r.plan[g].first;
      if (page.record != kNoRecord) {
        p_.leases.pin_exact(r.members[g], position, page.record);
      } else {
        r.taking.stored[g].push_back({position, page.stored});
      }
    }
  }
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
  Recovery& r = recoveries_[index];
  Full full = Full::kNothing;
  if (!charge(r, full)) return {full == Full::kInstance ? Outcome::kInstanceFull : Outcome::kTotalFull, 0};
  if (r.no_room.look != 0 && r.no_room == room()) return {Outcome::kTotalFull, 0};
  const std::uint64_t pages = std::min(r.total, config_.turn_hashes);
  begin_take(index);
  if (take_some(index)) return {end_take(index, now), pages};
  step(r.state, RecoveryEvent::kTakes);
  taking_.push_back(index);
  // The same end however often it is tried.
  deadlines_.set(index, Term::kTake, std::max(wait_end(r), std::min(now, wait_end(r)) + kTakeAtLeast));
  return {r.miss.why == Missing::kNone ? Outcome::kTaking : Outcome::kGone, pages};
}

// Its members, each with its charge.
void Recoveries::begin_take(std::uint32_t index) {
  Recovery& r = recoveries_[index];
  r.miss = {};
  r.taking = {};
  r.taking.view = p_.images.view();
  r.taking.stored.resize(r.plan.size());
  for (const GroupPages& g : r.plan) {
    const ChargeIndex charge = p_.budgets.take(g.target.account, g.count * g.target.block_bytes(), use_of(r));
    r.members.push_back(
        p_.leases.add_member({RecoveryIndex(index), r.revision, r.session, r.instance, g.group,
                              g.target.ranks, r.started, g.target.account, charge, r.prepared}));
    p_.leases.begin_exact(r.members.back(), g.target, g.count);
  }
}

// What is missed anywhere of so many pages is known before any of them is touched. It holds nothing
// from then on, and nobody behind it waits: the rest is looked up for the tier alone. False: there are
// more.
bool Recoveries::take_some(std::uint32_t index) {
  Recovery& r = recoveries_[index];
  const std::uint32_t begin = r.taking.looked;
  const Slice slice{begin, begin + std::min(config_.turn_hashes, r.total - begin)};
  look_up(r, slice);
  note_stored(r, slice);
  if (r.miss.why == Missing::kNone) {
    pin(r, slice);
  } else {
    leave_line(r);
    end_members(r);
  }
  r.taking.looked = slice.end;
  return r.taking.looked == r.total;
}

Leases::Took Recoveries::load(Recovery& r) {
  std::vector<Leases::Exact> sets;
  for (std::size_t i = 0; i < r.plan.size(); ++i) {
    const GroupPages& g = r.plan[i];
    sets.push_back({r.members[i], g.target, r.hashes, g.first, r.taking.stored[i]});
  }
  return p_.leases.load_exact(sets);
}

// All of it has been looked up: nothing is read before. What was pinned in earlier turns may have gone
// out of sight since: then it is tried again, like what found no room.
Recoveries::Outcome Recoveries::end_take(std::uint32_t index, TimePoint now) {
  Recovery& r = recoveries_[index];
  r.told_tier = !r.prepared;
  deadlines_.set(index, Term::kWait, wait_end(r));
  if (r.miss.why != Missing::kNone) {
    fail(index, r.miss, now);
    return Outcome::kGone;
  }
  const bool one_view = r.taking.view == p_.images.view();
  const Leases::Took took = one_view ? load(r) : Leases::Took::kNoRoom;
  if (took == Leases::Took::kNoRoom && now >= wait_end(r)) {
    stats_.budget_misses += one_view ? 1 : 0;
    fail(index, {r.plan.front().group, one_view ? Missing::kNoMemory : Missing::kTimeout}, now);
    return Outcome::kGone;
  }
  if (took == Leases::Took::kNoRoom) {
    stop_taking(index);
    end_members(r);
    step(r.state, RecoveryEvent::kNoRoom);
    ++stats_.waits;
    r.no_room = one_view ? room() : Room{};
    return Outcome::kTotalFull;
  }
  admitted(r);
  stop_taking(index);
  if (took == Leases::Took::kAll) {
    become_ready(index, RecoveryEvent::kInMemory, now);
  } else {
    step(r.state, RecoveryEvent::kLoads);
  }
  return Outcome::kAdmitted;
}

void Recoveries::take_turn(TimePoint now) {
  settle(now);  // of what failed in this turn nothing is leased
  if (taking_.empty()) return;
  const std::uint32_t index = taking_.front();
  taking_.pop_front();
  if (!take_some(index)) return taking_.push_back(index);
  if (end_take(index, now) != Outcome::kTotalFull) return;
  const WaitingPlace place = recoveries_[index].place;
  if (place == kNotWaiting) return no_room(index);
  p_.line.refused(place);
}

void Recoveries::stop_taking(std::uint32_t index) {
  recoveries_[index].taking = {};
  if (recoveries_[index].state == RecoveryState::kTaking) std::erase(taking_, index);
}

void Recoveries::admitted(Recovery& r) {
  const WaitingPlace place = std::exchange(r.place, kNotWaiting);
  if (place == kNotWaiting) return;
  if (r.state == RecoveryState::kTaking) return p_.line.granted(place);
  p_.line.leave(place);
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
  stop_taking(index);
  end_members(r);
  r.miss = miss;
  step(r.state, RecoveryEvent::kFail);
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
  if (r.state != RecoveryState::kLoading && r.state != RecoveryState::kTaking) return;
  if (event.kind == MemberEvent::Kind::kFailed) {
    return fail(index, {event.group, Missing::kGone}, now);
  }
  if (r.state == RecoveryState::kTaking) return;
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
