// The cache core: sessions, instances, residency, queries and leases, publishes,
// restores, eviction. Pure and single-threaded: time and completions come in as
// calls, effects go out through Ports and, where there is an SSD, Tier. The daemon drives
// it from its core thread; tests drive it with scripted ones. It never blocks, reads a clock, touches
// payload bytes or a descriptor.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/census.h"
#include "cache/tier.h"
#include "cache/transitions.h"
#include "mem/pool.h"
#include "model/geometry.h"
#include "model/plan.h"
#include "orbitkv/types.h"

namespace orbitkv::mem {
struct KeptPool;
struct KeptRead;
class KeptTable;
using KeptReader = Id<struct KeptReaderTag, std::uint32_t>;
}  // namespace orbitkv::mem

namespace orbitkv::cache {

struct OperationKey {
  SessionId session;
  RecordIndex record;
  OperationId operation;
  friend auto operator<=>(const OperationKey&, const OperationKey&) = default;
};

// Effects. Called from inside Core calls; must not call back into Core.
// publish() and restore() that return an Error have called no port: the caller ends the
// record. One that returns a value has called grant() or reap(), or will call grant(),
// reap() or fail() later; every granted operation ends in reap() or a revoke() that won.
class Ports {
 public:
  virtual ~Ports() = default;
  enum class Grant : std::uint8_t { kGranted, kBankFull };
  // Writes the plan and its result area, then moves the record Preparing → Granted.
  // kBankFull: nothing happened; the core tries again after bank_freed().
  virtual Grant grant(const OperationKey& op, const model::Plan& plan) = 0;
  enum class Revoke : std::uint8_t { kRevoked, kAlreadyClaimed };
  // Granted → Revoked. kAlreadyClaimed: the client was first; a receipt will come.
  virtual Revoke revoke(const OperationKey& op, const Error& why) = 0;
  // Preparing → Failed.
  virtual void fail(const OperationKey& op, const Error& why) = 0;
  // Drained → Reaped, or Preparing → Reaped where there was nothing to copy. Frees the
  // operation's part of the plan bank.
  virtual void reap(const OperationKey& op) = 0;
  // Of a save that is prepared: what it left out; before grant() or reap().
  struct Dropped {
    std::uint32_t blocks = 0;  // that found no memory
    bool being_made = false;   // there is none yet
  };
  virtual void drop(const OperationKey& op, const Dropped& dropped) = 0;
};

inline constexpr std::uint64_t kPoolsInQueryBudget = 4;

struct CoreConfig {
  std::uint32_t max_blocks = 1u << 20;  // residency table; more than fits is evicted
  Duration lease_ttl = seconds(600);
  Duration reply_ttl = seconds(60);       // a result that nobody fetches
  Duration load_wait = seconds(5);        // for blocks of a query to come from the tier, all in all
  Duration publish_wait = seconds(2);     // for another publisher of the same block
  Duration incomplete_ttl = seconds(60);  // image without an open grant that never completes
  ByteCount eviction_batch = 8 * kMiB;    // evicted at least, once anything is
  std::uint32_t protected_percent = 20;   // of the pool: what came back may be kept longer; 0: off
  // Bytes that queries may hold, each owner counted: of all instances (0: four times the pool as
  // configured), and of one (0: half of that).
  ByteCount query_budget, query_instance_budget;
  Duration interest_idle = seconds(30);     // an interest that nobody speaks of ends
  Duration prepare_ttl = seconds(1);        // a preparation that is ready and nobody claims
  Duration full_prefix_wait = seconds(30);  // at most, for other publishers
  Duration retire_store_wait = seconds(2);  // for the tier to take what a slab that retires holds
  Duration retire_claim_wait = seconds(2);  // for claimed copies on it
  // Of a list that is complete, looked up at once; the rest over turns.
  std::uint32_t turn_hashes = limits::kLookUpsPerTurn;
  std::uint32_t turn_unpins = limits::kUnpinsPerTurn;  // likewise, of what has ended
  std::uint32_t retire_looks = limits::kRetireLooks;   // of a turn of a retirement
  Incarnation incarnation = {};                        // of this life of the Manager
  mem::KeptTable* kept = nullptr;                      // where images outlive the process; outlives the core
  std::array<std::uint64_t, 2> seed{1,
                                    2};  // of lease ids, revisions and table hashes: getrandom in the daemon
};

// kInterest: read for an interest, whose id is the request id; nobody else finds it.
enum class QueryMode : std::uint8_t { kDiscover = 1, kRead = 2, kInterest = 3 };

struct QueryPart {
  InstanceId instance;
  GroupId group;
  QueryMode mode = QueryMode::kDiscover;
  std::string_view request_id;
  std::uint32_t first = 0, total = 0;
  std::span<const BlockHash> hashes;
  // Answer as soon as most of what must come from the tier is there and the rest is being
  // read: a restore of blocks that are not waits for them, or ends in kRecompute.
  bool early_lease = false;
  // Of a part behind the first, read mode: of the answer to the part before. 0: not compared.
  Revision revision = {};
  // Read mode, ahead of need: the same list read later finds it done, or under way. No lease is
  // told before; it ends by itself, and before anybody waits for what it holds.
  bool prepare = false;
  // Read mode: where the run ends at a block that another instance is saving, wait for that.
  bool full_prefix = false;
};
// Why there is nothing to lease.
enum class Missing : std::uint8_t {
  kNone,
  kGone,      // not there, or it could not be read
  kTimeout,   // not in time
  kNoMemory,  // no budget, or no room for all of a recovery, not in time; none for the first block of a run
  kTooLarge,  // a recovery beyond memory or a budget, or of which more must be loaded than may be at once;
              // a block that is larger than a budget
};
struct QueryAnswer {
  std::uint32_t hit_blocks = 0;  // leading run over the parts so far: resident, loading or stored
  Revision revision;             // read mode; of the ticket
  LeaseId lease;
  std::vector<std::uint64_t> resident;  // bitmap of this part
  std::vector<std::uint64_t> stored =
      {};  // likewise: not resident, but in the tier; empty: none or not looked
  // Read mode, last part: ask again, blocks of the run are on their way. Of a preparation: there is one.
  bool loading = false;
  bool admitted = true;          // loading: false, it waits for budget or other publishers and holds nothing
  bool again = false;            // the lease was told before
  Missing why = Missing::kNone;  // read mode, last part, no hits
};

// A query under its request id, from its first part to the end of what it leased. With a
// revision, which rises when another list is asked under the id, a ticket names one list.
enum class TicketKind : std::uint8_t { kPrefix = 1, kRecovery = 2, kWarm = 3 };  // kWarm: cancel only
struct TicketName {
  InstanceId instance;
  GroupId group;  // of a prefix
  std::string_view request_id;
  TicketKind kind = TicketKind::kPrefix;
  bool interest = false;  // of one, and not of whoever asks under the same id
};
enum class TicketState : std::uint8_t {
  kUnknown,  // no such ticket, or of another revision: nothing was touched. A miss of the attempt
  kLoading,
  kReady,
  kMissing,  // it ended with nothing to lease; told once
};
struct TicketLease {
  GroupId group;
  std::uint32_t blocks = 0;
  LeaseId lease;
};
struct TicketAnswer {
  TicketState state = TicketState::kUnknown;
  bool admitted = true;  // loading: false, it waits for budget or room and holds nothing
  bool again = false;    // ready: it was told before
  Missing why = Missing::kNone;
  GroupId missing;               // of a recovery: the first group that is not to be had
  std::uint32_t hit_blocks = 0;  // of a prefix
  Revision revision;
  std::vector<TicketLease> leases;  // ready: one of a prefix, one a group of a recovery
};

// What a request would go on from: the engine has the tokens before `origin` itself and would
// compute from `boundary` on. Both are multiples of the page.
struct TokenTail {
  std::uint64_t origin = 0, boundary = 0;
  friend bool operator==(const TokenTail&, const TokenTail&) = default;
};
// The pages that the boundary needs by the rules of the instance's groups (model/recovery.h):
// for each group ascending the pages of its required range ascending, as one list.
struct RecoveryPart {
  InstanceId instance;
  std::string_view request_id;
  TokenTail tail;
  std::uint32_t first = 0, total = 0;
  std::span<const BlockHash> hashes;
  Revision revision = {};  // as in QueryPart
  bool prepare = false;    // likewise
  bool interest = false;   // as in TicketName
};

// One operation of an interest: what a coordinator wants to have held at this Manager, one of
// several that one engine's ranks stand at (docs/tp.md).
struct InterestName {
  InstanceId instance;
  InterestId interest;
  InterestOperation operation;
};
struct InterestPart {
  InterestName name;
  InterestAuthority authority;    // zero: whatever it is now
  GroupId group;                  // of a prefix
  std::optional<TokenTail> tail;  // of a recovery: all pages of the boundary
  std::uint32_t first = 0, total = 0;
  std::span<const BlockHash> hashes;
};
struct InterestCall {
  InterestName name;
  InterestAuthority authority;
  InterestVerb verb = InterestVerb::kPoll;
  std::uint32_t blocks = 0;  // of a claim: of a prefix no more than are acquired, the rest goes back
};
struct InterestAnswer {
  InterestPhase phase = InterestPhase::kUnknown;
  InterestAuthority authority;
  InterestOperation operation;  // the newest
  std::uint32_t blocks = 0;     // held: of a prefix its run, of a recovery its pages. Collecting: taken
  bool admitted = true;         // acquiring: false, it waits for budget or room and holds nothing
  Missing why = Missing::kNone;
  GroupId missing;                  // of a recovery
  std::vector<TicketLease> leases;  // claimed
};
struct InterestStats {
  std::uint32_t interests = 0;
  std::uint64_t operations = 0, claims = 0;
  std::uint64_t lost = 0;   // operations that ended by themselves, or that nobody spoke of
  std::uint64_t stale = 0;  // calls with an authority that is over
};

// A list that may be asked for soon. Whoever gives it is promised nothing.
struct WarmHint {
  Duration first_use, max_wait;  // from now; max_wait 0: as long as hints live
  std::uint32_t priority = 0;    // larger first
  std::uint8_t confidence = 0;   // 0..100
};
struct WarmPart {
  InstanceId instance;
  GroupId group;
  std::string_view request_id;
  std::span<const BlockHash> hashes;
  WarmHint hint;
};

struct PublishInput {
  OperationKey op;
  RegistrationId registration;
  GroupId group;
  std::span<const std::uint32_t> blocks;  // engine block indices, one a hash
  std::span<const BlockHash> hashes;
};
// While the operation waits nothing is reserved, and `accepted` is what it means to copy.
// Blocks named twice count as resident.
struct PublishAnswer {
  std::uint32_t accepted = 0, resident = 0, waiting = 0, dropped = 0;
};

struct RestoreInput {
  OperationKey op;
  RegistrationId registration;
  LeaseId lease;
  std::uint32_t first = 0;
  std::span<const std::uint32_t> targets;  // kHole = skip
};

// What the client reported with Drained, already decoded and bounded.
struct DrainReport {
  bool success = false;
  std::span<const std::uint64_t> digests;  // save: one a plan entry
  std::span<const std::uint64_t> failed;   // restore: bitmap over plan entries
  std::string_view text;
};

struct BudgetStats {
  ByteCount limit, instance_limit;
  ByteCount used, peak, speculative;  // speculative: done ahead of need
  ByteCount draining;                 // of `used`: reads that go on though nobody waits for them
  std::uint32_t waiting = 0;          // queries that wait for budget or room
  std::uint64_t waits = 0;            // that ever did
  std::uint64_t cut = 0;              // prefixes cut at a limit
  std::uint64_t bypassed = 0;         // recoveries larger than a limit
  std::uint64_t ended = 0;            // waits that ended with nothing
  std::uint32_t prepared = 0;         // preparations that nobody has claimed yet
  std::uint64_t prepares = 0, claimed = 0, unclaimed = 0, gave_way = 0;
  std::uint32_t warms = 0;                                 // hints that live
  std::uint64_t hints = 0, warmed = 0, warms_expired = 0;  // warmed: blocks that were begun for hints
  std::uint64_t publisher_waits = 0;                       // queries that waited for other publishers
};

struct CoreStats {
  std::uint32_t sessions = 0, instances = 0, leases = 0, operations = 0;
  std::uint64_t blocks = 0, inflight_images = 0;
  std::uint64_t hits = 0, misses = 0;  // blocks asked in read mode
  std::uint64_t published = 0, published_bytes = 0, filtered = 0, dropped = 0;
  std::uint64_t restored = 0, restored_bytes = 0;  // blocks of successful restores
  std::uint64_t evicted = 0, abandoned = 0;
  std::uint64_t failed_verifications = 0, failed_restores = 0;
  std::uint64_t waits = 0;  // grants put off (bank full, other publisher)
  std::uint64_t expired_leases = 0, quarantined_extents = 0;
  std::uint64_t undelivered = 0;  // results that nobody fetched in time
  std::uint32_t tickets = 0;      // unfinished
  std::uint64_t looked_up = 0;    // hashes, each time
  std::uint64_t recoveries = 0, recoveries_missed = 0, recovery_waits = 0;  // waits for room
  ByteCount leased, quarantined;
  BudgetStats budgets;

