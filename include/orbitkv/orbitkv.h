// The C interface of an OrbitKV client (C11; also C++). One orbitkv_client is one session
// of one process with the Manager of this host: a scheduler (queries, leases), a worker
// (registration, save, restore), or both. Link liborbitkv.so, or dlopen it: it needs no
// CUDA, and no exception leaves it. docs/c-api.md has a program.
//
// Threads: every call is thread-safe but orbitkv_destroy, which nobody may race. A forked
// child is answered ORBITKV_REJECT and opens a client of its own.
// Ownership: the engine's pages are lent from orbitkv_start_* until the operation is done;
// everything else that is passed in is read during the call only. Once loaded, the library
// stays until the process ends, whatever dlclose says.
#ifndef ORBITKV_ORBITKV_H_
#define ORBITKV_ORBITKV_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ORBITKV_API __attribute__((visibility("default")))
#else
#define ORBITKV_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Raised when a member or a function is added; nothing is ever taken away within a soname.
#define ORBITKV_C_API_VERSION 1

// ---- what every call has in common ----

// NOLINTBEGIN(readability-identifier-naming): C's names
// What the caller should do; the answer of every call that can fail.
typedef enum orbitkv_action {
  ORBITKV_OK = 0,
  ORBITKV_RETRY = 1,      // a stated limit is reached, or not in time: later
  ORBITKV_RECOMPUTE = 2,  // the bytes are not to be had: compute them
  ORBITKV_RECONNECT = 3,  // no session stands; the client goes on trying by itself
  ORBITKV_REJECT = 4,     // the input is wrong and stays wrong
  ORBITKV_BUG = 5         // an invariant of OrbitKV broke: report the text
} orbitkv_action;

// Filled by every call that is given one (NULL: no text wanted), success included.
typedef struct orbitkv_error {
  orbitkv_action action;
  char message[1020];  // cause and remedy, ends with 0; empty on success; cut if too long
} orbitkv_error;

// Structs that can grow begin with `size`, which the ORBITKV_*_INIT macros set to what the
// caller was compiled with. Start from the macro and set what differs. An older caller
// gets the defaults for what it does not know; what an older library does not know is
// rejected unless it is zero. All elements of one array have one size.

// A client. Valid from orbitkv_open to orbitkv_destroy.
typedef struct orbitkv_client orbitkv_client;

// The engine's chained block hash, as the engine gives it.
typedef struct orbitkv_hash {
  uint8_t bytes[32];
} orbitkv_hash;
// One engine: 128 bits that all its ranks share, new for each start.
typedef struct orbitkv_instance {
  uint8_t bytes[16];
} orbitkv_instance;
// Pinned bytes in the Manager. All zero: none.
typedef struct orbitkv_lease {
  uint8_t bytes[16];
} orbitkv_lease;
// Registered memory; survives a restart of the Manager. Never 0.
typedef struct orbitkv_registration {
  uint64_t value;
} orbitkv_registration;
// A save or a restore. Never 0, and never used twice by a client.
typedef struct orbitkv_operation {
  uint64_t value;
} orbitkv_operation;

// Destination "leave this block alone".
#define ORBITKV_HOLE UINT32_MAX
// Nothing has to be waited for. 0 is CUDA's default stream.
#define ORBITKV_NO_STREAM UINT64_MAX

// "ok", "retry", ...; "unknown" for a number that is none. Static text.
ORBITKV_API const char* orbitkv_action_name(orbitkv_action action);
// "0.1.0": of the library that was loaded. Static text.
ORBITKV_API const char* orbitkv_version(void);
// ORBITKV_C_API_VERSION of the library that was loaded.
ORBITKV_API uint32_t orbitkv_c_api_version(void);
// Frees what the library allocated for the caller. NULL is fine.
ORBITKV_API void orbitkv_free(void* allocated);

// ---- session ----

