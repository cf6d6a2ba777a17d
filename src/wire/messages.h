// Message bodies in descriptor slots and in the plan bank, with encode and decode.
// Structs hold values or views into the caller's private copy of the frame.
// Layouts are in docs/protocol.md and pinned by golden bytes. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "model/plan.h"
#include "orbitkv/types.h"
#include "wire/frame.h"

namespace orbitkv::wire {

using Buffer = std::vector<std::byte>;

enum class QueryMode : std::uint8_t {
  kDiscover = 1,  // positions only; reads, pins and refreshes nothing
  kRead = 2,      // leases the leading run of resident blocks
};

// One part of a query. A query of more hashes than fit a slot is sent as parts of
// whole blocks: part k starts at `first`, the last ends at `total`. Parts of one
// (instance, request_id, group) come in order on one session.
struct QueryRequest {
  InstanceId instance;
  GroupId group;
  QueryMode mode = QueryMode::kDiscover;
  std::string_view request_id;  // <= limits::kRequestIdBytes
  std::uint32_t first = 0;
  std::uint32_t total = 0;  // hashes of the whole query, <= 32 MiB / 32 bytes
  std::span<const BlockHash> hashes;
  bool early_lease = false;  // read mode: lease while the last blocks are on their way
  // Read mode, of a part behind the first: as the reply to the part before it says, so that parts
  // of two lists never become one. Else 0.
  Revision revision = {};
  bool full_prefix = false;  // read mode: waits for blocks that others are saving
  bool prepare = false;      // read mode, without the two above: ahead of need, leases nothing
};

struct QueryReply {
  std::uint32_t first = 0;              // of the part
  std::uint32_t count = 0;              // hashes of the part
  std::uint32_t hit_blocks = 0;         // leading blocks of the whole query so far that can be had
  Revision revision;                    // read mode: rises when the request's hash list changes
  LeaseId lease;                        // read mode, last part, hit_blocks > 0, not loading; else zero
  std::vector<std::uint64_t> resident;  // bit i = hash `first + i` is in memory (ceil(count/64) words)
  // Bit i = it is not in memory but stored on SSD. As long as `resident`, or empty: none is.
  std::vector<std::uint64_t> stored = {};
  bool loading = false;  // read mode, last part: blocks are on their way into memory; ask again
  bool admitted = true;  // false: loading, and waits for budget or for other publishers
  bool again = false;    // the lease was told before
};

struct PublishRequest {
  RegistrationId registration;
  GroupId group;
  OperationId operation;
  RecordIndex record;
  std::span<const std::byte> block_ids;  // count x u32 little-endian, engine block indices
  std::span<const BlockHash> hashes;     // count
  std::uint32_t count() const { return static_cast<std::uint32_t>(hashes.size()); }
  std::uint32_t block_id(std::uint32_t i) const;
};

// What became of the blocks of a publish when it was submitted. accepted + resident
// + waiting + dropped = count of the request.
struct PublishReply {
  std::uint32_t accepted = 0;  // in this operation's grant
  std::uint32_t resident = 0;  // already sealed: nothing to copy
  std::uint32_t waiting = 0;   // another publisher has them in flight; the grant waits for it
  std::uint32_t dropped = 0;   // no memory even after eviction
};

struct RestoreRequest {
  RegistrationId registration;
  OperationId operation;
  RecordIndex record;
  LeaseId lease;
  std::uint32_t first = 0;             // block of the lease that targets[0] belongs to
  std::span<const std::byte> targets;  // count x u32, engine block index or kHole
  std::uint32_t count() const { return static_cast<std::uint32_t>(targets.size() / 4); }
  std::uint32_t target(std::uint32_t i) const;
};

struct RestoreReply {
  std::uint32_t blocks = 0;
};  // blocks in the grant (holes left out)

struct ReleaseRequest {
  LeaseId lease;
};
// Names a query by its request id and, with a revision, its list. Cancel: revision 0 is
// whichever. Poll: it answers as the query would, without hashes.
enum class TicketKind : std::uint8_t { kPrefix = 1, kRecovery = 2, kWarm = 3 };  // kWarm: cancel only
struct CancelQueryRequest {
  InstanceId instance;
  GroupId group;  // of a prefix or a warm hint; else 0
  std::string_view request_id;
  Revision revision;
  TicketKind kind = TicketKind::kPrefix;
};
struct PollRequest {
  InstanceId instance;
  GroupId group;
  std::string_view request_id;
  Revision revision;  // not 0
  TicketKind kind = TicketKind::kPrefix;
};

// One part of the pages that a boundary needs: for each group ascending those of its required
// range ascending. Parts as in QueryRequest.
struct RecoveryRequest {
  InstanceId instance;
  std::string_view request_id;
  std::uint64_t origin = 0, boundary = 0;  // tokens, origin < boundary
  std::uint32_t first = 0, total = 0;
  std::span<const BlockHash> hashes;
  Revision revision = {};  // as in QueryRequest
  bool prepare = false;    // likewise
};

// A list that may be asked for soon, and how soon and how surely. Answered without a frame.
struct WarmRequest {
  InstanceId instance;
  GroupId group;
  std::string_view request_id;
  std::uint32_t first_use_ms = 0;  // from now
  std::uint32_t max_wait_ms = 0;   // of no use after that; 0: as long as hints live
  std::uint32_t priority = 0;      // larger first
  std::uint8_t confidence = 0;     // 0..100
  std::span<const BlockHash> hashes;
};

enum class TicketState : std::uint8_t {
  kUnknown = 0,  // no such ticket, or of another revision
  kLoading = 1,
  kReady = 2,
  kMissing = 3,
};
enum class Missing : std::uint8_t {
  kNone = 0,
  kGone = 1,
  kTimeout = 2,
  kNoMemory = 3,
  kTooLarge = 4,
};
struct TicketLease {
  GroupId group;
  std::uint32_t blocks = 0;  // > 0
  LeaseId lease;
};
// Answers a poll, and each part of a recovery.
struct TicketReply {
  TicketState state = TicketState::kUnknown;
  Missing why = Missing::kNone;  // missing
  GroupId missing;               // of a recovery: the first group that is not to be had
  bool admitted = true;          // false: loading, and waits for budget or room
  std::uint32_t hit_blocks = 0;
  Revision revision;
  std::vector<TicketLease> leases;  // ready: ascending by group
  bool again = false;               // ready: it was told before
};
struct ErrorReply {
  Code code = Code::kBug;
  std::string_view text;
};

// ---- plan bank ----

using model::Encoding;
using model::Plan;
using model::PlanEntry;
using model::PlanKind;

// Written by the client into the result area of its grant before it publishes
// Drained. Save: one header digest a plan entry. Restore: written only on failure.
struct PublishResult {
  OperationId operation;
  std::vector<std::uint64_t> digests;
};
struct RestoreResult {
  OperationId operation;
  std::uint32_t entries = 0;
  std::vector<std::uint64_t> failed;  // bit i = plan entry i did not verify
};

// Sizes of complete frames, so that a grant can reserve its result area.
std::size_t plan_frame_bytes(std::uint32_t entries);
std::size_t result_frame_bytes(PlanKind kind, std::uint32_t entries);
std::size_t query_frame_bytes(const QueryRequest&);

// What the publishes of an instance do now, and what it lost for want of memory.
struct ActivityRequest {
  InstanceId instance;
};
struct ActivityReply {
  std::uint32_t open = 0;     // operations that hold lent memory or wait for a place in the plan bank
  std::uint32_t waiting = 0;  // for another publisher or a load of the same blocks
  ByteCount lent;
  std::uint64_t dropped = 0;  // blocks, since the instance registered
  Duration oldest;            // age, of the open and the waiting ones
};

// Query interests (docs/tp.md). Each frame says all that it is about, so that it may come by any
// way, late, twice or never.
struct InterestName {
  InstanceId instance;
  InterestId interest;          // not 0
  InterestOperation operation;  // 1..limits::kInterestOperations; of a close 0
};
enum class InterestKind : std::uint8_t { kPrefix = 1, kRecovery = 2 };
// One part of an operation's list; parts as in QueryRequest.
struct InterestSubmit {
  InterestName name;
  InterestAuthority authority;  // zero: whatever it is now
  InterestKind kind = InterestKind::kPrefix;
  GroupId group;                           // of a prefix
  std::uint64_t origin = 0, boundary = 0;  // of a recovery: tokens
  std::uint32_t first = 0, total = 0;
  std::span<const BlockHash> hashes;
};
struct InterestCall {
  InterestName name;
  InterestAuthority authority;
  InterestVerb verb = InterestVerb::kPoll;
  std::uint32_t blocks = 0;  // of a claim
};
struct InterestReply {
  InterestId interest;
  InterestOperation operation;  // as it was named
  InterestOperation newest;     // 0: there is no such interest
  InterestAuthority authority;
  InterestPhase phase = InterestPhase::kUnknown;
  Missing why = Missing::kNone;  // missing
  GroupId missing;
  bool admitted = true;             // false: acquiring, and waits for budget or room
  std::uint32_t blocks = 0;         // held; collecting: taken of the list
  std::vector<TicketLease> leases;  // told by a claim; ascending by group
};
// How many blocks fit one descriptor slot; longer input is split there.
std::uint32_t query_hashes_per_frame(std::size_t request_id_bytes);
std::uint32_t recovery_hashes_per_frame(std::size_t request_id_bytes);
std::uint32_t warm_hashes_per_frame(std::size_t request_id_bytes);
std::uint32_t interest_hashes_per_frame();
std::uint32_t publish_blocks_per_frame();
std::uint32_t restore_blocks_per_frame();

// encode: appends one complete frame to `out`. Values over the limits are a bug of
// the caller (checked).
void encode(const QueryRequest&, Buffer& out);
void encode(const QueryReply&, Buffer& out);
void encode(const PublishRequest&, Buffer& out);
void encode(const PublishReply&, Buffer& out);
void encode(const RestoreRequest&, Buffer& out);
void encode(const RestoreReply&, Buffer& out);
void encode(const ReleaseRequest&, Buffer& out);
void encode(const CancelQueryRequest&, Buffer& out);
void encode(const PollRequest&, Buffer& out);
void encode(const RecoveryRequest&, Buffer& out);
void encode(const WarmRequest&, Buffer& out);
void encode(const TicketReply&, Buffer& out);
void encode(const ActivityRequest&, Buffer& out);
void encode(const ActivityReply&, Buffer& out);
void encode(const InterestSubmit&, Buffer& out);
void encode(const InterestCall&, Buffer& out);
void encode(const InterestReply&, Buffer& out);
void encode(const ErrorReply&, Buffer& out);
void encode(const Plan&, Buffer& out);
void encode(const PublishResult&, Buffer& out);
void encode(const RestoreResult&, Buffer& out);

// Encodes in place, for the one message that is long and on a short path. Returns the
// bytes written; `out` has at least query_frame_bytes().
std::size_t encode_into(const QueryRequest&, std::span<std::byte> out);

// decode: `frame` is one complete frame, a private copy that outlives the result.
Result<QueryRequest> decode_query_request(std::span<const std::byte> frame);
Result<QueryReply> decode_query_reply(std::span<const std::byte> frame);
Result<PublishRequest> decode_publish_request(std::span<const std::byte> frame);
Result<PublishReply> decode_publish_reply(std::span<const std::byte> frame);
Result<RestoreRequest> decode_restore_request(std::span<const std::byte> frame);
Result<RestoreReply> decode_restore_reply(std::span<const std::byte> frame);
Result<ReleaseRequest> decode_release_request(std::span<const std::byte> frame);
Result<CancelQueryRequest> decode_cancel_query_request(std::span<const std::byte> frame);
Result<PollRequest> decode_poll_request(std::span<const std::byte> frame);
Result<ActivityRequest> decode_activity_request(std::span<const std::byte> frame);
Result<ActivityReply> decode_activity_reply(std::span<const std::byte> frame);
Result<RecoveryRequest> decode_recovery_request(std::span<const std::byte> frame);
Result<WarmRequest> decode_warm_request(std::span<const std::byte> frame);
Result<TicketReply> decode_ticket_reply(std::span<const std::byte> frame);
Result<InterestSubmit> decode_interest_submit(std::span<const std::byte> frame);
Result<InterestCall> decode_interest_call(std::span<const std::byte> frame);
Result<InterestReply> decode_interest_reply(std::span<const std::byte> frame);
Result<ErrorReply> decode_error_reply(std::span<const std::byte> frame);
Result<Plan> decode_plan(std::span<const std::byte> frame);
Result<PublishResult> decode_publish_result(std::span<const std::byte> frame);
Result<RestoreResult> decode_restore_result(std::span<const std::byte> frame);

}  // namespace orbitkv::wire
