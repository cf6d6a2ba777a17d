// Queries and leases. One object serves a query from its first part to the end of its
// lease: it pins what is there of the leading run as the parts come, takes its charge with the
// last one or waits in line for it, takes what it kept of the run over turns, waits for what the
// tier must bring, then holds the run for the ranks of the instance, each of which consumes it
// once, in order.
// Identity: instance, group, mode, request id. Owned by the core; single-threaded. Never
// answers an old lease for another list, never lets one outlive its TTL, never hands one
// out with a block that is not there (an early one says so at the restore), never loads or
// leases what is not charged, never touches the pins of restores.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/budgets.h"
#include "cache/core.h"
#include "cache/hash_list.h"
#include "cache/images.h"
#include "cache/leftovers.h"
#include "cache/loads.h"
#include "cache/places.h"
#include "cache/sessions.h"
#include "cache/tickets.h"
#include "cache/transitions.h"
#include "cache/waiting.h"

namespace orbitkv::cache {

class Operations;

// 128 bits over the keyed hashes of a list, in order.
struct ListDigest {
  std::uint64_t a = 0, b = 0;
  void add(std::uint64_t hash);
  friend bool operator==(const ListDigest&, const ListDigest&) = default;
};

// A part names the revision of a list that is not asked for under this id any more.
Error other_list();
// A preparation under the name of a query.
Error asked_already();

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

// Who knows which blocks are being saved.
class Publishing {
 public:
  virtual ~Publishing() = default;
  // An engine of another instance copies into the image now, or may begin to; or some ranks of one
  // have just saved their part and the next is to come.
  virtual bool saved_by_others(RecordId record, const InstanceId& instance, TimePoint now) const = 0;
};

// What has become of a member of a recovery.
struct MemberEvent {
  enum class Kind : std::uint8_t { kLanded, kFailed, kEnded };
  Kind kind = Kind::kLanded;
  RecoveryIndex recovery;
  Revision revision;
  GroupId group;
};

// What a query of one group is about.
struct LeaseTarget {
  KeySpace space;
  std::uint16_t ranks = 1;  // of the instance: each consumes a lease once
  TierSpace tier = kNoTierSpace;
  std::uint16_t shards = 1;
  ByteCount slot_bytes;
  ShardNodes near = {};  // of the instance
  AccountIndex account = kNoAccount;
  ByteCount block_bytes() const { return shards * slot_bytes; }
};

// Of a lease, what owns nothing.
struct LeaseValues {
  RecoveryIndex recovery = kNoRecovery;  // of a member; it is found by its lease id alone
  SessionId session;
  LeaseState state = LeaseState::kRetired;
  Revision revision;
  LeaseId id;                         // zero until the last part
  std::uint32_t total = 0, next = 0;  // hashes of the list; of them seen
  std::uint32_t hits = 0;             // leading run, pinned or kept
  std::uint32_t pending = 0;          // loads that it waits for
  bool run_open = true;               // no gap so far
  bool early = false;                 // may be leased while the last blocks are on their way
  bool prepared = false;              // ahead of need: nobody has asked for it yet
  bool untold = false;                // claimed, and the tier has not heard of all its parts
  bool full = false;                  // other publishers are waited for
  bool awaits = false;                // one of them is
  bool held = false;                  // by an interest: the last consumption does not end it
  bool warm = false;                  // a piece of a hint: without a name, never leased
  bool late = false;                  // its wait is over, and that was counted
  Images::View view;                  // not after that in which the first of its records was seen
  ListDigest digest;
  AccountIndex account = kNoAccount;
  ChargeIndex charge = kNoCharge;
  ByteCount block_bytes;             // that a block of it is charged
  WaitingPlace place = kNotWaiting;  // in the line
  std::uint16_t ranks = 1;           // of the instance
  std::uint32_t ranks_left = 0;
  // The same list may be asked again, in parts: how far it has been recognised.
  std::uint32_t again_next = 0;
  ListDigest again_digest;
  TimePoint started;             // the first part; one wait for all stages begins here
  bool delivered = false;        // a reply with the lease was sent
  Missing why = Missing::kNone;  // of a ticket that ended with nothing
};

struct Lease : LeaseValues {
  // The rest of the run, until it has been taken.
  struct Kept {
    LeaseTarget target;
    std::size_t base = 0;  // of the run, the place of the first hash; those before are in `records`
    HashList hashes = {};
    HashList beyond = {};    // behind the run, where publishers may be waited for
    std::size_t passed = 0;  // of them, in the run by now
    bool goes_on() const { return passed < beyond.size(); }
    // Taken over turns: the view that all records so far are in; the one that they are being looked
    // at in anew, and how many have been.
    Images::View view = {}, begun = {};
    std::size_t checked = 0;
    bool over = false;  // its time was: nothing more is taken
  };
  // Of the loads that it waits for: the first places of their blocks, and of some that have ended. In
  // order, of a member in none; limits::kLoads and some at most.
  struct Waits {
    std::vector<std::uint32_t> places;
    std::size_t told = 0;  // leading ones that the tier has been told of
  };
  // Of one that has ended: another takes its place, and the room of its lists.
  void begin() {
    static_cast<LeaseValues&>(*this) = {};
    waits.places.clear();
    waits.told = 0;
  }