typedef struct orbitkv_options {
  size_t size;
  const char* bootstrap_socket;  // NULL: the default path, the same as the Manager's
  const char* name;              // in the Manager's log and status; NULL: "client"
  uint32_t timeout_ms;           // of every blocking call
  uint32_t spin_iterations;      // before a waiting call sleeps
  bool verify;                   // restores compare checksums; false: tests of tests only
  bool inline_copies;            // small copies are started by the calling thread
  bool early_leases;             // lease while the last blocks come from SSD: restores wait for
                                 // theirs, and fail where one then cannot be read
  const char* copy_method;       // GPU pages: "auto" (NULL), "direct" (DMA), "kernel"
  const char* copy_pace;         // "full" (NULL), "gentle": slower, for compute beside it
  const char* trace_file;        // JSON lines, one an operation; NULL: ORBITKV_TRACE_TRANSFERS
} orbitkv_options;
#define ORBITKV_OPTIONS_INIT \
  {sizeof(orbitkv_options), NULL, NULL, 5000, 64, true, true, false, NULL, NULL, NULL}

// Connects if a Manager is there; if not, the client is made all the same and goes on
// trying in the background. options NULL: the defaults. REJECT: an option is wrong.
// RETRY: its threads cannot start. *out is set on success only.
ORBITKV_API orbitkv_action orbitkv_open(const orbitkv_options* options, orbitkv_client** out,
                                        orbitkv_error* error);
// Stops admission, drains, says goodbye; timeout_ms at most. Whoever waits or calls later
// is answered (RECONNECT "closed", or the operation's end); the descriptor stays open.
ORBITKV_API void orbitkv_close(orbitkv_client* client);
// Closes and frees. What is still claimed is copied to its end first. NULL is fine.
ORBITKV_API void orbitkv_destroy(orbitkv_client* client);

// Until a session stands. RECONNECT: none after timeout_ms; the text says what is missing.
ORBITKV_API orbitkv_action orbitkv_wait_connected(orbitkv_client* client, uint32_t timeout_ms,
                                                  orbitkv_error* error);
// One round trip over the session.
ORBITKV_API orbitkv_action orbitkv_ping(orbitkv_client* client, orbitkv_error* error);

typedef struct orbitkv_health_info {
  size_t size;
  bool connected;
  uint32_t open_operations;
  uint64_t incarnation;  // of the Manager
  uint64_t reconnects;   // sessions after the first
  char message[512];     // not connected: why; cut if too long
} orbitkv_health_info;
#define ORBITKV_HEALTH_INIT {sizeof(orbitkv_health_info), false, 0, 0, 0, ""}

// Of this session, without asking the Manager.
ORBITKV_API orbitkv_action orbitkv_health(orbitkv_client* client, orbitkv_health_info* out,
                                          orbitkv_error* error);
// What the publishes of an instance do now, and what it lost for want of memory.
typedef struct orbitkv_publish_activity_info {
  size_t size;
  uint32_t open;        // hold memory of the Manager that they copy into
  uint32_t waiting;     // for another publisher or a load of the same blocks
  uint64_t lent_bytes;  // of the open ones
  uint64_t dropped;     // blocks that found no memory, since the instance registered
  uint64_t oldest_ns;   // age of the oldest one
} orbitkv_publish_activity_info;
#define ORBITKV_PUBLISH_ACTIVITY_INIT {sizeof(orbitkv_publish_activity_info), 0, 0, 0, 0, 0}

// REJECT: the instance is not registered.
ORBITKV_API orbitkv_action orbitkv_publish_activity(orbitkv_client* client, const orbitkv_instance* instance,
                                                    orbitkv_publish_activity_info* out, orbitkv_error* error);
// False: its process has ended, or none is attached.
ORBITKV_API bool orbitkv_peer_alive(orbitkv_client* client);
// The Manager's status as JSON text; give it back with orbitkv_free.
ORBITKV_API orbitkv_action orbitkv_status_json(orbitkv_client* client, char** out, orbitkv_error* error);

// ---- memory ----

// One fragment of every block: layer x component. Block b, row r starts at
// base + b * block_stride + r * row_stride and holds row_bytes.
typedef struct orbitkv_layer {
  size_t size;
  const char* name;  // for messages and layer events; components of one layer share it
  uint16_t group;
  uint16_t component;     // 0 = K (or K and V together), 1 = V
  uint32_t rows;          // of a block
  void* base;             // device address if the registration names a GPU
  uint64_t bytes;         // of the allocation from base on; all ranges lie inside
  uint64_t block_stride;  // bytes
  uint64_t row_bytes;
  uint64_t row_stride;  // bytes; unused for one row
} orbitkv_layer;
#define ORBITKV_LAYER_INIT {sizeof(orbitkv_layer), NULL, 0, 0, 1, NULL, 0, 0, 0, 0}

