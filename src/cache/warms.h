// Hints: lists that may be asked for soon. While nobody waits for anything, what is stored of
// them is loaded, piece by piece, within the share of speculation: earliest first use first,
// then priority times confidence. Whoever gives one owns nothing and is told nothing; what has
// landed is the first to go again. Owned by the core; single-threaded. Never begins a load
// while a query waits or loads, never outlives limits::kWarmLife.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "cache/leases.h"
#include "cache/sessions.h"
#include "cache/transitions.h"
#include "cache/waiting.h"
#include "mem/budget.h"

namespace orbitkv::cache {

struct WarmStats {
  std::uint32_t hints = 0;  // that live
  std::uint64_t given = 0, blocks = 0, expired = 0;
};

class Warms {
 public:
  struct Parts {
    Sessions& sessions;
    WaitingLine& line;
    Leases& leases;
  };
  explicit Warms(const Parts& parts) : p_(parts) {}
  ~Warms();

  Status add(SessionId session, const WarmPart& part, const LeaseTarget& target, TimePoint now);
  void cancel(SessionId session, const TicketName& name);
  void end_session(SessionId session);
  void end_instance(const InstanceId& instance);
  // Pieces that have landed, hints that are over, the next pieces if it is quiet.
  void turn(TimePoint now);
  // What stands in the way of a charge ends. False: there is nothing.
  bool make_way(AccountIndex account, Full full);

  const WarmStats& stats() const { return stats_; }

 private:
  struct Hint {
    WarmState state = WarmState::kEnded;
    SessionId session;
    InstanceId instance;
    GroupId group;
    std::string request_id;
    LeaseTarget target;
    std::vector<BlockHash> hashes;
    std::size_t next = 0;  // of them
    bool over = false;     // behind the piece that loads nothing follows
    bool no_room = false;  // in this turn
    LeaseIndex piece;      // kLoading
    TimePoint first_use, end;
    std::uint64_t weight = 0;
    mem::Reservation metadata;
  };
  template <class Which>
  bool end_if(Which which);
  void end(Hint& hint);
  Hint* place();
  void settle();
  bool quiet() const;
  Hint* next_hint();
  bool begin(Hint& hint, TimePoint now);

  Parts p_;
  std::vector<Hint> hints_;
  WarmStats stats_;
};

}  // namespace orbitkv::cache
