#include "cache/recoveries.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::cache {

namespace {

constexpr std::uint32_t kMaxHashes =
    static_cast<std::uint32_t>(limits::kMetadataPerOperation.value / limits::kBlockHashBytes);

Status check_part(const RecoveryPart& part, const RecoveryPlan& plan) {
  if (part.request_id.size() > limits::kRequestIdBytes) {
    return reject(format_text("request id has %zu bytes, the limit is %u", part.request_id.size(),
                              limits::kRequestIdBytes));
  }
  std::uint64_t pages = 0;
  for (const GroupPages& g : plan) pages += g.count;
  if (part.total != pages) {
    return reject(format_text(
        "recovery of %u pages; the rules of the instance's groups need %llu between "
        "tokens %llu and %llu",
        part.total, static_cast<unsigned long long>(pages), static_cast<unsigned long long>(part.tail.origin),
        static_cast<unsigned long long>(part.tail.boundary)));
  }
  if (part.total > kMaxHashes) {
    return reject(
        format_text("recovery of %u pages, the limit is %u; recover a shorter tail", part.total, kMaxHashes));
  }
  if (part.first > part.total || part.hashes.size() > part.total - part.first || part.hashes.empty()) {
    return reject(format_text("part [%u, +%zu) does not lie in a recovery of %u pages", part.first,
                              part.hashes.size(), part.total));
  }
  return ok_status();
}

Error out_of_order(std::uint32_t expected, const RecoveryPart& part) {
  return reject(format_text("part starts at %u of %u, expected %u; parts come in order, 0 starts again",
                            part.first, part.total, expected));
}

}  // namespace

std::size_t Recoveries::Hash::operator()(const NameView& name) const {
  std::uint64_t word = 0;
  std::memcpy(&word, name.instance.bytes.data(), sizeof word);
  return std::hash<std::string_view>{}(name.request_id) ^ word * 0x9E3779B97F4A7C15;
}

Recoveries::~Recoveries() {
  for (std::uint32_t i = 0; i < recoveries_.size(); ++i) {
    if (recoveries_[i].state != RecoveryState::kRetired) retire(i, RecoveryEvent::kCancel);
  }
}

ByteCount Recoveries::bytes_of(const Recovery& r) const {
  ByteCount all;
  for (const GroupPages& g : r.plan) all += std::uint64_t{g.count} * g.target.shards * g.target.slot_bytes;
  return all;
}

// ---- parts ----

Result<TicketAnswer> Recoveries::read(SessionId session, const RecoveryPart& part, RecoveryPlan plan,
                                      TimePoint now) {
  ORBITKV_RETURN_IF_ERROR(check_part(part, plan));
  expire(now);
  settle(now);
  const auto it = by_name_.find(NameView{part.instance, part.request_id, part.interest});
  if (it == by_name_.end()) {
    if (part.first != 0) return out_of_order(0, part);
    ORBITKV_ASSIGN_OR_RETURN(const std::uint32_t index,
                             start({session, now, {}, part.prepare}, part, std::move(plan)));
    append(index, part, now);
    return answer(index, part, now);
  }
  const Recovery& r = recoveries_[it->second];
  if (r.session != session) {
    return reject(format_text("request id is in use by session %u of the same instance", r.session.value));
  }
  if (part.prepare && !r.prepared) return asked_already();
  ORBITKV_ASSIGN_OR_RETURN(const std::uint32_t index, take_part(it->second, part, std::move(plan), now));
  return answer(index, part, now);
}

// A result is told with the last part.
TicketAnswer Recoveries::answer(std::uint32_t index, const RecoveryPart& part, TimePoint now) {
  if (recoveries_[index].state == RecoveryState::kRetired) return {};  // a preparation that came to nothing
  if (part.first + part.hashes.size() == part.total) return tell(index, now);
  TicketAnswer out;
  out.state = TicketState::kLoading;
  out.revision = recoveries_[index].revision;
  return out;
}

