// Every decoder of the wire with one sample frame and a probe that says what became
// of some bytes. For tests and fuzz targets only: golden bytes, truncations, flipped
// bits, seeded mutations and libFuzzer all walk this one list. Pure; any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "base/limits.h"
#include "wire/codec.h"
#include "wire/command.h"
#include "wire/lifecycle.h"
#include "wire/messages.h"

namespace orbitkv::wire::suite {

enum class Verdict : std::uint8_t {
  kRefused,
  kAccepted,  // within all limits, and encoding the value gives the same bytes
  kBroken,    // accepted, but over a limit or not the only form of the value
};

struct DecoderCase {
  std::string_view name;
  Buffer sample;
  Verdict (*probe)(std::span<const std::byte> frame);
};

// ---- limits of each value, written once more beside the decoders' own ----

inline constexpr std::uint64_t kMostHashes = std::uint64_t{1} << 20;  // 32 MiB of 32 bytes
inline bool good_operation(OperationId id) {
  return id.value > 0 && id.value < std::uint64_t{1} << 56;
}
inline bool good_code(Code code) {
  return code >= Code::kBusy && code <= Code::kBug;
}
inline bool clear_beyond(const std::vector<std::uint64_t>& words, std::uint32_t bits) {
  for (std::uint64_t bit = bits; bit < 64 * words.size(); ++bit)
    if ((words[bit / 64] >> (bit % 64) & 1) != 0) return false;
  return words.size() == (bits + 63u) / 64u;
}

inline bool within_limits(const QueryRequest& m) {
  return m.request_id.size() <= 256 && m.first + m.hashes.size() <= m.total && m.total <= kMostHashes &&
         (m.mode == QueryMode::kDiscover || m.mode == QueryMode::kRead);
}
inline bool within_limits(const QueryReply& m) {
  return m.count <= 2048 && m.hit_blocks <= kMostHashes && clear_beyond(m.resident, m.count) &&
         (m.stored.empty() || (m.stored.size() == m.resident.size() && clear_beyond(m.stored, m.count))) &&
         !(m.loading && m.lease);
}
inline bool within_limits(const PublishRequest& m) {
  return m.count() > 0 && m.block_ids.size() == 4u * m.count() && m.record.value < 1024 &&
         good_operation(m.operation);
}
inline bool within_limits(const PublishReply& m) {
  return std::uint64_t{m.accepted} + m.resident + m.waiting + m.dropped <= 8192;
}
inline bool within_limits(const RestoreRequest& m) {
  return m.count() > 0 && m.count() <= 8192 && m.first + std::uint64_t{m.count()} <= kMostHashes &&
         m.record.value < 1024 && good_operation(m.operation) && m.lease;
}
inline bool within_limits(const RestoreReply& m) {
  return m.blocks <= 8192;
}
inline bool within_limits(const ReleaseRequest& m) {
  return static_cast<bool>(m.lease);
}
inline bool within_limits(const CancelQueryRequest& m) {
  return m.request_id.size() <= 256 && m.kind >= TicketKind::kPrefix && m.kind <= TicketKind::kWarm;
}
inline bool within_limits(const PollRequest& m) {
  return m.request_id.size() <= 256 && m.revision.value > 0 &&
         (m.kind == TicketKind::kPrefix || (m.kind == TicketKind::kRecovery && m.group.value == 0));
}
inline bool within_limits(const ActivityRequest&) {
  return true;
}
inline bool within_limits(const ActivityReply& m) {
  return std::uint64_t{m.open} + m.waiting <= 64 * 1024 && m.oldest.ns >= 0;
}
inline bool within_limits(const RecoveryRequest& m) {
  return m.request_id.size() <= 256 && !m.hashes.empty() && m.first + m.hashes.size() <= m.total &&
         m.total <= kMostHashes && m.origin < m.boundary;
}
inline bool within_limits(const WarmRequest& m) {
  return m.request_id.size() <= 256 && !m.hashes.empty() && m.confidence <= 100;
}
inline bool within_limits(const TicketReply& m) {
  const bool ready = m.state == TicketState::kReady, missing = m.state == TicketState::kMissing;
  const auto good = [](const TicketLease& l) { return l.lease && l.blocks > 0 && l.blocks <= kMostHashes; };
  return m.hit_blocks <= kMostHashes && ready == !m.leases.empty() && m.leases.size() <= 16 &&
         std::all_of(m.leases.begin(), m.leases.end(), good) &&
         missing == (m.why > Missing::kNone && m.why <= Missing::kTooLarge) &&
         (m.admitted || m.state == TicketState::kLoading) && (!m.again || ready);
}
inline bool within_limits(const InterestSubmit& m) {
  return m.name.interest.value > 0 && m.name.operation.value >= 1 && m.name.operation.value <= 128 &&
         !m.hashes.empty() && m.first + m.hashes.size() <= m.total && m.total <= kMostHashes &&
         m.authority.consumers <= 64 &&
         (m.kind == InterestKind::kRecovery ? m.origin < m.boundary : m.origin + m.boundary == 0);
}
inline bool within_limits(const InterestCall& m) {
  return m.name.interest.value > 0 && m.name.operation.value <= 128 && m.blocks <= kMostHashes &&
         m.verb >= InterestVerb::kPoll && m.verb <= InterestVerb::kClose &&
         (m.blocks > 0) == (m.verb == InterestVerb::kClaim);
}
inline bool within_limits(const InterestReply& m) {
  const auto good = [](const TicketLease& l) { return l.lease && l.blocks > 0 && l.blocks <= kMostHashes; };
  return m.phase <= InterestPhase::kClosed && m.why <= Missing::kTooLarge && m.blocks <= kMostHashes &&
         m.operation.value <= 128 && m.newest.value <= 128 && m.leases.size() <= 16 &&
         std::all_of(m.leases.begin(), m.leases.end(), good) &&
         (m.leases.empty() || m.phase == InterestPhase::kClaimed);
}
inline bool within_limits(const ErrorReply& m) {
  return good_code(m.code) && m.text.size() <= 1024;
}
inline bool within_limits(const Plan& m) {
  constexpr std::uint64_t kSlab = std::uint64_t{1} << 30;
  const auto good = [&m](const PlanEntry& e) {
    return e.offset % 64 == 0 && e.offset < kSlab && e.offset + m.slot_bytes <= kSlab && e.block != kHole;
  };
  return !m.entries.empty() && m.entries.size() <= 8192 && m.slot_bytes > 0 && m.slot_bytes <= kSlab / 4 &&
         good_operation(m.operation) && std::all_of(m.entries.begin(), m.entries.end(), good);
}
inline bool within_limits(const PublishResult& m) {
  return !m.digests.empty() && m.digests.size() <= 8192 && good_operation(m.operation);
}
inline bool within_limits(const RestoreResult& m) {
  return m.entries > 0 && m.entries <= 8192 && clear_beyond(m.failed, m.entries);
}
inline bool within_limits(const Hello& m) {
  return m.client.size() <= 128 && (m.role == PeerRole::kEngine || m.role == PeerRole::kStatus);
}
inline bool within_limits(const HelloReply& m) {
  return m.server.size() <= 128 && m.session.value < 64;
}
inline bool within_limits(const Register& m) {
  return model::validate(m.rank).ok();
}
inline bool within_limits(const SlabOffer& m) {
  const auto good = [](const SlabOffer::Slab& s) { return s.bytes.value > 0 && s.bytes <= kGiB; };
  return !m.slabs.empty() && m.slabs.size() <= 64 && std::all_of(m.slabs.begin(), m.slabs.end(), good);
}
inline bool within_limits(const ControlRequest& m) {
  return m.json.size() <= limits::kControlBytes;
}
inline bool within_limits(const StatusReply& m) {
  return m.json.size() < 128 * 1024;
}
inline bool within_limits(const SocketError& m) {
  return good_code(m.code) && m.text.size() <= 1024;
}
template <class T>
bool within_limits(const T&) {
  return true;  // nothing but identifiers
}

// ---- probes ----

template <auto Decode>
Verdict probe_frame(std::span<const std::byte> frame) {
  const auto value = Decode(frame);
  if (!value.ok()) return Verdict::kRefused;
  if (!within_limits(*value)) return Verdict::kBroken;
  if constexpr (requires { value->client; }) {
    if (value->abi != kAbiVersion) return Verdict::kAccepted;  // all that is read of such a hello
  }
  Buffer again;
  encode(*value, again);
  const auto body = std::span(again).subspan(kFrameHeaderBytes);
  return std::ranges::equal(body, frame.subspan(kFrameHeaderBytes)) ? Verdict::kAccepted : Verdict::kBroken;
}

template <auto Decode>
Verdict probe_entry(std::span<const std::byte> bytes) {
  CommandBytes entry;
  if (bytes.size() != entry.size()) return Verdict::kRefused;
  std::copy(bytes.begin(), bytes.end(), entry.begin());
  const auto value = Decode(entry);
  if (!value.ok()) return Verdict::kRefused;
  if (value->slot >= 16 || value->length > 65536) return Verdict::kBroken;
  if (value->opcode == Opcode::kPing) return Verdict::kAccepted;  // its slot is not kept
  return encode(*value) == entry ? Verdict::kAccepted : Verdict::kBroken;
}

// Makes the CRC of a mutated frame or ring entry right again.
inline void repair_crc(Buffer& bytes, bool ring_entry) {
  if (bytes.size() < kFrameHeaderBytes) return;
  const std::size_t at = ring_entry ? bytes.size() - 4 : 12;
  std::memset(bytes.data() + at, 0, 4);
  const std::uint32_t crc = crc32c(ring_entry ? std::span(bytes).first(at) : std::span(bytes));
  std::memcpy(bytes.data() + at, &crc, 4);
}

inline bool is_ring_entry(const DecoderCase& c) {
  return c.name == "command" || c.name == "reply";
}

// ---- samples ----

template <std::size_t N>
std::array<std::byte, N> counting(std::uint8_t first) {
  std::array<std::byte, N> out;
  for (std::size_t i = 0; i < N; ++i) out[i] = static_cast<std::byte>(first + i);
  return out;
}

template <class T>
Buffer encoded(const T& message) {
  Buffer out;
  if constexpr (requires { encode(message, out); }) {
    encode(message, out);
  } else {
    const CommandBytes bytes = encode(message);
    out.assign(bytes.begin(), bytes.end());
  }
  return out;
}

inline const std::array<BlockHash, 2> kHashes = {BlockHash{counting<32>(0x40)},
                                                 BlockHash{counting<32>(0x80)}};
inline const std::array<std::uint32_t, 2> kBlocks = {7, 0x01020304};
inline const InstanceId kInstance{counting<16>(0x10)};
inline const LeaseId kLease{counting<16>(0x20)};

inline const InterestAuthority kAuthority{11, 12, counting<16>(0x30), 4};

inline model::RankRegistration sample_rank() {
  model::RankRegistration rank;
  rank.instance = kInstance;
  rank.name_space = "dtype=f32;model=tiny";
  rank.rank = 1;
  rank.world_size = 2;
  rank.device = "cpu:0";
  rank.node = NodeId(1);
  rank.num_blocks = 512;
  rank.block_tokens = 16;
  rank.groups = {
      {GroupId(0),
       model::RecoveryRule::kPrefix,
       0,
       ShardId(1),
       2,
       true,
       {{0, 0, ByteCount(4096)}, {0, 1, ByteCount(4096)}, {3, 0, ByteCount(8)}}},
      {GroupId(5), model::RecoveryRule::kWindow, 100, ShardId(0), 1, false, {{1, 0, ByteCount(64)}}}};
  return rank;
}

inline std::vector<DecoderCase> ring_cases() {
  return {{"command", encoded(Command{Opcode::kQuery, 0x0102030405060708, Epoch(9), 3, 136}),
           probe_entry<decode_command>},
          {"reply", encoded(Reply{Opcode::kPublish, 0x0102030405060708, Epoch(9), 15, 65536, Code::kBusy}),
           probe_entry<decode_reply>}};
}

inline std::vector<DecoderCase> slot_cases() {
  const auto blocks = std::as_bytes(std::span(kBlocks));
  return {
      {"query_request",
       encoded(
           QueryRequest{kInstance, GroupId(2), QueryMode::kRead, "req-1", 4, 6, kHashes, false, Revision(9)}),
       probe_frame<decode_query_request>},
      {"query_reply", encoded(QueryReply{4, 2, 5, Revision(3), kLease, {1}, {2}}),
       probe_frame<decode_query_reply>},
      {"publish_request",
       encoded(PublishRequest{RegistrationId(17), GroupId(2), OperationId(0xAABBCC), RecordIndex(1023),
                              blocks, kHashes}),
       probe_frame<decode_publish_request>},
      {"publish_reply", encoded(PublishReply{1, 2, 3, 4}), probe_frame<decode_publish_reply>},
      {"restore_request",
       encoded(RestoreRequest{RegistrationId(17), OperationId(0xAABBCC), RecordIndex(5), kLease, 3, blocks}),
       probe_frame<decode_restore_request>},
      {"restore_reply", encoded(RestoreReply{2}), probe_frame<decode_restore_reply>},
      {"release_request", encoded(ReleaseRequest{kLease}), probe_frame<decode_release_request>},
      {"cancel_query_request", encoded(CancelQueryRequest{kInstance, GroupId(2), "req-1", Revision(7)}),
       probe_frame<decode_cancel_query_request>},
      {"poll_request", encoded(PollRequest{kInstance, GroupId(2), "req-1", Revision(7)}),
       probe_frame<decode_poll_request>},
      {"ticket_reply",
       encoded(TicketReply{TicketState::kReady,
                           Missing::kNone,
                           {},
                           true,
                           5,
                           Revision(7),
                           {{GroupId(0), 3, kLease}, {GroupId(2), 2, kLease}}}),
       probe_frame<decode_ticket_reply>},
      {"recovery_request", encoded(RecoveryRequest{kInstance, "req-1", 128, 512, 4, 6, kHashes, Revision(9)}),
       probe_frame<decode_recovery_request>},
      {"warm_request", encoded(WarmRequest{kInstance, GroupId(2), "req-1", 40, 500, 7, 80, kHashes}),
       probe_frame<decode_warm_request>},
      {"activity_request", encoded(ActivityRequest{kInstance}), probe_frame<decode_activity_request>},
      {"activity_reply", encoded(ActivityReply{1, 2, ByteCount(4096), 3, nanoseconds(5)}),
       probe_frame<decode_activity_reply>},
      {"interest_submit",
       encoded(InterestSubmit{{kInstance, InterestId(21), InterestOperation(3)},
                              kAuthority,
                              InterestKind::kPrefix,
                              GroupId(2),
                              0,
                              0,
                              4,
                              6,
                              kHashes}),
       probe_frame<decode_interest_submit>},
      {"interest_call",
       encoded(InterestCall{
           {kInstance, InterestId(21), InterestOperation(3)}, kAuthority, InterestVerb::kClaim, 5}),
       probe_frame<decode_interest_call>},
      {"interest_reply",
       encoded(InterestReply{InterestId(21),
                             InterestOperation(3),
                             InterestOperation(3),
                             kAuthority,
                             InterestPhase::kClaimed,
                             Missing::kNone,
                             {},
                             true,
                             5,
                             {{GroupId(0), 3, kLease}, {GroupId(2), 2, kLease}}}),
       probe_frame<decode_interest_reply>},
      {"error_reply", encoded(ErrorReply{Code::kRecompute, "no bytes"}), probe_frame<decode_error_reply>}};
}

inline std::vector<DecoderCase> bank_cases() {
  const Plan plan{PlanKind::kRestore,
                  OperationId(0xAABBCC),
                  RegistrationId(17),
                  GroupId(2),
                  ShardId(1),
                  Encoding::kRaw,
                  8320,
                  {{SlabId(1), 7, 64, AllocationId(100), 0x1111, 0x2222},
                   {SlabId(2), 8, 128, AllocationId(101), 0x3333, 0x4444}}};
  return {{"plan", encoded(plan), probe_frame<decode_plan>},
          {"publish_result", encoded(PublishResult{OperationId(0xAABBCC), {0x1111, 0x2222}}),
           probe_frame<decode_publish_result>},
          {"restore_result", encoded(RestoreResult{OperationId(0xAABBCC), 65, {4, 1}}),
           probe_frame<decode_restore_result>}};
}

inline std::vector<DecoderCase> socket_cases() {
  const SlabOffer offer{77, {{SlabId(1), kGiB, true, false}, {SlabId(2), 64 * kMiB, false, true}}};
  return {
      {"hello", encoded(Hello{kAbiVersion, PeerRole::kEngine, "orbitkv 0.1.0 (test)"}),
       probe_frame<decode_hello>},
      {"hello_reply", encoded(HelloReply{SessionId(63), Epoch(9), Incarnation(10), 2461696, "orbitkv 0.1.0"}),
       probe_frame<decode_hello_reply>},
      {"register", encoded(Register{21, sample_rank()}), probe_frame<decode_register>},
      {"register_reply", encoded(RegisterReply{21, RegistrationId(17), 77}),
       probe_frame<decode_register_reply>},
      {"unregister", encoded(Unregister{22, RegistrationId(17)}), probe_frame<decode_unregister>},
      {"unregister_reply", encoded(UnregisterReply{22}), probe_frame<decode_unregister_reply>},
      {"slab_offer", encoded(offer), probe_frame<decode_slab_offer>},
      {"slab_retire", encoded(SlabRetire{SlabId(0x01020304)}), probe_frame<decode_slab_retire>},
      {"slab_released", encoded(SlabReleased{SlabId(0x01020304)}), probe_frame<decode_slab_released>},
      {"status_request", encoded(StatusRequest{23}), probe_frame<decode_status_request>},
      {"status_reply", encoded(StatusReply{23, "{\"sessions\":1}"}), probe_frame<decode_status_reply>},
      {"control_request", encoded(ControlRequest{24, "{\"command\":\"evict\"}"}),
       probe_frame<decode_control_request>},
      {"bye", encoded(Bye{}), probe_frame<decode_bye>},
      {"socket_error", encoded(SocketError{21, Code::kReject, "rank is 9; it must be 0..1"}),
       probe_frame<decode_socket_error>}};
}

inline std::vector<DecoderCase> all_cases() {
  std::vector<DecoderCase> all;
  for (auto* part : {&ring_cases, &slot_cases, &bank_cases, &socket_cases})
    for (DecoderCase& one : part()) all.push_back(std::move(one));
  return all;
}

}  // namespace orbitkv::wire::suite
