// The C++ client of an OrbitKV Manager. One Client is one session of one process:
// a scheduler (queries, leases) or a worker (registration, publish, restore), or
// both. All calls are thread-safe and have a deadline; no exception leaves them.
// Copies run on the client's own executor thread, small ones in the caller.
//
// Ownership: the engine's pages are lent from start_* until the handle is done.
// Dropping a handle cancels nothing; a wait that times out keeps everything as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "orbitkv/types.h"

namespace orbitkv::client {

// What the caller should do about a failure (base/result.h has the same numbers).
enum class Action : std::uint8_t {
  kNone = 0,
  kRetry = 1,
  kRecompute = 2,
  kReconnect = 3,
  kReject = 4,
  kBug = 5
};

struct Outcome {
  Action action = Action::kNone;  // kNone: success
  std::string message;            // cause and remedy
  bool ok() const { return action == Action::kNone; }
};

struct Options {
  std::string bootstrap_socket;        // empty: the default path
  std::string name = "client";         // in the Manager's log and status
  std::uint32_t timeout_ms = 5000;     // of every blocking call
  std::uint32_t spin_iterations = 64;  // before a waiting call sleeps
  bool verify = true;                  // restores compare checksums; off only in tests of tests
  bool inline_copies = true;           // small copies are started by the calling thread
  // A query may be leased while the last of its blocks still come from SSD (a quarter of them
  // at most): restores wait for theirs. A block that then cannot be read fails its restore.
  bool early_leases = false;
  // GPU pages. "auto" chooses by shape, "direct" forces DMA, "kernel" forces copy kernels.
  std::string copy_method = "auto";
  // "full": the smallest window that fills the link; "gentle": a small window of the
  // kernel, unless the method is forced: slower, and hardly a burden for compute beside it.
  std::string copy_pace = "full";
  // JSON lines, one an operation: stages, bytes, method, geometry; bounded. Empty: off, and
  // then no clock is read. The default comes from ORBITKV_TRACE_TRANSFERS.
  std::string trace_file{};
};

// Handles of the device's own API as integers (CUstream, CUevent). Stream 0 is CUDA's
// default stream, which is torch's too unless another is current; kNoStream says that
// nothing has to be waited for. Ignored for pages in CPU memory.
inline constexpr std::uint64_t kNoStream = ~std::uint64_t{0};

// One fragment of every block: layer x component. Block b, row r starts at
// base + b * block_stride + r * row_stride and holds row_bytes.
struct Layer {
  std::string name;  // for messages and layer events; components of one layer share it
  std::uint16_t group = 0;
  std::uint16_t component = 0;  // 0 = K (or K and V together), 1 = V
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;         // of the engine's allocation from base on; all ranges lie inside
  std::uint64_t block_stride = 0;  // bytes, as the next two
  std::uint32_t rows = 1;          // of a block
  std::uint64_t row_bytes = 0;
  std::uint64_t row_stride = 0;  // unused for one row
};

struct Group {
  std::uint16_t id = 0;
  std::uint16_t shard = 0;   // that the rank reads and writes of each block; ranks that hold the same bytes
  std::uint16_t shards = 1;  // (MLA, replicated KV) name the same one,
  bool writer = true;        // and one of them is its writer
  RecoveryRule rule = RecoveryRule::kPrefix;
  std::uint32_t window_tokens = 0;  // kWindow: > 0; else 0
};

struct Registration {
  InstanceId instance;
  std::string name_space;  // docs/protocol.md, "Namespace"
  std::uint16_t rank = 0;
  std::uint16_t world_size = 1;
  // "cpu:0", "cuda:<ordinal>" as this process counts them, or "GPU-<uuid>" / "MIG-<uuid>".
  std::string device = "cpu:0";
  std::uint32_t num_blocks = 0;    // block ids are below it
  std::uint32_t block_tokens = 0;  // tokens a block
  std::vector<Group> groups;       // ascending ids; the first is 0, a prefix group
  std::vector<Layer> layers;       // in the engine's consuming order
};

struct RegistrationHandle {
  std::uint64_t value = 0;
};  // survives a Manager restart
struct OperationHandle {
  std::uint64_t value = 0;
};  // of a save or a restore

struct Candidates {
  std::uint32_t hit_blocks = 0;                 // leading run, in memory or stored
  std::vector<std::uint32_t> hit_positions;     // every position that is in memory
  std::vector<std::uint32_t> stored_positions;  // that is on SSD and not in memory
};
// One list that was asked under a request id. Asking another list raises the revision; polls
// and cancels with an older one find nothing and touch nothing.
struct Ticket {
  std::uint16_t group = 0;
  std::uint64_t revision = 0;  // a cancel's 0: whichever list it is
};
enum class Missing : std::uint8_t {
  kNone = 0,
  kGone = 1,      // not there, or it could not be read
  kTimeout = 2,   // not in time
  kNoMemory = 3,  // no budget, or no room for all of a recovery or the first block of a prefix, not in time
  kTooLarge = 4,  // a recovery, or a block of a prefix, is larger than the Manager's memory or than a budget
  kUnknown = 99,  // the ticket is unknown: it ended, was cancelled or replaced, or is of an earlier
                  // Manager. A miss of this attempt
};
// A list of a prompt's blocks that is asked under a request id of the caller's.
struct PrefixQuery {
  InstanceId instance;
  std::span<const BlockHash> hashes;
  std::string_view request_id;  // <= 256 bytes
  std::uint16_t group = 0;
  // Where the run ends at a block that another engine is saving, wait for it (--full-prefix-wait).
  bool wait_for_full_prefix = false;
};
// When a list may be needed, and how surely.
struct WarmHint {
  std::uint32_t first_use_ms = 0;  // from now: an estimate
  std::uint32_t max_wait_ms = 0;   // of no use after that; 0: as long as hints live (5 s)
  std::uint32_t priority = 0;      // larger first
  std::uint8_t confidence = 100;   // 0..100
};
struct Ready {
  std::uint32_t hit_blocks = 0;
  LeaseId lease;         // zero if hit_blocks = 0 or loading
  bool loading = false;  // the run is on its way into memory: poll, or ask with the same id and hashes
  Ticket ticket;
  Missing why = Missing::kNone;  // of polls that end with nothing
  bool admitted = true;          // false: loading, and waits for budget or for other publishers
};

// What a boundary needs of one group: the pages of its required range (docs/queries.md).
struct RecoveryGroup {
  std::uint16_t group = 0;
  std::span<const BlockHash> hashes;
};
// Tokens: the engine has what lies before `origin` and would compute from `boundary` on.
struct RecoverySet {
  std::uint64_t origin = 0, boundary = 0;
  std::span<const RecoveryGroup> groups;  // all of the registration, ascending
};
struct RecoveryLease {
  std::uint16_t group = 0;
  std::uint32_t pages = 0;  // blocks
  LeaseId lease;
};
struct Recovered {
  std::vector<RecoveryLease> leases;  // of every group, or none
  bool loading = false;               // poll, or ask again
  bool admitted = true;               // false: loading, and waits for budget or room in memory
  Ticket ticket;
  Missing why = Missing::kNone;
  std::uint16_t missing_group = 0;  // kGone, kTimeout: the first group that is not to be had
};

struct SaveGroup {
  std::uint16_t group = 0;
  std::span<const std::uint32_t> blocks;  // of the registration
  std::span<const BlockHash> hashes;      // one a block
};
struct Load {
  LeaseId lease;
  std::uint16_t group = 0;
  std::span<const std::uint32_t> blocks;  // one a block of the lease; kHole skips
};

// Where the engine's compute stands, and what it wants to be told.
struct SaveOptions {
  std::uint64_t ready_stream = 0;  // whoever writes the pages
};
// One event a layer name: recorded after the last byte of the layer (all entries of that
// name). The events are the engine's, live until the operation is done, and distinct.
struct LayerEvent {
  std::string_view layer;
  std::uint64_t event = 0;
};
struct RestoreOptions {
  std::uint64_t ready_stream = 0;  // earlier users of the destination pages
  // Events order, the verdict decides: whoever lets a step run behind these events must not
  // let its output out before the operation is done and a success.
  std::span<const LayerEvent> layer_events;
};

struct OperationStatus {
  bool done = false;
  bool success = false;      // done: every byte copied and verified, or nothing was to do
  std::uint32_t blocks = 0;  // done: copied by this operation
  std::string message;       // done and not success, or blocks were dropped: why
  // Of a successful save; with blocks all that were asked for.
  std::uint32_t resident = 0;  // not copied: they are there, or another publisher saves them
  std::uint32_t dropped = 0;   // not copied: a bound was met, message says which; save them again
};

// Host observations, nanoseconds since the call; only with Options::trace_file.
struct OperationReport {
  std::uint64_t readiness_ns = 0, dispatched_ns = 0, dequeued_ns = 0;
  std::uint64_t claimed_ns = 0, enqueued_ns = 0, drained_ns = 0;
  std::uint64_t bytes = 0, fragments = 0;
  std::string method;
};

struct Health {
  bool connected = false;
  std::uint64_t incarnation = 0;      // of the Manager
  std::uint64_t reconnects = 0;       // sessions after the first
  std::uint32_t open_operations = 0;  // saves and restores that have not ended
  std::string message;                // not connected: why
};

// What the publishes of an instance do now, and what it lost for want of memory.
struct PublishActivity {
  std::uint32_t open = 0;        // hold memory of the Manager that they copy into
  std::uint32_t waiting = 0;     // for another publisher or a load of the same blocks
  std::uint64_t lent_bytes = 0;  // of the open ones
  std::uint64_t dropped = 0;     // blocks that found no memory, since the instance registered
  std::uint64_t oldest_ns = 0;   // age of the oldest one
};

class Client {
 public:
  // Connects if a Manager is there; if not, the client is returned all the same and
  // goes on trying in the background (health() tells). Fails only on bad options.
  static std::unique_ptr<Client> open(const Options& options, Outcome& outcome);
  ~Client();  // close()

