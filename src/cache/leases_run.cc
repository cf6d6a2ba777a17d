// The run of a lease: what it pins and waits for, and how the waits and leases end.
#include <algorithm>

#include "base/check.h"
#include "base/text.h"
#include "cache/leases.h"

namespace orbitkv::cache {

namespace {

constexpr std::size_t kKeptRecords = 1024;  // of a recycled object

}  // namespace

// ---- the run ----

// Pins the leading run of the part, from its front, and has loaded what of it is stored only.
// Lending evicts: never what the run has taken, and what it has not reached yet only after all
// else, the furthest first. Pinned, a tail as large as memory would keep its own head out.
std::uint32_t Leases::take_run(std::uint32_t index, const Seen& seen) {
  std::vector<RecordId>& records = leases_[index].records;
  const std::size_t had = records.size();
  const std::uint32_t reach = seen.reach();
  records.reserve(had + reach);
  for (std::uint32_t i = 0; i < seen.run; ++i) records.push_back(seen.lookups[i].record);
  images_.pin(std::span(records).subspan(had));
  for (std::uint32_t i = reach; i-- > seen.run;) {
    if (seen.lookups[i].record != kNoRecord) images_.touch(seen.lookups[i].record);
  }
  for (std::uint32_t i = seen.run; i < reach; ++i) {
    if (!want_block(index, i, seen)) return i;
  }
  return reach;
}

// Hash `i` of the part, next in the run. False: it cannot be loaded, so the run ends before it.
bool Leases::want_block(std::uint32_t index, std::uint32_t i, const Seen& seen) {
  Lease& lease = leases_[index];
  const BlockKey key{seen.part.hashes[i], seen.target.space.name_space, seen.target.space.group};
  RecordId record = seen.lookups[i].record;
  // It may have been evicted for a block before it, and the record taken for another.
  if (record == kNoRecord || !images_.serves(record, key)) {
    if (seen.stored.empty() || !seen.stored[i]) return false;
    record =
        loads_.start({key, seen.stored[i], seen.target.shards, seen.target.slot_bytes}, LeaseIndex(index));
    if (record == kNoRecord) return false;
  }
  const auto position = static_cast<std::uint32_t>(lease.records.size());
  lease.records.push_back(record);
  images_.pin({&record, 1});
  if (!images_.loading(record)) return true;
  loads_.join(record, {LeaseIndex(index), position});
  ++lease.pending;
  return true;
}

// ---- loads ----

bool Leases::loaded(TransferId transfer, bool ok, TimePoint now) {
  const Loads::Ended* ended = loads_.end(transfer, ok);
  if (ended == nullptr) return false;
  settle(*ended, now);
  pump(now);
  return true;
}

void Leases::pump(TimePoint now) {
  while (const Loads::Ended* gone = loads_.submit()) settle(*gone, now);
}

// A list may name a block twice: everybody stops waiting before anybody's run changes.
void Leases::settle(const Loads::Ended& ended, TimePoint now) {
  for (const LoadWaiter& w : ended.waiters) --leases_[w.lease.value].pending;
  for (const LoadWaiter& w : ended.waiters) {
    const Lease& lease = leases_[w.lease.value];
    if (lease.state == LeaseState::kRetired || w.position >= lease.hits) continue;
    // What has been leased stays: a restore of it learns what has become of it.
    const bool leased = lease.state == LeaseState::kReady || lease.state == LeaseState::kConsuming;
    if (!ended.ok && !leased) {
      cut(w.lease.value, w.position, now);
    } else if (lease.state == LeaseState::kLoading && (lease.pending == 0 || nearly_there(lease))) {
      land(w.lease.value, now);
    }
  }
}

// Of an early lease: three quarters are there and the tier reads the rest.
bool Leases::nearly_there(const Lease& lease) {
  if (!lease.early || lease.pending > lease.hits / 4) return false;
  const auto waits = [&](RecordId r) { return images_.loading(r) && !loads_.submitted(r); };
  return std::none_of(lease.records.begin(), lease.records.end(), waits);
}

// The run ends at `kept`: what would follow cannot be had.
void Leases::cut(std::uint32_t index, std::uint32_t kept, TimePoint now) {
  Lease& lease = leases_[index];
  unpin_from(index, kept);
  stats_.hits -= lease.hits - kept;
  stats_.misses += lease.hits - kept;
  lease.hits = kept;
  lease.run_open = false;
  if (lease.state == LeaseState::kLoading && lease.pending == 0) land(index, now);
}

// Nothing is on its way any more, or nothing that must be waited for. A list of several parts that is being
// asked again hears of an empty run with its last part.
void Leases::land(std::uint32_t index, TimePoint now) {
  Lease& lease = leases_[index];
  end_wait(index);
  if (lease.hits > 0) {
    stats_.early += lease.pending > 0 ? 1 : 0;
    step(lease.state, LeaseEvent::kLanded);
    become_ready(index, now);
  } else if (lease.again_next > 0) {
    step(lease.state, LeaseEvent::kNewList);
    lease.next = lease.again_next;
    lease.digest = lease.again_digest;
  } else {
    retire(index, LeaseEvent::kLandedEmpty);
  }
}

// The wait is over: the leading run that has landed is what there is. Reads drain.
void Leases::time_out(std::uint32_t index, TimePoint now) {
  const Lease& lease = leases_[index];
  const auto loads = [&](RecordId r) { return images_.loading(r); };
  const auto first = std::find_if(lease.records.begin(), lease.records.end(), loads);
  ++stats_.wait_timeouts;
  cut(index, static_cast<std::uint32_t>(first - lease.records.begin()), now);
}

void Leases::end_wait(std::uint32_t index) {
  const Lease& lease = leases_[index];
  if (lease.state == LeaseState::kLoading) waits_.erase({wait_end(lease), index});
}

// ---- ends ----

Lease* Leases::find(const LeaseId& id) {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &leases_[it->second];
}

void Leases::consume(Lease& lease, std::uint16_t rank, std::uint32_t blocks) {
  std::uint32_t& consumed = lease.consumed.at(rank);
  consumed += blocks;
  ORBITKV_CHECK(consumed <= lease.hits, "a rank consumed more than the lease holds");
  if (consumed == lease.hits && --lease.ranks_left == 0) {
    retire(index_of(lease), LeaseEvent::kConsumeLast);
  } else {
    step(lease.state, LeaseEvent::kConsume);
  }
}

void Leases::release(Lease& lease) {
  retire(index_of(lease), LeaseEvent::kRelease);
}

Status Leases::cancel(SessionId session, QueryNameView name) {
  for (const QueryMode mode : {QueryMode::kDiscover, QueryMode::kRead}) {
    name.mode = mode;
    const auto it = by_name_.find(name);
    if (it == by_name_.end()) continue;
    const SessionId owner = leases_[it->second].session;
    if (owner != session) {
      return reject(format_text("the query belongs to session %u; only that one may cancel it", owner.value));
    }
    retire(it->second, LeaseEvent::kCancel);
  }
  return ok_status();
}

void Leases::end_session(SessionId session) {
  for (std::uint32_t i = 0; i < leases_.size(); ++i) {
    const Lease& l = leases_[i];
    if (l.state != LeaseState::kRetired && l.session == session) retire(i, LeaseEvent::kCancel);
  }
}

void Leases::end_instance(const InstanceId& instance) {
  for (std::uint32_t i = 0; i < leases_.size(); ++i) {
    const Lease& l = leases_[i];
    if (l.state != LeaseState::kRetired && l.name.instance == instance) retire(i, LeaseEvent::kCancel);
  }
}

void Leases::expire(TimePoint now) {
  while (oldest_ != kNoLink && leases_[oldest_].deadline <= now) {
    ++stats_.expired;
    retire(oldest_, LeaseEvent::kExpire);
  }
  while (!waits_.empty() && waits_.begin()->first <= now) time_out(waits_.begin()->second, now);
}

std::uint32_t Leases::count(const InstanceId& instance) const {
  const auto holds = [&](const Lease& l) { return l.id && l.name.instance == instance; };
  return static_cast<std::uint32_t>(std::count_if(leases_.begin(), leases_.end(), holds));
}

// Those that still load are left first: what nobody else waits for goes back at once.
void Leases::unpin_from(std::uint32_t index, std::size_t kept) {
  Lease& lease = leases_[index];
  if (kept >= lease.records.size()) return;
  for (std::size_t i = kept; i < lease.records.size() && lease.pending > 0; ++i) {
    if (!images_.loading(lease.records[i])) continue;
    loads_.leave(lease.records[i], {LeaseIndex(index), static_cast<std::uint32_t>(i)});
    --lease.pending;
  }
  images_.unpin(std::span(lease.records).subspan(kept));
  lease.records.resize(kept);
}

void Leases::retire(std::uint32_t index, LeaseEvent event) {
  Lease& lease = leases_[index];
  end_wait(index);
  step(lease.state, event);
  unlink(index);
  unpin_from(index, 0);
  if (lease.records.capacity() > kKeptRecords) std::vector<RecordId>().swap(lease.records);
  Session& session = sessions_.at(lease.session);
  if (lease.metadata.open()) session.metadata->release(std::move(lease.metadata));
  --session.queries;
  if (lease.id) {
    by_id_.erase(lease.id);
    lease.id = {};
    --stats_.leases;
  }
  by_name_.erase(by_name_.find(lease.name));
  free_.push_back(index);
}

// All leases have one TTL, so the list stays in the order of deadlines.
void Leases::refresh(std::uint32_t index, TimePoint now) {
  Lease& lease = leases_[index];
  if (lease.deadline.ns != 0) unlink(index);
  lease.deadline = now + config_.ttl;
  lease.older = newest_;
  lease.newer = kNoLink;
  (newest_ == kNoLink ? oldest_ : leases_[newest_].newer) = index;
  newest_ = index;
}

void Leases::unlink(std::uint32_t index) {
  const Lease& l = leases_[index];
  (l.older == kNoLink ? oldest_ : leases_[l.older].newer) = l.newer;
  (l.newer == kNoLink ? newest_ : leases_[l.newer].older) = l.older;
}

}  // namespace orbitkv::cache
