#include "cache/leases.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/text.h"

namespace orbitkv::cache {

namespace {

constexpr std::size_t kKeptRecords = 1024;  // of a recycled object
constexpr std::uint32_t kMaxHashes =
    static_cast<std::uint32_t>(limits::kMetadataPerOperation.value / limits::kBlockHashBytes);

// While its parts come, a query is charged for its whole list; a lease for its records.
ByteCount list_bytes(std::uint32_t total) {
  return std::uint64_t{total} * ByteCount(limits::kBlockHashBytes);
}
ByteCount record_bytes(std::uint32_t hits) {
  return std::uint64_t{hits} * ByteCount(sizeof(RecordId));
}

Error metadata_full(const mem::Budget& budget) {
  return busy(
      format_text("hash and page lists of this session take %llu of %llu bytes; release leases or wait",
                  static_cast<unsigned long long>(budget.used().value),
                  static_cast<unsigned long long>(budget.limit().value)));
}

Status check_part(const QueryPart& part) {
  if (part.request_id.size() > limits::kRequestIdBytes) {
    return reject(format_text("request id has %zu bytes, the limit is %u", part.request_id.size(),
                              limits::kRequestIdBytes));
  }
  if (part.total > kMaxHashes) {
    return reject(
        format_text("query of %u hashes, the limit is %u; ask for a shorter prefix", part.total, kMaxHashes));
  }
  if (part.first > part.total || part.hashes.size() > part.total - part.first ||
      (part.hashes.empty() && part.total > 0)) {
    return reject(format_text("part [%u, +%zu) does not lie in a query of %u hashes", part.first,
                              part.hashes.size(), part.total));
  }
  return ok_status();
}

Error out_of_order(std::uint32_t expected, const QueryPart& part) {
  return reject(format_text("part starts at %u of %u, expected %u; parts come in order, 0 starts again",
                            part.first, part.total, expected));
}

}  // namespace

void ListDigest::add(std::uint64_t hash) {
  a = (std::rotl(a, 23) ^ hash) * 0x9E3779B97F4A7C15;
  b = (std::rotl(b, 31) + hash) * 0xD6E8FEB86659FD93;
}

std::size_t Leases::Hash::operator()(const QueryNameView& name) const {
  std::uint64_t w[2];
  std::memcpy(w, name.instance.bytes.data(), sizeof w);
  const std::uint64_t tail = std::uint64_t{name.group.value} << 8 | static_cast<std::uint64_t>(name.mode);
  return std::hash<std::string_view>{}(name.request_id) ^
         (w[0] + std::rotl(w[1], 17) + tail) * 0x9E3779B97F4A7C15;
}

std::size_t Leases::Hash::operator()(const LeaseId& id) const {
  std::size_t h = 0;
  std::memcpy(&h, id.bytes.data(), sizeof h);
  return h;
}

Leases::~Leases() {
  while (oldest_ != kNoLink) retire(oldest_, LeaseEvent::kCancel);
}

// Ids must not be guessable: whoever names a lease may consume it.
LeaseId Leases::make_id() {
  std::array<std::uint64_t, 3> in{config_.seed[0], config_.seed[1], ++last_id_};
  const auto digest = sha256(std::as_bytes(std::span(in)));
  LeaseId id;
  std::memcpy(id.bytes.data(), digest.data(), id.bytes.size());
  return id;
}

// ---- query ----

Leases::Seen Leases::look_up(const QueryPart& part, const Target& target, TimePoint now,
                             QueryAnswer& answer) {
  const std::size_t n = part.hashes.size();
  if (lookups_.size() < n) lookups_.resize(n);
  images_.table().find_batch(target.space, part.hashes, lookups_);
  answer.resident.assign((n + 63) / 64, 0);
  std::size_t run = n;
  for (std::size_t i = 0; i < n; ++i) {
    Lookup& l = lookups_[i];
    if (l.record != kNoRecord && images_.sealed(l.record)) {
      answer.resident[i / 64] |= std::uint64_t{1} << (i % 64);
    } else {
      l.record = kNoRecord;
      run = std::min(run, i);
    }
  }
  return {part, std::span(lookups_).first(n), static_cast<std::uint32_t>(run), now, target.ranks};
}

Result<QueryAnswer> Leases::query(SessionId session, const QueryPart& part, const Target& target,
                                  TimePoint now) {
  ORBITKV_RETURN_IF_ERROR(check_part(part));
  expire(now);
  QueryAnswer answer;
  const Seen seen = look_up(part, target, now, answer);
  if (part.mode == QueryMode::kDiscover && part.first == 0 && seen.last()) {
    answer.hit_blocks = seen.run;
    return answer;
  }
  ORBITKV_ASSIGN_OR_RETURN(const std::uint32_t index, prepare(session, seen));
  Lease& lease = leases_[index];
  if (lease.state == LeaseState::kReady) {
    if (recognise(lease, seen)) {
      answer.hit_blocks = std::min(lease.hits, part.first + static_cast<std::uint32_t>(part.hashes.size()));
      answer.revision = lease.revision;
      if (seen.last()) {
        step(lease.state, LeaseEvent::kSameList);
        refresh(index, now);
        answer.lease = lease.id;
      }
      return answer;
    }
    ORBITKV_RETURN_IF_ERROR(restart(index, std::min(part.first, lease.hits), seen));
  }
  absorb(index, seen, answer);
  return answer;
}

// The object that takes this part, in state kCollecting or (perhaps the same list again) kReady.
Result<std::uint32_t> Leases::prepare(SessionId session, const Seen& seen) {
  const QueryPart& part = seen.part;
  const auto it = by_name_.find(QueryNameView{part.instance, part.group, part.mode, part.request_id});
  if (it == by_name_.end()) return start(session, seen);
  const std::uint32_t index = it->second;
  Lease& lease = leases_[index];
  if (lease.session != session) {
    return reject(
        format_text("request id is in use by session %u of the same instance", lease.session.value));
  }
  if (part.first == 0) {
    lease.again_next = 0;
    lease.again_digest = {};
    if (lease.state == LeaseState::kReady) return index;
    ORBITKV_RETURN_IF_ERROR(restart(index, 0, seen));
    return index;
  }
  const std::uint32_t expected = lease.state == LeaseState::kReady ? lease.again_next : lease.next;
  if (lease.state == LeaseState::kConsuming || part.first != expected || part.total != lease.total) {
    return out_of_order(lease.state == LeaseState::kConsuming ? 0 : expected, part);
  }
  return index;
}

Result<std::uint32_t> Leases::start(SessionId session_id, const Seen& seen) {
  const QueryPart& part = seen.part;
  Session& session = sessions_.at(session_id);
  if (part.first != 0) return out_of_order(0, part);
  if (session.queries == limits::kQueriesPerSession) {
    return busy(format_text("%u queries of this session hold leases; release or cancel some",
                            limits::kQueriesPerSession));
  }
  if (by_name_.size() == limits::kLeases) {
    return busy(format_text("%u leases are held on this host; release some", limits::kLeases));
  }
  auto metadata = session.metadata->reserve(list_bytes(part.total));
  if (!metadata) return metadata_full(*session.metadata);
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(leases_.size()));
    leases_.emplace_back();
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Lease& lease = leases_[index];
  Lease fresh;
  fresh.name = {part.instance, part.group, part.mode, std::string(part.request_id)};
  fresh.session = session_id;
  fresh.state = LeaseState::kCollecting;
  fresh.revision = ++last_revision_;
  fresh.total = part.total;
  fresh.records = std::move(lease.records);  // empty, for their capacity
  fresh.consumed = std::move(lease.consumed);
  fresh.metadata = std::move(*metadata);
  lease = std::move(fresh);
  by_name_.emplace(lease.name, index);
  ++session.queries;
  refresh(index, seen.now);
  return index;
}

