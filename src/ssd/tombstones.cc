#include "ssd/tombstones.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"

namespace orbitkv::ssd {

bool Tombstones::full() const {
  return all_.size() >= most_;
}

bool Tombstones::bury(const Tombstone& tombstone, SegmentSequence newest) {
  if (full()) {
    ORBITKV_WARN(
        "SSD store: %zu ends of records are on the disk already; one more block that was dropped may be "
        "found again after a restart, and is verified then",
        most_);
    return false;
  }
  const TombstoneId id(next_id_++);
  all_.emplace(id, Entry{tombstone, newest, std::nullopt, false});
  pending_.push_back(id);
  return true;
}

void Tombstones::recovered(const Tombstone& tombstone, SegmentIndex holder) {
  const Key key{tombstone.digest, tombstone.group, tombstone.hash, tombstone.sequence};
  const auto [known, fresh] = found_.emplace(key, TombstoneId(next_id_));
  if (fresh) {
    all_.emplace(TombstoneId(next_id_), Entry{tombstone, {}, std::nullopt, false});
    return hold(TombstoneId(next_id_++), holder);
  }
  const Entry& entry = all_.at(known->second);
  if (segments_.at(*entry.holder).life < segments_.at(holder).life) hold(known->second, holder);
}

void Tombstones::hold(TombstoneId id, std::optional<SegmentIndex> holder) {
  Entry& entry = all_.at(id);
  if (entry.holder) {
    const auto held = held_.find(*entry.holder);
    held->second.erase(id);
    if (held->second.empty()) held_.erase(held);
  }
  entry.holder = holder;
  if (holder) held_[*holder].insert(id);
}

void Tombstones::recovery_ended(SegmentSequence newest) {
  for (auto& [id, entry] : all_) entry.newest = newest;
  found_.clear();
}

Tombstones::Next Tombstones::after(TombstoneId id) const {
  const auto found = all_.upper_bound(id);
  return found == all_.end() ? Next{} : Next{found->first, &found->second.tombstone};
}

Tombstones::Next Tombstones::next() const {
  return {pending_.front(), &all_.at(pending_.front()).tombstone};
}

void Tombstones::started(SegmentIndex segment) {
  const TombstoneId id = pending_.front();
  pending_.pop_front();
  hold(id, segment);
  all_.at(id).writing = true;
  ++writing_;
}

void Tombstones::written(TombstoneId id) {
  Entry& entry = all_.at(id);
  ORBITKV_CHECK(entry.writing, "a tombstone that nobody wrote");
  entry.writing = false;
  --writing_;
}

void Tombstones::failed(TombstoneId id) {
  written(id);
  hold(id, std::nullopt);
  pending_.push_back(id);
}

bool Tombstones::needed(const Entry& entry, SegmentIndex holder) const {
  return segments_.may_hold({entry.newest, entry.tombstone.sequence}, holder);
}

bool Tombstones::needed_from(SegmentIndex segment) {
  bool any = false;
  for (const TombstoneId id : held_by(segment)) {
    const Entry& entry = all_.at(id);
    if (entry.writing) continue;
    if (needed(entry, segment)) {
      any = true;
      continue;
    }
    hold(id, std::nullopt);
    all_.erase(id);
  }
  return any;
}

void Tombstones::copy_from(SegmentIndex segment) {
  for (const TombstoneId id : held_by(segment)) {
    if (all_.at(id).writing) continue;
    hold(id, std::nullopt);
    pending_.push_back(id);
  }
}

// A copy: whoever walks it changes the list.
std::vector<TombstoneId> Tombstones::held_by(SegmentIndex segment) const {
  const auto held = held_.find(segment);
  if (held == held_.end()) return {};
  return {held->second.begin(), held->second.end()};
}

}  // namespace orbitkv::ssd
