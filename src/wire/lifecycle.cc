#include "wire/lifecycle.h"

#include "base/check.h"
#include "base/limits.h"
#include "wire/codec.h"

namespace orbitkv::wire {
namespace {

constexpr std::size_t kSocket = limits::kSocketFrameBytes;
constexpr std::size_t kHelloFixed = 8;
constexpr std::size_t kHelloReplyFixed = 40;
constexpr std::size_t kRegisterFixed = 48;
constexpr std::size_t kGroupFixed = 16;
constexpr std::size_t kFragmentBytes = 8;
constexpr std::size_t kOfferFixed = 16;
constexpr std::size_t kSlabBytes = 16;
constexpr std::size_t kTextFixed = 16;

// The largest registration fits one frame.
static_assert(kFrameHeaderBytes + kRegisterFixed + limits::kNamespaceBytes + limits::kDeviceNameBytes +
                  kGroupFixed * limits::kGroups + kFragmentBytes * limits::kFragmentsPerRegistration <=
              kSocket);

std::uint16_t u16(std::size_t n) {
  return static_cast<std::uint16_t>(n);
}
std::uint32_t u32(std::size_t n) {
  return static_cast<std::uint32_t>(n);
}

// Most messages but a few are nothing but one request number or two words.
void encode_words(FrameType type, std::span<const std::uint64_t> words, Buffer& out) {
  append_frame(type, std::as_bytes(words), out);
}

}  // namespace

// ---- attach ----

void encode(const Hello& m, Buffer& out) {
  ORBITKV_CHECK(m.client.size() <= limits::kPeerNameBytes && printable(m.client),
                "client name over its limit");
  FrameBuilder f(FrameType::kHello, kHelloFixed + m.client.size(), out);
  f.put(static_cast<std::uint8_t>(m.role));
  f.zeros(1);
  f.put(u16(m.client.size()));
  f.zeros(4);
  f.text(m.client);
  f.finish(m.abi);
}

Result<Hello> decode_hello(std::span<const std::byte> frame) {
  ORBITKV_ASSIGN_OR_RETURN(const FrameView view, open_frame_of_any_version(frame));
  if (view.type != FrameType::kHello) return reject("the first frame on a socket must be a hello");
  Hello m;
  m.abi = view.abi;
  if (view.abi != kAbiVersion) return m;
  BodyReader in(frame, FrameType::kHello, kSocket);
  m.role = static_cast<PeerRole>(in.get<std::uint8_t>());
  in.zeros(1);
  const auto text_bytes = in.get<std::uint16_t>();
  in.zeros(4);
  in.require(m.role == PeerRole::kEngine || m.role == PeerRole::kStatus, "unknown role");
  in.require(text_bytes <= limits::kPeerNameBytes, "client name is too long");
  m.client = in.text(text_bytes);
  in.require(printable(m.client), "client name is not printable ASCII");
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const HelloReply& m, Buffer& out) {
  ORBITKV_CHECK(m.server.size() <= limits::kPeerNameBytes && printable(m.server),
                "server name over its limit");
  FrameBuilder f(FrameType::kHelloReply, kHelloReplyFixed + m.server.size(), out);
  f.put(m.session.value);
  f.zeros(4);
  f.put(m.epoch.value);
  f.put(m.incarnation.value);
  f.put(m.session_bytes);
  f.put(u16(m.server.size()));
  f.zeros(6);
  f.text(m.server);
  f.finish();
}

Result<HelloReply> decode_hello_reply(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kHelloReply, kSocket);
  HelloReply m;
  m.session = SessionId(in.get<std::uint32_t>());
  in.zeros(4);
  m.epoch = Epoch(in.get<std::uint64_t>());
  m.incarnation = Incarnation(in.get<std::uint64_t>());
  m.session_bytes = in.get<std::uint64_t>();
  const auto text_bytes = in.get<std::uint16_t>();
  in.zeros(6);
  in.require(m.session.value < limits::kSessions, "no such session");
  in.require(text_bytes <= limits::kPeerNameBytes, "server name is too long");
  m.server = in.text(text_bytes);
  in.require(printable(m.server), "server name is not printable ASCII");
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const Bye&, Buffer& out) {
  append_frame(FrameType::kBye, {}, out);
}

Result<Bye> decode_bye(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kBye, kSocket);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return Bye{};
}

// ---- registration ----

