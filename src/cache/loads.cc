#include "cache/loads.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"

namespace orbitkv::cache {

// ---- who waits ----

bool Loads::within_bounds(ByteCount bytes) const {
  const ByteCount most(p_.pool.capacity().value / 2);
  return count() < limits::kLoads && bytes_ + bytes <= most;
}

std::uint32_t Loads::take() {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(loads_.size()));
    loads_.emplace_back();
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  return index;
}

RecordId Loads::start(const Want& want, LeaseIndex lane) {
  const RecordId there = p_.images.table().find(want.key);
  if (there != kNoRecord) return p_.images.loading(there) ? there : kNoRecord;
  const ByteCount bytes = want.shards * want.slot_bytes;
  if (!within_bounds(bytes)) {
    ++stats_.refused_bounds;
    return kNoRecord;
  }
  const auto record = p_.images.lend_all({want.key, want.shards, want.slot_bytes, want.near, want.use});
  if (!record) {
    ++stats_.refused_memory;
    return kNoRecord;
  }
  const std::uint32_t index = take();
  Load& load = loads_[index];
  load.record = *record;
  load.stored = want.stored;
  load.state = LoadState::kQueued;
  load.doomed = false;
  load.bytes = {};
  for (std::uint16_t i = 0; i < want.shards; ++i) {
    load.bytes += p_.images.words(p_.images.slot_of(*record, ShardId(i))).extent.bytes;
  }
  p_.images.tag(*record) = index;
  bytes_ += load.bytes;
  enqueue(index, lane);
  ++stats_.started;
  return *record;
}

void Loads::join(RecordId record, const LoadWaiter& waiter) {
  Load& load = load_of(record);
  if (!load.waiters.empty() || load.state != LoadState::kQueued) ++stats_.shared;
  load.waiters.push_back(waiter);
}

void Loads::leave(RecordId record, const LoadWaiter& waiter) {
  Load& load = load_of(record);
  const auto it = std::find(load.waiters.begin(), load.waiters.end(), waiter);
  ORBITKV_CHECK(it != load.waiters.end(), "nobody waits for this load there");
  *it = load.waiters.back();
  load.waiters.pop_back();
  if (!load.waiters.empty() || load.state != LoadState::kQueued) return;
  ++stats_.abandoned;
  unqueue(load);
  finish(p_.images.tag(record), LoadEvent::kAbandon);
}

void Loads::doom(NamespaceIndex name_space) {
  for (Load& load : loads_) {
    if (load.state != LoadState::kEnded && p_.images.key(load.record).name_space == name_space) {
      load.doomed = true;
    }
  }
}

void Loads::doom(SlabSlot slab) {
  for (Load& load : loads_) {
    if (load.state != LoadState::kEnded && p_.images.on_slab(load.record, slab)) load.doomed = true;
  }
}

const Loads::Ended* Loads::fail_doomed() {
  const auto it = std::find_if(loads_.begin(), loads_.end(), [](const Load& load) {
    return load.state == LoadState::kQueued && load.doomed;
  });
  if (it == loads_.end()) return nullptr;
  unqueue(*it);
  ++stats_.gone;
  return report(p_.images.tag(it->record), LoadEvent::kGone);
}

// ---- the queue: one lane a query, one load of each in turn ----

void Loads::enqueue(std::uint32_t index, LeaseIndex lane_index) {
  if (lanes_.size() <= lane_index.value) lanes_.resize(lane_index.value + 1);
  Lane& lane = lanes_[lane_index.value];
  Load& load = loads_[index];
  load.lane = lane_index;
  load.prev = lane.tail;
  load.next = kNoLink;
  (lane.tail == kNoLink ? lane.head : loads_[lane.tail].next) = index;
  lane.tail = index;
  if (lane.ringed) return;
  lane.ringed = true;
  ring_.push_back(lane_index.value);
}

// An empty lane leaves the ring when its turn comes.
void Loads::unqueue(const Load& load) {
  Lane& lane = lanes_[load.lane.value];
  (load.prev == kNoLink ? lane.head : loads_[load.prev].next) = load.next;
  (load.next == kNoLink ? lane.tail : loads_[load.next].prev) = load.prev;
}

Result<TransferId> Loads::tell(const Load& load) {
  const BlockKey key = p_.images.key(load.record);
  const std::uint16_t shards = p_.images.shards(load.record);
  words_.clear();
  for (std::uint16_t s = 0; s < shards; ++s) {
    words_.push_back(p_.images.words(p_.images.slot_of(load.record, ShardId(s))).extent);
  }
  marks_.assign(shards, {});
  const TierSpace space = p_.namespaces.space(key.name_space, key.group);
  ORBITKV_ASSIGN_OR_RETURN(const TransferId transfer,
                           p_.tier->load({space, key.hash}, load.stored, words_, marks_));
  for (std::uint16_t s = 0; s < shards; ++s) {
    p_.images.mark(p_.images.slot_of(load.record, ShardId(s)), marks_[s].digest, marks_[s].revision);
  }
  return transfer;
}

const Loads::Ended* Loads::submit() {
  while (!busy_ && !ring_.empty()) {
    const std::uint32_t lane = ring_.front();
    const std::uint32_t index = lanes_[lane].head;
    if (index == kNoLink) {
      lanes_[lane].ringed = false;
      ring_.pop_front();
      continue;
    }
    Load& load = loads_[index];
    const Result<TransferId> told = tell(load);
    if (!told.ok() && told.error().code() == Code::kBusy) {
      busy_ = true;
      break;
    }
    unqueue(load);
    ring_.pop_front();
    ring_.push_back(lane);
    if (!told.ok()) {
      ++stats_.gone;
      return report(index, LoadEvent::kGone);
    }
    step(load.state, LoadEvent::kAccept);
    load.transfer = *told;
    by_transfer_.emplace(*told, index);
  }
  return nullptr;
}

// ---- ends ----

const Loads::Ended* Loads::end(TransferId transfer, bool ok) {
  const auto it = by_transfer_.find(transfer);
  if (it == by_transfer_.end()) return nullptr;
  const std::uint32_t index = it->second;
  by_transfer_.erase(it);
  busy_ = false;
  Load& load = loads_[index];
  if (ok && !load.doomed) {
    ++stats_.landed;
    stats_.landed_bytes += load.bytes;
    return report(index, LoadEvent::kLanded);
  }
  ++stats_.failed;
  return report(index, LoadEvent::kFailed);
}

// Those who wait are out of it before anything moves: whoever handles the report may make
// others leave their loads.
const Loads::Ended* Loads::report(std::uint32_t index, LoadEvent event) {
  ended_.ok = event == LoadEvent::kLanded;
  ended_.waiters.clear();
  std::swap(ended_.waiters, loads_[index].waiters);
  finish(index, event);
  return &ended_;
}

void Loads::finish(std::uint32_t index, LoadEvent event) {
  Load& load = loads_[index];
  step(load.state, event);
  if (event == LoadEvent::kLanded) {
    p_.images.load_done(load.record);
  } else {
    p_.images.load_failed(load.record);
  }
  bytes_ -= load.bytes;
  ended_records_.push_back(load.record);
  free_.push_back(index);
}

}  // namespace orbitkv::cache
