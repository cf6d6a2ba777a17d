#include "model/geometry.h"

#include <concepts>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "model/slot_image.h"

namespace orbitkv::model {
namespace {

// A number with its limit, so that a message can state both.
struct Bound {
  std::uint64_t value = 0;
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

bool within(Bound bound) {
  return bound.value >= bound.low && bound.value <= bound.high;
}

Status in_range(const std::string& field, Bound bound) {
  if (within(bound)) return ok_status();
  return reject(field + " is " + std::to_string(bound.value) + "; it must be " + std::to_string(bound.low) +
                ".." + std::to_string(bound.high));
}

// Named where it is refused: a registration has thousands of fields that are right.
template <std::invocable Name>
Status in_range(const Name& name, Bound bound) {
  return within(bound) ? ok_status() : in_range(name(), bound);
}

Status printable(const std::string& field, std::string_view text, std::uint32_t limit) {
  ORBITKV_RETURN_IF_ERROR(in_range("length of " + field, {text.size(), 1, limit}));
  for (const char c : text)
    if (c < 0x20 || c > 0x7e) return reject(field + " has a character that is not printable ASCII");
  return ok_status();
}

template <std::invocable Name>
Status validate_fragment(const Name& name, const FragmentShape& fragment) {
  ORBITKV_RETURN_IF_ERROR(
      in_range([&] { return name() + ".layer"; }, {fragment.layer, 0, limits::kLayers - 1}));
  ORBITKV_RETURN_IF_ERROR(
      in_range([&] { return name() + ".bytes"; }, {fragment.bytes.value, 8, limits::kSlotImageBytes.value}));
  if (fragment.bytes.value % 8 != 0)
    return reject(name() + ".bytes is " + std::to_string(fragment.bytes.value) +
                  "; it must be a multiple of 8");
  return ok_status();
}

bool ascending(const FragmentShape& a, const FragmentShape& b) {
  return a.layer < b.layer || (a.layer == b.layer && a.component < b.component);
}

Status validate_fragments(const std::string& field, const GroupShape& group) {
  const auto& fragments = group.fragments;
  ORBITKV_RETURN_IF_ERROR(in_range("count of " + field, {fragments.size(), 1, limits::kFragmentsPerSlot}));
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    const auto name = [&] { return field + "[" + std::to_string(i) + "]"; };
    ORBITKV_RETURN_IF_ERROR(validate_fragment(name, fragments[i]));
    if (i > 0 && !ascending(fragments[i - 1], fragments[i]))
      return reject(name() + " is out of order; (layer, component) must ascend without duplicates");
  }
  const std::uint64_t bytes = slot_layout(group).slot_bytes;
  return in_range("image bytes of " + field, {bytes, 1, limits::kSlotImageBytes.value});
}

GroupRule rule_of(const GroupShape& group) {
  return {group.group, group.rule, group.window_tokens};
}

Status validate_group(const std::string& field, const GroupShape& group) {
  ORBITKV_RETURN_IF_ERROR(validate_rule(field, rule_of(group)));
  ORBITKV_RETURN_IF_ERROR(in_range(field + ".shards", {group.shards, 1, limits::kShards}));
  ORBITKV_RETURN_IF_ERROR(in_range(field + ".shard", {group.shard.value, 0, group.shards - 1u}));
  return validate_fragments(field + ".fragments", group);
}

Status validate_groups(const std::vector<GroupShape>& groups) {
  ORBITKV_RETURN_IF_ERROR(in_range("count of groups", {groups.size(), 1, limits::kGroups}));
  std::uint64_t fragments = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string name = "groups[" + std::to_string(i) + "]";
    if (i > 0 && groups[i].group <= groups[i - 1].group)
      return reject(name + ".group is out of order; group ids must ascend without duplicates");
    ORBITKV_RETURN_IF_ERROR(validate_group(name, groups[i]));
    fragments += groups[i].fragments.size();
  }
  if (groups.front().group != GroupId(0))
    return reject("groups[0].group is " + std::to_string(groups.front().group.value) +
                  "; the first group must be 0, a prefix group (attention)");
  return in_range("count of fragments over all groups", {fragments, 1, limits::kFragmentsPerRegistration});
}

void write_shape(ByteWriter& out, const GroupShape& group) {
  out.u16(group.group.value);
  out.u8(static_cast<std::uint8_t>(group.rule));
  out.u32(group.window_tokens);
  out.u16(group.shards);
  out.u32(static_cast<std::uint32_t>(group.fragments.size()));
  for (const FragmentShape& fragment : group.fragments) {
    out.u16(fragment.layer);
    out.u16(fragment.component);
    out.u64(fragment.bytes.value);
  }
}

}  // namespace

Status validate(const RankRegistration& rank) {
  ORBITKV_RETURN_IF_ERROR(printable("name_space", rank.name_space, limits::kNamespaceBytes));
  ORBITKV_RETURN_IF_ERROR(printable("device", rank.device, limits::kDeviceNameBytes));
  ORBITKV_RETURN_IF_ERROR(in_range("world_size", {rank.world_size, 1, limits::kShards}));
  ORBITKV_RETURN_IF_ERROR(in_range("rank", {rank.rank, 0, rank.world_size - 1u}));
  ORBITKV_RETURN_IF_ERROR(in_range("num_blocks", {rank.num_blocks, 1, kHole}));
  ORBITKV_RETURN_IF_ERROR(in_range("block_tokens", {rank.block_tokens, 1, UINT32_MAX}));
  if (rank.node.value < kAnyNode.value || rank.node.value >= static_cast<std::int32_t>(limits::kNodeNumbers))
    return reject("node is " + std::to_string(rank.node.value) + "; it is -1 where unknown, or below " +
                  std::to_string(limits::kNodeNumbers));
  return validate_groups(rank.groups);
}

Result<RecoveryContract> recovery_contract(const RankRegistration& rank) {
  std::vector<GroupRule> rules;
  for (const GroupShape& group : rank.groups) rules.push_back(rule_of(group));
  return RecoveryContract::make(rank.name_space, rank.block_tokens, std::move(rules));
}

SlotLayout slot_layout(const GroupShape& group) {
  SlotLayout layout;
  layout.header_bytes = slot_header_bytes(group.fragments.size());
  layout.fragment_offsets.reserve(group.fragments.size());
  std::uint64_t at = layout.header_bytes;
  for (const FragmentShape& fragment : group.fragments) {
    layout.fragment_offsets.push_back(at);
    at = align_slot(at + fragment.bytes.value);
  }
  layout.slot_bytes = at;
  return layout;
}

NamespaceDigest namespace_digest(const RankRegistration& rank) {
  std::vector<std::byte> canonical;
  ByteWriter out(canonical);
  out.text("orbitkv namespace 1\n");
  out.u32(static_cast<std::uint32_t>(rank.name_space.size()));
  out.text(rank.name_space);
  out.u32(rank.block_tokens);
  out.u16(static_cast<std::uint16_t>(rank.groups.size()));
  for (const GroupShape& group : rank.groups) write_shape(out, group);
  return {sha256(canonical)};
}

}  // namespace orbitkv::model