  // Blocks that may be evicted now, in the order in which they go.
  struct OfClass {
    std::uint64_t blocks = 0, evicted = 0;  // evicted: since the start
    ByteCount bytes;
  };
  OfClass reclaimable, probationary, retained;
  ByteCount protected_share;  // most that is retained

  // Blocks from the tier. `loads` were begun; each lands, fails (by the tier's word), turns
  // out to be gone, or is given up before the tier was told.
  std::uint64_t loads = 0, loaded = 0, loaded_bytes = 0;
  std::uint64_t load_failures = 0, loads_gone = 0, loads_given_up = 0, shared_loads = 0;
  std::uint64_t loads_refused_memory = 0, loads_refused_bounds = 0;  // the run ended there
  std::uint64_t load_timeouts = 0;                                   // queries that got what had landed
  std::uint64_t early_leases = 0, awaited_restores = 0;
  std::uint64_t loading = 0;  // now
  ByteCount loading_bytes;
  InterestStats interests;
  // Blocks to the tier.
  std::uint64_t spilled = 0, spilled_bytes = 0, spill_failures = 0, spills_refused = 0;
  std::uint64_t spilling = 0;  // now
};

// What an eviction that was asked for did, and what it could not take.
struct EvictReport {
  std::uint64_t blocks = 0;
  ByteCount bytes;
  std::uint64_t referenced = 0;     // blocks that leases or restores hold
  std::uint64_t being_written = 0;  // blocks that the tier is reading
  std::uint64_t kept = 0;           // blocks that are worth storing, and the tier takes no more now
};

// Which blocks of memory a drop takes: of these namespaces, or of all if it names none, that
// nobody has used for so long (in whole minutes, and up to one later). 0: all of them.
struct DropWhat {
  std::span<const model::NamespaceDigest> digests;
  Duration unused;
};
enum class DropRun : std::uint8_t { kCount, kDrop };
using DropId = Id<struct DropIdTag, std::uint64_t>;
struct NamespaceBlocks {
  model::NamespaceDigest digest;
  std::string text;  // as it was registered; empty: not known
  std::uint64_t blocks = 0;
  ByteCount bytes;
};

// What the publishes of an instance do now, and what it lost for want of memory.
struct PublishActivity {
  InstanceId instance;
  std::uint32_t open = 0;     // lent memory to copy into, or wait for that
  std::uint32_t waiting = 0;  // for another publisher or a load of the same blocks
  ByteCount lent;
  std::uint64_t dropped = 0;  // blocks, since the instance registered
  Duration oldest;            // of the open and the waiting ones
};

// The slab that retires, if one does.
struct RetireReport {
  RetireState state = RetireState::kIdle;
  SlabSlot slab;
  std::uint32_t claims = 0;  // copies that are waited for
  ByteCount left;            // lent from it and not quarantined
};
struct RetireStats {
  std::uint64_t images = 0;    // taken out of sight
  std::uint64_t revoked = 0;   // operations that failed for it, no copy of them begun
  std::uint64_t detached = 0;  // operations that it went on without
};

struct InstanceStats {
  InstanceId id;
  std::uint16_t ranks = 0, world_size = 0;
  std::uint32_t leases = 0;
  std::uint32_t waiting = 0;  // queries, for budget or room
  ByteCount charged;          // to it, of the query budgets
};

class Core {
 public:
  // `tier` outlives the core; nullptr: DRAM only.
  Core(const CoreConfig& config, mem::Pool& pool, Ports& ports, Tier* tier = nullptr);
  ~Core();

