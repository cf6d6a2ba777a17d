// The run of a lease: what is there, what it pins and waits for.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/limits.h"
#include "base/text.h"
#include "cache/leases.h"

namespace orbitkv::cache {

namespace {

// Then those that have ended are left out.
constexpr std::size_t kMostPlaces = limits::kLoads + limits::kLoads / 4;

}  // namespace

// ---- what the tables and the tier say of a part ----

// A bit for each of at most 64 lookups whose image is sealed; of the others only those that
// load keep their record.
std::uint64_t Leases::resident_word(std::span<Lookup> lookups) const {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < lookups.size(); ++i) {
    RecordId& record = lookups[i].record;
    if (record == kNoRecord) continue;
    if (images_.sealed(record)) {
      word |= std::uint64_t{1} << i;
    } else if (!images_.loading(record)) {
      record = kNoRecord;
    }
  }
  return word;
}

void Leases::look_up(Seen& seen, QueryAnswer& answer) {
  const std::size_t n = seen.part.hashes.size();
  if (lookups_.size() < n) lookups_.resize(n);
  images_.table().find_batch(seen.target.space, seen.part.hashes, lookups_);
  stats_.looked_up += n;
  answer.resident.resize((n + 63) / 64);
  std::size_t run = 0, resident = 0;
  for (std::size_t first = 0; first < n; first += 64) {
    const std::uint64_t word =
        resident_word(std::span(lookups_).subspan(first, std::min<std::size_t>(64, n - first)));
    answer.resident[first / 64] = word;
    if (run == first) run += static_cast<std::size_t>(std::countr_one(word));
    resident += static_cast<std::size_t>(std::popcount(word));
  }
  seen.lookups = std::span(lookups_).first(n);
  seen.run = static_cast<std::uint32_t>(run);
  seen.complete = resident == n;
}

// All of the part at once: what is not resident, and behind the first such block also what
// is where room for the loads may evict it.
void Leases::ask_tier(Seen& seen, QueryAnswer& answer) {
  if (tier_ == nullptr || seen.target.tier == kNoTierSpace || seen.complete) return;
  const std::size_t n = seen.part.hashes.size();
  answer.stored.assign((n + 63) / 64, 0);
  const auto mark = [&](std::size_t i) { answer.stored[i / 64] |= std::uint64_t{1} << (i % 64); };
  asked_.clear();
  asked_at_.clear();
  for (std::uint32_t i = seen.run; i < n; ++i) {
    const RecordId record = seen.lookups[i].record;
    if (record != kNoRecord && images_.loading(record)) {
      mark(i);
    } else if (record == kNoRecord || (seen.takes && !asked_.empty())) {
      asked_.push_back(seen.part.hashes[i]);
      asked_at_.push_back(i);
    }
  }
  asked_found_.assign(asked_.size(), {});
  tier_->find(seen.target.tier, asked_, asked_found_);
  stored_.assign(n, {});
  for (std::size_t k = 0; k < asked_.size(); ++k) {
    if (!asked_found_[k]) continue;
    const std::uint32_t i = asked_at_[k];
    stored_[i] = asked_found_[k];
    if (seen.lookups[i].record == kNoRecord) mark(i);
  }
  seen.stored = stored_;
}

void Leases::tell_tier(const Seen& seen, const QueryAnswer& answer) const {
  if (tier_ == nullptr || seen.target.tier == kNoTierSpace || seen.part.hashes.empty()) return;
  tier_->asked(seen.target.tier, {seen.part.hashes, answer.resident, answer.stored},
               {seen.part.first, seen.part.total});
}

std::uint32_t Leases::Seen::reach() const {
  std::uint32_t i = run;
  while (i < lookups.size() && at_hand(i)) ++i;
  return i;
}

// ---- the run ----

// Pins the leading run of the part, from its front, and has loaded what of it is stored only.
// Lending evicts: never what the run has taken, and what it has not reached yet only after all
// else, the furthest first. Pinned, a tail as large as memory would keep its own head out.
std::uint32_t Leases::take_run(std::uint32_t index, const Seen& seen, std::uint32_t most) {
  std::vector<RecordId>& records = leases_[index].records;
  const std::size_t had = records.size();
  const std::uint32_t reach = std::min(seen.reach(), most);
  const std::uint32_t run = std::min(seen.run, most);
  // A list in many parts does not move its records with each.
  if (records.capacity() < had + reach) {
    const std::size_t all = leases_[index].total;
    records.reserve(is_long(leases_[index]) ? all : std::max(had + reach, std::min(2 * had, all)));
  }
  for (std::uint32_t i = 0; i < run; ++i) records.push_back(seen.lookups[i].record);
  const Use use = use_of(leases_[index]);
  images_.pin(std::span(records).subspan(had));
  for (std::uint32_t i = reach; i-- > run && use == Use::kForeground;) {
    if (seen.lookups[i].record != kNoRecord) images_.touch(seen.lookups[i].record);
  }
  for (std::uint32_t i = run; i < reach; ++i) {
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
    const Leases::Target& t = seen.target;
    record = loads_.start({key, seen.stored[i], t.shards, t.slot_bytes, &t.near, use_of(lease)},
                          LeaseIndex(index));
    if (record == kNoRecord) {
      const bool room = images_.table().find(key) != kNoRecord;  // it is there, and not to be read
      if (lease.records.empty() && !room) lease.why = Missing::kNoMemory;
      return false;
    }
  }
  const auto position = static_cast<std::uint32_t>(lease.records.size());
  lease.records.push_back(record);
  images_.pin({&record, 1});
  if (images_.loading(record)) await_load(index, position);
  return true;
}

