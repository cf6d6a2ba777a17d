#include "cache/interests.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "base/text.h"

namespace orbitkv::cache {

namespace {

constexpr InterestPhase kPhases[] = {
    InterestPhase::kCollecting, InterestPhase::kAcquiring, InterestPhase::kAcquired, InterestPhase::kMissing,
    InterestPhase::kClaimed,    InterestPhase::kEnded,     InterestPhase::kClosed};

unsigned long long number(std::uint64_t value) {
  return value;
}

ListDigest digest_of(std::span<const BlockHash> hashes) {
  ListDigest digest;
  for (const BlockHash& hash : hashes) {
    std::array<std::uint64_t, 4> words{};
    std::memcpy(words.data(), hash.bytes.data(), sizeof words);
    for (const std::uint64_t word : words) digest.add(word);
  }
  return digest;
}

}  // namespace

// ---- submit ----

Status Interests::check_submit(const InterestPart& part) const {
  if (part.name.interest.value == 0) return reject("an interest has an id above 0");
  const std::uint32_t operation = part.name.operation.value;
  if (operation == 0 || operation > limits::kInterestOperations) {
    return reject(format_text("operation %u; an interest has operations 1 to %u: close it and begin another",
                              operation, limits::kInterestOperations));
  }
  if (part.hashes.empty() || part.first > part.total || part.hashes.size() > part.total - part.first)
    return reject(format_text("part [%u, +%zu) does not lie in a list of %u", part.first, part.hashes.size(),
                              part.total));
  return ok_status();
}

Result<Interests::Entry> Interests::open(SessionId session, const InterestPart& part, TimePoint when) {
  const Instance* instance = p_.instances.find_instance(part.name.instance);
  const InterestAuthority now = authority_of(*instance);
  if (part.authority && part.authority != now) return stale(part.authority, now);
  if (!ids_[session.value].fresh(part.name.interest, part.name.operation)) {
    return reject(
        format_text("interest %llu was closed, made room for another, or is %u ids behind the newest; begin "
                    "one with a new, higher id",
                    number(part.name.interest.value), limits::kInterestWindow));
  }
  ORBITKV_RETURN_IF_ERROR(make_room(session, part.name.instance, when));
  ids_[session.value].spend(part.name.interest);
  Interest fresh;
  fresh.instance = part.name.instance;
  fresh.authority = now;
  const Entry entry = interests_.emplace(Key{session, part.name.interest}, std::move(fresh)).first;
  enter(entry);
  return entry;
}

Result<InterestAnswer> Interests::submit(SessionId session, const InterestPart& part, Asked asked,
                                         TimePoint now) {
  ORBITKV_RETURN_IF_ERROR(check_submit(part));
  auto entry = interests_.find({session, part.name.interest});
  if (entry == interests_.end()) {
    if (part.first != 0) return InterestAnswer{};
    ORBITKV_ASSIGN_OR_RETURN(entry, open(session, part, now));
  }
  Interest& interest = entry->second;
  if (interest.instance != part.name.instance) return reject("the interest is of another instance");
  ORBITKV_RETURN_IF_ERROR(check_authority(entry, part.authority));
  touch(entry, now);
  look(entry, now);
  const bool newer = part.name.operation > interest.operation;
  if (part.name.operation < interest.operation || (newer && part.first != 0))
    return answer(entry, part.name.operation);
  if (newer) {
    ORBITKV_RETURN_IF_ERROR(begin(entry, part));
  } else {
    ORBITKV_ASSIGN_OR_RETURN(const Order order, order_of(interest, part));
    if (order != Order::kNext || interest.state != InterestState::kCollecting)
      return answer(entry, part.name.operation);
  }
  if (Status done = ask(entry, part, std::move(asked), now); !done.ok()) {
    end(entry, InterestEvent::kLost);
    return done.error();
  }
  return answer(entry, part.name.operation);
}

// The newest operation from now on; what the one before holds goes back first.
Status Interests::begin(Entry entry, const InterestPart& part) {
  Interest& interest = entry->second;
  if (interest.state == InterestState::kClaimed) {
    return reject(format_text("operation %u of the interest is claimed; close it, and submit under another",
                              interest.operation.value));
  }
  give_back(entry);
  pass(entry, InterestEvent::kNewer);
  ++stats_.operations;
  interest.operation = part.name.operation;
  interest.group = part.group;
  interest.tail = part.tail;
  interest.total = part.total;
  interest.blocks = 0;
  interest.revision = {};
  interest.admitted = true;
  interest.why = Missing::kNone;
  interest.missing = {};
  interest.parts.clear();
  return ok_status();
}

// Whether the part was taken before, or is the next one to be. One that is ahead of its turn is not
// taken: the answer says how far the list is.
Result<Interests::Order> Interests::order_of(const Interest& interest, const InterestPart& part) {
  const std::uint32_t next = interest.parts.empty() ? 0 : interest.parts.back().next;
  const bool same =
      part.total == interest.total && part.group == interest.group && part.tail == interest.tail;
  const auto end = part.first + static_cast<std::uint32_t>(part.hashes.size());
  if (interest.parts.empty()) return Order::kBefore;  // it has ended, and its list is not kept
  if (same && part.first > next) return Order::kAhead;
  if (same && part.first == next) {
    if (interest.parts.size() < limits::kInterestParts) return Order::kNext;
    return reject(format_text("a list of more than %u parts; send larger ones", limits::kInterestParts));
  }
  std::uint32_t begins = 0;
  for (const Taken& taken : interest.parts) {
    const bool there = same && begins == part.first && taken.next == end;
    if (there && taken.digest == digest_of(part.hashes)) return Order::kBefore;
    begins = taken.next;
  }
  return reject(format_text("operation %u was submitted with another list; submit this one as a higher one",
                            interest.operation.value));
}

Status Interests::ask(Entry entry, const InterestPart& part, Asked asked, TimePoint now) {
  const Status done = part.tail ? ask_recovery(entry, part, std::move(asked.plan), now)
                                : ask_prefix(entry, part, asked.target, now);
  const auto next = part.first + static_cast<std::uint32_t>(part.hashes.size());
  if (done.ok()) entry->second.parts.push_back({next, digest_of(part.hashes)});
  return done;
}

Status Interests::ask_prefix(Entry entry, const InterestPart& part, const Leases::Target& target,
                             TimePoint now) {
  Interest& interest = entry->second;
  QueryPart query;
  query.instance = interest.instance;
  query.group = interest.group;
  query.mode = QueryMode::kInterest;
  query.request_id = ticket(entry).request_id;
  query.first = part.first;
  query.total = part.total;
  query.hashes = part.hashes;
  query.revision = interest.revision;
  ORBITKV_ASSIGN_OR_RETURN(const QueryAnswer found, p_.leases.query(entry->first.first, query, target, now));
  interest.revision = found.revision;
  if (part.first + part.hashes.size() < part.total) {
    pass(entry, InterestEvent::kPart);
  } else if (found.hit_blocks == 0) {
    interest.why = found.why;
    pass(entry, InterestEvent::kMiss);
  } else {
    interest.admitted = found.admitted;
    interest.blocks = found.loading ? 0 : found.hit_blocks;
    pass(entry, found.loading ? InterestEvent::kLoads : InterestEvent::kReady);
  }
  return ok_status();
}

Status Interests::ask_recovery(Entry entry, const InterestPart& part, RecoveryPlan plan, TimePoint now) {
  Interest& interest = entry->second;
  RecoveryPart query;
  query.instance = interest.instance;
  query.request_id = ticket(entry).request_id;
  query.tail = *interest.tail;
  query.first = part.first;
  query.total = part.total;
  query.hashes = part.hashes;
  query.revision = interest.revision;
  query.interest = true;
  ORBITKV_ASSIGN_OR_RETURN(const TicketAnswer found,
                           p_.recoveries.read(entry->first.first, query, std::move(plan), now));
  interest.revision = found.revision;
  if (part.first + part.hashes.size() < part.total) {
    pass(entry, InterestEvent::kPart);
  } else if (found.state == TicketState::kLoading) {
    interest.admitted = found.admitted;
    pass(entry, InterestEvent::kLoads);
  } else {
    settle(entry, found);
  }
  return ok_status();
}

// ---- what has become of it ----

// Of the query or recovery that is under the interest's name.
TicketName Interests::ticket(Entry entry) {
  std::memcpy(name_.data(), &entry->first.first.value, 4);
  std::memcpy(name_.data() + 4, &entry->first.second.value, 8);
  const Interest& interest = entry->second;
  return {interest.instance, interest.tail ? GroupId() : interest.group,
          std::string_view(name_.data(), name_.size()),
          interest.tail ? TicketKind::kRecovery : TicketKind::kPrefix, true};
}

void Interests::settle(Entry entry, const TicketAnswer& found) {
  Interest& interest = entry->second;
  if (found.state == TicketState::kReady) {
    interest.blocks = interest.tail ? interest.total : found.hit_blocks;
    pass(entry, InterestEvent::kReady);
  } else if (found.state == TicketState::kMissing) {
    interest.why = found.why;
    interest.missing = found.missing;
    pass(entry, InterestEvent::kMiss);
  } else {
    ++stats_.lost;
    pass(entry, InterestEvent::kLost);
  }
}

void Interests::look(Entry entry, TimePoint now) {
  Interest& interest = entry->second;
  if (!holds(interest.state)) return;
  const TicketName name = ticket(entry);
  const auto found = interest.tail ? p_.recoveries.poll(entry->first.first, name, interest.revision, now)
                                   : p_.leases.poll(entry->first.first, name, interest.revision, now);
  ORBITKV_CHECK(found.ok(), "an interest's query is of its session");
  if (found->state == TicketState::kLoading) {
    interest.admitted = found->admitted;
    return;
  }
  const InterestState before = interest.state;
  if (found->state == TicketState::kUnknown) {
    ++stats_.lost;
    end(entry, InterestEvent::kLost);
  } else if (interest.state == InterestState::kAcquiring) {
    settle(entry, *found);
  }
  if (interest.state != before) touch(entry, now);
}

// ---- ends ----

void Interests::give_back(Entry entry) {
  const Interest& interest = entry->second;
  if (interest.revision.value == 0) return;
  const TicketName name = ticket(entry);
  const Status ended = interest.tail ? p_.recoveries.cancel(entry->first.first, name, {})
                                     : p_.leases.cancel(entry->first.first, name, {});
  ORBITKV_CHECK(ended.ok(), "an interest's query is of its session");
}

void Interests::end(Entry entry, InterestEvent event) {
  give_back(entry);
  pass(entry, event);
  entry->second.blocks = 0;
  entry->second.revision = {};
  std::vector<Taken>().swap(entry->second.parts);
}

void Interests::give_up(Entry entry) {
  if (holds(entry->second.state)) end(entry, InterestEvent::kLost);
}

void Interests::end_session(SessionId session) {
  auto entry = interests_.lower_bound({session, InterestId()});
  while (entry != interests_.end() && entry->first.first == session) {
    end(entry, InterestEvent::kClose);
    leave(entry);
    entry = interests_.erase(entry);
  }
  ids_[session.value] = {};
}

void Interests::expire(TimePoint now) {
  for (auto entry = interests_.begin(); entry != interests_.end();) {
    look(entry, now);
    const bool held = holds(entry->second.state);
    const bool idle = held && now >= entry->second.touched + config_.idle;
    if (idle || (held && !stands(entry->second))) {
      ++stats_.lost;
      end(entry, InterestEvent::kLost);
      touch(entry, now);
    }
    const bool over = !holds(entry->second.state) && now >= entry->second.touched + config_.forget;
    entry = over ? forget(entry) : std::next(entry);
  }
}

// ---- calls ----

InterestAnswer Interests::answer(Entry entry, InterestOperation asked) const {
  const Interest& interest = entry->second;
  InterestAnswer out;
  out.authority = interest.authority;
  out.operation = interest.operation;
  if (asked != interest.operation) return out;
  out.phase = kPhases[static_cast<std::size_t>(interest.state)];
  const bool collecting = interest.state == InterestState::kCollecting;
  out.blocks = collecting && !interest.parts.empty() ? interest.parts.back().next : interest.blocks;
  out.admitted = interest.admitted || interest.state != InterestState::kAcquiring;
  if (interest.state == InterestState::kMissed) {
    out.why = interest.why;
    out.missing = interest.missing;
  }
  return out;
}

Result<InterestAnswer> Interests::call(SessionId session, const InterestCall& call, TimePoint now) {
  const auto entry = interests_.find({session, call.name.interest});
  if (call.verb == InterestVerb::kClose) return close(session, call.name.interest);
  InterestAnswer nothing;
  if (entry == interests_.end()) {
    const Instance* instance = p_.instances.find_instance(call.name.instance);
    if (instance != nullptr && instance->complete()) nothing.authority = authority_of(*instance);
    return nothing;
  }
  if (entry->second.instance != call.name.instance) return reject("the interest is of another instance");
  touch(entry, now);
  look(entry, now);
  if (call.verb == InterestVerb::kCancel) return cancel(entry, call.name.operation);
  ORBITKV_RETURN_IF_ERROR(check_authority(entry, call.authority));
  const bool newest = call.name.operation == entry->second.operation;
  if (call.verb == InterestVerb::kClaim && newest) return claim(entry, call, now);
  return answer(entry, call.name.operation);
}

// Whatever the id is of: a submit that comes later finds it used.
InterestAnswer Interests::close(SessionId session, InterestId id) {
  InterestAnswer out;
  out.phase = InterestPhase::kClosed;
  const auto entry = interests_.find({session, id});
  if (id.value != 0) ids_[session.value].spend(id);
  if (entry == interests_.end()) return out;
  out.authority = entry->second.authority;
  out.operation = entry->second.operation;
  end(entry, InterestEvent::kClose);
  leave(entry);
  interests_.erase(entry);
  return out;
}

// Operations up to this one are spent, also those whose submit has not come yet.
InterestAnswer Interests::cancel(Entry entry, InterestOperation operation) {
  Interest& interest = entry->second;
  if (operation >= interest.operation && operation.value <= limits::kInterestOperations) {
    end(entry, InterestEvent::kCancel);
    interest.operation = operation;
  }
  return answer(entry, operation);
}

TicketAnswer Interests::hold(Entry entry, std::uint32_t blocks, TimePoint now) {
  const TicketName name = ticket(entry);
  const Revision revision = entry->second.revision;
  return entry->second.tail ? p_.recoveries.hold(name, revision, now)
                            : p_.leases.hold(name, revision, blocks, now);
}

// What is not acquired is told as it is, and nothing becomes of it.
Result<InterestAnswer> Interests::claim(Entry entry, const InterestCall& call, TimePoint now) {
  Interest& interest = entry->second;
  const bool acquired = interest.state == InterestState::kAcquired;
  if (!acquired && interest.state != InterestState::kClaimed) return answer(entry, call.name.operation);
  const bool shorter = acquired && !interest.tail && call.blocks > 0 && call.blocks < interest.blocks;
  if (call.blocks != interest.blocks && !shorter) {
    return reject(
        format_text("a claim of %u blocks, and %u are %s; a prefix that is acquired may be claimed in "
                    "part, and nothing else",
                    call.blocks, interest.blocks, acquired ? "acquired" : "claimed"));
  }
  TicketAnswer held = hold(entry, call.blocks, now);
  ORBITKV_CHECK(held.state == TicketState::kReady, "what was just looked at is there");
  stats_.claims += acquired ? 1 : 0;
  pass(entry, InterestEvent::kClaim);
  interest.blocks = call.blocks;
  InterestAnswer out = answer(entry, call.name.operation);
  out.leases = std::move(held.leases);
  return out;
}

InterestStats Interests::stats() const {
  InterestStats out = stats_;
  out.interests = static_cast<std::uint32_t>(interests_.size());
  return out;
}

}  // namespace orbitkv::cache
