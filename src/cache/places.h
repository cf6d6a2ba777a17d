// What a query holds of the bounds of its session and of the host: places for its leases, bytes
// for its list, a ticket until it has its result, a preparation until somebody asks for it.
// Places are taken all or none, and given back once; a token that dies open stops the daemon.
// Owned by cache/leases.h, for queries and recoveries; core thread. Knows nothing of what is leased.
#pragma once

#include <cstdint>
#include <utility>

#include "base/ids.h"
#include "base/result.h"
#include "cache/sessions.h"
#include "cache/tickets.h"
#include "mem/budget.h"

namespace orbitkv::cache {

// The answer where a session's budget for lists is full.
Error metadata_full(const mem::Budget& budget);

class Places {
 public:
  Places() = default;
  Places(Places&& other) noexcept { *this = std::move(other); }
  Places& operator=(Places&& other) noexcept;  // *this must be empty
  ~Places();
  bool open() const { return session_ != nullptr; }
  // It has a ticket: parts or blocks are to come, or nobody was told that nothing will.
  bool unfinished() const { return ticket_ != Ticket::kNone; }
  bool prepared() const { return prepared_; }

 private:
  friend class PlaceCounts;
  enum class Ticket : std::uint8_t { kNone, kWaits, kMissed };
  Session* session_ = nullptr;
  std::uint32_t leases_ = 0;
  Ticket ticket_ = Ticket::kNone;
  bool prepared_ = false;
  mem::Reservation list_;
};

class PlaceCounts {
 public:
  struct Want {
    std::uint32_t leases = 1;
    ByteCount list;
    bool prepare = false;
  };
  // kBusy: a bound.
  Result<Places> take(Session& session, const Want& want);
  void give_back(Places places);

  // Another list in its place: it waits again. kBusy: nothing has changed.
  Status reopen(Places& places);
  // kBusy: it has no bytes any more.
  Status replace_list(Places& places, ByteCount list);
  void shrink_list(Places& places, ByteCount to);
  // It has a result that somebody may have.
  void finish(Places& places);
  // It ended with nothing, and that is to be told.
  void miss(Places& places);
  // Somebody asks for what was prepared, or nobody will.
  void end_preparation(Places& places);

  std::uint32_t unfinished() const { return tickets_.all(); }
  std::uint32_t waiting() const { return tickets_.all() - missed_; }
  PreparedCounts& prepared() { return prepared_; }
  const PreparedCounts& prepared() const { return prepared_; }

 private:
  Status reserve(Session& session, std::uint32_t leases);

  TicketCounts tickets_;
  PreparedCounts prepared_;
  std::uint32_t leases_ = 0, missed_ = 0;
};

}  // namespace orbitkv::cache
