#include "cache/waiting.h"

#include <algorithm>

#include "base/check.h"
#include "cache/overtaken.h"

namespace orbitkv::cache {

std::uint32_t& most_overtaken() {
  thread_local std::uint32_t most = 0;
  return most;
}

WaitingPlace WaitingLine::join(const Waiter& waiter, AccountIndex account) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(entries_.size()));
    entries_.emplace_back();
  }
  const std::uint32_t place = free_.back();
  free_.pop_back();
  if (queues_.size() <= account.value) queues_.resize(account.value + 1);
  Queue& q = queues_[account.value];
  Entry& e = entries_[place];
  e = Entry{};
  e.waiter = waiter;
  e.account = account;
  e.number = ++last_number_;
  e.prev = q.tail;
  (q.tail == kNoLink ? q.head : entries_[q.tail].next) = place;
  q.tail = place;
  ++q.count;
  ++count_;
  if (!q.ringed) {
    q.ringed = true;
    ring_.push_back(account);
  }
  return WaitingPlace(place);
}

void WaitingLine::leave(WaitingPlace at) {
  const std::uint32_t place = at.value;
  Entry& e = entries_[place];
  ORBITKV_CHECK(e.number != 0, "somebody leaves the line twice");
  Queue& q = queues_[e.account.value];
  if (q.head == place) q.suspended = false;
  (e.prev == kNoLink ? q.head : entries_[e.prev].next) = e.next;
  (e.next == kNoLink ? q.tail : entries_[e.next].prev) = e.prev;
  --q.count;
  --count_;
  e.number = 0;
  if (reserver_ == place) reserver_ = kNoLink;
  free_.push_back(place);
  if (q.count > 0) return;
  q.ringed = false;
  std::erase(ring_, e.account);
}

WaitingLine::Entry& WaitingLine::taking(WaitingPlace place) {
  Entry& e = entries_[place.value];
  ORBITKV_CHECK(e.number != 0 && e.taking, "one that was not being taken has an end");
  e.taking = false;
  return e;
}

void WaitingLine::granted(WaitingPlace place) {
  const Entry e = taking(place);
  leave(place);
  note_grant(e.account, e.number);
}

void WaitingLine::refused(WaitingPlace place) {
  Entry& e = taking(place);
  e.refused = e.total = true;
}

void WaitingLine::forget(AccountIndex account) {
  if (account.value >= queues_.size()) return;
  ORBITKV_CHECK(queues_[account.value].count == 0, "somebody of an instance that has ended waits");
  queues_[account.value] = Queue{};
}

// ---- turns ----

void WaitingLine::run(TimePoint now) {
  if (count_ == 0 || running_ || more_) return;
  running_ = true;
  pages_ = 0;
  while (count_ > 0 && pages_ < limits::kLinePagesPerTurn) {
    if (reserver_ == kNoLink && resume(now)) continue;
    choose_reserver();
    if (reserver_ != kNoLink) {
      const Entry e = entries_[reserver_];
      if (e.taking) break;
      const Outcome outcome = attempt(reserver_, now);
      if (outcome == Outcome::kTotalFull) break;
      // It holds back its own instance alone, until that has room.
      if (outcome == Outcome::kInstanceFull) {
        queues_[e.account.value].suspended = true;
        reserver_ = kNoLink;
      }
      if (outcome == Outcome::kAdmitted) note_grant(e.account, e.number);
    } else if (!one_turn(now)) {
      break;
    }
  }
  running_ = false;
  more_ = pages_ >= limits::kLinePagesPerTurn;
}

// Reservers that their own instance's limit had stopped come before all others, or go on reserving.
// True: one was admitted or takes, or is gone.
bool WaitingLine::resume(TimePoint now) {
  for (const AccountIndex account : ring_) {
    Queue& q = queues_[account.value];
    if (!q.suspended || entries_[q.head].taking) continue;
    const std::uint32_t place = q.head;
    const std::uint64_t number = entries_[place].number;
    const Outcome outcome = attempt(place, now);
    if (outcome == Outcome::kInstanceFull) continue;
    q.suspended = false;
    if (outcome == Outcome::kTotalFull || outcome == Outcome::kTaking) reserver_ = place;
    if (outcome == Outcome::kAdmitted) note_grant(account, number);
    return outcome != Outcome::kTotalFull;
  }
  return false;
}