// Another list under the same name: the first `kept` records stay, the rest and the old
// lease id go.
Status Leases::restart(std::uint32_t index, std::uint32_t kept, const Seen& seen) {
  Lease& lease = leases_[index];
  Session& session = sessions_.at(lease.session);
  if (lease.id) {
    by_id_.erase(lease.id);
    lease.id = {};
    --stats_.leases;
  }
  session.metadata->release(std::move(lease.metadata));
  auto metadata = session.metadata->reserve(list_bytes(seen.part.total));
  if (!metadata) {
    retire(index, LeaseEvent::kCancel);
    return metadata_full(*session.metadata);
  }
  lease.metadata = std::move(*metadata);
  step(lease.state, LeaseEvent::kNewList);
  unpin_from(lease, kept);
  lease.revision = ++last_revision_;
  lease.total = seen.part.total;
  lease.next = seen.part.first;
  lease.hits = kept;
  lease.run_open = kept == seen.part.first;
  lease.digest = lease.again_digest;
  return ok_status();
}

// True while the list that is being asked is the leased one.
bool Leases::recognise(Lease& lease, const Seen& seen) {
  if (seen.part.total != lease.total) return false;
  ListDigest digest = lease.again_digest;
  for (std::size_t i = 0; i < seen.lookups.size(); ++i) {
    const std::size_t at = seen.part.first + i;
    if (at < lease.hits && seen.lookups[i].record != lease.records[at]) return false;
    digest.add(seen.lookups[i].hash);
  }
  if (seen.last() && digest != lease.digest) return false;
  lease.again_digest = digest;
  lease.again_next = seen.last() ? 0 : seen.part.first + static_cast<std::uint32_t>(seen.lookups.size());
  return true;
}