// Which cached tokens a group needs before the engine can go on at token b of a request.
typedef enum orbitkv_rule {
  ORBITKV_RULE_PREFIX = 1,     // all of them: attention KV, MLA
  ORBITKV_RULE_WINDOW = 2,     // the last ceil(window / block tokens) blocks: sliding windows
  ORBITKV_RULE_CHECKPOINT = 3  // the block that ends at b: recurrent and convolution state
} orbitkv_rule;

// A group of layers: its rule, and which shard of its blocks this rank reads and writes.
// Group 0 must be there, with the prefix rule.
typedef struct orbitkv_group {
  size_t size;
  uint16_t id;
  uint16_t shard;   // that the rank reads and writes of each block; ranks that hold the same bytes
  uint16_t shards;  // (MLA, replicated KV) name the same one,
  bool writer;      // and one of them is its writer
  orbitkv_rule rule;
  uint32_t window_tokens;  // ORBITKV_RULE_WINDOW: above 0; else 0
} orbitkv_group;
#define ORBITKV_GROUP_INIT {sizeof(orbitkv_group), 0, 0, 1, true, ORBITKV_RULE_PREFIX, 0}

typedef struct orbitkv_memory {
  size_t size;
  orbitkv_instance instance;
  // Everything that changes the meaning of the bytes, as text: blocks are found again only
  // under the same text and shapes.
  const char* name_space;
  uint16_t rank;
  uint16_t world_size;
  uint32_t num_blocks;
  uint32_t block_tokens;
  const char* device;           // NULL: "cpu:0"; "cuda:<ordinal>", "GPU-<uuid>", "MIG-<uuid>"
  const orbitkv_group* groups;  // ascending ids, the first 0; NULL with count 0: one group 0, unsharded
  size_t group_count;
  const orbitkv_layer* layers;  // in the engine's consuming order
  size_t layer_count;
} orbitkv_memory;
#define ORBITKV_MEMORY_INIT {sizeof(orbitkv_memory), {{0}}, NULL, 0, 1, 0, 0, NULL, NULL, 0, NULL, 0}

// Makes memory known; without a Manager it is announced when one is there. The memory must
// stay until orbitkv_unregister or orbitkv_destroy. REJECT names the layer that is wrong.
ORBITKV_API orbitkv_action orbitkv_register(orbitkv_client* client, const orbitkv_memory* memory,
                                            orbitkv_registration* out, orbitkv_error* error);
// Stops admission, waits for the registration's operations, then forgets the memory.
// RETRY: operations are still open after timeout_ms, and the registration stands.
ORBITKV_API orbitkv_action orbitkv_unregister(orbitkv_client* client, orbitkv_registration registration,
                                              orbitkv_error* error);

// ---- lookup ----

typedef struct orbitkv_query {
  size_t size;
  orbitkv_instance instance;
  const orbitkv_hash* hashes;  // a prompt's blocks in order
  size_t hash_count;
  const char* request_id;  // the caller's, at most 256 bytes
  uint16_t group;
  uint64_t flags;  // ORBITKV_QUERY_*
} orbitkv_query;
// Where the run ends at a block that another engine is saving, query_prefetch waits for it.
#define ORBITKV_QUERY_WAIT_FOR_FULL_PREFIX 1
#define ORBITKV_QUERY_INIT {sizeof(orbitkv_query), {{0}}, NULL, 0, NULL, 0, 0}

// Indices of hashes that are in the Manager's memory, ascending.
typedef struct orbitkv_positions {
  uint32_t* positions;  // the caller's array of `capacity` entries; NULL with 0: only the count
  size_t capacity;
  size_t count;  // out: how many there are, also where that is more than the capacity
} orbitkv_positions;
// Which blocks are there. Pins nothing. hit_blocks: the leading run of blocks in memory or
// stored on SSD. hit_blocks and positions may be NULL.
ORBITKV_API orbitkv_action orbitkv_query_candidates(orbitkv_client* client, const orbitkv_query* query,
                                                    uint32_t* hit_blocks, orbitkv_positions* positions,
                                                    orbitkv_error* error);
