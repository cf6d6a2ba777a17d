// The charge of a lease: what is kept until it can be had, the wait for it, and the run then.
#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "cache/leases.h"

namespace orbitkv::cache {

namespace {

constexpr std::size_t kSlice = limits::kListSlice;  // for the caches: what one look-up fills
constexpr std::size_t kAhead = 16;                  // records, of prefetches

}  // namespace

// ---- what is kept ----

// Of a part that is not the last: what is in memory at the front of the run is pinned, the
// rest of the run waits as hashes. Nothing is loaded before the whole list is known. Of a long list
// what is pinned is kept as hashes, too: where it has to let go there are too many for one turn.
void Leases::keep_part(std::uint32_t index, const Seen& seen) {
  Lease& lease = leases_[index];
  const bool all = is_long(lease);
  if (all && lease.kept == nullptr && lease.records.empty())
    lease.kept = std::make_unique<Lease::Kept>(Lease::Kept{seen.target});
  const bool pins = lease.kept == nullptr || (all && lease.kept->hashes.size() == lease.records.size());
  const auto left = static_cast<std::uint32_t>(lease.hits - lease.records.size());
  const std::uint32_t pinned = seen.takes && pins ? take_run(index, seen, std::min(seen.run, left)) : 0;
  if (lease.kept == nullptr) {
    const std::size_t most = seen.takes ? seen.reach() : 0;
    if (pinned == (lease.full ? seen.part.hashes.size() : most)) return;
    lease.kept = std::make_unique<Lease::Kept>(Lease::Kept{seen.target, lease.records.size()});
    return append_part(lease, seen, pinned);
  }
  append_part(lease, seen, 0);
}

void Leases::append_part(Lease& lease, const Seen& seen, std::uint32_t pinned) {
  const std::uint32_t end = seen.takes ? seen.reach() : 0;
  if (end > pinned) lease.kept->hashes.add(seen.part.hashes.subspan(pinned, end - pinned));
  if (lease.full) lease.kept->beyond.add(seen.part.hashes.subspan(end));
}

// The first `count` of the run as hashes, or as many as it has: of one turn. What is pinned stays so.
HashList Leases::front_of(const Lease& lease, std::size_t count) {
  HashList front;
  const std::size_t pinned = std::min(count, lease.records.size());
  for (std::size_t i = 0; i < pinned; ++i) {
    if (i + kAhead < pinned) images_.table().prefetch_hot(lease.records[i + kAhead]);
    front.add(images_.table().hot(lease.records[i]).hash);
  }
  // A run that was cut before them has none of them any more.
  if (lease.kept == nullptr || front.size() < lease.kept->base) return front;
  while (front.size() < count) {
    const auto more = lease.kept->hashes.from(front.size() - lease.kept->base, count - front.size());
    if (more.empty()) break;
    front.add(more);
  }
  return front;
}

// Of what is kept no more than the run.
void Leases::cut_kept(Lease& lease) {
  HashList rest = lease.kept->hashes.cut(lease.hits);
  leftovers_.take(rest);
}

void Leases::forget_kept(Lease& lease) {
  if (lease.kept == nullptr) return;
  leftovers_.take(lease.kept->hashes);
  leftovers_.take(lease.kept->beyond);
  lease.kept.reset();
}

// ---- the charge ----

void Leases::shorten(Lease& lease, std::uint32_t kept) {
  if (!lease.prepared) {
    stats_.hits -= lease.hits - kept;
    stats_.misses += lease.hits - kept;
  }
  lease.hits = kept;
  lease.run_open = false;
}

// What no budget would ever hold is not asked for.
void Leases::cut_to_limit(std::uint32_t index) {
  Lease& lease = leases_[index];
  const std::uint64_t most =
      budgets_.most(use_of(lease)).value / std::max<std::uint64_t>(1, lease.block_bytes.value);
  if (lease.hits <= most) return;
  if (most == 0) lease.why = Missing::kTooLarge;
  if (!lease.prepared) ++stats_.budget_cuts;
  shorten(lease, static_cast<std::uint32_t>(most));
  unpin_from(index, lease.hits, kNoCharge);
}

Full Leases::full_for(AccountIndex account, ByteCount bytes, Use use) {
  Full full = budgets_.full(account, bytes, use);
  while (use == Use::kForeground && full != Full::kNothing && line_.make_way(account, full))
    full = budgets_.full(account, bytes, use);
  return full;
}

bool Leases::charge(Lease& lease, Full& full) {
  const ByteCount bytes = lease.hits * lease.block_bytes;
  full = full_for(lease.account, bytes, use_of(lease));
  if (full != Full::kNothing) return false;
  lease.charge = budgets_.take(lease.account, bytes, use_of(lease));
  return true;
}

// ---- the last part ----

// The whole list is known: its run is charged at once, or waits for that.
void Leases::end_list(std::uint32_t index, const Seen& seen) {
  Lease& lease = leases_[index];
  const bool listed = lease.full && lease.hits < lease.total;
  if (listed) {
    keep_list(index, seen);
    if (saved_next(lease, seen.now)) return wait_for_publisher(index);
  }
  cut_to_limit(index);
  if (lease.hits == 0) return retire(index, LeaseEvent::kLastEmpty);
  Full full = Full::kNothing;
  const bool charged = line_.count() == 0 && charge(lease, full);
  if (!charged && lease.prepared) {
    ++places_.prepared().gave_way;
    return retire(index, LeaseEvent::kCancel);
  }
  if (!charged) {
    if (!listed) keep_list(index, seen);
    return wait_in_line(index);
  }
  if (lease.kept == nullptr) {
    take_run(index, seen, lease.hits - static_cast<std::uint32_t>(lease.records.size()));
    if (lease.view == images_.view()) return begin_run(index, seen.now);
    lease.kept = std::make_unique<Lease::Kept>(Lease::Kept{seen.target, lease.records.size()});
  } else if (!listed) {
    keep_part(index, seen);
  }
  take_kept(index, seen.now);
}

// The whole run as hashes; nothing of it is held.
void Leases::keep_list(std::uint32_t index, const Seen& seen) {
  Lease& lease = leases_[index];
  if (lease.kept == nullptr)
    lease.kept = std::make_unique<Lease::Kept>(Lease::Kept{seen.target, lease.records.size()});
  append_part(lease, seen, 0);
  if (lease.kept->base > 0) {
    HashList all = front_of(lease, lease.kept->base + lease.kept->hashes.size());
    std::swap(lease.kept->hashes, all);
    lease.kept->base = 0;
  }
  give_up(index);
}

// Holds nothing from here on, so that those who have their budget can be served.
void Leases::wait_in_line(std::uint32_t index) {
  Lease& lease = leases_[index];
  cut_kept(lease);
  step(lease.state, LeaseEvent::kLastWaits);
  stand_in_line(index);
}

void Leases::stand_in_line(std::uint32_t index) {
  Lease& lease = leases_[index];
  ++stats_.budget_waits;
  wait_until_end(index);
  lease.place = line_.join({Waiter::Kind::kPrefix, index}, lease.account);
}

void Leases::wait_until_end(std::uint32_t index) {
  const Lease& lease = leases_[index];
  deadlines_.set(index, lease.full ? Term::kFullPrefix : Term::kWait, wait_end(lease));
}

void Leases::leave_line(Lease& lease) {
  if (lease.place == kNotWaiting) return;
  line_.leave(lease.place);
  lease.place = kNotWaiting;
}

Admitting::Attempt Leases::admit(std::uint32_t index, TimePoint now) {
  using Outcome = Admitting::Attempt::Outcome;
  Lease& lease = leases_[index];
  Full full = Full::kNothing;
  if (!charge(lease, full))
    return {full == Full::kInstance ? Outcome::kInstanceFull : Outcome::kTotalFull, 0};
  const std::uint64_t pages = std::min<std::uint64_t>(lease.kept->hashes.size(), config_.turn_hashes);
  leave_line(lease);
  take_kept(index, now);
  return {Outcome::kAdmitted, pages};
}

// ---- the run, if it was kept ----

// At once, or over turns if it is long.
void Leases::take_kept(std::uint32_t index, TimePoint now) {
  Lease::Kept& kept = *leases_[index].kept;
  kept.view = leases_[index].records.empty() ? images_.view() : leases_[index].view;
  kept.checked = 0;
  if (take_some(index, now) && check_some(index, now)) return begin_run(index, now);
  step(leases_[index].state, LeaseEvent::kTakes);
  taking_.push_back(index);
  deadlines_.set(index, Term::kTake, std::max(wait_end(leases_[index]), now + kTakeAtLeast));
}

// Looks what was kept up anew, and pins and loads it as far as it goes. False: there is more of it.
bool Leases::take_some(std::uint32_t index, TimePoint now) {
  const Lease& lease = leases_[index];
  const Lease::Kept& kept = *lease.kept;
  QueryPart part;
  QueryAnswer unused;
  for (std::size_t looks = config_.turn_hashes; lease.records.size() < lease.hits;
       looks -= part.hashes.size()) {
    const std::size_t at = lease.records.size() - kept.base;
    if (at == kept.hashes.size()) return true;
    if (looks == 0) return false;
    part.hashes = kept.hashes.from(at, std::min(kSlice, looks));
    Seen seen{part, kept.target, now};
    look_up(seen, unused);
    seen.takes = true;
    ask_tier(seen, unused);
    const auto left = lease.hits - static_cast<std::uint32_t>(lease.records.size());
    if (take_run(index, seen, left) < part.hashes.size()) return true;
  }
  return true;
}

// What was taken earlier may have gone out of sight since: the run ends there. False: not all that is
// left of it has been looked at in one view.
bool Leases::check_some(std::uint32_t index, TimePoint now) {
  const Lease& lease = leases_[index];
  Lease::Kept& kept = *lease.kept;
  if (kept.view == images_.view()) return true;
  const auto there = [&](RecordId r) { return images_.sealed(r) || images_.loading(r); };
  if (kept.checked == 0) kept.begun = images_.view();
  const std::size_t end = std::min(lease.records.size(), kept.checked + config_.turn_hashes);
  for (; kept.checked < end && there(lease.records[kept.checked]); ++kept.checked)
    if (kept.checked + kAhead < end) images_.table().prefetch_hot(lease.records[kept.checked + kAhead]);
  if (kept.checked < end) {
    cut(index, static_cast<std::uint32_t>(kept.checked), now);
  } else if (end < lease.records.size()) {
    return false;
  }
  kept.checked = 0;
  kept.view = kept.begun;
  return kept.view == images_.view();
}

void Leases::take_turn(TimePoint now) {
  if (extends_) {
    extends_ = false;
    look_at_publishers(now);
  }
  if (taking_.empty()) return;
  const std::uint32_t index = taking_.front();
  taking_.pop_front();
  if (take_some(index, now) && check_some(index, now)) {
    begin_run(index, now);
  } else {
    taking_.push_back(index);
  }
  pump(now);
}

void Leases::stop_taking(std::uint32_t index) {
  if (leases_[index].state == LeaseState::kTaking) std::erase(taking_, index);
}

// The wait is over: what has been taken is what there is. If it was not seen in one view that is done
// yet; not for ever.
void Leases::end_taking(std::uint32_t index, TimePoint now) {
  Lease& lease = leases_[index];
  if (std::exchange(lease.kept->over, true)) {
    cut(index, 0, now);
  } else {
    lease.why = Missing::kTimeout;
    count_late(lease);
    shorten(lease, static_cast<std::uint32_t>(lease.records.size()));
    budgets_.shrink(lease.charge, lease.hits * lease.block_bytes);
    deadlines_.set(index, Term::kTake, now + kTakeAtLeast);
    if (!check_some(index, now)) return;
  }
  stop_taking(index);
  begin_run(index, now);
}

// What could be had of the run is in `records`.
void Leases::begin_run(std::uint32_t index, TimePoint now) {
  Lease& lease = leases_[index];
  const auto taken = static_cast<std::uint32_t>(lease.records.size());
  forget_kept(lease);
  ORBITKV_CHECK(taken <= lease.hits, "a run that is longer than its charge");
  if (taken < lease.hits) {
    shorten(lease, taken);
    budgets_.shrink(lease.charge, taken * lease.block_bytes);
  }
  if (taken == 0) {
    if (lease.state == LeaseState::kCollecting) return retire(index, LeaseEvent::kLastEmpty);
    return land(index, now);
  }
  if (lease.pending > 0) {
    step(lease.state, LeaseEvent::kLastLoading);
    wait_until_end(index);
  } else {
    step(lease.state, LeaseEvent::kLastPart);
    become_ready(index, now);
  }
}

// In vain: there was no budget until the wait was over.
void Leases::end_wait(std::uint32_t index, TimePoint now) {
  Lease& lease = leases_[index];
  leave_line(lease);
  forget_kept(lease);
  lease.why = Missing::kNoMemory;
  ++stats_.budget_misses;
  shorten(lease, 0);
  land(index, now);
}

// ---- ahead of need ----

Status Leases::check_prepared(const Lease& lease, const QueryPart& part) const {
  if (!part.prepare || lease.prepared) return ok_status();
  return asked_already();
}

void Leases::end_preparation(Lease& lease) {
  if (!lease.prepared) return;
  lease.prepared = false;
  places_.end_preparation(lease.places);
}

// From now on somebody waits for it.
void Leases::begin_use(std::uint32_t index) {
  end_preparation(leases_[index]);
  loads_.lanes().promote(LeaseIndex(index));
}

// The list that was prepared is asked for, and finds what there is of it: no second charge, a
// wait of its own.
void Leases::claim(std::uint32_t index, const Seen& seen) {
  Lease& lease = leases_[index];
  begin_use(index);
  ++places_.prepared().claimed;
  budgets_.promote(lease.charge);
  stats_.hits += lease.hits;
  stats_.misses += lease.total - lease.hits;
  lease.untold = true;
  lease.early = seen.part.early_lease;
  lease.full = seen.part.full_prefix;
  lease.started = seen.now;
  lease.late = false;
  if (lease.state == LeaseState::kLoading || lease.state == LeaseState::kTaking) {
    wait_until_end(index);
  } else {
    deadlines_.set(index, Term::kUndelivered, seen.now + config_.reply_ttl);
  }
}

bool Leases::end_prepared(AccountIndex account, Full full) {
  bool ended = false;
  for (std::uint32_t i = 0; i < leases_.size(); ++i) {
    const Lease& lease = leases_[i];
    const bool named = lease.recovery == kNoRecovery && !lease.warm && lease.state != LeaseState::kRetired;
    if (!named || !lease.prepared || lease.charge == kNoCharge) continue;
    if (full == Full::kInstance && lease.account != account) continue;
    ++places_.prepared().gave_way;
    retire(i, LeaseEvent::kCancel);
    ended = true;
  }
  return ended;
}

}  // namespace orbitkv::cache