// False: nobody fits.
bool WaitingLine::one_turn(TimePoint now) {
  for (std::size_t left = ring_.size(); left > 0 && !ring_.empty(); --left) {
    const AccountIndex account = ring_.front();
    ring_.pop_front();
    ring_.push_back(account);
    if (try_queue(account, now)) return true;
  }
  return false;
}

bool WaitingLine::try_queue(AccountIndex account, TimePoint now) {
  std::uint32_t place = queues_[account.value].head;
  for (std::uint32_t n = 0; n <= limits::kLookBehind && place != kNoLink; ++n) {
    const std::uint32_t next = entries_[place].next;
    const std::uint64_t number = entries_[place].number;
    if (entries_[place].taking) {
      place = next;
      continue;
    }
    const Outcome outcome = attempt(place, now);
    if (outcome == Outcome::kTaking) return true;
    if (outcome == Outcome::kAdmitted) {
      note_grant(account, number);
      return true;
    }
    if (outcome == Outcome::kInstanceFull && n == 0 && entries_[place].passes >= limits::kPasses)
      return false;
    if (pages_ >= limits::kLinePagesPerTurn) return false;
    place = next;
  }
  return false;
}

WaitingLine::Outcome WaitingLine::attempt(std::uint32_t place, TimePoint now) {
  const auto tried = admitting_.admit(entries_[place].waiter, now);
  pages_ += tried.pages;
  Entry& e = entries_[place];
  const bool refused = tried.outcome == Outcome::kInstanceFull || tried.outcome == Outcome::kTotalFull;
  const bool taking = tried.outcome == Outcome::kTaking;
  ORBITKV_CHECK((refused || taking) == (e.number != 0), "who is admitted leaves the line, and nobody else");
  if (taking) e.taking = true;
  if (!refused) return tried.outcome;
  e.refused = true;
  e.total = tried.outcome == Outcome::kTotalFull;
  return tried.outcome;
}

// ---- who was passed ----

// One that came as number `number` was admitted.
void WaitingLine::note_grant(AccountIndex account, std::uint64_t number) {
  queues_[account.value].served = true;
  for (const AccountIndex other : ring_) {
    Entry& first = entries_[queues_[other.value].head];
    const bool waits = first.taking || (first.refused && (other == account || first.total));
    const bool passed = waits && first.number < number;
    if (!passed) continue;
    most_overtaken() = std::max(most_overtaken(), ++first.passes);
  }
}

bool WaitingLine::candidate(AccountIndex account) const {
  const Entry& first = entries_[queues_[account.value].head];
  return (first.taking || (first.refused && first.total)) && first.passes >= limits::kPasses;
}

void WaitingLine::choose_reserver() {
  if (reserver_ != kNoLink) return;
  const auto free_one = [&](AccountIndex a) { return candidate(a) && !queues_[a.value].reserved; };
  auto it = std::find_if(ring_.begin(), ring_.end(), free_one);
  if (it == ring_.end()) {
    const auto had_its_turn = [&](AccountIndex a) {
      const Queue& q = queues_[a.value];
      return q.served || q.reserved || (entries_[q.head].refused && !entries_[q.head].total);
    };
    if (std::none_of(ring_.begin(), ring_.end(), [&](AccountIndex a) { return candidate(a); })) return;
    if (!std::all_of(ring_.begin(), ring_.end(), had_its_turn)) return;
    for (Queue& q : queues_) q.served = q.reserved = false;
    it = std::find_if(ring_.begin(), ring_.end(), free_one);
  }
  if (it == ring_.end()) return;
  queues_[it->value].reserved = true;
  reserver_ = queues_[it->value].head;
}

}  // namespace orbitkv::cache