void Leases::absorb(std::uint32_t index, const Seen& seen, QueryAnswer& answer) {
  Lease& lease = leases_[index];
  const std::uint32_t run = lease.run_open ? seen.run : 0;
  const auto count = static_cast<std::uint32_t>(seen.lookups.size());
  if (lease.name.mode == QueryMode::kRead) {
    const std::size_t had = lease.records.size();
    lease.records.reserve(had + run);
    for (std::uint32_t i = 0; i < run; ++i) lease.records.push_back(seen.lookups[i].record);
    images_.pin(std::span(lease.records).subspan(had));
    stats_.hits += run;
    stats_.misses += count - run;
  }
  lease.hits += run;
  lease.run_open = lease.run_open && run == count;
  for (const Lookup& l : seen.lookups) lease.digest.add(l.hash);
  lease.next += count;
  answer.hit_blocks = lease.hits;
  if (lease.name.mode == QueryMode::kRead) answer.revision = lease.revision;
  if (!seen.last()) {
    step(lease.state, LeaseEvent::kPart);
    refresh(index, seen.now);
  } else if (lease.records.empty()) {
    retire(index, LeaseEvent::kLastEmpty);
  } else {
    become_ready(index, seen);
    answer.lease = lease.id;
  }
}

void Leases::become_ready(std::uint32_t index, const Seen& seen) {
  Lease& lease = leases_[index];
  step(lease.state, LeaseEvent::kLastPart);
  sessions_.at(lease.session).metadata->shrink(lease.metadata, record_bytes(lease.hits));
  lease.id = make_id();
  lease.consumed.assign(seen.ranks, 0);
  lease.ranks_left = seen.ranks;
  by_id_.emplace(lease.id, index);
  ++stats_.leases;
  refresh(index, seen.now);
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
}

std::uint32_t Leases::count(const InstanceId& instance) const {
  const auto holds = [&](const Lease& l) { return l.id && l.name.instance == instance; };
  return static_cast<std::uint32_t>(std::count_if(leases_.begin(), leases_.end(), holds));
}

void Leases::unpin_from(Lease& lease, std::size_t kept) {
  if (kept >= lease.records.size()) return;
  images_.unpin(std::span(lease.records).subspan(kept));
  lease.records.resize(kept);
}

void Leases::retire(std::uint32_t index, LeaseEvent event) {
  Lease& lease = leases_[index];
  step(lease.state, event);
  unlink(index);
  unpin_from(lease, 0);
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
