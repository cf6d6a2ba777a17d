// How many interests may be open, and which make room for another. Every session has a few that nobody
// can take from it; above those all share.
#include <algorithm>
#include <utility>

#include "base/text.h"
#include "cache/interests.h"

namespace orbitkv::cache {

// ---- the orders ----

void Interests::enter(Entry entry) {
  Interest& interest = entry->second;
  const SessionId session = entry->first.first;
  interest.age = {holds(interest.state), interest.touched, entry->first.second};
  Ages& ages = of_session_[session.value];
  ages.insert(interest.age);
  of_instance_[{session, interest.instance}].insert(interest.age);
  if (ages.size() > limits::kReservedInterests) ++shared_;
}

void Interests::leave(Entry entry) {
  const Interest& interest = entry->second;
  const SessionId session = entry->first.first;
  Ages& ages = of_session_[session.value];
  if (ages.size() > limits::kReservedInterests) --shared_;
  ages.erase(interest.age);
  const auto same = of_instance_.find({session, interest.instance});
  same->second.erase(interest.age);
  if (same->second.empty()) of_instance_.erase(same);
}

void Interests::reorder(Entry entry) {
  Interest& interest = entry->second;
  const Age before = interest.age;
  interest.age.holds = holds(interest.state);
  interest.age.touched = interest.touched;
  if (before == interest.age) return;
  for (Ages* ages :
       {&of_session_[entry->first.first.value], &of_instance_.at({entry->first.first, interest.instance})}) {
    ages->erase(before);
    ages->insert(interest.age);
  }
}

// ---- room ----

// What it holds goes back.
Interests::Entry Interests::forget(Entry entry) {
  give_up(entry);
  pass(entry, InterestEvent::kClose);
  leave(entry);
  return interests_.erase(entry);
}

// Some that may make room for another, from the one at `next` on.
struct Interests::Rank {
  SessionId session;
  const Ages* ages = nullptr;
  Ages::const_iterator next;
};

// The oldest of all of them; the next call has the one behind it.
std::optional<Interests::Entry> Interests::oldest(std::vector<Rank>& ranks) {
  Rank* first = nullptr;
  for (Rank& rank : ranks) {
    if (rank.next == rank.ages->end()) continue;
    if (first == nullptr || *rank.next < *first->next) first = &rank;
  }
  if (first == nullptr) return std::nullopt;
  return interests_.find({first->session, (first->next++)->id});
}

// The oldest that holds nothing; where there is none, the oldest that nobody has spoken of for so long
// that its coordinator is dead or has lost touch. What has ended by itself since it was looked at last is
// found among the oldest ones. False: nor is there one of those.
bool Interests::forget_oldest(std::vector<Rank> ranks, TimePoint now) {
  std::optional<Entry> goes;
  for (std::uint32_t looks = 0; looks < limits::kInterestLooks; ++looks) {
    const auto entry = oldest(ranks);
    if (!entry) break;
    look(*entry, now);
    if (!holds((*entry)->second.state)) {
      goes = entry;
      break;
    }
    if (!goes && now >= (*entry)->second.touched + silent()) goes = entry;
  }
  if (!goes) return false;
  const Entry entry = *goes;
  if (holds(entry->second.state)) ++stats_.lost;
  ids_[entry->first.first.value].made_room(entry->first.second, entry->second.operation);
  forget(entry);
  return true;
}

// Of which an interest may make room for one of `session`.
std::vector<Interests::Rank> Interests::beyond_their_share(SessionId session) const {
  std::vector<Rank> ranks;
  for (std::uint32_t s = 0; s < limits::kSessions; ++s) {
    const Ages& ages = of_session_[s];
    const bool beyond = SessionId(s) == session || ages.size() > limits::kReservedInterests;
    if (beyond) ranks.push_back({SessionId(s), &ages, ages.begin()});
  }
  return ranks;
}

Status Interests::make_room(SessionId session, const InstanceId& instance, TimePoint now) {
  const std::size_t open = of_session_[session.value].size();
  const auto same = of_instance_.find({session, instance});
  if (same != of_instance_.end() && same->second.size() == limits::kInterestsPerInstance) {
    if (forget_oldest({{session, &same->second, same->second.begin()}}, now)) return ok_status();
    return busy(format_text("%u interests of the instance are open in this session; close some",
                            limits::kInterestsPerInstance));
  }
  if (open < limits::kReservedInterests) return ok_status();
  if (shared_ < limits::kInterests - limits::kReservedInterests * limits::kSessions) return ok_status();
  if (forget_oldest(beyond_their_share(session), now)) return ok_status();
  return busy(format_text("this host has %zu open interests, and %zu of them are of this session; close some",
                          interests_.size(), open));
}

}  // namespace orbitkv::cache
