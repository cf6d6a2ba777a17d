// What publishes do: the request and its answer.
#include "base/check.h"
#include "base/limits.h"
#include "wire/codec.h"
#include "wire/messages.h"

namespace orbitkv::wire {
namespace {

constexpr std::size_t kRequest = 16, kReply = 32;
constexpr std::size_t kSlot = limits::kDescriptorSlotBytes;
// Operations of all sessions; and an age is one of a living Manager.
constexpr std::uint64_t kMostOperations = std::uint64_t{limits::kSessions} * limits::kRecords;
constexpr std::uint64_t kMostNs = std::uint64_t{1} << 62;

}  // namespace

void encode(const ActivityRequest& m, Buffer& out) {
  FrameBuilder f(FrameType::kActivityRequest, kRequest, out);
  f.array<std::byte>(m.instance.bytes);
  f.finish();
}

Result<ActivityRequest> decode_activity_request(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kActivityRequest, kSlot);
  const ActivityRequest m{in.name<InstanceId>()};
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const ActivityReply& m, Buffer& out) {
  ORBITKV_CHECK(m.oldest.ns >= 0, "nothing began in the future");
  FrameBuilder f(FrameType::kActivityReply, kReply, out);
  f.put(m.open);
  f.put(m.waiting);
  f.put(m.lent.value);
  f.put(m.dropped);
  f.put(static_cast<std::uint64_t>(m.oldest.ns));
  f.finish();
}

Result<ActivityReply> decode_activity_reply(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kActivityReply, kSlot);
  ActivityReply m;
  m.open = in.get<std::uint32_t>();
  m.waiting = in.get<std::uint32_t>();
  m.lent = ByteCount(in.get<std::uint64_t>());
  m.dropped = in.get<std::uint64_t>();
  const auto oldest = in.get<std::uint64_t>();
  in.require(std::uint64_t{m.open} + m.waiting <= kMostOperations,
             "more publishes than there are operations");
  in.require(oldest <= kMostNs, "older than can be");
  m.oldest = nanoseconds(static_cast<std::int64_t>(oldest));
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

}  // namespace orbitkv::wire