  // Waits until a session stands, timeout_ms at most.
  Outcome wait_connected(std::uint32_t timeout_ms);
  // Lends the memory. kReject names what is wrong with it; a Manager that comes later is told then.
  Outcome register_rank(const Registration& registration, RegistrationHandle& out);
  // Stops admission, waits for the registration's operations, then forgets the memory.
  Outcome unregister(RegistrationHandle registration);
  // Which positions of the list are there, in memory or on SSD. Reads and pins nothing.
  Outcome query_candidates(InstanceId instance, std::span<const BlockHash> hashes,
                           std::string_view request_id, std::uint16_t group, Candidates& out);
  // A query or poll that is not answered in time gives back what its late answer leases.
  // Leases the leading run. The same request id and hashes answer the same lease again. While
  // blocks of the run come from SSD the answer is `loading`; it ends in a lease (perhaps of a
  // shorter run) within the Manager's --load-wait, so asking again every few milliseconds will do.
  Outcome query_prefetch(const PrefixQuery& query, Ready& out);
  Outcome query_prefetch(InstanceId instance, std::span<const BlockHash> hashes, std::string_view request_id,
                         std::uint16_t group, Ready& out) {
    return query_prefetch(PrefixQuery{instance, hashes, request_id, group}, out);
  }
  // Ahead of need: what query_prefetch would have to load is loaded, and the same request id and
  // hashes then find it. Ends unclaimed a second after it is ready, or when a query would have to
  // wait for what it holds; cancel_query ends it. `begun`: false where there is nothing to
  // prepare, or no room for it now. kRetry: four of the session are unclaimed, or the id has asked.
  Outcome prepare_prefix(const PrefixQuery& query, bool& begun);
  // A hint that this list may be asked for: what is on SSD of it (of 2,000 hashes at least) may be loaded
  // while no query waits. Leases and promises nothing. Another hint under the id takes its place.
  // kRetry: 16 hints of the session live, or 128 of the host. kReject: more than 2^20
  // hashes, as of a query.
  Outcome warm_prefix(const PrefixQuery& query, const WarmHint& hint);
  Outcome cancel_warm(InstanceId instance, std::string_view request_id, std::uint16_t group);
  // What query_prefetch would answer to the list of the ticket, without sending it again.
  // A lease that this returns is not prolonged by polling on.
  Outcome poll_query(InstanceId instance, std::string_view request_id, const Ticket& ticket, Ready& out);
  // Leases every page that a boundary needs, of all groups, or nothing: one lease a group, all in
  // one answer. kReject: the groups' pages are not those of the boundary by the registered rules.
  // Each lease is restored as others are; if a restore fails on any rank, the boundary is lost.
  Outcome read_recovery(InstanceId instance, std::string_view request_id, const RecoverySet& set,
                        Recovered& out);
  // As prepare_prefix, for read_recovery; cancel_recovery ends it.
  Outcome prepare_recovery(InstanceId instance, std::string_view request_id, const RecoverySet& set,
                           bool& begun);
  Outcome poll_recovery(InstanceId instance, std::string_view request_id, const Ticket& ticket,
                        Recovered& out);
  // Ends all of its leases that are not consumed.
  Outcome cancel_recovery(InstanceId instance, std::string_view request_id, const Ticket& ticket);
  Outcome release(LeaseId lease);  // that is not restored, or not to its end
  // A ticket of another revision is left alone.
  Outcome cancel_query(InstanceId instance, std::string_view request_id, const Ticket& ticket);
  Outcome cancel_query(InstanceId instance, std::string_view request_id, std::uint16_t group) {
    return cancel_query(instance, request_id, Ticket{group, 0});
  }
  // One frame of the query-interest protocol (docs/tp.md) to this client's Manager, and the frame that
  // answers it: what a Carrier brings here from a coordinator (orbitkv/interests.h). An error of the
  // Manager is an answer, too. kReject: it is no such frame, or damaged.
  Outcome carry_interest(std::span<const std::byte> frame, std::vector<std::byte>& reply);
  // What an interest in the instance would be bound to now: for Participant::authority, if whoever
  // registered its ranks asks. kRetry: not all of them are registered.
  Outcome interest_authority(InstanceId instance, InterestAuthority& out);
  Outcome ping();  // one round trip over the session

