#include "wire/messages.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "wire/codec.h"

namespace orbitkv::wire {
namespace {

// Fixed parts of the bodies; what follows them is counted in their fields.
constexpr std::size_t kQueryRequestFixed = 48;
constexpr std::size_t kQueryReplyFixed = 40;
constexpr std::uint32_t kReplyLoading = 1, kReplyStored = 2, kReplyWaits = 4, kReplyAgain = 8;  // flags
constexpr std::uint8_t kAskEarly = 1, kAskFull = 2, kAskPrepare = 4;                            // of a read
constexpr std::size_t kPublishRequestFixed = 32;
constexpr std::size_t kRestoreRequestFixed = 48;
constexpr std::size_t kErrorFixed = 8;

constexpr std::size_t kSlot = limits::kDescriptorSlotBytes;
constexpr std::size_t kRoom = kSlot - kFrameHeaderBytes;
constexpr std::uint32_t kMaxHashes =
    static_cast<std::uint32_t>(limits::kMetadataPerOperation.value / limits::kBlockHashBytes);

std::uint16_t u16(std::size_t n) {
  return static_cast<std::uint16_t>(n);
}
std::uint32_t u32(std::size_t n) {
  return static_cast<std::uint32_t>(n);
}

std::uint32_t word_at(std::span<const std::byte> words, std::uint32_t i) {
  ORBITKV_CHECK(i < words.size() / 4, "index beyond the blocks of a message");
  std::uint32_t value;
  std::memcpy(&value, words.data() + 4 * std::size_t{i}, 4);
  return value;
}

bool good_operation(OperationId operation) {
  return operation.value != 0 && operation.value >> 56 == 0;
}

}  // namespace

std::uint32_t PublishRequest::block_id(std::uint32_t i) const {
  return word_at(block_ids, i);
}
std::uint32_t RestoreRequest::target(std::uint32_t i) const {
  return word_at(targets, i);
}

std::uint32_t query_hashes_per_frame(std::size_t request_id_bytes) {
  ORBITKV_CHECK(request_id_bytes <= limits::kRequestIdBytes, "request id over its limit");
  return u32((kRoom - kQueryRequestFixed - request_id_bytes) / sizeof(BlockHash));
}
std::uint32_t publish_blocks_per_frame() {
  return u32((kRoom - kPublishRequestFixed) / (sizeof(BlockHash) + sizeof(std::uint32_t)));
}
std::uint32_t restore_blocks_per_frame() {
  return std::min(u32((kRoom - kRestoreRequestFixed) / sizeof(std::uint32_t)), limits::kBlocksPerGrant);
}

// ---- query ----

namespace {

void write_query(const QueryRequest& m, FrameBuilder& f) {
  f.array<std::byte>(m.instance.bytes);
  f.put(m.group.value);
  f.put(static_cast<std::uint8_t>(m.mode));
  f.put(static_cast<std::uint8_t>((m.early_lease ? kAskEarly : 0) | (m.full_prefix ? kAskFull : 0) |
                                  (m.prepare ? kAskPrepare : 0)));
  f.put(u16(m.request_id.size()));
  f.zeros(2);
  f.put(m.first);
  f.put(m.total);
  f.put(u32(m.hashes.size()));
  f.zeros(4);
  f.put(m.revision.value);
  f.array(m.hashes);
  f.text(m.request_id);
  f.finish();
}

}  // namespace

std::size_t query_frame_bytes(const QueryRequest& m) {
  return kFrameHeaderBytes + kQueryRequestFixed + m.hashes.size_bytes() + m.request_id.size();
}

std::size_t encode_into(const QueryRequest& m, std::span<std::byte> out) {
  const std::size_t bytes = query_frame_bytes(m);
  ORBITKV_CHECK(m.hashes.size() <= query_hashes_per_frame(m.request_id.size()), "query over its frame");
  ORBITKV_CHECK(bytes <= out.size(), "query frame does not fit");
  FrameBuilder f(FrameType::kQueryRequest, out.first(bytes));
  write_query(m, f);
  return bytes;
}

void encode(const QueryRequest& m, Buffer& out) {
  const std::size_t start = out.size();
  out.resize(start + query_frame_bytes(m));
  encode_into(m, std::span(out).subspan(start));
}

Result<QueryRequest> decode_query_request(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kQueryRequest, kSlot);
  QueryRequest m;
  m.instance = in.name<InstanceId>();
  m.group = GroupId(in.get<std::uint16_t>());
  m.mode = static_cast<QueryMode>(in.get<std::uint8_t>());
  const auto flags = in.get<std::uint8_t>();
  m.early_lease = flags & kAskEarly;
  m.full_prefix = flags & kAskFull;
  m.prepare = flags & kAskPrepare;
  const auto id_bytes = in.get<std::uint16_t>();
  in.zeros(2);
  m.first = in.get<std::uint32_t>();
  m.total = in.get<std::uint32_t>();
  const auto count = in.get<std::uint32_t>();
  in.zeros(4);
  m.revision = Revision(in.get<std::uint64_t>());
  in.require(m.mode == QueryMode::kDiscover || m.mode == QueryMode::kRead, "unknown mode");
  const bool goes_on = m.mode == QueryMode::kRead && m.first > 0;
  in.require((m.revision.value != 0) == goes_on, "a part and its revision do not fit");
  in.require(flags <= (m.mode == QueryMode::kRead ? kAskPrepare : 0), "unknown flags");
  in.require(id_bytes <= limits::kRequestIdBytes, "request id is too long");
  in.require(m.total <= kMaxHashes, "more hashes than a query may have");
  in.require(count > 0 || m.total == 0, "a part without hashes");
  in.require(std::uint64_t{m.first} + count <= m.total, "a part beyond the whole query");
  m.hashes = in.hashes(count);
  m.request_id = in.text(id_bytes);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const QueryReply& m, Buffer& out) {
  ORBITKV_CHECK(m.count <= query_hashes_per_frame(0), "query reply over its part");
  ORBITKV_CHECK(bitmap_fits(m.resident, m.count), "bitmap of a query reply does not fit its part");
  ORBITKV_CHECK(m.stored.empty() || bitmap_fits(m.stored, m.count),
                "second bitmap of a query reply does not fit its part");
  FrameBuilder f(FrameType::kQueryReply, kQueryReplyFixed + 8 * (m.resident.size() + m.stored.size()), out);
  f.put(m.first);
  f.put(m.count);
  f.put(m.hit_blocks);
  f.put(static_cast<std::uint32_t>((m.loading ? kReplyLoading : 0) | (m.stored.empty() ? 0 : kReplyStored) |
                                   (m.admitted ? 0 : kReplyWaits) | (m.again ? kReplyAgain : 0)));
  f.put(m.revision.value);
  f.array<std::byte>(m.lease.bytes);
  f.array<std::uint64_t>(m.resident);
  f.array<std::uint64_t>(m.stored);
  f.finish();
}

