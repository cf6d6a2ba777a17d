// Interests: queries and recoveries with a second owner. A coordinator that wants one prefix at
// several Managers submits it to each, shortens, and claims; what it asks is held by the same
// leases and recoveries as everybody's, under names that only the interest knows. Identity:
// session and interest id; its newest operation alone lives. Owned by the core; single-threaded.
// Never delivers a lease before its claim, never lets the last consumption end a claimed one,
// never takes a closed id up again, and ends with its session.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "cache/instances.h"
#include "cache/leases.h"
#include "cache/namespaces.h"
#include "cache/recoveries.h"
#include "cache/transitions.h"

namespace orbitkv::cache {

// Which ids of a session were used. Of each of the coordinators (the upper half of an id) that used
// some last: exactly for its last limits::kInterestWindow, and all before.
class InterestIds {
 public:
  // Of so many that made room the operation is remembered.
  static constexpr std::size_t kMostOutside = limits::kInterestsPerInstance;

  // Whether it may be opened: it was not used, or made room and this operation is a higher one.
  bool fresh(InterestId id, InterestOperation operation) const;
  void spend(InterestId id);
  // It made room for another. Of the last kMostOutside that did, the operation is remembered.
  void made_room(InterestId id, InterestOperation newest);

 private:
  struct Window {
    std::uint32_t coordinator = 0;
    std::uint32_t newest = 0;                   // lower half
    std::uint64_t touched = 0;                  // 0: not in use
    std::bitset<limits::kInterestWindow> used;  // by id modulo the window
  };
  struct Outside {
    InterestId id;
    InterestOperation newest;
  };
  Window& window_of(std::uint32_t coordinator);

  std::vector<Window> windows_;
  std::deque<Outside> outside_;  // that made room; the oldest first
  std::uint64_t turns_ = 0;
};

class Interests {
 public:
  struct Config {
    Incarnation incarnation;
    Duration forget;  // an interest that holds nothing and that nobody has spoken of for so long
    Duration idle;    // one that holds something, likewise: it ends
  };
  struct Parts {
    Instances& instances;
    const Namespaces& namespaces;
    Leases& leases;
    Recoveries& recoveries;
  };
  Interests(const Config& config, const Parts& parts)
      : config_(config), p_(parts), of_session_(limits::kSessions), ids_(limits::kSessions) {}

  // What the part's list is asked of: a target for a prefix, a plan for a recovery.
  struct Asked {
    Leases::Target target;
    RecoveryPlan plan;
  };
  Result<InterestAnswer> submit(SessionId session, const InterestPart& part, Asked asked, TimePoint now);
  Result<InterestAnswer> call(SessionId session, const InterestCall& call, TimePoint now);
  // kRecompute: there is such an interest, and its authority or this one is over.
  Status check(SessionId session, const InterestPart& part);
  void end_session(SessionId session);
  // Sees which operations have ended by themselves, and forgets interests.
  void expire(TimePoint now);

  InterestStats stats() const;
  void count(Census& census) const;

 private:
  using Key = std::pair<SessionId, InterestId>;
  // Who makes room first: what holds nothing, and of that the oldest.
  struct Age {
    bool holds = false;
    TimePoint touched;
    InterestId id;
    friend auto operator<=>(const Age&, const Age&) = default;
  };
  using Ages = std::set<Age>;
  // A part that was taken, to know it again.
  struct Taken {
    std::uint32_t next = 0;
    ListDigest digest;
  };
  struct Interest {
    InstanceId instance;
    InterestAuthority authority;
    InterestState state = InterestState::kEnded;
    InterestOperation operation;
    GroupId group;
    std::optional<TokenTail> tail;
    Revision revision;  // of its query or recovery
    std::uint32_t total = 0, blocks = 0;
    bool admitted = true;
    Missing why = Missing::kNone;
    GroupId missing;
    std::vector<Taken> parts;
    TimePoint touched;
    Age age;  // as it stands in the orders
  };
  using Entry = std::map<Key, Interest>::iterator;

  static bool holds(InterestState state) {
    return state == InterestState::kCollecting || state == InterestState::kAcquiring ||
           state == InterestState::kAcquired || state == InterestState::kClaimed;
  }
  // A coordinator speaks of what it holds more often than this.
  Duration silent() const { return nanoseconds(config_.idle.ns / 3); }
  std::uint64_t generation_of(const Instance& instance) const;
  InterestAuthority authority_of(const Instance& instance) const;
  // The authority that it is bound to stands.
  bool stands(const Interest& interest) const;
  Status check_authority(Entry entry, const InterestAuthority& named);
  Error stale(const InterestAuthority& bound, const InterestAuthority& now);
  Error left();
  Status check_submit(const InterestPart& part) const;
  Result<Entry> open(SessionId session, const InterestPart& part, TimePoint when);
  Status make_room(SessionId session, const InstanceId& instance, TimePoint now);
  void enter(Entry entry);
  void leave(Entry entry);
  void reorder(Entry entry);
  void pass(Entry entry, InterestEvent event) {
    step(entry->second.state, event);
    reorder(entry);
  }
  void touch(Entry entry, TimePoint now) {
    entry->second.touched = now;
    reorder(entry);
  }
  struct Rank;
  std::vector<Rank> beyond_their_share(SessionId session) const;
  std::optional<Entry> oldest(std::vector<Rank>& ranks);
  bool forget_oldest(std::vector<Rank> ranks, TimePoint now);
  Entry forget(Entry entry);
  Status begin(Entry entry, const InterestPart& part);
  enum class Order : std::uint8_t { kNext, kBefore, kAhead };
  static Result<Order> order_of(const Interest& interest, const InterestPart& part);
  Status ask(Entry entry, const InterestPart& part, Asked asked, TimePoint now);
  Status ask_prefix(Entry entry, const InterestPart& part, const Leases::Target& target, TimePoint now);
  Status ask_recovery(Entry entry, const InterestPart& part, RecoveryPlan plan, TimePoint now);
  void look(Entry entry, TimePoint now);
  void settle(Entry entry, const TicketAnswer& answer);
  InterestAnswer close(SessionId session, InterestId id);
  InterestAnswer cancel(Entry entry, InterestOperation operation);
  Result<InterestAnswer> claim(Entry entry, const InterestCall& call, TimePoint now);
  TicketAnswer hold(Entry entry, std::uint32_t blocks, TimePoint now);
  void end(Entry entry, InterestEvent event);
  void give_up(Entry entry);  // it cannot be claimed any more
  void give_back(Entry entry);
  InterestAnswer answer(Entry entry, InterestOperation asked) const;
  TicketName ticket(Entry entry);

  Config config_;
  Parts p_;
  std::map<Key, Interest> interests_;
  std::vector<Ages> of_session_;
  std::map<std::pair<SessionId, InstanceId>, Ages> of_instance_;
  std::uint32_t shared_ = 0;      // beyond the share of their sessions
  std::vector<InterestIds> ids_;  // by session
  std::array<char, 12> name_{};   // of the ticket at hand
  InterestStats stats_;
};

}  // namespace orbitkv::cache