void Leases::await_load(std::uint32_t index, std::uint32_t position) {
  Lease& lease = leases_[index];
  if (!loads_.join(lease.records[position], {LeaseIndex(index), position})) return;
  ++lease.pending;
  Lease::Waits& waits = lease.waits;
  if (waits.places.size() >= kMostPlaces) {
    std::erase_if(waits.places, [&](std::uint32_t at) { return !images_.loading(lease.records[at]); });
    waits.told = 0;
  }
  waits.places.push_back(position);
}

std::uint32_t Leases::first_load(const Lease& lease) const {
  const auto loads = [&](std::uint32_t at) { return images_.loading(lease.records[at]); };
  const auto first = std::find_if(lease.waits.places.begin(), lease.waits.places.end(), loads);
  return first == lease.waits.places.end() ? lease.hits : *first;
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

void Leases::fail_doomed(TimePoint now) {
  while (const Loads::Ended* gone = loads_.fail_doomed()) settle(*gone, now);
}

// Everybody stops waiting before anybody's run changes.
void Leases::settle(const Loads::Ended& ended, TimePoint now) {
  for (const LoadWaiter& w : ended.waiters) --leases_[w.lease.value].pending;
  for (const LoadWaiter& w : ended.waiters) {
    Lease& lease = leases_[w.lease.value];
    if (lease.state == LeaseState::kRetired || w.position >= lease.hits) continue;
    // What has been leased stays: a restore of it learns what has become of it.
    const bool leased = lease.state == LeaseState::kReady || lease.state == LeaseState::kConsuming;
    if (lease.warm) {
      if (lease.pending == 0) warmed_.push_back(w.lease);
    } else if (lease.recovery != kNoRecovery) {
      if (ended.ok && lease.pending > 0) continue;
      member_events_.push_back({ended.ok ? MemberEvent::Kind::kLanded : MemberEvent::Kind::kFailed,
                                lease.recovery, lease.revision, lease.name.group});
    } else if (!ended.ok && !leased) {
      cut(w.lease.value, w.position, now);
    } else if (lease.state == LeaseState::kLoading && (lease.pending == 0 || nearly_there(lease))) {
      land(w.lease.value, now);
    }
  }
}

// Of an early lease: three quarters are there and the tier reads the rest.
bool Leases::nearly_there(Lease& lease) {
  if (!lease.early || lease.pending > lease.hits / 4) return false;
  const auto waits = [&](std::uint32_t at) {
    return images_.loading(lease.records[at]) && !loads_.submitted(lease.records[at]);
  };
  std::size_t& told = lease.waits.told;
  while (told < lease.waits.places.size() && !waits(lease.waits.places[told])) ++told;
  return told == lease.waits.places.size();
}

// The run ends at `kept`: what would follow cannot be had.
void Leases::cut(std::uint32_t index, std::uint32_t kept, TimePoint now) {
  Lease& lease = leases_[index];
  shorten(lease, kept);
  unpin_from(index, kept, budgets_.split(lease.charge, kept * lease.block_bytes));
  if (lease.state == LeaseState::kLoading && lease.pending == 0) land(index, now);
}

// Nothing is on its way any more, or nothing that must be waited for. That there is nothing is
// a result, too: it waits to be told.
void Leases::land(std::uint32_t index, TimePoint now) {
  Lease& lease = leases_[index];
  if (lease.hits > 0) {
    stats_.early += lease.pending > 0 ? 1 : 0;
    step(lease.state, LeaseEvent::kLanded);
    become_ready(index, now);
    return;
  }
  step(lease.state, LeaseEvent::kLandedEmpty);
  if (lease.prepared) return retire(index, LeaseEvent::kExpire);
  places_.miss(lease.places);
  deadlines_.set(index, Term::kUndelivered, now + config_.reply_ttl);
}

// The wait is over: the leading run that has landed is what there is. Reads drain.
void Leases::time_out(std::uint32_t index, TimePoint now) {
  Lease& lease = leases_[index];
  count_late(lease);
  lease.why = Missing::kTimeout;
  cut(index, first_load(lease), now);
}

}  // namespace orbitkv::cache