  // What an earlier life left, from a pool that was made of it; once, before anything else.
  // Returns the blocks that are there now; they count as used now. Those that `reads` names are
  // not lent again before end_kept_read(). `goes_on` is called as it comes forward: well within a second.
  std::uint64_t adopt(const mem::KeptPool& kept, TimePoint now, std::span<const mem::KeptRead> reads = {},
                      const std::function<void()>& goes_on = {});
  void end_kept_read(mem::KeptReader reader);
  // The tier could not store blocks of a namespace yet: it knows nothing of how they look.
  bool lacks_spaces() const;

  // ---- sessions ----
  void open_session(SessionId session, TimePoint now);
  // The client said goodbye or its socket closed: no new work; what is unclaimed is
  // revoked and returned at once, its leases and queries end, its ranks leave their
  // instances; what is claimed waits for a receipt.
  void close_session(SessionId session, TimePoint now);
  // Its engine gives no sign of life: what is unclaimed is revoked or fails with kBusy, what
  // is claimed waits for its receipt, and every call below for it answers kBusy until
  // revive_session(). Both: nothing, if it is so already or the session is closed.
  void stall_session(SessionId session, TimePoint now);
  void revive_session(SessionId session);
  // Every thread of the engine process has ended: claimed saves without a receipt are
  // quarantined for good; the sources of claimed restores are released. Implies close.
  void process_ended(SessionId session, TimePoint now);
  // True when the session is closed and holds nothing but quarantine.
  bool session_gone(SessionId session) const;

