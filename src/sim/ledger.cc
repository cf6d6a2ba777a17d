#include "sim/ledger.h"

#include <algorithm>

#include "base/check.h"

namespace orbitkv::sim {

// Another use whose bytes overlap, and which one of the two writes. Extents do not nest, but
// an I/O may name a part of one: a few that begin before are looked at.
const Ledger::Held* Ledger::conflicting(const Place& place, Use use) const {
  constexpr int kLooksBack = 8;
  const Key at = key(place);
  auto it = uses_.lower_bound(at);
  for (int i = 0; i < kLooksBack && it != uses_.begin(); ++i) --it;
  for (; it != uses_.end() && it->first < Key{at.pool, at.slab, at.offset + place.bytes.value}; ++it) {
    const bool same = it->first.pool == at.pool && it->first.slab == at.slab;
    if (!same || it->second.end <= at.offset) continue;
    if (use == Use::kWrite || it->second.writers > 0) return &it->second;
  }
  return nullptr;
}

std::optional<std::string> Ledger::take(const Place& place, Use use, const std::string& who) {
  std::optional<std::string> conflict;
  const auto said = [&](const Held& other) {
    return who + (use == Use::kWrite ? " writes" : " reads") + " slab " + std::to_string(place.slab.value) +
           " at " + std::to_string(place.offset) + ", which " + other.who +
           (other.writers ? " still writes" : " still reads");
  };
  if (const Held* other = conflicting(place, use)) conflict = said(*other);
  if (!conflict && use == Use::kWrite && holds_source(place))
    conflict = who + " writes slab " + std::to_string(place.slab.value) + " at " +
               std::to_string(place.offset) + ", which a restore that a dead Manager granted still reads";
  if (use == Use::kWrite)
    damaged_.erase(damaged_.lower_bound(key(place)),
                   damaged_.lower_bound(Key{place.pool, place.slab.value, place.offset + place.bytes.value}));
  Held& held = uses_[key(place)];
  held.end = std::max(held.end, place.offset + place.bytes.value);
  ++(use == Use::kWrite ? held.writers : held.readers);
  held.who = who;
  return conflict;
}

bool Ledger::holds_source(const Place& place) {
  std::erase_if(sources_, [](const auto& each) { return !each.second(); });
  return std::any_of(sources_.begin(), sources_.end(), [&](const auto& each) {
    const Place& source = each.first;
    return source.pool == place.pool && source.slab == place.slab &&
           source.offset < place.offset + place.bytes.value &&
           place.offset < source.offset + source.bytes.value;
  });
}

void Ledger::leave(const Place& place, Use use) {
  const auto it = uses_.find(key(place));
  ORBITKV_CHECK(it != uses_.end(), "a use ends that never began");
  std::uint32_t& count = use == Use::kWrite ? it->second.writers : it->second.readers;
  ORBITKV_CHECK(count > 0, "a use ends twice");
  if (--count == 0 && it->second.readers + it->second.writers == 0) uses_.erase(it);
}

std::vector<Place> Ledger::writers(std::uint64_t pool) const {
  std::vector<Place> out;
  for (auto it = uses_.lower_bound(Key{pool, 0, 0}); it != uses_.end() && it->first.pool == pool; ++it)
    if (it->second.writers > 0)
      out.push_back(
          {pool, SlabId(it->first.slab), it->first.offset, ByteCount(it->second.end - it->first.offset)});
  return out;
}

bool Ledger::damaged(const Place& place) const {
  const auto it = damaged_.lower_bound(key(place));
  return it != damaged_.end() && *it < Key{place.pool, place.slab.value, place.offset + place.bytes.value};
}

}  // namespace orbitkv::sim