  QueryName name;
  std::vector<RecordId> records;        // pinned; empty in discover mode
  std::vector<std::uint32_t> consumed;  // blocks, by rank
  Waits waits;
  std::unique_ptr<Kept> kept;  // nullptr: there is no rest
  Places places;               // of one with a name
};

struct LeaseStats {
  std::uint32_t leases = 0;  // not counting queries that wait for parts
  std::uint64_t hits = 0, misses = 0, expired = 0;
  std::uint64_t undelivered = 0;    // results that nobody fetched
  std::uint64_t wait_timeouts = 0;  // of queries whose parts or blocks had not all come
  std::uint64_t early = 0;          // leased before the last block had landed
  std::uint64_t budget_waits = 0, budget_cuts = 0, budget_misses = 0;
  std::uint64_t publisher_waits = 0;
  std::uint64_t looked_up = 0;  // hashes, each time
};

class Leases {
 public:
  struct Config {
    Duration ttl;
    Duration reply_ttl;
    Duration load_wait;  // from the first part
    Duration prepare_ttl, full_prefix_wait;
    std::uint32_t turn_hashes = limits::kLookUpsPerTurn;
    std::array<std::uint64_t, 2> seed{};
  };
  struct Parts {
    Images& images;
    Sessions& sessions;
    Budgets& budgets;
    WaitingLine& line;
    Loads& loads;
    Leftovers& leftovers;
    Tier* tier;
  };
  Leases(const Config& config, const Parts& parts);
  ~Leases();

  using Target = LeaseTarget;
  Result<QueryAnswer> query(SessionId session, const QueryPart& part, const Target& target, TimePoint now);

  // nullptr: unknown, consumed, released or expired.
  Lease* find(const LeaseId& id);
  // Not one whose term is over: that ends with this, however many are due before it.
  Lease* find(const LeaseId& id, TimePoint now);
  // Rank `rank` has taken `blocks` more; the last of the last rank retires the lease.
  void consume(Lease& lease, std::uint16_t rank, std::uint32_t blocks);
  void release(Lease& lease);
  Result<TicketAnswer> poll(SessionId session, const TicketName& ticket, Revision revision, TimePoint now);
  // Of an interest: delivers its lease of the first `blocks`, which from then on ends by cancel or by
  // its term alone.
  TicketAnswer hold(const TicketName& ticket, Revision revision, std::uint32_t blocks, TimePoint now);
  // Both modes, or that of an interest. kReject: the query belongs to another session.
  Status cancel(SessionId session, const TicketName& ticket, Revision revision);
  void end_session(SessionId session);
  void end_instance(const InstanceId& instance);
  // limits::kEndsPerTurn of those whose time is over; the others with the next call.
  void expire(TimePoint now);
  bool expires() const { return expires_; }
  // Ends preparations that stand in the way of a charge. False: there are none.
  bool end_prepared(AccountIndex account, Full full);
  // One that waits in line is tried.
  Admitting::Attempt admit(std::uint32_t index, TimePoint now);

  // ---- the tier ----
  bool loaded(TransferId transfer, bool ok, TimePoint now);  // false: not one of ours
  // Submits what waits.
  void pump(TimePoint now);
  // Whoever waits for a load that is doomed and has not begun hears of it.
  void fail_doomed(TimePoint now);

  // Long runs are taken, and lists that go on behind publishers looked at, one of them a turn.
  bool takes() const { return !taking_.empty() || extends_; }
  void take_turn(TimePoint now);

  // Until when its blocks are waited for.
  TimePoint wait_end(const Lease& lease) const {
    return lease.started + (lease.full ? config_.full_prefix_wait : config_.load_wait);
  }

