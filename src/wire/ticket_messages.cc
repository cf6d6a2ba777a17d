// Tickets: cancels, polls and their answer.
#include "base/check.h"
#include "base/limits.h"
#include "wire/codec.h"
#include "wire/messages.h"

namespace orbitkv::wire {
namespace {

constexpr std::size_t kTicketFixed = 32;
constexpr std::size_t kTicketReplyFixed = 32;
constexpr std::size_t kSlot = limits::kDescriptorSlotBytes;
constexpr std::uint32_t kMaxHashes =
    static_cast<std::uint32_t>(limits::kMetadataPerOperation.value / limits::kBlockHashBytes);

// Cancel and poll look alike.
template <class Request>
void write_ticket(FrameType type, const Request& m, Buffer& out) {
  ORBITKV_CHECK(m.request_id.size() <= limits::kRequestIdBytes, "request id over its limit");
  FrameBuilder f(type, kTicketFixed + m.request_id.size(), out);
  f.array<std::byte>(m.instance.bytes);
  f.put(m.group.value);
  f.put(static_cast<std::uint16_t>(m.request_id.size()));
  f.zeros(4);
  f.put(m.revision.value);
  f.text(m.request_id);
  f.finish();
}

template <class Request>
Request read_ticket(BodyReader& in) {
  Request m;
  m.instance = in.name<InstanceId>();
  m.group = GroupId(in.get<std::uint16_t>());
  const auto id_bytes = in.get<std::uint16_t>();
  in.zeros(4);
  m.revision = Revision(in.get<std::uint64_t>());
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
  const auto m = read_ticket<CancelQueryRequest>(in);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const PollRequest& m, Buffer& out) {
  ORBITKV_CHECK(m.revision.value != 0, "a poll names its revision");
  write_ticket(FrameType::kPollRequest, m, out);
}

Result<PollRequest> decode_poll_request(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kPollRequest, kSlot);
  const auto m = read_ticket<PollRequest>(in);
  in.require(m.revision.value != 0, "no revision");
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const TicketReply& m, Buffer& out) {
  FrameBuilder f(FrameType::kTicketReply, kTicketReplyFixed, out);
  f.put(static_cast<std::uint8_t>(m.state));
  f.put(static_cast<std::uint8_t>(m.why));
  f.zeros(2);
  f.put(m.hit_blocks);
  f.put(m.revision.value);
  f.array<std::byte>(m.lease.bytes);
  f.finish();
}

Result<TicketReply> decode_ticket_reply(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kTicketReply, kSlot);
  TicketReply m;
  const auto state = in.get<std::uint8_t>();
  const auto why = in.get<std::uint8_t>();
  in.zeros(2);
  m.hit_blocks = in.get<std::uint32_t>();
  m.revision = Revision(in.get<std::uint64_t>());
  m.lease = in.name<LeaseId>();
  in.require(state <= static_cast<std::uint8_t>(TicketState::kMissing), "unknown state");
  in.require(why <= static_cast<std::uint8_t>(Missing::kTimeout), "unknown reason");
  m.state = static_cast<TicketState>(state);
  m.why = static_cast<Missing>(why);
  in.require((m.state == TicketState::kMissing) == (m.why != Missing::kNone),
             "a reason without a miss, or a miss without one");
  in.require((m.state == TicketState::kReady) == static_cast<bool>(m.lease),
             "a lease that is not ready, or a ready ticket without one");
  in.require(m.hit_blocks <= kMaxHashes, "more hits than a query may have");
  in.require(!m.lease || m.hit_blocks > 0, "a lease without blocks");
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

}  // namespace orbitkv::wire