  // A failing outcome: nothing was sent and no page is lent.
  // The caller's thread never waits for the device; its current device context is kept. It
  // may wait for the Manager's answers, and for room where a long restore has more parts than
  // the Manager admits at once: until the time is over in which a grant must come.
  Outcome start_save(RegistrationHandle registration, std::span<const SaveGroup> groups,
                     const SaveOptions& options, OperationHandle& out);
  // All loads are one operation: copied in the order of the layers, over all loads.
  Outcome start_restore(RegistrationHandle registration, std::span<const Load> loads,
                        const RestoreOptions& options, OperationHandle& out);
  // Until every layer event of a restore has been recorded: from then on the engine may
  // enqueue waits for them. kRecompute: the operation ended without (the message says why);
  // kRetry: not in time. With layer events still unrecorded nothing may wait for them.
  Outcome wait_enqueued(OperationHandle handle, std::uint32_t timeout_ms);
  OperationStatus poll(OperationHandle handle);                            // at once
  OperationStatus wait(OperationHandle handle, std::uint32_t timeout_ms);  // not done: still lent
  // Ids of operations that ended since the last call (each once); completion_fd() is an
  // eventfd that is readable when there are some.
  std::vector<OperationHandle> take_completed();
  int completion_fd() const;
  // kReject: not traced, not done, or dropped.
  Outcome report(OperationHandle handle, OperationReport& out);
  // A finished handle is forgotten; an open one goes on and is forgotten when it ends.
  void drop(OperationHandle handle);
  // Of this session, without asking the Manager. peer_alive: false: its process has ended, or there is none.
  Health health() const;
  bool peer_alive() const;
  // kReject: the instance is not registered.
  Outcome publish_activity(InstanceId instance, PublishActivity& out);
  // JSON of the Manager's status.
  Outcome status(std::string& json);
  // Stops admission, drains, says goodbye. Bounded by timeout_ms and two seconds; what is
  // still claimed then goes on in the executor, and the mappings stay until it has ended,
  // also beyond the Client.
  void close();

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace orbitkv::client
