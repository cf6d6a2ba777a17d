#include "cache/tickets.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::cache {

Status TicketCounts::open(Session& session) {
  if (session.tickets == limits::kTicketsPerSession) {
    return busy(format_text("%u queries of this session are unfinished; poll them, cancel some, or wait",
                            limits::kTicketsPerSession));
  }
  const bool reserved = session.tickets < limits::kReservedTickets;
  if (!reserved && shared_ == limits::kTickets - limits::kReservedTickets * limits::kSessions) {
    return busy(
        format_text("this host has %u unfinished queries, and %u of them are of this session; poll "
                    "them, cancel some, or wait",
                    all_, session.tickets));
  }
  shared_ += reserved ? 0 : 1;
  ++session.tickets;
  ++all_;
  return ok_status();
}

void TicketCounts::close(Session& session) {
  ORBITKV_CHECK(session.tickets > 0 && all_ > 0, "a ticket ends twice");
  shared_ -= session.tickets > limits::kReservedTickets ? 1 : 0;
  --session.tickets;
  --all_;
}

Status PreparedCounts::open(Session& session) {
  if (session.prepared == limits::kPreparesPerSession) {
    return busy(
        format_text("%u preparations of this session wait to be claimed; claim or cancel some, or wait",
                    limits::kPreparesPerSession));
  }
  ++session.prepared;
  ++all_;
  ++begun;
  return ok_status();
}

void PreparedCounts::close(Session& session) {
  ORBITKV_CHECK(session.prepared > 0 && all_ > 0, "a preparation ends twice");
  --session.prepared;
  --all_;
}

void Deadlines::set(std::uint32_t index, Term term, TimePoint at) {
  if (nodes_.size() <= index) nodes_.resize(index + 1);
  clear(index);
  List& list = lists_[static_cast<std::size_t>(term)];
  std::uint32_t before = list.newest;
  while (before != kNoLink && nodes_[before].at > at) before = nodes_[before].older;
  const std::uint32_t after = before == kNoLink ? list.oldest : nodes_[before].newer;
  nodes_[index] = {at, term, before, after};
  (before == kNoLink ? list.oldest : nodes_[before].newer) = index;
  (after == kNoLink ? list.newest : nodes_[after].older) = index;
}

void Deadlines::clear(std::uint32_t index) {
  if (index >= nodes_.size() || nodes_[index].term == Term::kCount) return;
  Node& n = nodes_[index];
  List& list = lists_[static_cast<std::size_t>(n.term)];
  (n.older == kNoLink ? list.oldest : nodes_[n.older].newer) = n.newer;
  (n.newer == kNoLink ? list.newest : nodes_[n.newer].older) = n.older;
  n.term = Term::kCount;
}

std::uint32_t Deadlines::due(TimePoint now) const {
  for (const List& list : lists_) {
    if (list.oldest != kNoLink && nodes_[list.oldest].at <= now) return list.oldest;
  }
  return kNoLink;
}

}  // namespace orbitkv::cache
