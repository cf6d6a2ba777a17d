#include "client/grant_runner.h"

#include <algorithm>
#include <span>

#include "base/fault.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"

namespace orbitkv::client {
namespace {
using shm::RecordState;

constexpr const char* kGone = "the Manager is gone; nothing was copied";

void end(Part& part, TransferOutcome outcome) {
  part.state = PartState::kEnded;
  part.slabs.clear();
  part.outcome = std::move(outcome);
}

// Of small parts the memory is kept.
constexpr std::size_t kSpareSlots = 256;

// Of what was asked, so many blocks were copied; a Manager may say anything.
TransferOutcome saved(const Part& part, std::uint32_t copied) {
  const std::uint32_t rest = static_cast<std::uint32_t>(part.blocks.size()) - copied;
  const std::uint32_t dropped = std::min(part.fields.dropped, rest);
  return {true, copied, {}, rest - dropped, dropped, dropped > 0 && part.fields.being_made};
}

bool in_bank(std::uint32_t offset, std::uint32_t bytes) {
  return offset <= limits::kPlanBankBytes && bytes <= limits::kPlanBankBytes - offset;
}
}  // namespace

void GrantRunner::look(Attachment& link, Part& part) {
  const auto word = shm::unpack(link.channel().load_word(part.ref.record));
  if (!word || word->operation != part.ref.operation) {
    link.lose();
    return end(part, {false, 0, "the grant record changed under its operation; the session is given up"});
  }
  switch (word->state) {
    case RecordState::kReserved:
    case RecordState::kPreparing:
      if (link.lost()) end(part, {false, 0, kGone});
      return;
    case RecordState::kReaped:
      part.fields = link.channel().read_grant(part.ref.record);
      link.retire(part.ref);
      return end(part, part.kind == model::PlanKind::kSave ? saved(part, 0) : TransferOutcome{});
    case RecordState::kFailed:
    case RecordState::kRevoked: {
      const auto failure = link.channel().read_failure(part.ref.record);
      link.retire(part.ref);
      return end(part, {false, 0, failure.text});
    }
    case RecordState::kGranted: break;
    default:
      link.lose();
      return end(part,
                 {false, 0, "the grant record holds a state of nobody's making; the session is given up"});
  }
  if (link.lost()) return end(part, {false, 0, kGone});
  auto located = read(link, part);
  if (!located.ok()) {
    decline(link, part, located.error());
    end(part, {false, 0, located.error().message()});
  } else if (*located) {
    part.state = PartState::kGranted;
  }
}

bool GrantRunner::refuse(Attachment& link, const Part& part) {
  const auto word = shm::unpack(link.channel().load_word(part.ref.record));
  if (link.lost() || !word || word->operation != part.ref.operation) return true;
  switch (word->state) {
    case RecordState::kReserved: return link.withdraw(part.ref);
    case RecordState::kPreparing: return false;
    case RecordState::kGranted:
      decline(link, part, recompute("the engine stopped waiting for this grant"));
      return true;
    default: link.retire(part.ref); return true;
  }
}

// ---- before the claim ----

Result<bool> GrantRunner::read(Attachment& link, Part& part) {
  part.fields = link.channel().read_grant(part.ref.record);
  if (!in_bank(part.fields.plan_offset, part.fields.plan_bytes) ||
      !in_bank(part.fields.result_offset, part.fields.result_bytes))
    return bug("the grant lies outside the plan bank");
  link.channel().copy_bank(part.fields.plan_offset, part.fields.plan_bytes, bytes_);
  ORBITKV_ASSIGN_OR_RETURN(auto plan, wire::decode_plan(bytes_));
  ORBITKV_RETURN_IF_ERROR(check_plan(part, plan));
  return locate(link, part, plan);
}

Status GrantRunner::check_plan(const Part& part, const model::Plan& plan) const {
  const auto& shape = part.group->geometry.shape;
  if (plan.operation != part.ref.operation || plan.kind != part.kind || plan.group != shape.group ||
      plan.shard != shape.shard || plan.registration.value != part.entry->registration.load())
    return bug("the plan belongs to another operation, group, shard or registration");
  if (plan.slot_bytes != part.group->layout.slot_bytes)
    return bug(format_text("the plan's slots have %llu bytes, this geometry's have %llu",
                           static_cast<unsigned long long>(plan.slot_bytes),
                           static_cast<unsigned long long>(part.group->layout.slot_bytes)));
  const auto entries = static_cast<std::uint32_t>(plan.entries.size());
  if (wire::result_frame_bytes(plan.kind, entries) > part.fields.result_bytes)
    return bug("the result area is too small");
  // Entries come in the order of the request; blocks may be left out, never added.
  std::size_t next = 0;
  for (const model::PlanEntry& entry : plan.entries) {
    while (next < part.blocks.size() && part.blocks[next] != entry.block) ++next;
    if (next == part.blocks.size() || entry.block >= part.entry->rank.num_blocks)
      return bug(format_text("the plan names block %u, which was not asked for", entry.block));
    ++next;
  }
  return ok_status();
}

Result<bool> GrantRunner::locate(Attachment& link, Part& part, const model::Plan& plan) {
  const std::uint64_t slot_bytes = part.group->layout.slot_bytes;
  if (part.slots.capacity() == 0) part.slots.swap(spare_);
  part.slots.clear();
  part.slots.reserve(plan.entries.size());
  part.images.clear();
  part.slabs.clear();
  const mem::MappedSlab* slab = nullptr;
  for (const model::PlanEntry& entry : plan.entries) {
    if (!slab || slab->id() != entry.slab) {
      ORBITKV_ASSIGN_OR_RETURN(slab, use_slab(link, part, entry.slab));
    }
    if (!slab) {
      part.slabs.clear();
      return false;
    }
    if (entry.offset % 64 != 0 || entry.offset > slab->bytes().value ||
        slot_bytes > slab->bytes().value - entry.offset)
      return bug("an extent of the plan lies outside its slab");
    part.slots.push_back(
        {slab->base() + entry.offset, entry.block, entry.revision, entry.seed, entry.digest, false});
    if (part.traced) part.images.push_back({entry.slab, entry.offset});
  }
  return true;
}

// Of a slab that retires no copy may begin: the Manager has taken the grant back, or will.
Result<const mem::MappedSlab*> GrantRunner::use_slab(Attachment& link, Part& part, SlabId name) {
  for (const SlabTable::Use& use : part.slabs)
    if (use->id() == name) return &*use;
  SlabTable::Use use;
  switch (link.slabs().use(name, use)) {
    case SlabTable::Found::kMapped: part.slabs.push_back(std::move(use)); return &*part.slabs.back();
    case SlabTable::Found::kRetiring: return recompute(format_text("slab %u retires; ask again", name.value));
    case SlabTable::Found::kNotYet: break;
  }
  const TimePoint now = monotonic_now();
  if (part.slab_due.ns == 0) part.slab_due = now + slab_wait_;
  if (now < part.slab_due) return nullptr;
  return recompute(format_text("slab %u was never offered to this client", name.value));
}

// The grant cannot be carried out: claim it, so that it ends by a receipt of ours, and
// report a failure that names no image (nothing was read).
void GrantRunner::decline(Attachment& link, const Part& part, const Error& why) {
  ORBITKV_WARN("a grant was declined: %s", why.message().c_str());
  const shm::RecordWord granted{part.ref.operation, RecordState::kGranted};
  const shm::RecordWord active{part.ref.operation, RecordState::kActive};
  if (!link.channel().exchange(part.ref.record, granted, active)) {
    link.channel().write_client_result(part.ref.record, why.code(), 0, why.message());
    link.channel().exchange(part.ref.record, active, {part.ref.operation, RecordState::kDrained});
    link.channel().mark_dirty(part.ref.record);
    link.channel().ring_manager();
  }
  link.retire(part.ref);
}

// ---- claim, receipt ----

bool GrantRunner::claim(Attachment& link, Part& part) {
  fault_hit(FaultPoint::kClientGranted);
  if (link.lost()) {
    end(part, {false, 0, kGone});
    return false;
  }
  const shm::RecordWord granted{part.ref.operation, RecordState::kGranted};
  if (link.channel().exchange(part.ref.record, granted, {part.ref.operation, RecordState::kActive})) {
    const auto failure = link.channel().read_failure(part.ref.record);
    link.retire(part.ref);
    end(part, {false, 0, failure.text.empty() ? "the grant was revoked" : failure.text});
    return false;
  }
  fault_hit(FaultPoint::kClientClaimed);
  part.state = PartState::kActive;
  return true;
}

// The result frame goes to bytes_; none if there is nothing to say.
TransferOutcome GrantRunner::encode_result(const Part& part, const Status& copied) {
  bytes_.clear();
  if (!copied.ok()) return {false, 0, copied.error().message()};
  const auto count = static_cast<std::uint32_t>(part.slots.size());
  if (part.kind == model::PlanKind::kSave) {
    wire::PublishResult result{part.ref.operation, {}};
    result.digests.reserve(count);
    for (const auto& slot : part.slots) result.digests.push_back(slot.digest);
    if (fault_hit(FaultPoint::kClientDigest)) result.digests[result.digests.size() / 2] ^= 1;
    wire::encode(result, bytes_);
    return saved(part, count);
  }
  wire::RestoreResult result{part.ref.operation, count, {}};
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (part.slots[i].verified) continue;
    result.failed.resize((count + 63) / 64);
    result.failed[i / 64] |= std::uint64_t{1} << (i % 64);
    ++wrong;
  }
  if (wrong == 0) return {true, count, {}};
  wire::encode(result, bytes_);
  return {false, 0, format_text("%zu of %u blocks failed verification; recompute them", wrong, count)};
}

void GrantRunner::finish(Attachment& link, Part& part, const Status& copied) {
  const TransferOutcome outcome = encode_result(part, copied);
  if (!part.traced && part.slots.size() <= kSpareSlots) part.slots.swap(spare_);
  if (!bytes_.empty()) link.channel().write_bank(part.fields.result_offset, bytes_);
  const Code code = outcome.success ? Code::kOk : Code::kRecompute;
  link.channel().write_client_result(part.ref.record, code, static_cast<std::uint32_t>(bytes_.size()),
                                     outcome.message);
  fault_hit(FaultPoint::kClientBeforeDrained);
  const shm::RecordWord active{part.ref.operation, RecordState::kActive};
  if (link.channel().exchange(part.ref.record, active, {part.ref.operation, RecordState::kDrained})) {
    link.lose();
    return end(part, {false, 0, "the grant record changed under a running copy; the session is given up"});
  }
  fault_hit(FaultPoint::kClientAfterDrained);
  link.channel().mark_dirty(part.ref.record);
  link.retire(part.ref);
  if (outcome.success && part.kind == model::PlanKind::kSave && link.lost())
    return end(part, {false, 0, "the Manager went away before it could keep the pages"});
  end(part, outcome);
}

}  // namespace orbitkv::client
