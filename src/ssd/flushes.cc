#include "ssd/flushes.h"

#include "base/limits.h"

namespace orbitkv::ssd {

Result<TransferId> Flushes::begin() {
  if (tickets_.size() >= limits::kStoreFlushes) {
    return busy(std::to_string(limits::kStoreFlushes) +
                " flushes of the SSD store are under way; wait for one");
  }
  writer_.hurry();
  tickets_.push_back({state_.next_transfer(), state_.next_record(), false});
  return tickets_.back().transfer;
}

bool Flushes::written(const Ticket& ticket) const {
  const auto oldest = writer_.oldest();
  if (oldest && *oldest < ticket.last) return false;
  // Those that find no segment would wait for ever.
  return !tombstones_.in_flight() && (!tombstones_.pending() || !writer_.room_for_store());
}

void Flushes::step() {
  for (auto at = tickets_.begin(); at != tickets_.end();) {
    const auto ticket = at++;
    if (ticket->syncing || !written(*ticket)) continue;
    ticket->syncing = true;
    const bool buried = !tombstones_.pending();
    durability_.sync_all([this, ticket, buried](bool ok) {
      state_.report(
          {StoreEvent::Kind::kFlushed, ticket->transfer, ok && buried, Refusal::kNone, Loss::kNone});
      tickets_.erase(ticket);
    });
  }
}

}  // namespace orbitkv::ssd
