#include <algorithm>
#include <bit>
#include <type_traits>

#include "base/check.h"
#include "base/limits.h"
#include "model/slot_image.h"
#include "wire/codec.h"
#include "wire/messages.h"

namespace orbitkv::wire {
namespace {

constexpr std::size_t kPlanFixed = 40;
constexpr std::size_t kResultFixed = 16;
constexpr std::size_t kBank = limits::kPlanBankBytes;

// An entry lies on the wire as it lies in memory.
constexpr std::size_t kEntryBytes = 40;
static_assert(sizeof(PlanEntry) == kEntryBytes && std::is_trivially_copyable_v<PlanEntry>);
static_assert(std::has_unique_object_representations_v<PlanEntry>, "no padding, no unread bytes");
static_assert(std::endian::native == std::endian::little);

bool good_operation(OperationId operation) {
  return operation.value != 0 && operation.value >> 56 == 0;
}

bool good_image(std::uint64_t slot_bytes) {
  return slot_bytes > 0 && slot_bytes % model::kSlotAlign == 0 && slot_bytes <= limits::kSlotImageBytes.value;
}

bool good_entry(const PlanEntry& entry, const Plan& plan) {
  return entry.offset % model::kImageAlign == 0 &&
         entry.offset <= limits::kSlabBytes.value - plan.slot_bytes && entry.block != kHole &&
         (plan.kind == PlanKind::kRestore || entry.digest == 0);
}

bool good_entries(const Plan& plan) {
  return std::all_of(plan.entries.begin(), plan.entries.end(),
                     [&plan](const PlanEntry& entry) { return good_entry(entry, plan); });
}

std::vector<PlanEntry> read_entries(BodyReader& in, std::size_t count) {
  const auto bytes = in.take(count * kEntryBytes);
  std::vector<PlanEntry> entries(bytes.size() / kEntryBytes);
  if (!entries.empty()) std::memcpy(static_cast<void*>(entries.data()), bytes.data(), bytes.size());
  return entries;
}

std::uint32_t u32(std::size_t n) {
  return static_cast<std::uint32_t>(n);
}

}  // namespace

std::size_t plan_frame_bytes(std::uint32_t entries) {
  return kFrameHeaderBytes + kPlanFixed + kEntryBytes * std::size_t{entries};
}

std::size_t result_frame_bytes(PlanKind kind, std::uint32_t entries) {
  const std::size_t words = kind == PlanKind::kSave ? entries : bitmap_words(entries);
  return kFrameHeaderBytes + kResultFixed + 8 * words;
}

void encode(const Plan& m, Buffer& out) {
  ORBITKV_CHECK(!m.entries.empty() && m.entries.size() <= limits::kBlocksPerGrant, "plan over its limit");
  ORBITKV_CHECK(good_operation(m.operation), "operation id is not of 56 bits");
  ORBITKV_CHECK(good_image(m.slot_bytes) && good_entries(m), "plan entry outside of a slab");
  FrameBuilder f(FrameType::kPlan, kPlanFixed + kEntryBytes * m.entries.size(), out);
  f.put(static_cast<std::uint8_t>(m.kind));
  f.put(static_cast<std::uint8_t>(m.encoding));
  f.put(m.group.value);
  f.put(m.shard.value);
  f.zeros(2);
  f.put(m.operation.value);
  f.put(m.registration.value);
  f.put(m.slot_bytes);
  f.put(u32(m.entries.size()));
  f.zeros(4);
  f.array<PlanEntry>(m.entries);
  f.finish();
}

Result<Plan> decode_plan(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kPlan, kBank);
  Plan m;
  m.kind = static_cast<PlanKind>(in.get<std::uint8_t>());
  m.encoding = static_cast<Encoding>(in.get<std::uint8_t>());
  m.group = GroupId(in.get<std::uint16_t>());
  m.shard = ShardId(in.get<std::uint16_t>());
  in.zeros(2);
  m.operation = OperationId(in.get<std::uint64_t>());
  m.registration = RegistrationId(in.get<std::uint64_t>());
  m.slot_bytes = in.get<std::uint64_t>();
  const auto count = in.get<std::uint32_t>();
  in.zeros(4);
  in.require(m.kind == PlanKind::kSave || m.kind == PlanKind::kRestore, "unknown kind");
  in.require(m.encoding == Encoding::kRaw, "unknown encoding");
  in.require(m.shard.value < limits::kShards, "no such shard");
  in.require(good_operation(m.operation), "operation id is not of 56 bits");
  in.require(good_image(m.slot_bytes), "image size is no multiple of 128, or too large");
  in.require(count > 0 && count <= limits::kBlocksPerGrant, "no entries, or too many");
  m.entries = read_entries(in, count);
  in.require(!in.ok() || good_entries(m), "an entry outside of a slab, a hole or a digest in a save");
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const PublishResult& m, Buffer& out) {
  ORBITKV_CHECK(!m.digests.empty() && m.digests.size() <= limits::kBlocksPerGrant, "result over its limit");
  ORBITKV_CHECK(good_operation(m.operation), "operation id is not of 56 bits");
  FrameBuilder f(FrameType::kPublishResult, kResultFixed + 8 * m.digests.size(), out);
  f.put(m.operation.value);
  f.put(u32(m.digests.size()));
  f.zeros(4);
  f.array<std::uint64_t>(m.digests);
  f.finish();
}

Result<PublishResult> decode_publish_result(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kPublishResult, kBank);
  PublishResult m;
  m.operation = OperationId(in.get<std::uint64_t>());
  const auto count = in.get<std::uint32_t>();
  in.zeros(4);
  in.require(good_operation(m.operation), "operation id is not of 56 bits");
  in.require(count > 0 && count <= limits::kBlocksPerGrant, "no digests, or too many");
  m.digests = in.words(count);
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

void encode(const RestoreResult& m, Buffer& out) {
  ORBITKV_CHECK(m.entries > 0 && m.entries <= limits::kBlocksPerGrant, "result over its limit");
  ORBITKV_CHECK(bitmap_fits(m.failed, m.entries), "bitmap of a restore result does not fit its entries");
  ORBITKV_CHECK(good_operation(m.operation), "operation id is not of 56 bits");
  FrameBuilder f(FrameType::kRestoreResult, kResultFixed + 8 * m.failed.size(), out);
  f.put(m.operation.value);
  f.put(m.entries);
  f.zeros(4);
  f.array<std::uint64_t>(m.failed);
  f.finish();
}

Result<RestoreResult> decode_restore_result(std::span<const std::byte> frame) {
  BodyReader in(frame, FrameType::kRestoreResult, kBank);
  RestoreResult m;
  m.operation = OperationId(in.get<std::uint64_t>());
  m.entries = in.get<std::uint32_t>();
  in.zeros(4);
  in.require(good_operation(m.operation), "operation id is not of 56 bits");
  in.require(m.entries > 0 && m.entries <= limits::kBlocksPerGrant, "no entries, or too many");
  m.failed = in.words(bitmap_words(m.entries));
  in.require(!in.ok() || bitmap_fits(m.failed, m.entries), "bits beyond the entries are set");
  ORBITKV_RETURN_IF_ERROR(in.finish());
  return m;
}

}  // namespace orbitkv::wire