// The name is in use: the part goes on with its list, or begins another one.
Result<std::uint32_t> Recoveries::take_part(std::uint32_t index, const RecoveryPart& part, RecoveryPlan plan,
                                            TimePoint now) {
  Recovery& r = recoveries_[index];
  const bool collects = r.state == RecoveryState::kCollecting;
  const bool same_set = r.tail == part.tail && r.total == part.total;
  if (part.first != 0 && part.revision.value != 0 && part.revision != r.revision) return other_list();
  const std::uint32_t expected = collects ? r.next : r.again_next;
  if (part.first != 0 && (!same_set || part.first != expected)) return out_of_order(expected, part);
  if (collects && part.first != 0) {
    append(index, part, now);
    return index;
  }
  if (collects || !same_set || !recognise(r, part)) return replace(index, part, std::move(plan), now);
  if (r.prepared && !part.prepare) claim(index, now);
  if (r.again_next < r.total) return index;
  r.again_next = 0;
  if (r.state == RecoveryState::kMissed || r.prepared) return index;
  if (r.state == RecoveryState::kReady && !untouched(r)) return replace(index, part, std::move(plan), now);
  step(r.state, RecoveryEvent::kSameList);
  if (r.state == RecoveryState::kReady) deliver(index, now);
  return index;
}

bool Recoveries::recognise(Recovery& r, const RecoveryPart& part) const {
  for (std::size_t at = 0; at < part.hashes.size();) {
    const auto known = r.hashes.from(part.first + at, part.hashes.size() - at);
    if (known.empty() || !std::equal(known.begin(), known.end(), part.hashes.begin() + at)) return false;
    at += known.size();
  }
  r.again_next = part.first + static_cast<std::uint32_t>(part.hashes.size());
  return true;
}

// Nobody has consumed of it: its leases may be told again.
bool Recoveries::untouched(const Recovery& r) const {
  const auto whole = [&](LeaseIndex m) {
    const Lease* lease = p_.leases.member(m, r.revision);
    return lease != nullptr && lease->state == LeaseState::kReady;
  };
  return r.members_left == r.members.size() && std::all_of(r.members.begin(), r.members.end(), whole);
}

// Another list under the name. Its parts before this one were the same; the wait of an
// unfinished one goes on, so changing the list wins no time.
Result<std::uint32_t> Recoveries::replace(std::uint32_t index, const RecoveryPart& part, RecoveryPlan plan,
                                          TimePoint now) {
  Recovery& old = recoveries_[index];
  const bool goes_on =
      old.places.unfinished() && old.state != RecoveryState::kMissed && old.prepared == part.prepare;
  Begin begin{old.session, goes_on ? old.started : now, std::move(old.hashes), part.prepare};
  HashList rest = begin.kept.cut(part.first);
  p_.leftovers.take(rest);
  retire(index, RecoveryEvent::kCancel);
  ORBITKV_ASSIGN_OR_RETURN(const std::uint32_t fresh, start(std::move(begin), part, std::move(plan)));
  append(fresh, part, now);
  return fresh;
}

Result<std::uint32_t> Recoveries::start(Begin begin, const RecoveryPart& part, RecoveryPlan plan) {
  const auto groups = static_cast<std::uint32_t>(plan.size());
  const ByteCount list = std::uint64_t{part.total} * ByteCount(limits::kBlockHashBytes);
  ORBITKV_ASSIGN_OR_RETURN(
      Places places, p_.leases.places().take(p_.sessions.at(begin.session), {groups, list, begin.prepare}));
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(recoveries_.size()));
    recoveries_.emplace_back();
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Recovery& r = recoveries_[index];
  r = Recovery{};
  r.instance = part.instance;
  r.request_id = part.request_id;
  r.interest = part.interest;
  r.session = begin.session;
  r.state = RecoveryState::kCollecting;
  r.revision = p_.leases.next_revision();
  r.tail = part.tail;
  r.plan = std::move(plan);
  r.total = part.total;
  r.next = part.first;
  r.hashes = std::move(begin.kept);
  r.started = begin.started;
  r.prepared = begin.prepare;
  r.places = std::move(places);
  by_name_.emplace(Name{r.instance, r.request_id, r.interest}, index);
  deadlines_.set(index, Term::kCollect, r.started + std::max(config_.load_wait, kCollectAtLeast));
  return index;
}

