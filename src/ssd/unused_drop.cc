#include "ssd/unused_drop.h"

#include <algorithm>

#include "base/limits.h"
#include "ssd/store_state.h"

namespace orbitkv::ssd {

UnusedDrop::UnusedDrop(const StoreState& state, std::span<const model::NamespaceDigest> digests,
                       Duration least, UnusedRun run)
    : digests_(digests.begin(), digests.end()),
      least_(least),
      run_(run),
      end_(state.index.high_water()),
      uses_(state.uses),
      found_(digests.size()) {
  told.of.resize(digests.size());
  for (std::size_t i = 0; i < digests.size(); ++i)
    for (const SpaceIndex space : state.spaces.of(digests[i])) asked_.push_back({space, i});
}

bool UnusedDrop::look(StoreState& state, std::uint32_t looks) {
  constexpr std::size_t kNobody = ~std::size_t{0};
  if (next_ == end_) return true;
  std::vector<std::size_t> asked(limits::kStoredSpaces, kNobody);
  for (const Asked& each : asked_) {
    // Its number may be another's by now.
    const bool its =
        state.spaces.known(each.space) && state.spaces.at(each.space).shape.digest == digests_[each.of];
    if (its) asked[each.space.value] = each.of;
  }
  for (const std::uint32_t end = next_ + std::min(looks, end_ - next_); next_ < end; ++next_) {
    const StoredId id(next_);
    if (!state.index.holds(id)) continue;
    const IndexRecord record = state.index.at(id);
    const std::size_t of = asked[record.space.value];
    const StoredRef ref = state.index.ref(id);
    if (of == kNobody || !state.visible(ref)) continue;
    Found& found = found_[of];
    if (!state.unused_for(id, least_)) {
      ++found.used;
      continue;
    }
    ++found.all.records;
    found.all.bytes += ByteCount(bytes_of(record));
    // Never more than single ends are kept.
    if (run_ == UnusedRun::kDrop && found.ends.size() < limits::kTombstones) found.ends.push_back(ref);
  }
  return next_ == end_;
}

bool UnusedDrop::whole(const StoreState& state, std::size_t i) const {
  if (found_[i].used > 0 || found_[i].next > 0) return false;
  const std::vector<SpaceIndex> spaces = state.spaces.of(digests_[i]);
  // A write that was accepted is a use: a drop of the namespace would end it.
  return std::all_of(spaces.begin(), spaces.end(), [&](SpaceIndex space) {
    return state.spaces.at(space).last_use <= uses_ && state.spaces.at(space).writes == 0;
  });
}

}  // namespace orbitkv::ssd
