// Tickets: recoveries, cancels and polls, and their answer.
#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "wire/codec.h"
#include "wire/lease_list.h"
#include "wire/messages.h"

namespace orbitkv::wire {
namespace {

constexpr std::size_t kTicketFixed = 32;
constexpr std::size_t kTicketReplyFixed = 24;
constexpr std::uint8_t kWaits = 1, kAgain = 2;  // flags of a TicketReply
constexpr std::size_t kRecoveryFixed = 64;
constexpr std::uint8_t kPrepare = 1;  // flags of a RecoveryRequest
constexpr std::size_t kWarmFixed = 40;
constexpr std::uint8_t kMostConfidence = 100;
constexpr std::size_t kSlot = limits::kDescriptorSlotBytes;

// Cancel and poll look alike.
template <class Request>
void write_ticket(FrameType type, const Request& m, Buffer& out) {
  ORBITKV_CHECK(m.request_id.size() <= limits::kRequestIdBytes, "request id over its limit");
  FrameBuilder f(type, kTicketFixed + m.request_id.size(), out);
  f.array<std::byte>(m.instance.bytes);
  f.put(m.group.value);
  f.put(static_cast<std::uint16_t>(m.request_id.size()));
  f.put(static_cast<std::uint8_t>(m.kind));
  f.zeros(3);
  f.put(m.revision.value);
  f.text(m.request_id);
  f.finish();
}

template <class Request>
Request read_ticket(BodyReader& in, TicketKind last) {
  Request m;
  m.instance = in.name<InstanceId>();
  m.group = GroupId(in.get<std::uint16_t>());
  const auto id_bytes = in.get<std::uint16_t>();
  m.kind = static_cast<TicketKind>(in.get<std::uint8_t>());
  in.zeros(3);
  m.revision = Revision(in.get<std::uint64_t>());
  in.require(m.kind >= TicketKind::kPrefix && m.kind <= last, "unknown kind");
  in.require(m.kind != TicketKind::kRecovery || m.group.value == 0, "a recovery has no group");
  in.require(id_bytes <= limits::kRequestIdBytes, "request id is too long");
  m.request_id = in.text(id_bytes);
  return m;
}

}  // namespace

void encode(const CancelQueryRequest& m, Buffer& out) {
  write_ticket(FrameType::kCancelQueryRequest, m, out);
}

Result<CancelQueryRequest> decode_cancel_query_request(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kCancelQueryRequest, kSlot);
  const auto m = read_ticket<CancelQueryRequest>(in, TicketKind::kWarm);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const PollRequest& m, Buffer& out) {
  ORBITKV_CHECK(m.revision.value != 0, "a poll names its revision");
  write_ticket(FrameType::kPollRequest, m, out);
}

Result<PollRequest> decode_poll_request(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kPollRequest, kSlot);
  const auto m = read_ticket<PollRequest>(in, TicketKind::kRecovery);
  in.require(m.revision.value != 0, "no revision");
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

// ---- recoveries ----

std::uint32_t recovery_hashes_per_frame(std::size_t request_id_bytes) {
  ORBITKV_CHECK(request_id_bytes <= limits::kRequestIdBytes, "request id over its limit");
  const std::size_t room = kSlot - kFrameHeaderBytes - kRecoveryFixed - request_id_bytes;
  return static_cast<std::uint32_t>(room / sizeof(BlockHash));
}

void encode(const RecoveryRequest& m, Buffer& out) {
  ORBITKV_CHECK(m.hashes.size() <= recovery_hashes_per_frame(m.request_id.size()), "recovery over its frame");
  FrameBuilder f(FrameType::kRecoveryRequest, kRecoveryFixed + m.hashes.size_bytes() + m.request_id.size(),
                 out);
  f.array<std::byte>(m.instance.bytes);
  f.put(static_cast<std::uint16_t>(m.request_id.size()));
  f.put(m.prepare ? kPrepare : std::uint8_t{0});
  f.zeros(5);
  f.put(m.origin);
  f.put(m.boundary);
  f.put(m.first);
  f.put(m.total);
  f.put(static_cast<std::uint32_t>(m.hashes.size()));
  f.zeros(4);
  f.put(m.revision.value);
  f.array(m.hashes);
  f.text(m.request_id);
  f.finish();
}

Result<RecoveryRequest> decode_recovery_request(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kRecoveryRequest, kSlot);
  RecoveryRequest m;
  m.instance = in.name<InstanceId>();
  const auto id_bytes = in.get<std::uint16_t>();
  const auto flags = in.get<std::uint8_t>();
  m.prepare = flags == kPrepare;
  in.zeros(5);
  m.origin = in.get<std::uint64_t>();
  m.boundary = in.get<std::uint64_t>();
  m.first = in.get<std::uint32_t>();
  m.total = in.get<std::uint32_t>();
  const auto count = in.get<std::uint32_t>();
  in.zeros(4);
  m.revision = Revision(in.get<std::uint64_t>());
  in.require((m.revision.value != 0) == (m.first > 0), "a part and its revision do not fit");
  in.require(id_bytes <= limits::kRequestIdBytes, "request id is too long");
  in.require(flags <= kPrepare, "unknown flags");
  in.require(m.origin < m.boundary, "no tokens before the boundary");
  in.require(m.total <= kMaxHashes, "more pages than a recovery may have");
  in.require(count > 0, "a part without hashes");
  in.require(std::uint64_t{m.first} + count <= m.total, "a part beyond the whole recovery");
  m.hashes = in.hashes(count);
  m.request_id = in.text(id_bytes);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

