// How leases and queries end, and what polls are told.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/text.h"
#include "cache/leases.h"

namespace orbitkv::cache {

namespace {

constexpr std::size_t kKeptRecords = 1024;  // of a recycled object

}  // namespace

// ---- ends ----

Lease* Leases::find(const LeaseId& id) {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &leases_[it->second];
}

Lease* Leases::find(const LeaseId& id, TimePoint now) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return nullptr;
  end_if_due(it->second, now);
  return find(id);
}

std::uint32_t Leases::named(const QueryNameView& name, TimePoint now) {
  auto it = by_name_.find(name);
  if (it == by_name_.end()) return kNoLink;
  end_if_due(it->second, now);
  it = by_name_.find(name);
  return it == by_name_.end() ? kNoLink : it->second;
}

void Leases::consume(Lease& lease, std::uint16_t rank, std::uint32_t blocks) {
  std::uint32_t& consumed = lease.consumed.at(rank);
  consumed += blocks;
  ORBITKV_CHECK(consumed <= lease.hits, "a rank consumed more than the lease holds");
  if (consumed == lease.hits && --lease.ranks_left == 0 && !lease.held) {
    retire(index_of(lease), LeaseEvent::kConsumeLast);
  } else {
    step(lease.state, LeaseEvent::kConsume);
  }
}

void Leases::release(Lease& lease) {
  retire(index_of(lease), LeaseEvent::kRelease);
}