void Recoveries::append(std::uint32_t index, const RecoveryPart& part, TimePoint now) {
  Recovery& r = recoveries_[index];
  r.hashes.add(part.hashes);
  r.next += static_cast<std::uint32_t>(part.hashes.size());
  if (r.next < r.total) return step(r.state, RecoveryEvent::kPart);
  deadlines_.set(index, Term::kWait, wait_end(r));
  const ByteCount bytes = bytes_of(r);
  const bool beyond_budget = bytes > p_.budgets.most(use_of(r));
  stats_.bypassed += beyond_budget && !r.prepared ? 1 : 0;
  if (beyond_budget || bytes > config_.pool) {
    return fail(index, {r.plan.front().group, Missing::kTooLarge}, now);
  }
  const Outcome outcome = p_.line.count() > 0 ? Outcome::kTotalFull : admit(index, now).outcome;
  if (outcome == Outcome::kInstanceFull || outcome == Outcome::kTotalFull) {
    no_room(index);
    p_.line.run(now);
  }
  p_.leases.pump(now);
  settle(now);
}

// One that is not in line.
void Recoveries::no_room(std::uint32_t index) {
  if (!recoveries_[index].prepared) return wait_in_line(index);
  ++p_.leases.places().prepared().gave_way;
  retire(index, RecoveryEvent::kCancel);
}

// Holds nothing while it waits.
void Recoveries::wait_in_line(std::uint32_t index) {
  Recovery& r = recoveries_[index];
  if (r.state == RecoveryState::kCollecting) step(r.state, RecoveryEvent::kNoRoom);
  ++stats_.budget_waits;
  r.place = p_.line.join({Waiter::Kind::kRecovery, index}, r.plan.front().target.account);
}

void Recoveries::leave_line(Recovery& r) {
  if (r.place == kNotWaiting) return;
  p_.line.leave(r.place);
  r.place = kNotWaiting;
}

// ---- ends ----

void Recoveries::end_members(Recovery& r) {
  for (const LeaseIndex m : r.members) p_.leases.end_member(m, r.revision);
  r.members.clear();
}

void Recoveries::retire(std::uint32_t index, RecoveryEvent event) {
  Recovery& r = recoveries_[index];
  leave_line(r);
  stop_taking(index);
  step(r.state, event);
  deadlines_.clear(index);
  end_members(r);
  p_.leases.places().give_back(std::move(r.places));
  by_name_.erase(by_name_.find(NameView{r.instance, r.request_id, r.interest}));
  p_.leftovers.take(r.hashes);
  free_.push_back(index);
}

void Recoveries::expire(TimePoint now) {
  for (std::uint32_t i = deadlines_.due(now); i != kNoLink; i = deadlines_.due(now)) end_due(i, now);
}

void Recoveries::end_due(std::uint32_t index, TimePoint now) {
  const Recovery& r = recoveries_[index];
  const GroupId first = r.plan.front().group;
  if (r.state == RecoveryState::kWaiting) {
    ++stats_.budget_misses;
    return fail(index, {first, Missing::kNoMemory}, now);
  }
  if (r.state == RecoveryState::kTaking && r.miss.why != Missing::kNone) return fail(index, r.miss, now);
  if (r.state == RecoveryState::kLoading || r.state == RecoveryState::kTaking)
    return fail(index, {slowest(r), Missing::kTimeout}, now);
  if (r.prepared) {
    ++p_.leases.places().prepared().unclaimed;
  } else if (r.state != RecoveryState::kCollecting) {
    ++stats_.undelivered;
  }
  retire(index, RecoveryEvent::kExpire);
}

// The first group that is not all there.
GroupId Recoveries::slowest(const Recovery& r) const {
  for (std::size_t i = 0; i < r.members.size(); ++i) {
    if (p_.leases.member(r.members[i], r.revision)->pending > 0) return r.plan[i].group;
  }
  return r.plan.front().group;
}

