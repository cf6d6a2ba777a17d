// Queries and leases. One object serves a query from its first part to the end of its
// lease: it pins the leading run as the parts come, waits for what the tier must bring,
// then holds it for the ranks of the instance, each of which consumes it once, in order.
// Identity: instance, group, mode, request id. Owned by the core; single-threaded. Never
// answers an old lease for another list, never lets one outlive its TTL, never hands one
// out with a block that is not there (an early one says so at the restore), never touches the pins of
// restores.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/core.h"
#include "cache/images.h"
#include "cache/loads.h"
#include "cache/sessions.h"
#include "cache/tickets.h"
#include "cache/transitions.h"
#include "mem/budget.h"

namespace orbitkv::cache {

// 128 bits over the keyed hashes of a list, in order.
struct ListDigest {
  std::uint64_t a = 0, b = 0;
  void add(std::uint64_t hash);
  friend bool operator==(const ListDigest&, const ListDigest&) = default;
};

// The answer where a session's budget for lists is full.
Error metadata_full(const mem::Budget& budget);
// A part names the revision of a list that is not asked for under this id any more.
Error other_list();

struct QueryName {
  InstanceId instance;
  GroupId group;
  QueryMode mode = QueryMode::kRead;
  std::string request_id;
};
struct QueryNameView {
  InstanceId instance;
  GroupId group;
  QueryMode mode = QueryMode::kRead;
  std::string_view request_id;
};

// What has become of a member of a recovery.
struct MemberEvent {
  enum class Kind : std::uint8_t { kLanded, kFailed, kEnded };
  Kind kind = Kind::kLanded;
  RecoveryIndex recovery;
  Revision revision;
  GroupId group;
};

// Where a page is.
struct PageAt {
  RecordId record = kNoRecord;  // sealed or loading
  TierRef stored;               // where there is no record
};

struct Lease {
  QueryName name;
  RecoveryIndex recovery = kNoRecovery;  // of a member; it is found by its lease id alone
  SessionId session;
  LeaseState state = LeaseState::kRetired;
  Revision revision;
  LeaseId id;                         // zero until the last part
  std::uint32_t total = 0, next = 0;  // hashes of the list; of them seen
  std::uint32_t hits = 0;             // leading run
  std::uint32_t pending = 0;          // of it: on their way from the tier
  bool run_open = true;               // no gap so far
  bool early = false;                 // may be leased while the last blocks are on their way
  ListDigest digest;
  std::vector<RecordId> records;        // pinned; empty in discover mode
  std::vector<std::uint32_t> consumed;  // blocks, by rank
  std::uint16_t ranks = 1;              // of the instance
  std::uint32_t ranks_left = 0;
  // The same list may be asked again, in parts: how far it has been recognised.
  std::uint32_t again_next = 0;
  ListDigest again_digest;
  TimePoint started;             // the first part; one wait for all stages begins here
  bool unfinished = false;       // counted by TicketCounts
  bool delivered = false;        // a reply with the lease was sent
  Missing why = Missing::kNone;  // of a ticket that ended with nothing
  mem::Reservation metadata;
};

struct LeaseStats {
  std::uint32_t leases = 0;  // not counting queries that wait for parts
  std::uint64_t hits = 0, misses = 0, expired = 0;
  std::uint64_t undelivered = 0;    // results that nobody fetched
  std::uint64_t wait_timeouts = 0;  // of queries whose parts or blocks had not all come
  std::uint64_t early = 0;          // leased before the last block had landed
};

class Leases {
 public:
  struct Config {
    Duration ttl;
    Duration reply_ttl;
    Duration load_wait;  // from the first part
    std::array<std::uint64_t, 2> seed{};
  };
  Leases(const Config& config, Images& images, Sessions& sessions, Loads& loads, Tier* tier);
  ~Leases();

  struct Target {
    KeySpace space;
    std::uint16_t ranks = 1;  // of the instance: each consumes a lease once
    TierSpace tier = kNoTierSpace;
    std::uint16_t shards = 1;
    ByteCount slot_bytes;
    ShardNodes near = {};  // of the instance
  };
  Result<QueryAnswer> query(SessionId session, const QueryPart& part, const Target& target, TimePoint now);

  // nullptr: unknown, consumed, released or expired.
  Lease* find(const LeaseId& id);
  // Rank `rank` has taken `blocks` more; the last of the last rank retires the lease.
  void consume(Lease& lease, std::uint16_t rank, std::uint32_t blocks);
  void release(Lease& lease);
  Result<TicketAnswer> poll(SessionId session, const TicketName& ticket, Revision revision, TimePoint now);
  // Both modes. kReject: the query belongs to another session.
  Status cancel(SessionId session, const TicketName& ticket, Revision revision);
  void end_session(SessionId session);
  void end_instance(const InstanceId& instance);
  void expire(TimePoint now);

  // ---- the tier ----
  bool loaded(TransferId transfer, bool ok, TimePoint now);  // false: not one of ours
  // Submits what waits.
  void pump(TimePoint now);
  // Whoever waits for a load that is doomed and has not begun hears of it.
  void fail_doomed(TimePoint now);

  // Until when its blocks are waited for.
  TimePoint wait_end(const Lease& lease) const { return lease.started + config_.load_wait; }

