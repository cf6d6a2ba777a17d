// Which ids of interests are used, and what an interest is bound to.
#include <algorithm>
#include <cstring>

#include "base/sha256.h"
#include "base/text.h"
#include "cache/interests.h"

namespace orbitkv::cache {

namespace {

// What is fed to a digest, field by field.
class Fields {
 public:
  template <class T>
  void add(const T& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

unsigned long long number(std::uint64_t value) {
  return value;
}

}  // namespace

// ---- ids ----

InterestIds::Window& InterestIds::window_of(std::uint32_t coordinator) {
  const auto of = [&](const Window& w) { return w.coordinator == coordinator; };
  auto it = std::find_if(windows_.begin(), windows_.end(), of);
  if (it == windows_.end() && windows_.size() < limits::kInterestCoordinators)
    it = windows_.insert(windows_.end(), Window{coordinator, 0, 0, {}});
  if (it == windows_.end()) {
    it = std::min_element(windows_.begin(), windows_.end(),
                          [](const Window& a, const Window& b) { return a.touched < b.touched; });
    *it = Window{coordinator, 0, 0, {}};
  }
  it->touched = ++turns_;
  return *it;
}

bool InterestIds::fresh(InterestId id, InterestOperation operation) const {
  const auto outside =
      std::find_if(outside_.begin(), outside_.end(), [&](const Outside& each) { return each.id == id; });
  if (outside != outside_.end()) return operation > outside->newest;
  const auto of = [&](const Window& w) {
    return w.coordinator == static_cast<std::uint32_t>(id.value >> 32);
  };
  const auto it = std::find_if(windows_.begin(), windows_.end(), of);
  const auto number = static_cast<std::uint32_t>(id.value);
  if (it == windows_.end() || number > it->newest) return true;
  return it->newest - number < it->used.size() && !it->used[number % it->used.size()];
}

void InterestIds::spend(InterestId id) {
  std::erase_if(outside_, [&](const Outside& each) { return each.id == id; });
  Window& w = window_of(static_cast<std::uint32_t>(id.value >> 32));
  const auto number = static_cast<std::uint32_t>(id.value);
  const auto size = static_cast<std::uint32_t>(w.used.size());
  if (number <= w.newest && w.newest - number >= size) return;  // behind the window: used as it is
  const std::uint32_t steps = number > w.newest ? number - w.newest : 0;
  if (steps >= size) w.used.reset();
  for (std::uint32_t i = 1; i < std::min(steps, size); ++i) w.used[(w.newest + i) % size] = false;
  w.newest = std::max(w.newest, number);
  w.used[number % size] = true;
}

void InterestIds::made_room(InterestId id, InterestOperation newest) {
  if (outside_.size() == kMostOutside) outside_.pop_front();
  outside_.push_back({id, newest});
}

// ---- authority ----

// No id of a registration is given twice, so a rank that joins anew raises it.
std::uint64_t Interests::generation_of(const Instance& instance) const {
  std::uint64_t newest = 0;
  for (const RegistrationId id : instance.ranks) newest = std::max(newest, id.value);
  return newest;
}

InterestAuthority Interests::authority_of(const Instance& instance) const {
  Fields fields;
  fields.add(p_.namespaces.digest(instance.name_space));
  fields.add(instance.ranks.size());
  for (const RegistrationId id : instance.ranks) {
    fields.add(p_.instances.find(id)->groups.size());
    for (const RegisteredGroup& group : p_.instances.find(id)->groups) {
      fields.add(group.group.value);
      fields.add(group.shard.value);
      fields.add(group.shards);
      fields.add(static_cast<std::uint16_t>(group.writer));
      fields.add(group.slot_bytes.value);
    }
  }
  const auto digest = sha256(fields.bytes());
  InterestAuthority out;
  out.incarnation = config_.incarnation.value;
  out.generation = generation_of(instance);
  std::memcpy(out.layout.data(), digest.data(), out.layout.size());
  out.consumers = static_cast<std::uint16_t>(instance.ranks.size());
  return out;
}

Error Interests::stale(const InterestAuthority& bound, const InterestAuthority& now) {
  ++stats_.stale;
  std::string what;
  if (bound.incarnation != now.incarnation) {
    what = format_text("Manager incarnation %016llx, and it is %016llx now", number(bound.incarnation),
                       number(now.incarnation));
  } else if (bound.generation != now.generation) {
    what = format_text("registration generation %llu of the instance, and it is %llu now",
                       number(bound.generation), number(now.generation));
  } else if (bound.layout != now.layout) {
    what = "layout " + short_hex(bound.layout) + ", and it is " + short_hex(now.layout) + " now";
  } else {
    what = format_text("%u consumers, and there are %u now", bound.consumers, now.consumers);
  }
  return recompute("stale authority: the interest is of " + what +
                   "; close it, and submit under a new one without an authority");
}

bool Interests::stands(const Interest& interest) const {
  const Instance* instance = p_.instances.find_instance(interest.instance);
  return instance != nullptr && instance->complete() &&
         generation_of(*instance) == interest.authority.generation;
}

// What can never be claimed any more is not held on to.
Status Interests::check_authority(Entry entry, const InterestAuthority& named) {
  const InterestAuthority bound = entry->second.authority;
  if (stands(entry->second)) return named && named != bound ? Status(stale(named, bound)) : ok_status();
  give_up(entry);
  const Instance* instance = p_.instances.find_instance(entry->second.instance);
  InterestAuthority now = bound;
  if (instance != nullptr && instance->complete()) {
    now.generation = generation_of(*instance);
    return stale(bound, now);
  }
  return left();
}

Error Interests::left() {
  ++stats_.stale;
  return recompute(
      "stale authority: a rank of the instance has left since; close the interest, and submit a new one when "
      "all ranks are registered");
}

Status Interests::check(SessionId session, const InterestPart& part) {
  const auto entry = interests_.find({session, part.name.interest});
  if (entry != interests_.end()) return check_authority(entry, part.authority);
  const Instance* instance = p_.instances.find_instance(part.name.instance);
  if (!part.authority || (instance != nullptr && instance->complete())) return ok_status();
  // The ranks that it names have left, and registrations are never given twice.
  if (part.authority.incarnation != config_.incarnation.value) {
    InterestAuthority now = part.authority;
    now.incarnation = config_.incarnation.value;
    return stale(part.authority, now);
  }
  return left();
}

}  // namespace orbitkv::cache
