// The charge of a lease: what is kept until it can be had, the wait for it, and the run then.
#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "cache/leases.h"

namespace orbitkv::cache {

namespace {

constexpr std::size_t kSlice = limits::kListSlice;  // for the caches: what one look-up fills

}  // namespace

// ---- what is kept ----

// Of a part that is not the last: what is in memory at the front of the run is pinned, the
// rest of the run waits as hashes. Nothing is loaded before the whole list is known.
void Leases::keep_part(std::uint32_t index, const Seen& seen) {
  Lease& lease = leases_[index];
  const std::uint32_t reach = seen.takes ? seen.reach() : 0;
  std::uint32_t pinned = 0;
  if (lease.kept == nullptr) {
    if (seen.takes) pinned = take_run(index, seen, seen.run);
    if (pinned == (lease.full ? seen.part.hashes.size() : reach)) return;
    lease.kept = std::make_unique<Lease::Kept>(Lease::Kept{seen.target, lease.records.size()});
  }
  append_part(lease, seen, pinned);
}

void Leases::append_part(Lease& lease, const Seen& seen, std::uint32_t pinned) {
  const std::uint32_t end = seen.takes ? seen.reach() : 0;
  const auto add = [&](std::vector<BlockHash>& to, std::uint32_t from, std::size_t count) {
    const auto hashes = seen.part.hashes.subspan(from, count);
    to.insert(to.end(), hashes.begin(), hashes.end());
  };
  if (lease.kept->hashes.empty()) lease.kept->hashes.reserve(lease.total - lease.kept->base);
  if (end > pinned) add(lease.kept->hashes, pinned, end - pinned);
  if (lease.full) add(lease.kept->beyond, end, seen.part.hashes.size() - end);
}

// The run as hashes, from its front. What is pinned stays so.
void Leases::keep_all(Lease& lease, const Target& target) {
  const std::size_t pinned = lease.records.size();
  if (lease.kept == nullptr) lease.kept = std::make_unique<Lease::Kept>(Lease::Kept{target, pinned});
  Lease::Kept& kept = *lease.kept;
  std::vector<BlockHash> front;
  front.reserve(std::max(pinned, kept.base + kept.hashes.size()));
  for (const RecordId record : lease.records) front.push_back(images_.table().hot(record).hash);
  // A run that was cut before them has none of them any more.
  const std::size_t taken =
      pinned < kept.base ? kept.hashes.size() : std::min(pinned - kept.base, kept.hashes.size());
  front.insert(front.end(), kept.hashes.begin() + static_cast<std::ptrdiff_t>(taken), kept.hashes.end());
  kept.hashes = std::move(front);
  kept.base = 0;
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
  keep_all(lease, seen.target);
  give_up(index);
}

// Holds nothing from here on, so that those who have their budget can be served.
void Leases::wait_in_line(std::uint32_t index) {
  Lease& lease = leases_[index];
  lease.kept->hashes.resize(lease.hits);
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
    part.hashes = std::span(kept.hashes).subspan(at, std::min({kSlice, looks, kept.hashes.size() - at}));
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
  while (kept.checked < end && there(lease.records[kept.checked])) ++kept.checked;
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

// The wait is over: what has been taken is what there is.
void Leases::end_taking(std::uint32_t index, TimePoint now) {
  Lease& lease = leases_[index];
  const auto gone = [&](RecordId r) { return !images_.sealed(r) && !images_.loading(r); };
  if (lease.kept->view != images_.view()) {
    const auto end = std::find_if(lease.records.begin(), lease.records.end(), gone);
    if (end != lease.records.end()) cut(index, static_cast<std::uint32_t>(end - lease.records.begin()), now);
  }
  lease.why = Missing::kTimeout;
  count_late(lease);
  stop_taking(index);
  begin_run(index, now);
}

// What could be had of the run is in `records`.
void Leases::begin_run(std::uint32_t index, TimePoint now) {
  Lease& lease = leases_[index];
  const auto taken = static_cast<std::uint32_t>(lease.records.size());
  lease.kept.reset();
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
  lease.kept.reset();
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
  images_.mark_read(lease.records);
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
