#include "cache/loads.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"

namespace orbitkv::cache {

// ---- who waits ----

bool Loads::within_bounds(ByteCount bytes) const {
  return count() < limits::kLoads && bytes_ + bytes <= p_.most;
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
  load.charge = bytes;
  for (std::uint16_t i = 0; i < want.shards; ++i) {
    load.bytes += p_.images.words(p_.images.slot_of(*record, ShardId(i))).extent.bytes;
  }
  p_.images.tag(*record) = index;
  bytes_ += load.bytes;
  lanes_.push(LoadIndex(index), lane);
  ++stats_.started;
  return *record;
}

// Who joins or leaves is mostly the one that joined last.
std::vector<LoadWaiter>::iterator Loads::waiter_of(Load& load, LeaseIndex lease) {
  const auto its = [&](const LoadWaiter& w) { return w.lease == lease; };
  const auto last = std::find_if(load.waiters.rbegin(), load.waiters.rend(), its);
  return last == load.waiters.rend() ? load.waiters.end() : std::prev(last.base());
}

bool Loads::join(RecordId record, const LoadWaiter& waiter) {
  Load& load = load_of(record);
  if (waiter_of(load, waiter.lease) != load.waiters.end()) {
    ++stats_.shared;
    return false;
  }
  const bool alone = load.waiters.empty();
  if (!alone || load.state != LoadState::kQueued) ++stats_.shared;
  load.waiters.push_back(waiter);
  stop_draining(load);
  if (!alone && load.state == LoadState::kQueued) {
    const LoadIndex index(p_.images.tag(record));
    if (lanes_.sooner(index, waiter.lease)) move(index.value, waiter.lease);
  }
  return true;
}

void Loads::move(std::uint32_t index, LeaseIndex lane) {
  lanes_.remove(LoadIndex(index));
  lanes_.push(LoadIndex(index), lane);
}

void Loads::stop_draining(Load& load) {
  if (load.drainer == kNoAccount) return;
  p_.budgets.drained(load.drainer, load.charge);
  load.drainer = kNoAccount;
}

void Loads::leave(RecordId record, LeaseIndex lease, AccountIndex account) {
  Load& load = load_of(record);
  const auto it = waiter_of(load, lease);
  ORBITKV_CHECK(it != load.waiters.end(), "the lease does not wait for this load");
  *it = load.waiters.back();
  load.waiters.pop_back();
  const std::uint32_t index = p_.images.tag(record);
  if (!load.waiters.empty()) return go_on_without(index, lease);
  if (load.state == LoadState::kSubmitted) {
    load.drainer = account;
    p_.budgets.drain(account, load.charge);
    return;
  }
  ++stats_.abandoned;
  lanes_.remove(LoadIndex(index));
  finish(index, LoadEvent::kAbandon);
}

// A queued load does not stay in the lane of one who has left.
void Loads::go_on_without(std::uint32_t index, LeaseIndex left) {
  const Load& load = loads_[index];
  if (load.state != LoadState::kQueued || lanes_.lane_of(LoadIndex(index)) != left) return;
  const auto urgent = [&](const LoadWaiter& w) { return lanes_.urgent(w.lease); };
  const auto it = std::find_if(load.waiters.begin(), load.waiters.end(), urgent);
  move(index, (it == load.waiters.end() ? load.waiters.front() : *it).lease);
}

template <class Of>
void Loads::doom_if(Of of) {
  for (Load& load : loads_) load.doomed = load.doomed || (load.state != LoadState::kEnded && of(load.record));
  next_doomed_ = 0;
}

void Loads::doom(const std::vector<bool>& name_spaces) {
  doom_if([&](RecordId record) {
    const std::uint32_t of = p_.images.key(record).name_space.value;
    return of < name_spaces.size() && name_spaces[of];
  });
}

void Loads::doom(SlabSlot slab) {
  doom_if([&](RecordId record) { return p_.images.on_slab(record, slab); });
}

const Loads::Ended* Loads::fail_doomed() {
  for (; next_doomed_ < loads_.size(); ++next_doomed_) {
    const Load& load = loads_[next_doomed_];
    if (load.state != LoadState::kQueued || !load.doomed) continue;
    const auto index = static_cast<std::uint32_t>(next_doomed_++);
    lanes_.remove(LoadIndex(index));
    ++stats_.gone;
    return report(index, LoadEvent::kGone);
  }
  return nullptr;
}

// ---- to the tier ----

Result<TransferId> Loads::tell(const Load& load) {
  const BlockKey key = p_.images.key(load.record);
  const std::uint16_t shards = p_.images.shards(load.record);
  words_.clear();
  for (std::uint16_t s = 0; s < shards; ++s) {
    words_.push_back(p_.images.words(p_.images.slot_of(load.record, ShardId(s))).extent);
  }
  marks_.assign(shards, {});
  const TierSpace space = p_.namespaces.space(key.name_space, key.group);
  p_.images.note_device(load.record);
  ORBITKV_ASSIGN_OR_RETURN(const TransferId transfer,
                           p_.tier->load({space, key.hash}, load.stored, words_, marks_));
  for (std::uint16_t s = 0; s < shards; ++s) {
    p_.images.mark(p_.images.slot_of(load.record, ShardId(s)), marks_[s].digest, marks_[s].revision);
  }
  return transfer;
}

const Loads::Ended* Loads::submit() {
  while (!busy_) {
    const LoadIndex next = lanes_.front();
    if (next == kNoLoad) break;
    Load& load = loads_[next.value];
    const Result<TransferId> told = tell(load);
    if (!told.ok() && told.error().code() == Code::kBusy) {
      busy_ = true;
      break;
    }
    lanes_.served(next);
    if (!told.ok()) {
      ++stats_.gone;
      return report(next.value, LoadEvent::kGone);
    }
    step(load.state, LoadEvent::kAccept);
    load.transfer = *told;
    by_transfer_.emplace(*told, next.value);
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
  stop_draining(load);
  bytes_ -= load.bytes;
  ended_records_.push_back(load.record);
  free_.push_back(index);
}

}  // namespace orbitkv::cache
