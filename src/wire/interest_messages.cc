// Query interests: lists, calls and their answer.
#include "base/check.h"
#include "base/limits.h"
#include "wire/codec.h"
#include "wire/lease_list.h"
#include "wire/messages.h"

namespace orbitkv::wire {
namespace {

constexpr std::size_t kSubmitFixed = 104, kCallFixed = 80, kReplyFixed = 72;
constexpr std::uint8_t kWaits = 1;  // flags of a reply
constexpr std::size_t kSlot = limits::kDescriptorSlotBytes;

void write(const InterestAuthority& a, FrameBuilder& f) {
  f.put(a.incarnation);
  f.put(a.generation);
  f.array<std::byte>(a.layout);
  f.put(a.consumers);
  f.zeros(6);
}

InterestAuthority read_authority(BodyReader& in) {
  struct Layout {
    std::array<std::byte, 16> bytes;
  };
  InterestAuthority a;
  a.incarnation = in.get<std::uint64_t>();
  a.generation = in.get<std::uint64_t>();
  a.layout = in.name<Layout>().bytes;
  a.consumers = in.get<std::uint16_t>();
  in.zeros(6);
  in.require(a.consumers <= limits::kShards, "more consumers than an instance has ranks");
  return a;
}

bool good(InterestOperation operation) {
  return operation.value <= limits::kInterestOperations;
}

}  // namespace

std::uint32_t interest_hashes_per_frame() {
  return static_cast<std::uint32_t>((kSlot - kFrameHeaderBytes - kSubmitFixed) / sizeof(BlockHash));
}

void encode(const InterestSubmit& m, Buffer& out) {
  ORBITKV_CHECK(m.hashes.size() <= interest_hashes_per_frame(), "interest over its frame");
  FrameBuilder f(FrameType::kInterestSubmit, kSubmitFixed + m.hashes.size_bytes(), out);
  f.array<std::byte>(m.name.instance.bytes);
  write(m.authority, f);
  f.put(m.name.interest.value);
  f.put(m.name.operation.value);
  f.put(m.group.value);
  f.put(static_cast<std::uint8_t>(m.kind));
  f.zeros(1);
  f.put(m.first);
  f.put(m.total);
  f.put(static_cast<std::uint32_t>(m.hashes.size()));
  f.zeros(4);
  f.put(m.origin);
  f.put(m.boundary);
  f.array(m.hashes);
  f.finish();
}

Result<InterestSubmit> decode_interest_submit(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kInterestSubmit, kSlot);
  InterestSubmit m;
  m.name.instance = in.name<InstanceId>();
  m.authority = read_authority(in);
  m.name.interest = InterestId(in.get<std::uint64_t>());
  m.name.operation = InterestOperation(in.get<std::uint32_t>());
  m.group = GroupId(in.get<std::uint16_t>());
  m.kind = static_cast<InterestKind>(in.get<std::uint8_t>());
  in.zeros(1);
  m.first = in.get<std::uint32_t>();
  m.total = in.get<std::uint32_t>();
  const auto count = in.get<std::uint32_t>();
  in.zeros(4);
  m.origin = in.get<std::uint64_t>();
  m.boundary = in.get<std::uint64_t>();
  const bool recovery = m.kind == InterestKind::kRecovery;
  in.require(recovery || m.kind == InterestKind::kPrefix, "unknown kind");
  in.require(m.name.interest.value > 0, "no interest");
  in.require(m.name.operation.value > 0 && good(m.name.operation), "no such operation of an interest");
  in.require(!recovery || m.group.value == 0, "a recovery has no group");
  in.require(recovery ? m.origin < m.boundary : m.origin == 0 && m.boundary == 0,
             "a recovery without tokens, or a prefix with some");
  in.require(m.total <= kMaxHashes, "more blocks than an operation may have");
  in.require(count > 0, "a part without hashes");
  in.require(std::uint64_t{m.first} + count <= m.total, "a part beyond the whole list");
  m.hashes = in.hashes(count);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const InterestCall& m, Buffer& out) {
  FrameBuilder f(FrameType::kInterestCall, kCallFixed, out);
  f.array<std::byte>(m.name.instance.bytes);
  write(m.authority, f);
  f.put(m.name.interest.value);
  f.put(m.name.operation.value);
  f.put(m.blocks);
  f.put(static_cast<std::uint8_t>(m.verb));
  f.zeros(7);
  f.finish();
}