Status Leases::cancel(SessionId session, const TicketName& ticket, Revision revision) {
  for (const QueryMode mode : {QueryMode::kDiscover, QueryMode::kRead, QueryMode::kInterest}) {
    if (ticket.interest != (mode == QueryMode::kInterest)) continue;
    const auto it = by_name_.find(QueryNameView{ticket.instance, ticket.group, mode, ticket.request_id});
    if (it == by_name_.end()) continue;
    const Lease& lease = leases_[it->second];
    if (lease.session != session) {
      return reject(
          format_text("the query belongs to session %u; only that one may cancel it", lease.session.value));
    }
    if (revision.value == 0 || revision == lease.revision) retire(it->second, LeaseEvent::kCancel);
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

// ---- deadlines ----

void Leases::expire(TimePoint now) {
  std::uint32_t ends = 0;
  for (std::uint32_t i = deadlines_.due(now); i != kNoLink; i = deadlines_.due(now)) {
    expires_ = ends++ == limits::kEndsPerTurn;
    if (expires_) return;
    end_due(i, now);
  }
  expires_ = false;
}

void Leases::end_if_due(std::uint32_t index, TimePoint now) {
  if (deadlines_.over(index, now)) end_due(index, now);
}

void Leases::end_due(std::uint32_t index, TimePoint now) {
  const Lease& lease = leases_[index];
  if (lease.state == LeaseState::kLoading) return time_out(index, now);
  if (lease.state == LeaseState::kTaking) return end_taking(index, now);
  if (lease.awaits) return give_up_on_publisher(index, now);
  if (lease.state == LeaseState::kWaiting) return end_wait(index, now);
  if (lease.prepared) {
    ++places_.prepared().unclaimed;
  } else if (lease.state == LeaseState::kCollecting) {
    ++stats_.wait_timeouts;
  } else {
    ++(lease.delivered ? stats_.expired : stats_.undelivered);
  }
  retire(index, LeaseEvent::kExpire);
}

void Leases::collect(std::uint32_t index) {
  const Duration wait = std::max(config_.load_wait, kCollectAtLeast);
  deadlines_.set(index, Term::kCollect, leases_[index].started + wait);
}

void Leases::deliver(LeaseIndex index, TimePoint now) {
  leases_[index.value].delivered = true;
  deadlines_.set(index.value, Term::kLease, now + config_.ttl);
}

// ---- polls ----

Result<TicketAnswer> Leases::poll(SessionId session, const TicketName& ticket, Revision revision,
                                  TimePoint now) {
  expire(now);
  const QueryMode mode = ticket.interest ? QueryMode::kInterest : QueryMode::kRead;
  const std::uint32_t index =
      named(QueryNameView{ticket.instance, ticket.group, mode, ticket.request_id}, now);
  if (index == kNoLink) return TicketAnswer{};
  const Lease& lease = leases_[index];
  if (lease.session != session) {
    return reject(
        format_text("the query belongs to session %u; only that one may poll it", lease.session.value));
  }
  return lease.revision == revision ? tell(index, now) : TicketAnswer{};
}

TicketAnswer Leases::tell(std::uint32_t index, TimePoint now) {
  const Lease& lease = leases_[index];
  TicketAnswer answer;
  answer.state = TicketState::kLoading;
  answer.hit_blocks = lease.hits;
  answer.revision = lease.revision;
  answer.admitted = lease.state != LeaseState::kWaiting;
  if (lease.state == LeaseState::kMissed) {
    answer.state = TicketState::kMissing;
    answer.why = why_of(lease);
    retire(index, LeaseEvent::kTold);
  } else if (lease.id && !lease.prepared) {
    answer.state = TicketState::kReady;
    answer.again = lease.delivered;
    if (lease.name.mode == QueryMode::kInterest) return answer;  // hold() tells it
    answer.leases = {{lease.name.group, lease.hits, lease.id}};
    if (!lease.delivered) deliver(LeaseIndex(index), now);
  }
  return answer;
}

TicketAnswer Leases::hold(const TicketName& ticket, Revision revision, std::uint32_t blocks, TimePoint now) {
  const std::uint32_t index =
      named(QueryNameView{ticket.instance, ticket.group, QueryMode::kInterest, ticket.request_id}, now);
  if (index == kNoLink || leases_[index].revision != revision || !leases_[index].id) return {};
  Lease& lease = leases_[index];
  if (blocks < lease.hits && !lease.held) {
    cut(index, blocks, now);
    places_.shrink_list(lease.places, blocks * ByteCount(sizeof(RecordId)));
  }
  lease.held = true;
  TicketAnswer answer;
  answer.state = TicketState::kReady;
  answer.again = lease.delivered;
  answer.hit_blocks = lease.hits;
  answer.leases = {{lease.name.group, lease.hits, lease.id}};
  if (!lease.delivered) deliver(LeaseIndex(index), now);
  return answer;
}

// ---- counts and pins ----

std::uint32_t Leases::count(const InstanceId& instance) const {
  const auto holds = [&](const Lease& l) { return l.id && l.name.instance == instance; };
  return static_cast<std::uint32_t>(std::count_if(leases_.begin(), leases_.end(), holds));
}

// What nobody else waits for goes back at once, or is charged to the lease's account until the
// tier has ended it.
void Leases::leave_loads(std::uint32_t index, std::size_t kept) {
  Lease& lease = leases_[index];
  std::vector<std::uint32_t>& places = lease.waits.places;
  for (; !places.empty() && places.back() >= kept; places.pop_back()) {
    const RecordId record = lease.records[places.back()];
    if (!images_.loading(record)) continue;
    loads_.leave(record, LeaseIndex(index), lease.account);
    --lease.pending;
  }
  lease.waits.told = std::min(lease.waits.told, places.size());
}

// The pins from `kept` on and their charge, which go back together. Reads that go on are charged for
// themselves, in the place of what goes back at once.
void Leases::unpin_from(std::uint32_t index, std::size_t kept, ChargeIndex charge) {
  Lease& lease = leases_[index];
  const std::size_t pins = lease.records.size() - std::min(kept, lease.records.size());
  if (leftovers_.fits(pins) && charge != kNoCharge) budgets_.drop(std::exchange(charge, kNoCharge));
  if (pins == 0) return;
  leave_loads(index, kept);
  leftovers_.take(lease.records, {kept, use_of(lease), charge});
}

// Its hold on the charge and its pins. Restores may hold that charge on: its reads are charged
// for themselves, for one may end before what it waits for.
void Leases::give_up(std::uint32_t index) {
  unpin_from(index, 0, std::exchange(leases_[index].charge, kNoCharge));
}

void Leases::retire(std::uint32_t index, LeaseEvent event) {
  Lease& lease = leases_[index];
  leave_line(lease);
  stop_awaiting(index);
  stop_taking(index);
  step(lease.state, event);
  deadlines_.clear(index);
  give_up(index);
  forget_kept(lease);
  if (lease.records.capacity() > kKeptRecords) std::vector<RecordId>().swap(lease.records);
  if (lease.waits.places.capacity() > kKeptRecords) std::vector<std::uint32_t>().swap(lease.waits.places);
  if (lease.id) {
    by_id_.erase(lease.id);
    lease.id = {};
    --stats_.leases;
  }
  free_.push_back(index);
  if (lease.recovery != kNoRecovery) {
    member_events_.push_back({MemberEvent::Kind::kEnded, lease.recovery, lease.revision, lease.name.group});
    return;
  }
  if (lease.warm) return;
  places_.give_back(std::move(lease.places));
  by_name_.erase(by_name_.find(lease.name));
}

}  // namespace orbitkv::cache
