// Recoveries: the pages that a boundary needs, of all groups at once, or nothing. Collects the
// list part by part, takes the charge of all of it or waits in line, looks all of it up before
// the first read and pins what is in memory, over turns if it is long, then has the rest loaded,
// and leases one group each when all is there. Identity: instance and request id. Owned by the core;
// single-threaded. Never answers a part of a set, never holds a page or a charge while it waits for room,
// never answers an old set for another list. What has been delivered are leases like others: the end of one
// ends no other.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "cache/hash_list.h"
#include "cache/images.h"
#include "cache/leases.h"
#include "cache/sessions.h"
#include "cache/tickets.h"
#include "cache/transitions.h"
#include "mem/budget.h"

namespace orbitkv::cache {

// One group of a boundary: its pages stand next to each other in the list.
struct GroupPages {
  GroupId group;
  Leases::Target target;
  std::uint32_t first = 0, count = 0;
};
using RecoveryPlan = std::vector<GroupPages>;  // ascending by group

struct RecoveryStats {
  std::uint64_t ready = 0, missed = 0;
  std::uint64_t waits = 0;  // for room; each time that it was tried
  std::uint64_t budget_waits = 0, bypassed = 0, budget_misses = 0;
  std::uint64_t undelivered = 0;  // results that nobody fetched
  std::uint64_t looked_up = 0;    // hashes, each time
};

class Recoveries {
 public:
  struct Config {
    Duration reply_ttl;
    Duration load_wait;
    Duration prepare_ttl;
    ByteCount pool;  // as configured: a set that is larger can never be had
    std::uint32_t turn_hashes = limits::kLookUpsPerTurn;
  };
  struct Parts {
    Images& images;
    Sessions& sessions;
    Budgets& budgets;
    WaitingLine& line;
    Leases& leases;
    const Loads& loads;
    Leftovers& leftovers;
    Tier* tier;
  };
  Recoveries(const Config& config, const Parts& parts) : config_(config), p_(parts) {}
  ~Recoveries();

  // `plan`: of the part's instance and tail. kReject: the list has not the plan's length, or the
  // parts are out of order. kBusy: a bound.
  Result<TicketAnswer> read(SessionId session, const RecoveryPart& part, RecoveryPlan plan, TimePoint now);
  Result<TicketAnswer> poll(SessionId session, const TicketName& ticket, Revision revision, TimePoint now);
  // As Leases::hold(), of all groups.
  TicketAnswer hold(const TicketName& ticket, Revision revision, TimePoint now);
  // Ends also what was delivered and is not consumed.
  Status cancel(SessionId session, const TicketName& ticket, Revision revision);
  void end_session(SessionId session);
  void end_instance(const InstanceId& instance);
  void expire(TimePoint now);
  // What has become of members since the last call.
  void settle(TimePoint now);
  // Ends preparations that stand in the way of a charge. False: there are none.
  bool end_prepared(AccountIndex account, Full full);
  // One that waits in line is tried.
  Admitting::Attempt admit(std::uint32_t index, TimePoint now);
  // Long lists are looked up, one of them a turn.
  bool takes() const { return !taking_.empty(); }
  void take_turn(TimePoint now);
  // Time has passed: those without room are tried though nothing seems to have come free.
  void look_again() { ++looks_; }

  RecoveryStats stats() const { return stats_; }
  void count(Census& census) const;

 private:
  struct Name {
    InstanceId instance;
    std::string request_id;
    bool interest = false;
  };
  struct NameView {
    InstanceId instance;
    std::string_view request_id;
    bool interest = false;
  };
  struct Hash {
    using is_transparent = void;
    static NameView view(const Name& n) { return {n.instance, n.request_id, n.interest}; }
    std::size_t operator()(const NameView& name) const;
    std::size_t operator()(const Name& n) const { return (*this)(view(n)); }
  };
  struct Equal {
    using is_transparent = void;
    static NameView view(const Name& n) { return Hash::view(n); }
    bool operator()(const NameView& a, const NameView& b) const {
      return a.instance == b.instance && a.request_id == b.request_id && a.interest == b.interest;
    }
    bool operator()(const Name& a, const Name& b) const { return (*this)(view(a), view(b)); }
    bool operator()(const Name& a, const NameView& b) const { return (*this)(view(a), b); }
    bool operator()(const NameView& a, const Name& b) const { return (*this)(a, view(b)); }
  };

