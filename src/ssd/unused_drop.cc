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
  told_.of.resize(digests.size());
  for (std::size_t i = 0; i < digests.size(); ++i)
    for (const SpaceIndex space : state.spaces.of(digests[i])) asked_.push_back({space, i});
  renew_table(state);
}

bool UnusedDrop::go_on(StoreState& state, Ends& ends) {
  if (over_) return true;
  if (walks()) look(state);
  if (walks()) return false;
  std::uint32_t most = state.config.unused_ends;
  for (; ending_ < digests_.size(); ++ending_)
    if (!end_one(state, ends, most)) return false;
  finish(ends);
  return true;
}

// ---- the walk ----

// The number of a space that has ended may be another's.
void UnusedDrop::renew_table(const StoreState& state) {
  table_.assign(limits::kStoredSpaces, kNobody);
  table_of_ = state.spaces.ended();
  for (const Asked& each : asked_) {
    const bool its =
        state.spaces.known(each.space) && state.spaces.at(each.space).shape.digest == digests_[each.of];
    if (its) table_[each.space.value] = each.of;
  }
}

void UnusedDrop::look(StoreState& state) {
  if (table_of_ != state.spaces.ended()) renew_table(state);
  for (std::uint32_t left = state.config.unused_looks; left > 0 && walks(); --left)
    look_at(state, StoredId(next_++));
}

void UnusedDrop::look_at(StoreState& state, StoredId id) {
  if (!state.index.holds(id)) return;
  const IndexRecord record = state.index.at(id);
  const std::size_t of = table_[record.space.value];
  const StoredRef ref = state.index.ref(id);
  if (of == kNobody || !state.visible(ref)) return;
  Found& found = found_[of];
  if (!state.unused_for(id, least_)) {
    ++found.used;
    return;
  }
  ++found.all.records;
  found.all.bytes += ByteCount(bytes_of(record));
  // Never more than single ends are kept.
  if (run_ == UnusedRun::kDrop && found.ends.size() < limits::kTombstones) found.ends.push_back(ref);
}

// ---- the ends ----

// Every record that there is of the namespace was found, none has come or been used since, and none is
// being written.
bool UnusedDrop::whole(const StoreState& state, std::size_t i) const {
  if (found_[i].used > 0 || found_[i].next > 0) return false;
  const std::vector<SpaceIndex> spaces = state.spaces.of(digests_[i]);
  // A write that was accepted is a use: a drop of the namespace would end it.
  return std::all_of(spaces.begin(), spaces.end(), [&](SpaceIndex space) {
    return state.spaces.at(space).last_use <= uses_ && state.spaces.at(space).writes == 0;
  });
}

// The namespace whose turn it is. False: it has more records than may end now.
bool UnusedDrop::end_one(StoreState& state, Ends& ends, std::uint32_t& most) {
  const Of& all = found_[ending_].all;
  if (run_ == UnusedRun::kCount) told_.of[ending_] = all;
  if (run_ == UnusedRun::kCount || all.records == 0) return true;
  if (whole(state, ending_)) {
    if (const auto dropped = ends.drop_space(digests_[ending_]); dropped.ok()) {
      told_.of[ending_] = {dropped->records, all.bytes};
      flushes_.push_back(dropped->flushed);
      return true;
    }
  }
  return end_some(state, ends, most);
}

// One by one, as long as there is room for their ends. One that has been used since it was found stays.
bool UnusedDrop::end_some(StoreState& state, Ends& ends, std::uint32_t& most) {
  Found& found = found_[ending_];
  for (; found.next < found.ends.size(); ++found.next, --most) {
    if (most == 0) return false;
    const StoredRef ref = found.ends[found.next];
    if (state.visible(ref) && state.unused_for(ref.id, least_)) {
      const ByteCount bytes(bytes_of(state.index.at(ref.id)));
      if (!ends.bury(ref)) break;
      ++told_.of[ending_].records;
      told_.of[ending_].bytes += bytes;
      buried_ = true;
    }
    --found.all.records;
  }
  told_.left += found.all.records;
  return true;
}

void UnusedDrop::finish(Ends& ends) {
  over_ = true;
  if (told_.left > 0)
    told_.why_left =
        "the store keeps no more ends of single blocks until segments with earlier ones are reclaimed";
  if (!buried_) return;
  if (const auto flushed = ends.flush(); flushed.ok()) {
    flushes_.push_back(*flushed);
  } else {
    told_.why_left += (told_.why_left.empty() ? "" : "; and ") +
                      ("what went is not durably gone yet: " + flushed.error().message());
  }
}

}  // namespace orbitkv::ssd