// What a query found: the leading run.
typedef struct orbitkv_hit {
  size_t size;
  uint32_t blocks;      // 0: a miss
  int32_t loading;      // 1: they come from SSD and are not in memory yet; no lease so far
  orbitkv_lease lease;  // restore it or release it
  uint64_t revision;    // of the list that was asked: rises when another is asked under the id
  int32_t waits;        // 1: loading, and waits for budget or for other publishers
} orbitkv_hit;
// clang-format off
#define ORBITKV_HIT_INIT {sizeof(orbitkv_hit), 0, 0, {{0}}, 0, 0}
// clang-format on
// Leases the leading run. The same request id and hashes are answered with the same lease
// again. While `loading`, poll or ask again every few milliseconds, or cancel: it ends in a lease,
// perhaps of fewer blocks, or in a miss.
ORBITKV_API orbitkv_action orbitkv_query_prefetch(orbitkv_client* client, const orbitkv_query* query,
                                                  orbitkv_hit* hit, orbitkv_error* error);
// What query_prefetch would answer to the list that hit->revision names, without sending its
// hashes again; those of the query are not looked at. A list that ended, was cancelled or
// replaced, or is of an earlier Manager, is a miss.
ORBITKV_API orbitkv_action orbitkv_poll_query(orbitkv_client* client, const orbitkv_query* query,
                                              orbitkv_hit* hit, orbitkv_error* error);
// Ahead of need: what query_prefetch would have to load is loaded, and the same request id and
// hashes then find it. Ends unclaimed a second after it is ready, or when a query would have to
// wait for what it holds; orbitkv_cancel_query ends it. begun: false where there is nothing to
// prepare, or no room for it now. RETRY: four of the session are unclaimed, or the id has asked.
ORBITKV_API orbitkv_action orbitkv_prepare_prefix(orbitkv_client* client, const orbitkv_query* query,
                                                  bool* begun, orbitkv_error* error);
// When a list may be needed, and how surely.
typedef struct orbitkv_warm_hint {
  size_t size;
  uint32_t first_use_ms;  // from now: an estimate
  uint32_t max_wait_ms;   // of no use after that; 0: as long as hints live (5 s)
  uint32_t priority;      // larger first
  uint32_t confidence;    // 0..100
} orbitkv_warm_hint;
#define ORBITKV_WARM_HINT_INIT {sizeof(orbitkv_warm_hint), 0, 0, 0, 100}
// A hint that the list may be asked for: what is on SSD of it may be loaded while no query
// waits. Leases and promises nothing. Another hint under the id takes its place. RETRY: 16
// hints of the session live, or 128 of the host. REJECT: more than 2^20 hashes, as of a query.
ORBITKV_API orbitkv_action orbitkv_warm_prefix(orbitkv_client* client, const orbitkv_query* query,
                                               const orbitkv_warm_hint* hint, orbitkv_error* error);
// The query's hashes are not looked at.
ORBITKV_API orbitkv_action orbitkv_cancel_warm(orbitkv_client* client, const orbitkv_query* query,
                                               orbitkv_error* error);
// The pages that a boundary needs of one group (docs/queries.md).
typedef struct orbitkv_recovery_group {
  size_t size;
  uint16_t group;
  const orbitkv_hash* hashes;
  size_t hash_count;
} orbitkv_recovery_group;
#define ORBITKV_RECOVERY_GROUP_INIT {sizeof(orbitkv_recovery_group), 0, NULL, 0}

// A boundary: the engine has the tokens before `origin` and would compute from `boundary` on.
typedef struct orbitkv_recovery {
  size_t size;
  orbitkv_instance instance;
  const char* request_id;  // the caller's, at most 256 bytes; apart from those of queries
  uint64_t origin;
  uint64_t boundary;
  const orbitkv_recovery_group* groups;  // all that are registered, ascending
  size_t group_count;
} orbitkv_recovery;
#define ORBITKV_RECOVERY_INIT {sizeof(orbitkv_recovery), {{0}}, NULL, 0, 0, NULL, 0}

