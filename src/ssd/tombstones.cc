#include "ssd/tombstones.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"

namespace orbitkv::ssd {

bool Tombstones::full() const {
  return all_.size() >= limits::kTombstones;
}

bool Tombstones::bury(const Tombstone& tombstone, SegmentSequence newest) {
  if (full()) {
    ORBITKV_WARN(
        "SSD store: %u ends of records are on the disk already; one more block that was dropped may be "
        "found again after a restart, and is verified then",
        limits::kTombstones);
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
    all_.emplace(TombstoneId(next_id_++), Entry{tombstone, {}, holder, false});
    return;
  }
  Entry& entry = all_.at(known->second);
  if (segments_.at(*entry.holder).life < segments_.at(holder).life) entry.holder = holder;
}

void Tombstones::recovery_ended(SegmentSequence newest) {
  for (auto& [id, entry] : all_) entry.newest = newest;
  found_.clear();
}

Tombstones::Next Tombstones::next() const {
  return {pending_.front(), &all_.at(pending_.front()).tombstone};
}

void Tombstones::started(SegmentIndex segment) {
  Entry& entry = all_.at(pending_.front());
  pending_.pop_front();
  entry.holder = segment;
  entry.writing = true;
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
  all_.at(id).holder.reset();
  pending_.push_back(id);
}

bool Tombstones::needed(const Entry& entry, SegmentIndex holder) const {
  return segments_.may_hold({entry.newest, entry.tombstone.sequence}, holder);
}

bool Tombstones::needed_from(SegmentIndex segment) {
  bool any = false;
  for (auto at = all_.begin(); at != all_.end();) {
    const bool here = at->second.holder == segment && !at->second.writing;
    if (here && !needed(at->second, segment)) {
      at = all_.erase(at);
      continue;
    }
    any = any || here;
    ++at;
  }
  return any;
}

void Tombstones::copy_from(SegmentIndex segment) {
  for (auto& [id, entry] : all_) {
    if (entry.holder != segment || entry.writing) continue;
    entry.holder.reset();
    pending_.push_back(id);
  }
}

}  // namespace orbitkv::ssd