namespace {

std::size_t register_body_bytes(const model::RankRegistration& rank) {
  std::size_t bytes = kRegisterFixed + rank.name_space.size() + rank.device.size();
  for (const auto& group : rank.groups) bytes += kGroupFixed + kFragmentBytes * group.fragments.size();
  return bytes;
}

void encode_group(const model::GroupShape& group, FrameBuilder& f) {
  f.put(group.group.value);
  f.put(static_cast<std::uint8_t>(group.rule));
  f.put(static_cast<std::uint8_t>(group.writer));
  f.put(group.shard.value);
  f.put(group.shards);
  f.put(group.window_tokens);
  f.put(u32(group.fragments.size()));
  for (const auto& fragment : group.fragments) {
    f.put(fragment.layer);
    f.put(fragment.component);
    f.put(u32(fragment.bytes.value));
  }
}

model::GroupShape decode_group(BodyReader& in) {
  model::GroupShape group;
  group.group = GroupId(in.get<std::uint16_t>());
  group.rule = static_cast<model::RecoveryRule>(in.get<std::uint8_t>());
  const auto writer = in.get<std::uint8_t>();
  group.shard = ShardId(in.get<std::uint16_t>());
  group.shards = in.get<std::uint16_t>();
  group.window_tokens = in.get<std::uint32_t>();
  const auto count = in.get<std::uint32_t>();
  in.require(writer <= 1, "writer is neither 0 nor 1");
  in.require(count <= limits::kFragmentsPerSlot, "too many fragments");
  group.writer = writer == 1;
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
    model::FragmentShape fragment;
    fragment.layer = in.get<std::uint16_t>();
    fragment.component = in.get<std::uint16_t>();
    fragment.bytes = ByteCount(in.get<std::uint32_t>());
    group.fragments.push_back(fragment);
  }
  return group;
}

}  // namespace

void encode(const Register& m, Buffer& out) {
  const auto& rank = m.rank;
  ORBITKV_CHECK(model::validate(rank).ok(), "registration over its limits: validate() it first");
  FrameBuilder f(FrameType::kRegister, register_body_bytes(rank), out);
  f.put(m.request);
  f.array<std::byte>(rank.instance.bytes);
  f.put(rank.rank);
  f.put(rank.world_size);
  f.put(rank.num_blocks);
  f.put(rank.block_tokens);
  f.put(u16(rank.groups.size()));
  f.put(u16(rank.name_space.size()));
  f.put(u16(rank.device.size()));
  f.put(static_cast<std::uint16_t>(rank.node.value + 1));  // 0: not known
  f.zeros(4);
  f.text(rank.name_space);
  f.text(rank.device);
  for (const auto& group : rank.groups) encode_group(group, f);
  f.finish();
}

Result<Register> decode_register(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kRegister, kSocket);
  Register m;
  auto& rank = m.rank;
  m.request = in.get<std::uint64_t>();
  rank.instance = in.name<InstanceId>();
  rank.rank = in.get<std::uint16_t>();
  rank.world_size = in.get<std::uint16_t>();
  rank.num_blocks = in.get<std::uint32_t>();
  rank.block_tokens = in.get<std::uint32_t>();
  const auto groups = in.get<std::uint16_t>();
  const auto name_bytes = in.get<std::uint16_t>();
  const auto device_bytes = in.get<std::uint16_t>();
  rank.node = NodeId(in.get<std::uint16_t>() - 1);
  in.zeros(4);
  in.require(groups <= limits::kGroups, "too many groups");
  rank.name_space = in.text(name_bytes);
  rank.device = in.text(device_bytes);
  for (std::uint16_t i = 0; i < groups && in.ok(); ++i) rank.groups.push_back(decode_group(in));
  ORBITKV_RETURN_IF_ERROR(in.finish());
  ORBITKV_RETURN_IF_ERROR(model::validate(rank));
  return m;
}

void encode(const RegisterReply& m, Buffer& out) {
  encode_words(FrameType::kRegisterReply, std::array{m.request, m.registration.value, m.pool}, out);
}

Result<RegisterReply> decode_register_reply(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kRegisterReply, kSocket);
  RegisterReply m;
  m.request = in.get<std::uint64_t>();
  m.registration = RegistrationId(in.get<std::uint64_t>());
  m.pool = in.get<std::uint64_t>();
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const Unregister& m, Buffer& out) {
  encode_words(FrameType::kUnregister, std::array{m.request, m.registration.value}, out);
}

Result<Unregister> decode_unregister(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kUnregister, kSocket);
  Unregister m;
  m.request = in.get<std::uint64_t>();
  m.registration = RegistrationId(in.get<std::uint64_t>());
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const UnregisterReply& m, Buffer& out) {
  encode_words(FrameType::kUnregisterReply, std::array{m.request}, out);
}

Result<UnregisterReply> decode_unregister_reply(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kUnregisterReply, kSocket);
  UnregisterReply m;
  m.request = in.get<std::uint64_t>();
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

// ---- slabs ----

void encode(const SlabOffer& m, Buffer& out) {
  ORBITKV_CHECK(!m.slabs.empty() && m.slabs.size() <= limits::kFdsPerMessage, "slab offer over its limit");
  FrameBuilder f(FrameType::kSlabOffer, kOfferFixed + kSlabBytes * m.slabs.size(), out);
  f.put(m.pool);
  f.put(u32(m.slabs.size()));
  f.zeros(4);
  for (const auto& slab : m.slabs) {
    f.put(slab.id.value);
    f.put(static_cast<std::uint8_t>(slab.huge));
    f.put(static_cast<std::uint8_t>(slab.kept));
    f.zeros(2);
    f.put(slab.bytes.value);
  }
  f.finish();
}

