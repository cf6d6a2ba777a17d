// Sessions of the core: state, metadata budget, which record holds which operation,
// operations that wait for plan bank space. Owned by the core; single-threaded.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "cache/census.h"
#include "cache/images.h"
#include "cache/transitions.h"
#include "mem/budget.h"

namespace orbitkv::cache {

struct Session {
  SessionState state = SessionState::kAbsent;
  std::unique_ptr<mem::Budget> metadata;
  std::vector<OperationIndex> operation_of;  // by record
  std::uint32_t open_operations = 0;
  std::uint32_t queries = 0;              // of cache/leases.h
  std::uint32_t tickets = 0;              // of them unfinished (cache/tickets.h)
  std::uint32_t prepared = 0;             // ahead of need, not claimed
  std::uint32_t warms = 0;                // hints of cache/warms.h
  std::deque<OperationIndex> bank_queue;  // oldest first
  std::vector<RegistrationId> registrations;
};

class Sessions {
 public:
  Sessions() : sessions_(limits::kSessions) {}
  void open(SessionId id);
  // nullptr: not open, or stalled.
  Session* open_session(SessionId id);
  // In any state; checked against limits::kSessions.
  Session& at(SessionId id);
  const Session& at(SessionId id) const;
  std::uint32_t living() const;  // open, stalled or closing
  void count(Census& census) const;

 private:
  std::vector<Session> sessions_;
};

}  // namespace orbitkv::cache