Result<InterestCall> decode_interest_call(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kInterestCall, kSlot);
  InterestCall m;
  m.name.instance = in.name<InstanceId>();
  m.authority = read_authority(in);
  m.name.interest = InterestId(in.get<std::uint64_t>());
  m.name.operation = InterestOperation(in.get<std::uint32_t>());
  m.blocks = in.get<std::uint32_t>();
  m.verb = static_cast<InterestVerb>(in.get<std::uint8_t>());
  in.zeros(7);
  const bool closes = m.verb == InterestVerb::kClose, claims = m.verb == InterestVerb::kClaim;
  in.require(m.verb >= InterestVerb::kPoll && m.verb <= InterestVerb::kClose, "unknown verb");
  in.require(m.name.interest.value > 0, "no interest");
  in.require(good(m.name.operation) && closes == (m.name.operation.value == 0),
             "no such operation of an interest, or a close of one");
  in.require(claims == (m.blocks > 0) && m.blocks <= kMaxHashes, "a claim of no blocks, or blocks without");
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const InterestReply& m, Buffer& out) {
  ORBITKV_CHECK(m.leases.size() <= limits::kGroups, "more leases than groups");
  FrameBuilder f(FrameType::kInterestReply, kReplyFixed + kLeaseBytes * m.leases.size(), out);
  write(m.authority, f);
  f.put(m.interest.value);
  f.put(m.operation.value);
  f.put(m.newest.value);
  f.put(m.blocks);
  f.put(static_cast<std::uint8_t>(m.phase));
  f.put(static_cast<std::uint8_t>(m.why));
  f.put(m.missing.value);
  f.put(static_cast<std::uint16_t>(m.leases.size()));
  f.put(m.admitted ? std::uint8_t{0} : kWaits);
  f.zeros(5);
  write_leases(m.leases, f);
  f.finish();
}

namespace {

// What fits to what.
void check(BodyReader& in, const InterestReply& m, std::size_t leases) {
  const bool missing = m.phase == InterestPhase::kMissing, claimed = m.phase == InterestPhase::kClaimed;
  const bool held = m.phase == InterestPhase::kAcquired || claimed;
  in.require(m.phase <= InterestPhase::kClosed, "unknown phase");
  in.require(m.why <= Missing::kTooLarge, "unknown reason");
  in.require(m.interest.value > 0, "no interest");
  in.require(good(m.operation) && good(m.newest), "no such operation of an interest");
  in.require(missing == (m.why != Missing::kNone), "a reason without a miss, or a miss without one");
  in.require(missing || m.missing.value == 0, "a missing group without a miss");
  in.require(m.admitted || m.phase == InterestPhase::kAcquiring, "it waits for room and does not acquire");
  in.require(!held || m.blocks > 0, "none is held");
  in.require(m.blocks == 0 || held || m.phase == InterestPhase::kCollecting, "blocks that are not held");
  in.require(m.blocks <= kMaxHashes, "more blocks than a list may have");
  in.require(claimed || leases == 0, "a lease that is not claimed");
  in.require(leases <= limits::kGroups, "more leases than groups");
}

}  // namespace

Result<InterestReply> decode_interest_reply(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kInterestReply, kSlot);
  InterestReply m;
  m.authority = read_authority(in);
  m.interest = InterestId(in.get<std::uint64_t>());
  m.operation = InterestOperation(in.get<std::uint32_t>());
  m.newest = InterestOperation(in.get<std::uint32_t>());
  m.blocks = in.get<std::uint32_t>();
  m.phase = static_cast<InterestPhase>(in.get<std::uint8_t>());
  m.why = static_cast<Missing>(in.get<std::uint8_t>());
  m.missing = GroupId(in.get<std::uint16_t>());
  const auto count = in.get<std::uint16_t>();
  const auto flags = in.get<std::uint8_t>();
  in.zeros(5);
  in.require(flags <= kWaits, "unknown flags");
  m.admitted = flags == 0;
  check(in, m, count);
  read_leases(in, count, m.leases);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

}  // namespace orbitkv::wire