  // ---- other publishers ----
  void set_publishing(const Publishing& publishing) { publishing_ = &publishing; }
  // Saves have ended: who waits for one looks again.
  void look_at_publishers(TimePoint now);

  // ---- pieces of hints (cache/warms.h) ----
  struct Piece {
    SessionId session;
    InstanceId instance;
    GroupId group;
    const Target& target;
    std::span<const BlockHash> hashes;
    TimePoint now;
  };
  struct Warmed {
    std::optional<LeaseIndex> loads;  // until end_warm(): what is on its way
    std::uint32_t blocks = 0;         // that are
    std::uint32_t next = 0;           // of the hashes, the first that was not dealt with
    bool over = false;                // nothing behind it is of use
  };
  // Begins loads of what is stored only, within the share of speculation.
  Warmed warm(const Piece& piece);
  void end_warm(LeaseIndex piece);
  // Pieces whose loads have all ended since the last call.
  std::vector<LeaseIndex> take_warmed() { return std::exchange(warmed_, {}); }

  // ---- members of recoveries: exact, without a name; cache/recoveries.h bounds and ends them ----
  struct Member {
    RecoveryIndex recovery;
    Revision revision;  // of no other list
    SessionId session;
    InstanceId instance;
    GroupId group;
    std::uint16_t ranks = 1;
    TimePoint started;
    AccountIndex account;
    ChargeIndex charge;  // the member's from now on
    bool prepared = false;
  };
  LeaseIndex add_member(const Member& member);
  // nullptr: it has ended.
  Lease* member(LeaseIndex index, Revision revision);
  struct StoredPage {
    std::uint32_t position = 0;  // of the member's pages
    TierRef stored;
  };
  struct Exact {
    LeaseIndex member;
    const Target& target;
    const HashList& hashes;  // its pages are those from `first` on
    std::uint32_t first = 0;
    std::span<const StoredPage> stored;  // of them, in order; the others are pinned
  };
  enum class Took : std::uint8_t { kAll, kLoads, kNoRoom };
  // Of so many pages, each of which is pinned, sealed or loading, before load_exact().
  void begin_exact(LeaseIndex member, const Target& target, std::uint32_t pages);
  void pin_exact(LeaseIndex member, std::uint32_t position, RecordId record);
  // What is stored is queued as well. kNoRoom: the members are to be ended. Evicts, once all that is
  // there is pinned.
  Took load_exact(std::span<const Exact> sets);
  // It becomes a lease that is not delivered.
  void open_member(LeaseIndex index);
  void deliver(LeaseIndex index, TimePoint now);
  void hold(LeaseIndex index) { leases_[index.value].held = true; }
  // Somebody asks for a prepared one.
  void claim_member(LeaseIndex index);
  void end_member(LeaseIndex index, Revision revision);
  std::vector<MemberEvent> take_member_events() { return std::exchange(member_events_, {}); }
  Revision next_revision() { return Revision(++last_revision_); }
  PlaceCounts& places() { return places_; }
  const PlaceCounts& places() const { return places_; }
  // Of a charge, when all that stands in its way and may end has ended.
  Full full_for(AccountIndex account, ByteCount bytes, Use use);