  // ---- registration ----
  Result<RegistrationId> register_rank(SessionId session, const model::RankRegistration& rank, TimePoint now);
  // kBusy while operations of the registration are open.
  Status unregister(SessionId session, RegistrationId registration);

  // ---- commands ----
  Result<QueryAnswer> query(SessionId session, const QueryPart& part, TimePoint now);
  // Every page of one boundary, or nothing: kLoading until all of them are in memory.
  Result<TicketAnswer> read_recovery(SessionId session, const RecoveryPart& part, TimePoint now);
  Result<PublishAnswer> publish(const PublishInput& in, TimePoint now);
  // Number of blocks that the grant copies. Blocks of an early lease that are on their way:
  // the grant follows, or fail() with kRecompute.
  Result<std::uint32_t> restore(const RestoreInput& in, TimePoint now);
  // Loads what is stored of the list while nobody waits for anything. Another list under the id
  // takes the place of the first. kBusy: a bound.
  Status warm(SessionId session, const WarmPart& part, TimePoint now);
  Status release(SessionId session, LeaseId lease);
  // What query() would answer to the same list, without the list. Submits nothing and does not
  // lengthen a lease. kReject: the ticket is another session's.
  Result<TicketAnswer> poll(SessionId session, const TicketName& ticket, Revision revision, TimePoint now);
  // Revision 0: whichever. Of another revision, or unknown: nothing to do.
  Status cancel(SessionId session, const TicketName& ticket, Revision revision = {});

