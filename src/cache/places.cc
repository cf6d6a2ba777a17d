#include "cache/places.h"

#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::cache {

Places& Places::operator=(Places&& other) noexcept {
  ORBITKV_CHECK(!open(), "places are overwritten before they are given back");
  session_ = std::exchange(other.session_, nullptr);
  leases_ = std::exchange(other.leases_, 0);
  ticket_ = std::exchange(other.ticket_, Ticket::kNone);
  prepared_ = std::exchange(other.prepared_, false);
  list_ = std::move(other.list_);
  return *this;
}

Places::~Places() {
  ORBITKV_CHECK(!open(), "places of a query are lost");
}

Error metadata_full(const mem::Budget& budget) {
  return busy(
      format_text("hash and page lists of this session take %llu of %llu bytes; release leases or wait",
                  static_cast<unsigned long long>(budget.used().value),
                  static_cast<unsigned long long>(budget.limit().value)));
}

Status PlaceCounts::reserve(Session& session, std::uint32_t leases) {
  if (session.queries + leases > limits::kQueriesPerSession) {
    return busy(
        format_text("%u queries of this session hold leases; release or cancel some", session.queries));
  }
  if (leases_ + leases > limits::kLeases) {
    return busy(format_text("%u leases are held on this host; release some", leases_));
  }
  session.queries += leases;
  leases_ += leases;
  return ok_status();
}

// What it has got so far goes back with the token.
Result<Places> PlaceCounts::take(Session& session, const Want& want) {
  ORBITKV_RETURN_IF_ERROR(reserve(session, want.leases));
  Places places;
  places.session_ = &session;
  places.leases_ = want.leases;
  Status status = replace_list(places, want.list);
  if (status.ok()) status = reopen(places);
  if (status.ok() && want.prepare) {
    status = prepared_.open(session);
    places.prepared_ = status.ok();
  }
  if (status.ok()) return places;
  give_back(std::move(places));
  return status.error();
}

void PlaceCounts::give_back(Places places) {
  if (!places.open()) return;
  finish(places);
  end_preparation(places);
  Session& session = *std::exchange(places.session_, nullptr);
  if (places.list_.open()) session.metadata->release(std::move(places.list_));
  session.queries -= places.leases_;
  leases_ -= places.leases_;
}

Status PlaceCounts::reopen(Places& places) {
  if (places.ticket_ == Places::Ticket::kMissed) --missed_;
  if (places.ticket_ == Places::Ticket::kNone) ORBITKV_RETURN_IF_ERROR(tickets_.open(*places.session_));
  places.ticket_ = Places::Ticket::kWaits;
  return ok_status();
}

Status PlaceCounts::replace_list(Places& places, ByteCount list) {
  mem::Budget& budget = *places.session_->metadata;
  if (places.list_.open()) budget.release(std::move(places.list_));
  auto bytes = budget.reserve(list);
  if (!bytes) return metadata_full(budget);
  places.list_ = std::move(*bytes);
  return ok_status();
}

void PlaceCounts::shrink_list(Places& places, ByteCount to) {
  places.session_->metadata->shrink(places.list_, to);
}

void PlaceCounts::finish(Places& places) {
  if (places.ticket_ == Places::Ticket::kNone) return;
  if (places.ticket_ == Places::Ticket::kMissed) --missed_;
  places.ticket_ = Places::Ticket::kNone;
  tickets_.close(*places.session_);
}

void PlaceCounts::miss(Places& places) {
  ORBITKV_CHECK(places.ticket_ == Places::Ticket::kWaits, "a query without a ticket misses");
  places.ticket_ = Places::Ticket::kMissed;
  ++missed_;
}

void PlaceCounts::end_preparation(Places& places) {
  if (!std::exchange(places.prepared_, false)) return;
  prepared_.close(*places.session_);
}

}  // namespace orbitkv::cache
