// What bounds tickets: how many may be unfinished, and when their waits and results end.
// A ticket is unfinished until it has a result that somebody may have: parts missing, blocks
// on their way, or ended with nothing and nobody told. Values of cache/leases.h and
// cache/recoveries.h; core thread. Knows nothing of what a ticket holds.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "cache/sessions.h"

namespace orbitkv::cache {

using RecoveryIndex = Id<struct RecoveryIndexTag, std::uint32_t>;
inline constexpr RecoveryIndex kNoRecovery{0xFFFFFFFFu};
// Even where nothing is waited for, parts need time to come.
inline constexpr Duration kCollectAtLeast = seconds(5);
// A long list that got its charge at the end of its wait is looked up yet.
inline constexpr Duration kTakeAtLeast = seconds(1);

// Every session has a few that nobody can take from it; above those all share.
class TicketCounts {
 public:
  // kBusy: a bound is reached; nothing was counted.
  Status open(Session& session);
  void close(Session& session);
  std::uint32_t all() const { return all_; }

 private:
  std::uint32_t all_ = 0, shared_ = 0;
};

// What a session has in preparation.
class PreparedCounts {
 public:
  // kBusy: a bound is reached; nothing was counted.
  Status open(Session& session);
  void close(Session& session);
  std::uint32_t all() const { return all_; }
  std::uint64_t begun = 0, claimed = 0, unclaimed = 0, gave_way = 0;

 private:
  std::uint32_t all_ = 0;
};

// What a deadline ends. Terms of one kind last equally long, so each is a list that is almost in
// order: one that began before the last ones is walked to its place.
enum class Term : std::uint8_t {
  kCollect,      // parts are to come
  kWait,         // blocks are to come
  kUndelivered,  // a result that nobody has fetched
  kLease,        // a result that somebody has
  kPrepared,     // a result that was prepared and that nobody has asked for yet
  kFullPrefix,   // kWait of a query that waits for other publishers, too: longer
  kTake,         // a long list is to be looked up
  kCount,
};

class Deadlines {
 public:
  // Instead of the one it had, if any.
  void set(std::uint32_t index, Term term, TimePoint at);
  void clear(std::uint32_t index);
  // One whose deadline is over; kNoLink: none. It stays until it is set anew or cleared.
  std::uint32_t due(TimePoint now) const;
  // That of this one is over.
  bool over(std::uint32_t index, TimePoint now) const {
    return index < nodes_.size() && nodes_[index].term != Term::kCount && nodes_[index].at <= now;
  }

 private:
  struct Node {
    TimePoint at;
    Term term = Term::kCount;  // none
    std::uint32_t older = kNoLink, newer = kNoLink;
  };
  struct List {
    std::uint32_t oldest = kNoLink, newest = kNoLink;
  };
  std::vector<Node> nodes_;
  std::array<List, static_cast<std::size_t>(Term::kCount)> lists_;
};

}  // namespace orbitkv::cache