Result<SlabOffer> decode_slab_offer(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kSlabOffer, kSocket);
  SlabOffer m;
  m.pool = in.get<std::uint64_t>();
  const auto count = in.get<std::uint32_t>();
  in.zeros(4);
  in.require(count > 0 && count <= limits::kFdsPerMessage, "no slabs, or too many");
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
    SlabOffer::Slab slab;
    slab.id = SlabId(in.get<std::uint32_t>());
    const auto huge = in.get<std::uint8_t>(), kept = in.get<std::uint8_t>();
    in.zeros(2);
    slab.bytes = ByteCount(in.get<std::uint64_t>());
    slab.huge = huge == 1;
    slab.kept = kept == 1;
    in.require(huge <= 1 && kept <= 1, "huge or kept is neither 0 nor 1");
    in.require(slab.bytes.value > 0 && slab.bytes <= limits::kSlabBytes, "a slab of an impossible size");
    m.slabs.push_back(slab);
  }
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const SlabRetire& m, Buffer& out) {
  encode_words(FrameType::kSlabRetire, std::array{std::uint64_t{m.slab.value}}, out);
}
void encode(const SlabReleased& m, Buffer& out) {
  encode_words(FrameType::kSlabReleased, std::array{std::uint64_t{m.slab.value}}, out);
}

namespace {
Result<SlabId> decode_slab(std::span<const std::byte> frame, FrameType type) {
  BodyReader in(frame, type, kSocket);
  const SlabId slab(in.get<std::uint32_t>());
  in.zeros(4);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return slab;
}
}  // namespace

Result<SlabRetire> decode_slab_retire(std::span<const std::byte> frame) {
  ORBITKV_ASSIGN_OR_RETURN(const SlabId slab, decode_slab(frame, FrameType::kSlabRetire));
  return SlabRetire{slab};
}
Result<SlabReleased> decode_slab_released(std::span<const std::byte> frame) {
  ORBITKV_ASSIGN_OR_RETURN(const SlabId slab, decode_slab(frame, FrameType::kSlabReleased));
  return SlabReleased{slab};
}

// ---- status, errors ----

void encode(const StatusRequest& m, Buffer& out) {
  encode_words(FrameType::kStatusRequest, std::array{m.request}, out);
}

Result<StatusRequest> decode_status_request(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kStatusRequest, kSocket);
  StatusRequest m;
  m.request = in.get<std::uint64_t>();
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const StatusReply& m, Buffer& out) {
  ORBITKV_CHECK(m.json.size() <= kSocket - kFrameHeaderBytes - kTextFixed, "status over its frame");
  FrameBuilder f(FrameType::kStatusReply, kTextFixed + m.json.size(), out);
  f.put(m.request);
  f.put(u32(m.json.size()));
  f.zeros(4);
  f.text(m.json);
  f.finish();
}

Result<StatusReply> decode_status_reply(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kStatusReply, kSocket);
  StatusReply m;
  m.request = in.get<std::uint64_t>();
  const auto text_bytes = in.get<std::uint32_t>();
  in.zeros(4);
  m.json = in.text(text_bytes);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const ControlRequest& m, Buffer& out) {
  ORBITKV_CHECK(m.json.size() <= limits::kControlBytes, "control request over its limit");
  FrameBuilder f(FrameType::kControlRequest, kTextFixed + m.json.size(), out);
  f.put(m.request);
  f.put(u32(m.json.size()));
  f.zeros(4);
  f.text(m.json);
  f.finish();
}

Result<ControlRequest> decode_control_request(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kControlRequest, kSocket);
  ControlRequest m;
  m.request = in.get<std::uint64_t>();
  const auto text_bytes = in.get<std::uint32_t>();
  in.zeros(4);
  in.require(text_bytes <= limits::kControlBytes, "a control request over its limit");
  m.json = in.text(text_bytes);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const SocketError& m, Buffer& out) {
  ORBITKV_CHECK(m.code != Code::kOk, "a socket error needs a failing code");
  const auto text = std::string_view(m.text).substr(0, limits::kSocketErrorBytes);
  FrameBuilder f(FrameType::kSocketError, kTextFixed + text.size(), out);
  f.put(m.request);
  f.put(static_cast<std::uint16_t>(m.code));
  f.put(u16(text.size()));
  f.zeros(4);
  f.text(text);
  f.finish();
}

Result<SocketError> decode_socket_error(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kSocketError, kSocket, BodyReader::Abi::kAny);
  SocketError m;
  m.request = in.get<std::uint64_t>();
  const auto code = in.get<std::uint16_t>();
  const auto text_bytes = in.get<std::uint16_t>();
  in.zeros(4);
  in.require(code > 0 && code <= static_cast<std::uint16_t>(Code::kBug), "unknown code");
  in.require(text_bytes <= limits::kSocketErrorBytes, "text is too long");
  m.code = static_cast<Code>(code);
  m.text = in.text(text_bytes);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

}  // namespace orbitkv::wire