// ---- hints ----

std::uint32_t warm_hashes_per_frame(std::size_t request_id_bytes) {
  ORBITKV_CHECK(request_id_bytes <= limits::kRequestIdBytes, "request id over its limit");
  const std::size_t room = kSlot - kFrameHeaderBytes - kWarmFixed - request_id_bytes;
  return static_cast<std::uint32_t>(room / sizeof(BlockHash));
}

void encode(const WarmRequest& m, Buffer& out) {
  ORBITKV_CHECK(m.hashes.size() <= warm_hashes_per_frame(m.request_id.size()), "hint over its frame");
  FrameBuilder f(FrameType::kWarmRequest, kWarmFixed + m.hashes.size_bytes() + m.request_id.size(), out);
  f.array<std::byte>(m.instance.bytes);
  f.put(m.group.value);
  f.put(static_cast<std::uint16_t>(m.request_id.size()));
  f.put(m.confidence);
  f.zeros(3);
  f.put(m.first_use_ms);
  f.put(m.max_wait_ms);
  f.put(m.priority);
  f.put(static_cast<std::uint32_t>(m.hashes.size()));
  f.array(m.hashes);
  f.text(m.request_id);
  f.finish();
}

Result<WarmRequest> decode_warm_request(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kWarmRequest, kSlot);
  WarmRequest m;
  m.instance = in.name<InstanceId>();
  m.group = GroupId(in.get<std::uint16_t>());
  const auto id_bytes = in.get<std::uint16_t>();
  m.confidence = in.get<std::uint8_t>();
  in.zeros(3);
  m.first_use_ms = in.get<std::uint32_t>();
  m.max_wait_ms = in.get<std::uint32_t>();
  m.priority = in.get<std::uint32_t>();
  const auto count = in.get<std::uint32_t>();
  in.require(id_bytes <= limits::kRequestIdBytes, "request id is too long");
  in.require(m.confidence <= kMostConfidence, "a confidence above 100");
  in.require(count > 0, "a hint without hashes");
  m.hashes = in.hashes(count);
  m.request_id = in.text(id_bytes);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

// ---- answers ----

void encode(const TicketReply& m, Buffer& out) {
  ORBITKV_CHECK(m.leases.size() <= limits::kGroups, "more leases than groups");
  FrameBuilder f(FrameType::kTicketReply, kTicketReplyFixed + kLeaseBytes * m.leases.size(), out);
  f.put(static_cast<std::uint8_t>(m.state));
  f.put(static_cast<std::uint8_t>(m.why));
  f.put(m.missing.value);
  f.put(m.hit_blocks);
  f.put(m.revision.value);
  f.put(static_cast<std::uint16_t>(m.leases.size()));
  f.put(static_cast<std::uint8_t>((m.admitted ? 0 : kWaits) | (m.again ? kAgain : 0)));
  f.zeros(5);
  write_leases(m.leases, f);
  f.finish();
}

Result<TicketReply> decode_ticket_reply(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kTicketReply, kSlot);
  TicketReply m;
  const auto state = in.get<std::uint8_t>();
  const auto why = in.get<std::uint8_t>();
  m.missing = GroupId(in.get<std::uint16_t>());
  m.hit_blocks = in.get<std::uint32_t>();
  m.revision = Revision(in.get<std::uint64_t>());
  const auto count = in.get<std::uint16_t>();
  const auto flags = in.get<std::uint8_t>();
  in.zeros(5);
  in.require(state <= static_cast<std::uint8_t>(TicketState::kMissing), "unknown state");
  in.require(why <= static_cast<std::uint8_t>(Missing::kTooLarge), "unknown reason");
  in.require(flags <= kAgain, "unknown flags");
  m.state = static_cast<TicketState>(state);
  m.why = static_cast<Missing>(why);
  m.admitted = (flags & kWaits) == 0;
  m.again = flags & kAgain;
  const bool missing = m.state == TicketState::kMissing;
  in.require(missing == (m.why != Missing::kNone), "a reason without a miss, or a miss without one");
  in.require(missing || m.missing.value == 0, "a missing group without a miss");
  in.require(m.admitted || m.state == TicketState::kLoading, "it waits for room and does not load");
  in.require(!m.again || m.state == TicketState::kReady, "what is not ready was not told before");
  in.require((m.state == TicketState::kReady) == (count > 0),
             "a lease that is not ready, or a ready ticket without one");
  in.require(count <= limits::kGroups, "more leases than groups");
  in.require(m.hit_blocks <= kMaxHashes, "more hits than a query may have");
  read_leases(in, count, m.leases);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

}  // namespace orbitkv::wire
