// Recoveries: from a complete list to its leases.
#include <algorithm>

#include "base/limits.h"
#include "cache/recoveries.h"

namespace orbitkv::cache {

namespace {

constexpr std::uint64_t kPagesATurn = 64 * 1024;

}  // namespace

// ---- one transaction ----

// What of one group is in memory, on its way or stored, into `pages_`. False: one is nowhere.
bool Recoveries::look_up_group(const Recovery& r, const GroupPages& group, Try attempt) {
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
  if (tier && attempt == Try::kFirst) {
    p_.tier->asked(group.target.tier, {hashes, resident_, stored_}, {0, group.count});
  }
  return all;
}

// All of it is looked up before any of it is touched: what is incomplete reads nothing.
bool Recoveries::look_up(Recovery& r, Try attempt) {
  pages_.assign(r.total, {});
  bool all = true;
  for (const GroupPages& group : r.plan) {
    if (look_up_group(r, group, attempt) || !all) continue;
    all = false;
    r.miss = {group.group, Missing::kGone};
  }
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

void Recoveries::admit(std::uint32_t index, Try attempt, TimePoint now) {
  Recovery& r = recoveries_[index];
  if (!look_up(r, attempt)) return fail(index, r.miss, now);
  if (!may_load(r)) return fail(index, {r.plan.front().group, Missing::kTooLarge}, now);
  std::vector<Leases::Exact> sets;
  for (const GroupPages& g : r.plan) {
    r.members.push_back(p_.leases.add_member(
        {RecoveryIndex(index), r.revision, r.session, r.instance, g.group, g.target.ranks, r.started}));
    sets.push_back({r.members.back(), g.target, std::span(r.hashes).subspan(g.first, g.count),
                    std::span(pages_).subspan(g.first, g.count)});
  }
  switch (p_.leases.take_exact(sets)) {
    case Leases::Took::kAll: return become_ready(index, RecoveryEvent::kInMemory, now);
    case Leases::Took::kLoads: return step(r.state, RecoveryEvent::kLoads);
    case Leases::Took::kNoRoom: break;
  }
  end_members(r);
  step(r.state, RecoveryEvent::kNoRoom);
  ++stats_.waits;
  if (attempt == Try::kFirst) waiting_.push_back(index);
}

void Recoveries::become_ready(std::uint32_t index, RecoveryEvent event, TimePoint now) {
  Recovery& r = recoveries_[index];
  step(r.state, event);
  for (const LeaseIndex m : r.members) p_.leases.open_member(m);
  r.members_left = static_cast<std::uint32_t>(r.members.size());
  r.unfinished = false;
  p_.leases.tickets().close(p_.sessions.at(r.session));
  ++stats_.ready;
  deadlines_.set(index, Term::kUndelivered, now + config_.reply_ttl);
}

// A result as well: it waits to be told.
void Recoveries::fail(std::uint32_t index, const Miss& miss, TimePoint now) {
  Recovery& r = recoveries_[index];
  end_members(r);
  std::erase(waiting_, index);
  step(r.state, RecoveryEvent::kFail);
  r.miss = miss;
  ++stats_.missed;
  deadlines_.set(index, Term::kUndelivered, now + config_.reply_ttl);
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

// One look each in the order of their coming, a bounded number of pages a turn.
void Recoveries::try_again(TimePoint now) {
  std::uint64_t pages = 0;
  while (!waiting_.empty() && pages < kPagesATurn) {
    const std::uint32_t index = waiting_.front();
    pages += recoveries_[index].total;
    admit(index, Try::kAgain, now);
    if (recoveries_[index].state == RecoveryState::kWaiting) break;  // those behind it wait for their turn
    std::erase(waiting_, index);
  }
  p_.leases.pump(now);
  settle(now);
}

}  // namespace orbitkv::cache