#define ORBITKV_MISSING_GONE 1       // not there, or it could not be read
#define ORBITKV_MISSING_TIMEOUT 2    // not in time
#define ORBITKV_MISSING_NO_MEMORY 3  // no budget or no room for all of it, not in time
#define ORBITKV_MISSING_TOO_LARGE 4  // larger than the Manager's memory or than a budget
#define ORBITKV_MISSING_UNKNOWN 99   // a poll: it ended, was cancelled or replaced

typedef struct orbitkv_recovered {
  size_t size;
  orbitkv_lease* leases;  // the caller's, one for each group in their order; filled when ready
  size_t lease_capacity;
  size_t lease_count;  // out: all groups, or 0
  int32_t loading;     // 1: not all of it is in memory yet: poll every few milliseconds, or cancel
  int32_t missing;     // ORBITKV_MISSING_*, 0: it is not
  uint64_t revision;   // of what was asked; orbitkv_poll_recovery takes it from here
} orbitkv_recovered;
#define ORBITKV_RECOVERED_INIT {sizeof(orbitkv_recovered), NULL, 0, 0, 0, 0, 0}

// Leases every page of the boundary, of all groups, or nothing. REJECT: the pages are not those
// of the boundary by the registered rules, or there is no room for the leases.
ORBITKV_API orbitkv_action orbitkv_read_recovery(orbitkv_client* client, const orbitkv_recovery* recovery,
                                                 orbitkv_recovered* out, orbitkv_error* error);
// As orbitkv_prepare_prefix, for read_recovery; orbitkv_cancel_recovery ends it.
ORBITKV_API orbitkv_action orbitkv_prepare_recovery(orbitkv_client* client, const orbitkv_recovery* recovery,
                                                    bool* begun, orbitkv_error* error);
// What read_recovery would answer, without sending the hashes again: they are not looked at.
ORBITKV_API orbitkv_action orbitkv_poll_recovery(orbitkv_client* client, const orbitkv_recovery* recovery,
                                                 orbitkv_recovered* out, orbitkv_error* error);
// Ends all of its leases that are not consumed. revision 0: whichever was asked last.
ORBITKV_API orbitkv_action orbitkv_cancel_recovery(orbitkv_client* client, const orbitkv_recovery* recovery,
                                                   uint64_t revision, orbitkv_error* error);
// Gives back a lease that is not restored, or not to its end. Of one that is gone already
// nothing is left to do, which is OK. REJECT: it is another instance's.
ORBITKV_API orbitkv_action orbitkv_release(orbitkv_client* client, const orbitkv_lease* lease,
                                           orbitkv_error* error);
// Releases what query_prefetch leased for this instance, request id and group, if anything;
// the query's hashes are not looked at.
ORBITKV_API orbitkv_action orbitkv_cancel_query(orbitkv_client* client, const orbitkv_query* query,
                                                orbitkv_error* error);

// ---- several Managers (docs/tp.md) ----

// Of the frames that a carrier brings, at most.
#define ORBITKV_INTEREST_FRAME_BYTES 65536
// The far end of a carrier: a frame that a coordinator elsewhere sent, to this client's Manager, and the
// frame that answers it; give that back with orbitkv_free. The frame is copied and checked. What the
// Manager answers, or that it does not within the client's timeout, is a frame, too. REJECT: it is none.
// One client a coordinator; when its channel ends, destroy it, which gives back what was held.
ORBITKV_API orbitkv_action orbitkv_carry_interest(orbitkv_client* client, const void* frame, size_t bytes,
                                                  void** reply, size_t* reply_bytes, orbitkv_error* error);

// What an interest in an instance is bound to: the life of its Manager and the registrations of its ranks.
// All zero: whatever it is when it is first asked.
typedef struct orbitkv_authority {
  uint64_t incarnation;
  uint64_t generation;
  uint8_t layout[16];
  uint16_t consumers;
  uint8_t reserved[6];
} orbitkv_authority;
// Of now, at this client's Manager. RETRY: not all ranks of the instance are registered.
ORBITKV_API orbitkv_action orbitkv_interest_authority(orbitkv_client* client,
                                                      const orbitkv_instance* instance,
                                                      orbitkv_authority* out, orbitkv_error* error);

