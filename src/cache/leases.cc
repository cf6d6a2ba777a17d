#include "cache/leases.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/chacha20.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/text.h"

namespace orbitkv::cache {

namespace {

constexpr std::uint32_t kMaxHashes =
    static_cast<std::uint32_t>(limits::kMetadataPerOperation.value / limits::kBlockHashBytes);

// While its parts come, a query is charged for its whole list; a lease for its records.
ByteCount list_bytes(std::uint32_t total) {
  return std::uint64_t{total} * ByteCount(limits::kBlockHashBytes);
}
ByteCount record_bytes(std::uint32_t hits) {
  return std::uint64_t{hits} * ByteCount(sizeof(RecordId));
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
  if (part.prepare && part.full_prefix)
    return reject("what is prepared waits for nobody's saves; ask for the full prefix with the query");
  if (part.first > part.total || part.hashes.size() > part.total - part.first ||
      (part.hashes.empty() && part.total > 0)) {
    return reject(format_text("part [%u, +%zu) does not lie in a query of %u hashes", part.first,
                              part.hashes.size(), part.total));
  }
  return ok_status();
}

std::uint64_t first_revision(const std::array<std::uint64_t, 2>& seed) {
  const std::array<std::uint64_t, 3> in{seed[0], seed[1], 0};
  const auto digest = sha256(std::as_bytes(std::span(in)));
  std::uint64_t out = 0;
  std::memcpy(&out, digest.data(), sizeof out);
  return out >> 1;  // it rises and never comes round to 0
}

// Of the stream that ids come from.
std::array<std::uint32_t, 8> id_key(const std::array<std::uint64_t, 2>& seed) {
  const std::array<std::uint64_t, 3> in{seed[0], seed[1], 1};
  const auto digest = sha256(std::as_bytes(std::span(in)));
  std::array<std::uint32_t, 8> out{};
  static_assert(sizeof out == std::tuple_size_v<decltype(digest)>);
  std::memcpy(out.data(), digest.data(), sizeof out);
  return out;
}

// Whether the list of a query may be asked again.
bool answers_again(LeaseState state) {
  return state == LeaseState::kReady || state == LeaseState::kLoading || state == LeaseState::kMissed ||
         state == LeaseState::kWaiting || state == LeaseState::kTaking;
}

Error out_of_order(std::uint32_t expected, const QueryPart& part) {
  return reject(format_text("part starts at %u of %u, expected %u; parts come in order, 0 starts again",
                            part.first, part.total, expected));
}

}  // namespace

Error other_list() {
  return busy("another list was asked under this request id meanwhile; ask again, or under an id of its own");
}

Error asked_already() {
  return busy("this request id has asked already; there is nothing to prepare under it");
}

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

// Revisions of one life of the Manager mean nothing to the next, so they begin anywhere.
Leases::Leases(const Config& config, const Parts& parts)
    : config_(config),
      images_(parts.images),
      sessions_(parts.sessions),
      budgets_(parts.budgets),
      line_(parts.line),
      loads_(parts.loads),
      leftovers_(parts.leftovers),
      tier_(parts.tier),
      last_revision_(first_revision(config.seed)),
      id_key_(id_key(config.seed)) {}

Leases::~Leases() {
  for (std::uint32_t i = 0; i < leases_.size(); ++i) {
    if (leases_[i].state != LeaseState::kRetired) retire(i, LeaseEvent::kCancel);
  }
}

// Ids must not be guessable: whoever names a lease may consume it. A block of the stream makes several;
// none tells anything of the others.
LeaseId Leases::make_id() {
  constexpr std::size_t kEach = std::tuple_size_v<decltype(ids_)> * sizeof(ids_[0]) / sizeof(LeaseId);
  const std::size_t place = last_id_ % kEach;
  if (place == 0) ids_ = chacha20_block(id_key_, last_id_ / kEach);
  ++last_id_;
  LeaseId id;
  std::memcpy(id.bytes.data(), std::as_bytes(std::span(ids_)).data() + place * sizeof(LeaseId),
              sizeof(LeaseId));
  return id;
}

// ---- query ----

Result<QueryAnswer> Leases::query(SessionId session, const QueryPart& part, const Target& target,
                                  TimePoint now) {
  ORBITKV_RETURN_IF_ERROR(check_part(part));
  expire(now);
  QueryAnswer answer;
  leftovers_.pay(part.hashes.size());
  Seen seen{part, target, now};
  look_up(seen, answer);
  if (part.mode == QueryMode::kDiscover && part.first == 0 && seen.last()) {
    ask_tier(seen, answer);
    answer.hit_blocks = seen.reach();
    return answer;
  }
  ORBITKV_ASSIGN_OR_RETURN(const std::uint32_t index, prepare(session, seen, answer));
  Lease& lease = leases_[index];
  if (answers_again(lease.state)) {
    if (recognise(lease, seen)) {
      if (lease.prepared && !part.prepare) claim(index, seen);
      if (lease.untold) {
        ask_tier(seen, answer);
        tell_tier(seen, answer);
        lease.untold = !seen.last();
      }
      answer_again(index, seen, answer);
      return answer;
    }
    ORBITKV_RETURN_IF_ERROR(restart(index, std::min(part.first, lease.hits), seen, answer));
  }
  absorb(index, seen, answer);
  return answer;
}

// The list of a lease is asked for once more: nothing is counted and the tier is left alone.
void Leases::answer_again(std::uint32_t index, const Seen& seen, QueryAnswer& answer) {
  Lease& lease = leases_[index];
  answer.hit_blocks =
      std::min(lease.hits, seen.part.first + static_cast<std::uint32_t>(seen.part.hashes.size()));
  answer.revision = lease.revision;
  if (!seen.last()) return;
  if (lease.state == LeaseState::kMissed) {
    answer.why = why_of(lease);
    return retire(index, LeaseEvent::kTold);
  }
  step(lease.state, LeaseEvent::kSameList);
  answer_last(index, seen.now, answer);
}

void Leases::answer_last(std::uint32_t index, TimePoint now, QueryAnswer& answer) {
  const Lease& lease = leases_[index];
  if (lease.prepared) {
    answer.loading = true;
    return;
  }
  answer.admitted = lease.state != LeaseState::kWaiting;
  answer.loading =
      lease.state == LeaseState::kLoading || lease.state == LeaseState::kTaking || !answer.admitted;
  if (lease.name.mode == QueryMode::kInterest) return;  // its claim tells it
  answer.lease = lease.id;
  answer.again = lease.delivered;
  if (lease.state == LeaseState::kReady) deliver(LeaseIndex(index), now);
}

// The object that takes this part, in state kCollecting or (perhaps the same list again)
// kWaiting, kTaking, kLoading, kReady or kMissed.
Result<std::uint32_t> Leases::prepare(SessionId session, Seen& seen, QueryAnswer& answer) {
  const QueryPart& part = seen.part;
  const std::uint32_t index =
      named(QueryNameView{part.instance, part.group, part.mode, part.request_id}, seen.now);
  if (index == kNoLink) return start(session, seen);
  Lease& lease = leases_[index];
  if (lease.session != session) {
    return reject(
        format_text("request id is in use by session %u of the same instance", lease.session.value));
  }
  ORBITKV_RETURN_IF_ERROR(check_prepared(lease, part));
  const bool again = answers_again(lease.state);
  if (part.first == 0) {
    lease.again_next = 0;
    lease.again_digest = {};
    if (again) return index;
    ORBITKV_RETURN_IF_ERROR(restart(index, 0, seen, answer));
    return index;
  }
  if (part.revision.value != 0 && part.revision != lease.revision) return other_list();
  const std::uint32_t expected = again ? lease.again_next : lease.next;
  if (lease.state == LeaseState::kConsuming || part.first != expected || part.total != lease.total) {
    return out_of_order(lease.state == LeaseState::kConsuming ? 0 : expected, part);
  }
  return index;
}

Result<std::uint32_t> Leases::start(SessionId session_id, const Seen& seen) {
  const QueryPart& part = seen.part;
  Session& session = sessions_.at(session_id);
  if (part.first != 0) return out_of_order(0, part);
  ORBITKV_ASSIGN_OR_RETURN(Places places, places_.take(session, {1, list_bytes(part.total), part.prepare}));
  const std::uint32_t index = take_object();
  Lease& lease = leases_[index];
  lease.begin();
  lease.name.instance = part.instance;
  lease.name.group = part.group;
  lease.name.mode = part.mode;
  lease.name.request_id.assign(part.request_id);
  lease.prepared = part.prepare;
  lease.session = session_id;
  lease.state = LeaseState::kCollecting;
  lease.revision = next_revision();
  lease.total = part.total;
  lease.early = part.early_lease;
  lease.full = part.full_prefix && publishing_ != nullptr;
  lease.ranks = seen.target.ranks;
  lease.account = seen.target.account;
  lease.block_bytes = seen.target.block_bytes();
  lease.started = seen.now;
  lease.view = images_.view();
  lease.places = std::move(places);
  loads_.lanes().open(LeaseIndex(index), {lease.account, use_of(lease)});
  by_name_.emplace(lease.name, index);
  return index;
}

// Another list under the same name: of the run so far the first `kept` hashes stay, as hashes;
// pins, charge and the old lease id go. The wait of an unfinished one goes on: changing the
// list wins no time. So many that not all could stay at once: it is asked for anew.
Status Leases::restart(std::uint32_t index, std::uint32_t kept, Seen& seen, QueryAnswer& answer) {
  Lease& lease = leases_[index];
  if (kept > config_.turn_hashes) {
    retire(index, LeaseEvent::kCancel);
    return other_list();
  }
  const bool claims = lease.prepared && !seen.part.prepare;
  const bool goes_on = lease.places.unfinished() && lease.state != LeaseState::kMissed && !claims;
  ORBITKV_RETURN_IF_ERROR(places_.reopen(lease.places));
  if (lease.id) {
    by_id_.erase(lease.id);
    lease.id = {};
    --stats_.leases;
  }
  if (const Status list = places_.replace_list(lease.places, list_bytes(seen.part.total)); !list.ok()) {
    retire(index, LeaseEvent::kCancel);
    return list;
  }
  leave_line(lease);
  stop_awaiting(index);
  stop_taking(index);
  step(lease.state, LeaseEvent::kNewList);
  const bool gives_up_loads = lease.pending > 0;
  HashList front = front_of(lease, kept);
  kept = static_cast<std::uint32_t>(front.size());
  forget_kept(lease);
  if (kept > 0) lease.kept = std::make_unique<Lease::Kept>(Lease::Kept{seen.target, 0, std::move(front)});
  give_up(index);
  if (claims) begin_use(index);
  if (gives_up_loads) look_up(seen, answer);
  lease.revision = next_revision();
  lease.total = seen.part.total;
  lease.early = seen.part.early_lease;
  lease.full = seen.part.full_prefix && publishing_ != nullptr;
  lease.ranks = seen.target.ranks;
  if (!goes_on) lease.started = seen.now;
  lease.delivered = lease.untold = false;
  lease.late = false;
  lease.view = images_.view();
  lease.why = Missing::kNone;
  lease.next = seen.part.first;
  lease.hits = kept;
  lease.run_open = kept == seen.part.first;
  lease.digest = lease.again_digest;
  return ok_status();
}

// True while the list that is being asked is the leased one, or the one that waits: of what
// restart() would keep every block is compared.
bool Leases::recognise(Lease& lease, const Seen& seen) {
  if (seen.part.total != lease.total) return false;
  // What was prepared whole leaves nobody to wait for.
  const bool whole = lease.prepared && lease.hits == lease.total;
  if (seen.part.full_prefix != lease.full && !whole) return false;
  ListDigest digest = lease.again_digest;
  for (std::size_t i = 0; i < seen.lookups.size(); ++i) {
    const std::size_t at = seen.part.first + i;
    if (at < lease.records.size() && seen.lookups[i].record != lease.records[at]) return false;
    const std::size_t base = lease.kept != nullptr ? lease.kept->base : 0;
    const bool kept = lease.kept != nullptr && at >= base && at - base < lease.kept->hashes.size();
    if (kept && seen.part.hashes[i] != lease.kept->hashes[at - base]) return false;
    digest.add(seen.lookups[i].hash);
  }
  if (seen.last() && digest != lease.digest) return false;
  lease.again_digest = digest;
  lease.again_next = seen.last() ? 0 : seen.part.first + static_cast<std::uint32_t>(seen.lookups.size());
  return true;
}

void Leases::absorb(std::uint32_t index, Seen& seen, QueryAnswer& answer) {
  Lease& lease = leases_[index];
  const bool read = lease.name.mode != QueryMode::kDiscover;
  const auto count = static_cast<std::uint32_t>(seen.lookups.size());
  seen.takes = read && lease.run_open;
  ask_tier(seen, answer);
  const std::uint32_t run = lease.run_open ? seen.reach() : 0;
  if (read) answer.revision = lease.revision;
  if (read && !lease.prepared) {
    tell_tier(seen, answer);
    stats_.hits += run;
    stats_.misses += count - run;
  }
  lease.hits += run;
  for (const Lookup& l : seen.lookups) lease.digest.add(l.hash);
  lease.next += count;
  answer.hit_blocks = lease.hits;
  if (!seen.last()) {
    if (seen.takes || lease.full) keep_part(index, seen);
    lease.run_open = lease.run_open && run == count;
    step(lease.state, LeaseEvent::kPart);
    return collect(index);
  }
  if (!read || (lease.hits == 0 && !lease.full)) {
    answer.why = read ? Missing::kGone : Missing::kNone;
    return retire(index, LeaseEvent::kLastEmpty);
  }
  end_list(index, seen);
  if (lease.state == LeaseState::kWaiting) line_.run(seen.now);
  if (loads_.queued()) pump(seen.now);
  // What the tier has no more shortens the run, or ends it.
  if (lease.state == LeaseState::kMissed) retire(index, LeaseEvent::kTold);
  const bool over = lease.state == LeaseState::kRetired;
  answer.hit_blocks = over ? 0 : lease.hits;
  if (over) answer.why = why_of(lease);
  if (!over) answer_last(index, seen.now, answer);
}

void Leases::become_ready(std::uint32_t index, TimePoint now) {
  Lease& lease = leases_[index];
  places_.shrink_list(lease.places, record_bytes(lease.hits));
  lease.id = make_id();
  lease.consumed.assign(lease.ranks, 0);
  lease.ranks_left = lease.ranks;
  by_id_.emplace(lease.id, index);
  ++stats_.leases;
  places_.finish(lease.places);
  if (lease.prepared) {
    deadlines_.set(index, Term::kPrepared, now + config_.prepare_ttl);
  } else {
    deadlines_.set(index, Term::kUndelivered, now + config_.reply_ttl);
  }
}

}  // namespace orbitkv::cache