  // ---- members of recoveries: exact, without a name; cache/recoveries.h bounds and ends them ----
  struct Member {
    RecoveryIndex recovery;
    Revision revision;  // of no other list
    SessionId session;
    InstanceId instance;
    GroupId group;
    std::uint16_t ranks = 1;
    TimePoint started;
  };
  LeaseIndex add_member(const Member& member);
  // nullptr: it has ended.
  Lease* member(LeaseIndex index, Revision revision);
  struct Exact {
    LeaseIndex member;
    const Target& target;
    std::span<const BlockHash> hashes;
    std::span<PageAt> pages;  // each is somewhere
  };
  enum class Took : std::uint8_t { kAll, kLoads, kNoRoom };
  // All pages of all sets are pinned, and those that are stored queued, or nothing is held. Pins
  // what is there before it evicts for the rest.
  Took take_exact(std::span<const Exact> sets);
  // It becomes a lease that is not delivered.
  void open_member(LeaseIndex index);
  void deliver(LeaseIndex index, TimePoint now);
  void end_member(LeaseIndex index, Revision revision);
  std::vector<MemberEvent> take_member_events() { return std::exchange(member_events_, {}); }
  Revision next_revision() { return Revision(++last_revision_); }
  TicketCounts& tickets() { return tickets_; }
  // Places for `n` leases. kBusy: a bound.
  Status reserve(Session& session, std::uint32_t n);
  void unreserve(Session& session, std::uint32_t n);

  LeaseStats stats() const { return stats_; }
  void count(Census& census) const;
  std::uint32_t count(const InstanceId& instance) const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const QueryNameView& name) const;
    std::size_t operator()(const QueryName& n) const {
      return (*this)(QueryNameView{n.instance, n.group, n.mode, n.request_id});
    }
    std::size_t operator()(const LeaseId& id) const;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const QueryNameView& a, const QueryNameView& b) const {
      return a.instance == b.instance && a.group == b.group && a.mode == b.mode &&
             a.request_id == b.request_id;
    }
    static QueryNameView view(const QueryName& n) { return {n.instance, n.group, n.mode, n.request_id}; }
    bool operator()(const QueryName& a, const QueryName& b) const { return (*this)(view(a), view(b)); }
    bool operator()(const QueryName& a, const QueryNameView& b) const { return (*this)(view(a), b); }
    bool operator()(const QueryNameView& a, const QueryName& b) const { return (*this)(a, view(b)); }
  };
  // A part with what the tables and the tier say about it. A record that neither is sealed
  // nor loads is none.
  struct Seen {
    const QueryPart& part;
    const Target& target;
    TimePoint now;
    std::span<const Lookup> lookups = {};
    std::span<const TierRef> stored = {};  // by hash; empty: the tier was not asked or has none
    std::uint32_t run = 0;                 // leading resident hashes of the part
    bool complete = true;                  // all are resident
    bool takes = false;                    // its run is pinned and loaded, which may evict
    bool last() const { return part.first + part.hashes.size() == part.total; }
    bool at_hand(std::size_t i) const {
      return lookups[i].record != kNoRecord || (!stored.empty() && stored[i]);
    }
    // Leading hashes that are resident, loading or stored.
    std::uint32_t reach() const;
  };

  std::uint64_t resident_word(std::span<Lookup> lookups) const;
  void look_up(Seen& seen, QueryAnswer& answer);
  void ask_tier(Seen& seen, QueryAnswer& answer);
  void tell_tier(const Seen& seen, const QueryAnswer& answer) const;
  Result<std::uint32_t> prepare(SessionId session, Seen& seen, QueryAnswer& answer);
  Result<std::uint32_t> start(SessionId session, const Seen& seen);
  Status restart(std::uint32_t index, std::uint32_t kept, Seen& seen, QueryAnswer& answer);
  bool recognise(Lease& lease, const Seen& seen);
  void answer_again(std::uint32_t index, const Seen& seen, QueryAnswer& answer);
  void absorb(std::uint32_t index, Seen& seen, QueryAnswer& answer);
  std::uint32_t take_run(std::uint32_t index, const Seen& seen);
  bool want_block(std::uint32_t index, std::uint32_t i, const Seen& seen);
  void end_part(std::uint32_t index, const Seen& seen);
  void become_ready(std::uint32_t index, TimePoint now);
  void settle(const Loads::Ended& ended, TimePoint now);
  void cut(std::uint32_t index, std::uint32_t kept, TimePoint now);
  void land(std::uint32_t index, TimePoint now);
  void time_out(std::uint32_t index, TimePoint now);
  void close_ticket(Lease& lease);
  bool nearly_there(const Lease& lease);
  void unpin_from(std::uint32_t index, std::size_t kept);
  void retire(std::uint32_t index, LeaseEvent event);
  void collect(std::uint32_t index);
  void end_due(std::uint32_t index, TimePoint now);
  TicketAnswer tell(std::uint32_t index, TimePoint now);
  std::uint32_t index_of(const Lease& lease) const { return by_id_.find(lease.id)->second; }
  std::uint32_t take_object();
  bool take_stored(std::span<const Exact> sets);
  void pin_page(const Exact& set, std::uint32_t i);
  void unpin_pages(const Exact& set);
  LeaseId make_id();

  Config config_;
  Images& images_;
  Sessions& sessions_;
  Loads& loads_;
  Tier* tier_;
  std::deque<Lease> leases_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<QueryName, std::uint32_t, Hash, Equal> by_name_;
  std::unordered_map<LeaseId, std::uint32_t, Hash> by_id_;
  std::uint64_t last_revision_, last_id_ = 0;
  TicketCounts tickets_;
  std::uint32_t reserved_ = 0;  // places for leases
  std::vector<MemberEvent> member_events_;
  Deadlines deadlines_;
  // Of the part at hand.
  std::vector<Lookup> lookups_;
  std::vector<TierRef> stored_;
  std::vector<BlockHash> asked_;  // hashes that the tier is asked for, their places, its answers
  std::vector<std::uint32_t> asked_at_;
  std::vector<TierRef> asked_found_;
  LeaseStats stats_;
};

}  // namespace orbitkv::cache