// One engine whose ranks stand at several Managers: what all of them can restore, claimed at all or none.
// Managers of other hosts are reached by a carrier.
typedef struct orbitkv_group_of_managers orbitkv_group_of_managers;
typedef struct orbitkv_participant {
  size_t size;
  orbitkv_client* client;  // of its Manager; outlives the group. Not looked at with a carrier
  orbitkv_instance instance;
  const uint16_t* ranks;  // of the whole engine: those that the instance has
  size_t rank_count;
  orbitkv_authority authority;  // as its ranks registered it: any other is refused
} orbitkv_participant;
#define ORBITKV_PARTICIPANT_INIT                         \
  {                                                      \
    sizeof(orbitkv_participant), NULL, {{0}}, NULL, 0, { \
      0, 0, {0}, 0, {0}                                  \
    }                                                    \
  }
// The engine's own channel to the hosts of the participants. Frames may be lost, doubled, late and out of
// order: they are sent again, and checked. Two threads of the library call, one `send` and the other
// `receive`, each one call at a time and without a lock: both may call this library, but not
// orbitkv_group_destroy, which waits until they have returned. `ctx` is theirs until then.
typedef struct orbitkv_carrier {
  size_t size;
  void* ctx;
  // Brings the frame and its token to the participant's host, where it goes to orbitkv_carry_interest. The
  // frame is the library's and ends with the call. While it runs no other frame goes. Not 0: it is lost.
  int32_t (*send)(void* ctx, uint32_t participant, uint64_t token, const void* frame, size_t bytes);
  // Waits for an answer, timeout_ms at most. Writes it into `frame`, which has room for
  // ORBITKV_INTEREST_FRAME_BYTES, with the participant and the token of the frame that it answers.
  // Returns its bytes; 0: none; below 0: the channel is broken, and is asked again a little later.
  int64_t (*receive)(void* ctx, uint32_t timeout_ms, void* frame, uint32_t* participant, uint64_t* token);
} orbitkv_carrier;
#define ORBITKV_CARRIER_INIT {sizeof(orbitkv_carrier), NULL, NULL, NULL}
typedef struct orbitkv_group_options {
  size_t size;
  uint32_t timeout_ms;             // from the begin until all is claimed
  uint32_t restore_ms;             // from there until every rank has been reported
  const orbitkv_carrier* carrier;  // read during the call. NULL: each participant by its client
} orbitkv_group_options;
#define ORBITKV_GROUP_OPTIONS_INIT {sizeof(orbitkv_group_options), 5000, 60000, NULL}
// options: NULL for the defaults. REJECT names what cannot be a group.
ORBITKV_API orbitkv_action orbitkv_group_open(const orbitkv_participant* participants, size_t count,
                                              const orbitkv_group_options* options,
                                              orbitkv_group_of_managers** out, orbitkv_error* error);
// Gives back all that it holds, within timeout_ms and a client's timeout or a callback that runs, and
// frees; no call may run. NULL is fine.
ORBITKV_API void orbitkv_group_destroy(orbitkv_group_of_managers* group);

// The blocks of one group; with a boundary all pages of it, group after group ascending.
typedef struct orbitkv_common_list {
  size_t size;
  const orbitkv_hash* hashes;
  size_t hash_count;
  uint16_t group;
  uint64_t origin;  // tokens
  uint64_t boundary;
} orbitkv_common_list;
#define ORBITKV_COMMON_LIST_INIT {sizeof(orbitkv_common_list), NULL, 0, 0, 0, 0}
// Asks all participants at once. RETRY: 128 claims are open.
ORBITKV_API orbitkv_action orbitkv_group_begin(orbitkv_group_of_managers* group,
                                               const orbitkv_common_list* list, uint64_t* claim,
                                               orbitkv_error* error);
typedef struct orbitkv_common_lease {
  uint32_t participant;
  uint16_t group;
  uint16_t reserved;
  uint32_t blocks;
  orbitkv_lease lease;
} orbitkv_common_lease;
typedef struct orbitkv_common_prefix {
  size_t size;
  int32_t loading;               // 1: not known yet
  uint32_t blocks;               // every rank can restore exactly these; 0: none, and nothing is held
  orbitkv_common_lease* leases;  // the caller's array, one a participant and group
  size_t lease_capacity;
  size_t lease_count;    // out
  int32_t missing;       // no blocks: ORBITKV_MISSING_*, 0 where no Manager gave a reason
  uint32_t participant;  // that it was for
  char message[512];
} orbitkv_common_prefix;
#define ORBITKV_COMMON_PREFIX_INIT {sizeof(orbitkv_common_prefix), 0, 0, NULL, 0, 0, 0, 0, ""}
ORBITKV_API orbitkv_action orbitkv_group_poll(orbitkv_group_of_managers* group, uint64_t claim,
                                              uint32_t timeout_ms, orbitkv_common_prefix* out,
                                              orbitkv_error* error);