  LeaseStats stats() const { return stats_; }
  void count(Census& census) const;
  // What leases are to be charged by their blocks; of those that ended, what their restores hold.
  ByteCount charged(const Operations& operations) const;
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
  static Missing why_of(const Lease& lease) {
    return lease.why == Missing::kNone ? Missing::kGone : lease.why;
  }
  void absorb(std::uint32_t index, Seen& seen, QueryAnswer& answer);
  void answer_last(std::uint32_t index, TimePoint now, QueryAnswer& answer);
  void keep_part(std::uint32_t index, const Seen& seen);
  void append_part(Lease& lease, const Seen& seen, std::uint32_t pinned);
  bool is_long(const Lease& lease) const { return lease.total > config_.turn_hashes; }
  HashList front_of(const Lease& lease, std::size_t count);
  void cut_kept(Lease& lease);
  void forget_kept(Lease& lease);
  void end_list(std::uint32_t index, const Seen& seen);
  bool charge(Lease& lease, Full& full);
  Status check_prepared(const Lease& lease, const QueryPart& part) const;
  void claim(std::uint32_t index, const Seen& seen);
  void begin_use(std::uint32_t index);
  void end_preparation(Lease& lease);
  static Use use_of(const Lease& lease) { return lease.prepared ? Use::kSpeculative : Use::kForeground; }
  void cut_to_limit(std::uint32_t index);
  void wait_in_line(std::uint32_t index);
  void keep_list(std::uint32_t index, const Seen& seen);
  void stand_in_line(std::uint32_t index);
  bool saved_next(const Lease& lease, TimePoint now) const;
  void wait_for_publisher(std::uint32_t index);
  void publisher_ended(std::uint32_t index, std::size_t& looks, TimePoint now);
  bool extend_run(std::uint32_t index, std::size_t& looks, TimePoint now);
  void stop_awaiting(std::uint32_t index);
  void give_up_on_publisher(std::uint32_t index, TimePoint now);
  void begin_piece(const Piece& piece, const Seen& seen, std::span<const std::uint32_t> wanted, Warmed& done);
  void leave_line(Lease& lease);
  void take_kept(std::uint32_t index, TimePoint now);
  bool take_some(std::uint32_t index, TimePoint now);
  bool check_some(std::uint32_t index, TimePoint now);
  void stop_taking(std::uint32_t index);
  void end_taking(std::uint32_t index, TimePoint now);
  void count_late(Lease& lease) { stats_.wait_timeouts += std::exchange(lease.late, true) ? 0 : 1; }
  void begin_run(std::uint32_t index, TimePoint now);
  void shorten(Lease& lease, std::uint32_t kept);
  std::uint32_t take_run(std::uint32_t index, const Seen& seen, std::uint32_t most);
  bool want_block(std::uint32_t index, std::uint32_t i, const Seen& seen);
  void become_ready(std::uint32_t index, TimePoint now);
  void settle(const Loads::Ended& ended, TimePoint now);
  void cut(std::uint32_t index, std::uint32_t kept, TimePoint now);
  void land(std::uint32_t index, TimePoint now);
  void time_out(std::uint32_t index, TimePoint now);
  void end_wait(std::uint32_t index, TimePoint now);
  void wait_until_end(std::uint32_t index);
  void await_load(std::uint32_t index, std::uint32_t position);
  std::uint32_t first_load(const Lease& lease) const;
  bool nearly_there(Lease& lease);
  void leave_loads(std::uint32_t index, std::size_t kept);
  void unpin_from(std::uint32_t index, std::size_t kept, ChargeIndex charge);
  void give_up(std::uint32_t index);
  void retire(std::uint32_t index, LeaseEvent event);
  void collect(std::uint32_t index);
  void end_due(std::uint32_t index, TimePoint now);
  void end_if_due(std::uint32_t index, TimePoint now);
  // kNoLink: none, or its term is over.
  std::uint32_t named(const QueryNameView& name, TimePoint now);
  TicketAnswer tell(std::uint32_t index, TimePoint now);
  std::uint32_t index_of(const Lease& lease) const { return by_id_.find(lease.id)->second; }
  std::uint32_t take_object();
  LeaseId make_id();

  Config config_;
  Images& images_;
  Sessions& sessions_;
  Budgets& budgets_;
  WaitingLine& line_;
  Loads& loads_;
  Leftovers& leftovers_;
  Tier* tier_;
  std::deque<Lease> leases_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<QueryName, std::uint32_t, Hash, Equal> by_name_;
  std::unordered_map<LeaseId, std::uint32_t, Hash> by_id_;
  std::uint64_t last_revision_, last_id_ = 0;
  std::array<std::uint32_t, 8> id_key_;
  std::array<std::uint32_t, 16> ids_{};  // of the stream, the block that the next id is of
  PlaceCounts places_;
  std::vector<MemberEvent> member_events_;
  std::vector<LeaseIndex> warmed_;
  const Publishing* publishing_ = nullptr;
  std::vector<std::uint32_t> awaiting_;  // those with `awaits`
  bool extends_ = false;                 // one of them has not looked at all that it may go on with
  std::deque<std::uint32_t> taking_;     // whose turn it is in front
  Deadlines deadlines_;
  bool expires_ = false;  // more are over than one call ends
  // Of the part at hand.
  std::vector<Lookup> lookups_;
  std::vector<TierRef> stored_;
  std::vector<BlockHash> asked_;  // hashes that the tier is asked for, their places, its answers
  std::vector<std::uint32_t> asked_at_;
  std::vector<TierRef> asked_found_;
  LeaseStats stats_;
};

}  // namespace orbitkv::cache
