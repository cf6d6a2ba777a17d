// How many interests may be open, and which make room for another. Every session has a few that nobody
// can take from it; above those all share.
#include <algorithm>
#include <array>

#include "base/text.h"
#include "cache/interests.h"

namespace orbitkv::cache {

// What it holds goes back.
Interests::Entry Interests::forget(Entry entry) {
  give_up(entry);
  step(entry->second.state, InterestEvent::kClose);
  return interests_.erase(entry);
}

// The oldest that holds nothing; where there is none, the oldest that nobody has spoken of for so long
// that its coordinator is dead or has lost touch. False: nor is there one of those.
template <class Of>
bool Interests::forget_oldest(Of of, TimePoint now) {
  const auto order = [](Entry e) { return std::pair(holds(e->second.state), e->second.touched); };
  Entry oldest = interests_.end();
  for (Entry entry = interests_.begin(); entry != interests_.end(); ++entry) {
    if (!of(entry)) continue;
    look(entry, now);
    if (holds(entry->second.state) && now < entry->second.touched + silent()) continue;
    if (oldest == interests_.end() || order(entry) < order(oldest)) oldest = entry;
  }
  if (oldest == interests_.end()) return false;
  if (holds(oldest->second.state)) ++stats_.lost;
  ids_[oldest->first.first.value].made_room(oldest->first.second, oldest->second.operation);
  forget(oldest);
  return true;
}

Status Interests::make_room(SessionId session, const InstanceId& instance, TimePoint now) {
  std::array<std::uint32_t, limits::kSessions> open{};
  std::uint32_t of_instance = 0, shared = 0;
  for (const auto& [key, interest] : interests_) {
    if (++open[key.first.value] > limits::kReservedInterests) ++shared;
    if (key.first == session && interest.instance == instance) ++of_instance;
  }
  const auto same = [&](Entry e) { return e->first.first == session && e->second.instance == instance; };
  if (of_instance == limits::kInterestsPerInstance) {
    if (forget_oldest(same, now)) return ok_status();
    return busy(format_text("%u interests of the instance are open in this session; close some",
                            limits::kInterestsPerInstance));
  }
  if (open[session.value] < limits::kReservedInterests) return ok_status();
  if (shared < limits::kInterests - limits::kReservedInterests * limits::kSessions) return ok_status();
  const auto beyond = [&](Entry e) {
    return e->first.first == session || open[e->first.first.value] > limits::kReservedInterests;
  };
  if (forget_oldest(beyond, now)) return ok_status();
  return busy(format_text("this host has %zu open interests, and %u of them are of this session; close some",
                          interests_.size(), open[session.value]));
}

}  // namespace orbitkv::cache