// How the restore of a rank ended; false: also of one that died or will not begin. REJECT: poll has told
// no lease, so no rank can have restored.
ORBITKV_API orbitkv_action orbitkv_group_restored(orbitkv_group_of_managers* group, uint64_t claim,
                                                  uint16_t rank, bool success, orbitkv_error* error);
typedef struct orbitkv_common_restore {
  size_t size;
  bool done;
  bool success;  // every rank has restored all blocks
  bool quiet;    // no rank may be copying: until then the target pages are not the engine's.
  char message[512];
} orbitkv_common_restore;
#define ORBITKV_COMMON_RESTORE_INIT {sizeof(orbitkv_common_restore), false, false, false, ""}
// Until the outcome is known and it is quiet.
ORBITKV_API orbitkv_action orbitkv_group_wait(orbitkv_group_of_managers* group, uint64_t claim,
                                              uint32_t timeout_ms, orbitkv_common_restore* out,
                                              orbitkv_error* error);
// Gives back what is held and forgets the claim. Copies that run go on.
ORBITKV_API orbitkv_action orbitkv_group_close(orbitkv_group_of_managers* group, uint64_t claim,
                                               orbitkv_error* error);
// What went to a participant and came of it, since the group was opened.
typedef struct orbitkv_participant_stats {
  size_t size;
  uint64_t sent;      // frames, each as often as it was sent again
  uint64_t answered;  // of them, each once
  uint64_t astray;    // came of it, and answered nothing: late, doubled, spoilt or of no claim
  uint64_t silent;    // claims that ran out of time because nothing of it answered
} orbitkv_participant_stats;
#define ORBITKV_PARTICIPANT_STATS_INIT {sizeof(orbitkv_participant_stats), 0, 0, 0, 0}
// participant: from 0, as the group was opened. REJECT: there is none of that number.
ORBITKV_API orbitkv_action orbitkv_group_stats(orbitkv_group_of_managers* group, uint32_t participant,
                                               orbitkv_participant_stats* out, orbitkv_error* error);

// ---- save and restore ----

typedef struct orbitkv_save_group {
  size_t size;
  uint16_t group;
  const uint32_t* blocks;      // engine blocks
  const orbitkv_hash* hashes;  // one a block
  size_t count;                // of each of them
} orbitkv_save_group;
#define ORBITKV_SAVE_GROUP_INIT {sizeof(orbitkv_save_group), 0, NULL, NULL, 0}

typedef struct orbitkv_save {
  size_t size;
  const orbitkv_save_group* groups;
  size_t group_count;
  uint64_t ready_stream;  // CUstream of whoever writes the pages; ignored for CPU pages
} orbitkv_save;
#define ORBITKV_SAVE_INIT {sizeof(orbitkv_save), NULL, 0, 0}

typedef struct orbitkv_load {
  size_t size;
  orbitkv_lease lease;
  uint16_t group;
  const uint32_t* blocks;  // engine blocks, one a block of the lease; ORBITKV_HOLE skips
  size_t block_count;
} orbitkv_load;
#define ORBITKV_LOAD_INIT {sizeof(orbitkv_load), {{0}}, 0, NULL, 0}

// Recorded after the last byte of the layer (all entries of that name). The events are the
// engine's, live until the operation is done, and distinct.
typedef struct orbitkv_layer_event {
  size_t size;
  const char* layer;  // name
  uint64_t event;     // CUevent
} orbitkv_layer_event;
#define ORBITKV_LAYER_EVENT_INIT {sizeof(orbitkv_layer_event), NULL, 0}