Result<QueryReply> decode_query_reply(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kQueryReply, kSlot);
  QueryReply m;
  m.first = in.get<std::uint32_t>();
  m.count = in.get<std::uint32_t>();
  m.hit_blocks = in.get<std::uint32_t>();
  const auto flags = in.get<std::uint32_t>();
  m.loading = flags & kReplyLoading;
  m.revision = Revision(in.get<std::uint64_t>());
  m.lease = in.name<LeaseId>();
  m.admitted = (flags & kReplyWaits) == 0;
  m.again = flags & kReplyAgain;
  in.require(flags <= (kReplyLoading | kReplyStored | kReplyWaits | kReplyAgain), "unknown flags");
  in.require(!m.loading || !m.lease, "a lease of blocks that are still loading");
  in.require(m.admitted || m.loading, "it waits and does not load");
  in.require(!m.again || m.lease, "no lease was told before");
  in.require(m.count <= query_hashes_per_frame(0), "more hashes than a part may have");
  in.require(std::uint64_t{m.first} + m.count <= kMaxHashes, "a part beyond any query");
  in.require(m.hit_blocks <= kMaxHashes, "more hits than a query may have");
  in.require(!m.lease || m.hit_blocks > 0, "a lease without blocks");
  m.resident = in.words(bitmap_words(m.count));
  in.require(!in.ok() || bitmap_fits(m.resident, m.count), "bits beyond the part are set");
  if (flags & kReplyStored) {
    in.require(m.count > 0, "a second bitmap of no hashes");
    m.stored = in.words(bitmap_words(m.count));
    in.require(!in.ok() || bitmap_fits(m.stored, m.count), "bits beyond the part are set");
  }
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

// ---- publish ----

void encode(const PublishRequest& m, Buffer& out) {
  ORBITKV_CHECK(m.count() > 0 && m.count() <= publish_blocks_per_frame(), "publish over its frame");
  ORBITKV_CHECK(m.block_ids.size() == 4 * m.hashes.size(), "publish needs one block a hash");
  ORBITKV_CHECK(good_operation(m.operation), "operation id is not of 56 bits");
  FrameBuilder f(FrameType::kPublishRequest,
                 kPublishRequestFixed + m.block_ids.size() + m.hashes.size_bytes(), out);
  f.put(m.registration.value);
  f.put(m.operation.value);
  f.put(m.record.value);
  f.put(m.group.value);
  f.zeros(2);
  f.put(m.count());
  f.zeros(4);
  f.bytes(m.block_ids);
  f.array(m.hashes);
  f.finish();
}

