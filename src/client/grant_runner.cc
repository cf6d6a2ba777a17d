#include "client/grant_runner.h"

#include <algorithm>
#include <span>

#include "base/fault.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "device/host/host_copier.h"

namespace orbitkv::client {
namespace {
using shm::RecordState;

bool in_bank(std::uint32_t offset, std::uint32_t bytes) {
  return offset <= limits::kPlanBankBytes && bytes <= limits::kPlanBankBytes - offset;
}
}  // namespace

GrantRunner::GrantRunner(bool verify) : copier_(device::make_host_copier({.verify = verify})) {}

std::optional<PartOutcome> GrantRunner::step(Attachment& link, const Part& part, Duration slab_wait) {
  const auto word = shm::unpack(link.channel().load_word(part.ref.record));
  if (!word || word->operation != part.ref.operation) {
    link.lose();
    return PartOutcome{false, 0, "the grant record changed under its operation; the session is given up"};
  }
  switch (word->state) {
    case RecordState::kReserved:
    case RecordState::kPreparing:
      if (!link.lost()) return std::nullopt;
      return PartOutcome{false, 0, "the Manager is gone; nothing was copied"};
    case RecordState::kReaped: link.retire(part.ref); return PartOutcome{};
    case RecordState::kFailed:
    case RecordState::kRevoked: {
      const auto failure = link.channel().read_failure(part.ref.record);
      link.retire(part.ref);
      return PartOutcome{false, 0, failure.text};
    }
    case RecordState::kGranted: break;
    default:
      link.lose();
      return PartOutcome{false, 0,
                         "the grant record holds a state of nobody's making; the session is given up"};
  }
  if (link.lost()) return PartOutcome{false, 0, "the Manager is gone; nothing was copied"};
  shm::GrantFields fields{};
  auto plan = read_plan(link, part, fields);
  if (!plan.ok()) return decline(link, part, plan.error());
  auto located = locate(link, part, *plan, slab_wait);
  if (!located.ok()) return decline(link, part, located.error());
  if (!*located) return std::nullopt;
  return run(link, part, fields);
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

Result<model::Plan> GrantRunner::read_plan(Attachment& link, const Part& part, shm::GrantFields& fields) {
  fields = link.channel().read_grant(part.ref.record);
  if (!in_bank(fields.plan_offset, fields.plan_bytes) || !in_bank(fields.result_offset, fields.result_bytes))
    return bug("the grant lies outside the plan bank");
  link.channel().copy_bank(fields.plan_offset, fields.plan_bytes, bytes_);
  ORBITKV_ASSIGN_OR_RETURN(auto plan, wire::decode_plan(bytes_));
  ORBITKV_RETURN_IF_ERROR(check_plan(part, plan, fields.result_bytes));
  return plan;
}

Status GrantRunner::check_plan(const Part& part, const model::Plan& plan, std::uint32_t result_bytes) const {
  const auto& shape = part.group->geometry.shape;
  if (plan.operation != part.ref.operation || plan.kind != part.kind || plan.group != shape.group ||
      plan.shard != shape.shard || plan.registration.value != part.entry->registration.load())
    return bug("the plan belongs to another operation, group, shard or registration");
  if (plan.slot_bytes != part.group->layout.slot_bytes)
    return bug(format_text("the plan's slots have %llu bytes, this geometry's have %llu",
                           static_cast<unsigned long long>(plan.slot_bytes),
                           static_cast<unsigned long long>(part.group->layout.slot_bytes)));
  const auto entries = static_cast<std::uint32_t>(plan.entries.size());
  if (wire::result_frame_bytes(plan.kind, entries) > result_bytes) return bug("the result area is too small");
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

Result<bool> GrantRunner::locate(Attachment& link, const Part& part, const model::Plan& plan,
                                 Duration slab_wait) {
  const std::uint64_t slot_bytes = part.group->layout.slot_bytes;
  slots_.clear();
  const mem::MappedSlab* slab = nullptr;
  for (const model::PlanEntry& entry : plan.entries) {
    if (!slab || slab->id() != entry.slab) slab = link.slab(entry.slab);
    if (!slab && slab_wait.ns > 0) slab = link.slab_within(entry.slab, slab_wait);
    if (!slab && slab_wait.ns == 0) return false;
    if (!slab) return recompute(format_text("slab %u was never offered to this client", entry.slab.value));
    if (entry.offset % 64 != 0 || entry.offset > slab->bytes().value ||
        slot_bytes > slab->bytes().value - entry.offset)
      return bug("an extent of the plan lies outside its slab");
    slots_.push_back(
        {slab->base() + entry.offset, entry.block, entry.allocation, entry.seed, entry.digest, false});
  }
  return true;
}

// The grant cannot be carried out: claim it, so that it ends by a receipt of ours, and
// report a failure that names no image (nothing was read).
PartOutcome GrantRunner::decline(Attachment& link, const Part& part, const Error& why) {
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
  return {false, 0, why.message()};
}

// ---- claim, copy, receipt ----

PartOutcome GrantRunner::run(Attachment& link, const Part& part, const shm::GrantFields& fields) {
  fault_hit(FaultPoint::kClientGranted);
  const shm::RecordWord granted{part.ref.operation, RecordState::kGranted};
  if (link.channel().exchange(part.ref.record, granted, {part.ref.operation, RecordState::kActive})) {
    const auto failure = link.channel().read_failure(part.ref.record);
    link.retire(part.ref);
    return {false, 0, failure.text.empty() ? "the grant was revoked" : failure.text};
  }
  fault_hit(FaultPoint::kClientClaimed);
  const Status copied = copy(part);
  return finish(link, part, fields, copied);
}

Status GrantRunner::copy(const Part& part) {
  device::CopyBatch batch;
  batch.direction =
      part.kind == model::PlanKind::kSave ? device::Direction::kSave : device::Direction::kRestore;
  batch.groups.push_back({&part.group->geometry, slots_});
  ORBITKV_ASSIGN_OR_RETURN(const auto ticket, copier_->submit(std::move(batch)));
  return copier_->drain(ticket).status;
}

PartOutcome GrantRunner::finish(Attachment& link, const Part& part, const shm::GrantFields& fields,
                                const Status& copied) {
  PartOutcome outcome{copied.ok(), static_cast<std::uint32_t>(slots_.size()), {}};
  if (!copied.ok()) outcome = {false, 0, copied.error().message()};
  bytes_.clear();
  if (part.kind == model::PlanKind::kSave && copied.ok()) {
    wire::PublishResult result{part.ref.operation, {}};
    for (const auto& slot : slots_) result.digests.push_back(slot.digest);
    if (fault_hit(FaultPoint::kClientDigest)) result.digests[result.digests.size() / 2] ^= 1;
    wire::encode(result, bytes_);
  } else if (part.kind == model::PlanKind::kRestore && copied.ok()) {
    wire::RestoreResult result{part.ref.operation, static_cast<std::uint32_t>(slots_.size()), {}};
    result.failed.resize((slots_.size() + 63) / 64);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].verified) continue;
      result.failed[i / 64] |= std::uint64_t{1} << (i % 64);
      ++wrong;
    }
    if (wrong > 0) {
      outcome = {false, 0,
                 format_text("%zu of %zu blocks failed verification; recompute them", wrong, slots_.size())};
      wire::encode(result, bytes_);
    }
  }
  if (!bytes_.empty()) link.channel().write_bank(fields.result_offset, bytes_);
  const Code code = outcome.success ? Code::kOk : Code::kRecompute;
  link.channel().write_client_result(part.ref.record, code, static_cast<std::uint32_t>(bytes_.size()),
                                     outcome.message);
  fault_hit(FaultPoint::kClientBeforeDrained);
  const shm::RecordWord active{part.ref.operation, RecordState::kActive};
  if (link.channel().exchange(part.ref.record, active, {part.ref.operation, RecordState::kDrained})) {
    link.lose();
    return {false, 0, "the grant record changed under a running copy; the session is given up"};
  }
  fault_hit(FaultPoint::kClientAfterDrained);
  link.channel().mark_dirty(part.ref.record);
  link.channel().ring_manager();
  link.retire(part.ref);
  if (outcome.success && part.kind == model::PlanKind::kSave && link.lost())
    return {false, 0, "the Manager went away before it could keep the pages"};
  return outcome;
}

}  // namespace orbitkv::client