typedef struct orbitkv_restore {
  size_t size;
  const orbitkv_load* loads;
  size_t load_count;
  uint64_t ready_stream;  // CUstream of earlier users of the pages; ignored for CPU pages
  // Events order, the verdict decides: what runs behind these events must not be let out
  // before the operation is done and a success.
  const orbitkv_layer_event* layer_events;
  size_t layer_event_count;
} orbitkv_restore;
#define ORBITKV_RESTORE_INIT {sizeof(orbitkv_restore), NULL, 0, 0, NULL, 0}

// Lends the pages until the operation is done. Not OK: nothing was sent, nothing is lent.
// The calling thread never waits for the device and keeps its current device context.
ORBITKV_API orbitkv_action orbitkv_start_save(orbitkv_client* client, orbitkv_registration registration,
                                              const orbitkv_save* save, orbitkv_operation* out,
                                              orbitkv_error* error);
// All loads are one operation: copied in the order of the layers, over all loads.
ORBITKV_API orbitkv_action orbitkv_start_restore(orbitkv_client* client, orbitkv_registration registration,
                                                 const orbitkv_restore* restore, orbitkv_operation* out,
                                                 orbitkv_error* error);
// Until every layer event of a restore has been recorded; only then may anything wait for
// them. RECOMPUTE: the operation ended without (the text says why). RETRY: not in time.
ORBITKV_API orbitkv_action orbitkv_wait_enqueued(orbitkv_client* client, orbitkv_operation operation,
                                                 uint32_t timeout_ms, orbitkv_error* error);

typedef struct orbitkv_operation_status {
  size_t size;
  bool done;
  bool success;       // done: every byte copied and verified, or nothing was to do
  uint32_t blocks;    // done: copied by this operation
  char message[512];  // done, and no success or blocks dropped: why; cut if too long
  // Of a successful save; with blocks all that were asked for.
  uint32_t resident;  // not copied: they are there, or another publisher saves them
  uint32_t dropped;   // not copied: a bound was met, message says which; save them again
} orbitkv_operation_status;
#define ORBITKV_OPERATION_STATUS_INIT {sizeof(orbitkv_operation_status), false, false, 0, "", 0, 0}

// OK: *out is filled; how the operation went stands in it. An operation that is unknown or
// was dropped is done and no success.
ORBITKV_API orbitkv_action orbitkv_poll(orbitkv_client* client, orbitkv_operation operation,
                                        orbitkv_operation_status* out, orbitkv_error* error);
// As poll, after the end or timeout_ms. Not done then: everything is as it was.
ORBITKV_API orbitkv_action orbitkv_wait(orbitkv_client* client, orbitkv_operation operation,
                                        uint32_t timeout_ms, orbitkv_operation_status* out,
                                        orbitkv_error* error);

// For event loops: readable while there are operations that ended and were not taken.
// The client's; poll it, never read or close it. -1: no client.
ORBITKV_API int orbitkv_completion_fd(orbitkv_client* client);
// Writes up to `capacity` operations that ended, each once over all calls, and returns how
// many. What does not fit keeps the descriptor readable. Dropped ones are left out.
ORBITKV_API size_t orbitkv_take_completed(orbitkv_client* client, orbitkv_operation* out, size_t capacity);
// A finished operation is forgotten; an open one goes on and is forgotten when it ends.
ORBITKV_API void orbitkv_drop(orbitkv_client* client, orbitkv_operation operation);

// Host observations of one operation, nanoseconds since its start.
typedef struct orbitkv_operation_report {
  size_t size;
  uint64_t readiness_ns;
  uint64_t dispatched_ns;
  uint64_t dequeued_ns;
  uint64_t claimed_ns;
  uint64_t enqueued_ns;
  uint64_t drained_ns;
  uint64_t bytes;
  uint64_t fragments;
  char method[64];
} orbitkv_operation_report;
#define ORBITKV_OPERATION_REPORT_INIT {sizeof(orbitkv_operation_report), 0, 0, 0, 0, 0, 0, 0, 0, ""}

// REJECT: not traced (see trace_file), not done, or dropped.
ORBITKV_API orbitkv_action orbitkv_report(orbitkv_client* client, orbitkv_operation operation,
                                          orbitkv_operation_report* out, orbitkv_error* error);

// NOLINTEND(readability-identifier-naming)

#ifdef __cplusplus
}
#endif

#endif  // ORBITKV_ORBITKV_H_