  // The newest operation of an interest, part by part; a higher one takes its place. Told again it
  // answers as a poll. kRecompute: the authority is over. kReject: another list under the same
  // operation, a claimed interest, or one that was closed. kBusy: a bound.
  Result<InterestAnswer> submit_interest(SessionId session, const InterestPart& part, TimePoint now);
  // Submits nothing. A cancel or close is never refused.
  Result<InterestAnswer> interest(SessionId session, const InterestCall& call, TimePoint now);

  // ---- completions ----
  void drained(const OperationKey& op, const DrainReport& report, TimePoint now);
  // Plan bank space of this session came free.
  void bank_freed(SessionId session, TimePoint now);
  // The tier's word on a load or store that it accepted; the slots are the core's again. A
  // load that is not ok: they may hold anything.
  void loaded(TransferId transfer, bool ok, TimePoint now);
  void stored(TransferId transfer, bool ok, TimePoint now);
  // It would take loads again.
  void tier_ready(TimePoint now);
  // It has read what it holds: kept blocks may find their spaces there. Once, where that came after this
  // core began.
  void tier_opened(TimePoint now);
  // New pool capacity may let nothing wait; expiry, abandonment. Call at least every 250 ms.
  void tick(TimePoint now);

  // Bounded work that goes on over turns: look-ups of long lists, what long leases held that ended or
  // were cut, drops. True: there is more to do at once.
  bool turn(TimePoint now);
  // Of that, but for drops: there is something to do. Any call may begin it.
  bool works() const;