Result<std::uint32_t> Recoveries::find(SessionId session, const TicketName& ticket) const {
  const auto it = by_name_.find(NameView{ticket.instance, ticket.request_id, ticket.interest});
  if (it == by_name_.end()) return kNoLink;
  const SessionId owner = recoveries_[it->second].session;
  if (owner == session) return it->second;
  return reject(
      format_text("the recovery belongs to session %u; only that one may ask about it", owner.value));
}

Result<TicketAnswer> Recoveries::poll(SessionId session, const TicketName& ticket, Revision revision,
                                      TimePoint now) {
  expire(now);
  settle(now);
  ORBITKV_ASSIGN_OR_RETURN(const std::uint32_t index, find(session, ticket));
  if (index == kNoLink || recoveries_[index].revision != revision) return TicketAnswer{};
  return tell(index, now);
}

Status Recoveries::cancel(SessionId session, const TicketName& ticket, Revision revision) {
  ORBITKV_ASSIGN_OR_RETURN(const std::uint32_t index, find(session, ticket));
  if (index == kNoLink) return ok_status();
  if (revision.value == 0 || recoveries_[index].revision == revision) retire(index, RecoveryEvent::kCancel);
  return ok_status();
}

void Recoveries::end_session(SessionId session) {
  for (std::uint32_t i = 0; i < recoveries_.size(); ++i) {
    const Recovery& r = recoveries_[i];
    if (r.state != RecoveryState::kRetired && r.session == session) retire(i, RecoveryEvent::kCancel);
  }
}

void Recoveries::end_instance(const InstanceId& instance) {
  for (std::uint32_t i = 0; i < recoveries_.size(); ++i) {
    const Recovery& r = recoveries_[i];
    if (r.state != RecoveryState::kRetired && r.instance == instance) retire(i, RecoveryEvent::kCancel);
  }
}

// ---- answers ----

TicketAnswer Recoveries::hold(const TicketName& ticket, Revision revision, TimePoint now) {
  const auto it = by_name_.find(NameView{ticket.instance, ticket.request_id, ticket.interest});
  TicketAnswer answer;
  if (it == by_name_.end()) return answer;
  const Recovery& r = recoveries_[it->second];
  const bool whole = r.state == RecoveryState::kReady && r.members_left == r.members.size();
  if (r.revision != revision || !whole) return answer;
  answer.state = TicketState::kReady;
  answer.again = r.delivered;
  if (!r.delivered) deliver(it->second, now);
  for (std::size_t i = 0; i < r.members.size(); ++i) {
    p_.leases.hold(r.members[i]);
    answer.leases.push_back(
        {r.plan[i].group, r.plan[i].count, p_.leases.member(r.members[i], r.revision)->id});
  }
  return answer;
}

void Recoveries::deliver(std::uint32_t index, TimePoint now) {
  Recovery& r = recoveries_[index];
  r.delivered = true;
  deadlines_.clear(index);
  for (const LeaseIndex m : r.members) p_.leases.deliver(m, now);
}

// Once somebody has consumed of it, it is not told again: never the leases of some groups.
TicketAnswer Recoveries::tell(std::uint32_t index, TimePoint now) {
  const Recovery& r = recoveries_[index];
  TicketAnswer answer;
  answer.revision = r.revision;
  if (r.prepared) {
    answer.state = TicketState::kLoading;
  } else if (r.state == RecoveryState::kReady) {
    if (r.interest ? r.members_left < r.members.size() : !untouched(r)) return answer;
    answer.state = TicketState::kReady;
    answer.again = r.delivered;
    if (r.interest) return answer;  // hold() tells it
    if (!r.delivered) deliver(index, now);
    for (std::size_t i = 0; i < r.members.size(); ++i) {
      answer.leases.push_back(
          {r.plan[i].group, r.plan[i].count, p_.leases.member(r.members[i], r.revision)->id});
    }
  } else if (r.state == RecoveryState::kMissed) {
    answer.state = TicketState::kMissing;
    answer.why = r.miss.why;
    answer.missing = r.miss.group;
    retire(index, RecoveryEvent::kTold);
  } else {
    answer.state = TicketState::kLoading;
    answer.admitted = r.state != RecoveryState::kWaiting;
  }
  return answer;
}

}  // namespace orbitkv::cache