  struct Miss {
    GroupId group;
    Missing why = Missing::kNone;
  };
  struct Begin {
    SessionId session;
    TimePoint started;
    HashList kept;  // hashes before the part at hand
    bool prepare = false;
  };
  // What decides whether a set can be pinned and loaded: if it is the same, so is the answer.
  struct Room {
    std::uint64_t look = 0;
    ByteCount pinned, loading;
    std::uint64_t sealed = 0, inflight = 0, held = 0;
    friend bool operator==(const Room&, const Room&) = default;
  };
  // Where a page is.
  struct PageAt {
    RecordId record = kNoRecord;  // sealed or loading
    TierRef stored;               // where there is no record
  };
  struct Taking {
    std::uint32_t looked = 0;                             // of the list, from its front
    Images::View view;                                    // in which all that is pinned has been seen
    std::vector<std::vector<Leases::StoredPage>> stored;  // by group
    ByteCount stored_bytes;
    std::uint32_t stored_pages = 0;
  };
  struct Recovery {
    InstanceId instance;
    std::string request_id;
    bool interest = false;  // nobody but it finds this, and its claim alone tells the leases
    SessionId session;
    RecoveryState state = RecoveryState::kRetired;
    Revision revision;
    TokenTail tail;
    RecoveryPlan plan;
    std::uint32_t total = 0, next = 0;
    std::uint32_t again_next = 0;     // the same list may be asked again: how far it is the same
    HashList hashes;                  // `next` of them
    std::vector<LeaseIndex> members;  // one a group, while pages are held
    std::uint32_t members_left = 0;   // delivered and not ended
    Taking taking;                    // while it is looked up
    Miss miss;
    TimePoint started;  // the first part: one wait for all stages begins here
    bool delivered = false;
    bool prepared = false;   // ahead of need: nobody has asked for it yet
    bool told_tier = false;  // that it was asked for
    WaitingPlace place = kNotWaiting;
    Room no_room;  // as it was when there was none; else its look is 0
    Places places;
  };

  Result<std::uint32_t> take_part(std::uint32_t index, const RecoveryPart& part, RecoveryPlan plan,
                                  TimePoint now);
  bool recognise(Recovery& r, const RecoveryPart& part) const;
  bool untouched(const Recovery& r) const;
  Result<std::uint32_t> replace(std::uint32_t index, const RecoveryPart& part, RecoveryPlan plan,
                                TimePoint now);
  Result<std::uint32_t> start(Begin begin, const RecoveryPart& part, RecoveryPlan plan);
  void append(std::uint32_t index, const RecoveryPart& part, TimePoint now);
  ByteCount bytes_of(const Recovery& r) const;

  struct Slice {
    std::uint32_t begin = 0, end = 0;  // of the list
  };
  static Slice part_of(const GroupPages& group, const Slice& slice);
  bool look_up_group(const Recovery& r, const GroupPages& group, const Slice& slice);
  void look_up(Recovery& r, const Slice& slice);
  void pin(Recovery& r, const Slice& slice);
  void note_stored(Recovery& r, const Slice& slice);
  Room room() const;
  bool charge(const Recovery& r, Full& full);
  using Outcome = Admitting::Attempt::Outcome;
  void begin_take(std::uint32_t index);
  bool take_some(std::uint32_t index);
  Outcome end_take(std::uint32_t index, TimePoint now);
  Leases::Took load(Recovery& r);
  void stop_taking(std::uint32_t index);
  void admitted(Recovery& r);
  void no_room(std::uint32_t index);
  void wait_in_line(std::uint32_t index);
  void leave_line(Recovery& r);
  void claim(std::uint32_t index, TimePoint now);
  void end_preparation(Recovery& r);
  static Use use_of(const Recovery& r) { return r.prepared ? Use::kSpeculative : Use::kForeground; }
  void become_ready(std::uint32_t index, RecoveryEvent event, TimePoint now);
  void fail(std::uint32_t index, const Miss& miss, TimePoint now);
  void note(const MemberEvent& event, TimePoint now);
  void end_members(Recovery& r);
  void retire(std::uint32_t index, RecoveryEvent event);
  void end_due(std::uint32_t index, TimePoint now);
  GroupId slowest(const Recovery& r) const;
  // kNoLink: unknown.
  Result<std::uint32_t> find(SessionId session, const TicketName& ticket) const;
  void deliver(std::uint32_t index, TimePoint now);
  TicketAnswer answer(std::uint32_t index, const RecoveryPart& part, TimePoint now);
  TicketAnswer tell(std::uint32_t index, TimePoint now);
  TimePoint wait_end(const Recovery& r) const { return r.started + config_.load_wait; }

  Config config_;
  Parts p_;
  std::deque<Recovery> recoveries_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<Name, std::uint32_t, Hash, Equal> by_name_;
  std::uint64_t looks_ = 1;
  Deadlines deadlines_;
  std::deque<std::uint32_t> taking_;  // whose turn it is in front
  // Of the slice at hand.
  std::vector<BlockHash> hashes_;
  std::vector<PageAt> pages_;
  std::vector<Lookup> lookups_;
  std::vector<BlockHash> asked_;
  std::vector<std::uint32_t> asked_at_;
  std::vector<TierRef> asked_found_;
  std::vector<std::uint64_t> resident_, stored_;
  RecoveryStats stats_;
};

}  // namespace orbitkv::cache