  // For the operator: evicts unleased blocks, least recent first, until `bytes` came free or
  // none may go. Those that the tier wants and has not got stay; it begins to store them.
  EvictReport evict(ByteCount bytes, TimePoint now);
  // Blocks leave DRAM over turns, and by namespace what is on its way does not arrive: the tier has
  // forgotten them just now. Pinned ones go out of sight; with an age they stay, for they are in use.
  // Saves that engines have begun may still seal.
  DropId begin_drop(const DropWhat& what, DropRun run, TimePoint now);
  // What it took, or would take, when it is over; once. nullopt: it goes on.
  std::optional<std::vector<NamespaceBlocks>> take_dropped(DropId drop);
  // Names of those that blocks or instances use.
  std::vector<NamespaceBlocks> namespaces() const;

  // ---- slabs ----
  // Lends no more from the slab and lets go of all that stands on it, by retire_turn(). kBusy:
  // another one retires. kReject: it is not offered.
  Status retire_slab(SlabSlot slab, TimePoint now);
  // Bounded work for it. True: there is more to do at once. tick() does its part, too.
  bool retire_turn(TimePoint now);
  // In state kDrained, when no device of ours knows the slab either: Pool::abandon().
  void abandon_slab();
  RetireReport retiring() const;
  // Claimed copies of the session that may be under way on the slab that retires.
  std::uint32_t retiring_claims(SessionId session) const;
  RetireStats retire_stats() const;

  CoreStats stats() const;
  // Walks the tables: for checks, not for status.
  Census census() const;
  std::vector<InstanceStats> instances() const;
  // nullopt: no such instance. Looks at the operations of its sessions alone.
  std::optional<PublishActivity> publish_activity(const InstanceId& instance, TimePoint now) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace orbitkv::cache