Result<PublishRequest> decode_publish_request(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kPublishRequest, kSlot);
  PublishRequest m;
  m.registration = RegistrationId(in.get<std::uint64_t>());
  m.operation = OperationId(in.get<std::uint64_t>());
  m.record = RecordIndex(in.get<std::uint32_t>());
  m.group = GroupId(in.get<std::uint16_t>());
  in.zeros(2);
  const auto count = in.get<std::uint32_t>();
  in.zeros(4);
  in.require(good_operation(m.operation), "operation id is not of 56 bits");
  in.require(m.record.value < limits::kRecords, "no such record");
  in.require(count > 0, "no blocks");
  m.block_ids = in.take(4 * std::size_t{count});
  m.hashes = in.hashes(count);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const PublishReply& m, Buffer& out) {
  FrameBuilder f(FrameType::kPublishReply, 16, out);
  f.put(m.accepted);
  f.put(m.resident);
  f.put(m.waiting);
  f.put(m.dropped);
  f.finish();
}

Result<PublishReply> decode_publish_reply(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kPublishReply, kSlot);
  PublishReply m;
  m.accepted = in.get<std::uint32_t>();
  m.resident = in.get<std::uint32_t>();
  m.waiting = in.get<std::uint32_t>();
  m.dropped = in.get<std::uint32_t>();
  const std::uint64_t sum = std::uint64_t{m.accepted} + m.resident + m.waiting + m.dropped;
  in.require(sum <= publish_blocks_per_frame(), "more blocks than a publish may have");
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

// ---- restore ----

void encode(const RestoreRequest& m, Buffer& out) {
  ORBITKV_CHECK(m.targets.size() % 4 == 0, "restore targets are words");
  ORBITKV_CHECK(m.count() > 0 && m.count() <= restore_blocks_per_frame(), "restore over its frame");
  ORBITKV_CHECK(good_operation(m.operation), "operation id is not of 56 bits");
  FrameBuilder f(FrameType::kRestoreRequest, kRestoreRequestFixed + m.targets.size(), out);
  f.put(m.registration.value);
  f.put(m.operation.value);
  f.array<std::byte>(m.lease.bytes);
  f.put(m.record.value);
  f.put(m.first);
  f.put(m.count());
  f.zeros(4);
  f.bytes(m.targets);
  f.finish();
}

Result<RestoreRequest> decode_restore_request(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kRestoreRequest, kSlot);
  RestoreRequest m;
  m.registration = RegistrationId(in.get<std::uint64_t>());
  m.operation = OperationId(in.get<std::uint64_t>());
  m.lease = in.name<LeaseId>();
  m.record = RecordIndex(in.get<std::uint32_t>());
  m.first = in.get<std::uint32_t>();
  const auto count = in.get<std::uint32_t>();
  in.zeros(4);
  in.require(good_operation(m.operation), "operation id is not of 56 bits");
  in.require(m.record.value < limits::kRecords, "no such record");
  in.require(static_cast<bool>(m.lease), "no lease");
  in.require(count > 0 && count <= restore_blocks_per_frame(), "no blocks, or too many");
  in.require(std::uint64_t{m.first} + count <= kMaxHashes, "blocks beyond any lease");
  m.targets = in.take(4 * std::size_t{count});
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const RestoreReply& m, Buffer& out) {
  FrameBuilder f(FrameType::kRestoreReply, 8, out);
  f.put(m.blocks);
  f.zeros(4);
  f.finish();
}

Result<RestoreReply> decode_restore_reply(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kRestoreReply, kSlot);
  RestoreReply m;
  m.blocks = in.get<std::uint32_t>();
  in.zeros(4);
  in.require(m.blocks <= limits::kBlocksPerGrant, "more blocks than a grant may have");
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

// ---- release ----

void encode(const ReleaseRequest& m, Buffer& out) {
  FrameBuilder f(FrameType::kReleaseRequest, sizeof m.lease.bytes, out);
  f.array<std::byte>(m.lease.bytes);
  f.finish();
}

Result<ReleaseRequest> decode_release_request(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kReleaseRequest, kSlot);
  ReleaseRequest m;
  m.lease = in.name<LeaseId>();
  in.require(static_cast<bool>(m.lease), "no lease");
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

// ---- error ----

void encode(const ErrorReply& m, Buffer& out) {
  ORBITKV_CHECK(m.code != Code::kOk, "an error reply needs a failing code");
  const auto text = m.text.substr(0, limits::kSocketErrorBytes);
  FrameBuilder f(FrameType::kErrorReply, kErrorFixed + text.size(), out);
  f.put(static_cast<std::uint16_t>(m.code));
  f.put(u16(text.size()));
  f.zeros(4);
  f.text(text);
  f.finish();
}

Result<ErrorReply> decode_error_reply(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kErrorReply, kSlot);
  ErrorReply m;
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
