#include "cache/restore.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"

namespace orbitkv::cache {

namespace {

constexpr std::uint64_t kMetadataPerBlock = sizeof(std::uint32_t);

bool bit_set(std::span<const std::uint64_t> bitmap, std::size_t i) {
  return i / 64 < bitmap.size() && (bitmap[i / 64] >> (i % 64) & 1) != 0;
}

}  // namespace

Result<Lease*> Restorer::usable_lease(const RestoreInput& in, const Registration& registration,
                                      TimePoint now) {
  Lease* lease = p_.leases.find(in.lease, now);
  if (lease == nullptr) {
    return recompute("the lease is unknown: consumed, released, expired or of an earlier Manager; ask again");
  }
  if (lease->name.instance != registration.instance) {
    return reject("the lease belongs to another instance than the registration");
  }
  const std::uint32_t expected = lease->consumed.at(registration.rank);
  const std::size_t left = lease->hits - expected;
  if (in.first != expected || in.targets.empty() || in.targets.size() > left) {
    return reject(format_text("rank %u may restore blocks [%u, %u) of the lease next, asked for [%u, +%zu)",
                              registration.rank, expected, lease->hits, in.first, in.targets.size()));
  }
  return lease;
}

Status Restorer::check_targets(const RestoreInput& in, const Registration& registration) {
  if (in.targets.size() > limits::kBlocksPerGrant) {
    return reject(format_text("restore of %zu blocks, the limit is %u; split it", in.targets.size(),
                              limits::kBlocksPerGrant));
  }
  targets_.begin(in.targets.size());
  for (const std::uint32_t target : in.targets) {
    if (target == kHole) continue;
    if (target >= registration.num_blocks) {
      return reject(format_text("engine block %u of %u does not exist", target, registration.num_blocks));
    }
    if (!targets_.insert(target)) {
      return reject(format_text("engine block %u is the target of two blocks", target));
    }
  }
  return ok_status();
}

Result<bool> Restorer::check_sources(const RestoreInput& in, const Lease& lease, TimePoint now) const {
  bool awaits = false;
  for (std::size_t i = 0; i < in.targets.size(); ++i) {
    const RecordId record = lease.records[in.first + i];
    if (in.targets[i] == kHole || p_.images.sealed(record)) continue;
    if (p_.images.loading(record) && now < p_.leases.wait_end(lease)) {
      awaits = true;
      continue;
    }
    return recompute(format_text(
        "block %zu of the lease failed verification since, or did not come; ask again", in.first + i));
  }
  return awaits;
}

Result<std::uint32_t> Restorer::restore(const RestoreInput& in, Registration& registration, TimePoint now) {
  p_.leases.expire(now);
  ORBITKV_ASSIGN_OR_RETURN(Lease * lease, usable_lease(in, registration, now));
  ORBITKV_RETURN_IF_ERROR(check_targets(in, registration));
  ORBITKV_ASSIGN_OR_RETURN(const bool awaits, check_sources(in, *lease, now));
  const RegisteredGroup* group = registration.find_group(lease->name.group);
  ORBITKV_CHECK(group != nullptr, "ranks of an instance have the same groups");
  const ByteCount metadata(kMetadataPerBlock * in.targets.size());
  ORBITKV_ASSIGN_OR_RETURN(
      const OperationIndex index,
      p_.operations.open({in.op, model::PlanKind::kRestore, metadata, awaits}, registration));
  Operation& op = p_.operations.at(index);
  op.group = *group;
  op.space = p_.images.table().key_space(registration.name_space, group->group);
  take_entries(op, in, *lease);
  op.deadline = p_.leases.wait_end(*lease);
  p_.images.pin(op.pinned);
  op.charge = lease->charge;
  p_.budgets.hold(op.charge);
  p_.leases.consume(*lease, registration.rank, static_cast<std::uint32_t>(in.targets.size()));
  const auto blocks = static_cast<std::uint32_t>(op.slots.size());
  if (blocks == 0) {
    step(op.restore, RestoreEvent::kNothing);
    p_.ports.reap(op.key);
    finish(index);
    return blocks;
  }
  if (!awaits) {
    grant(index);
    return blocks;
  }
  step(op.restore, RestoreEvent::kAwait);
  awaiting_.push_back(index);
  ++stats_.awaited;
  return blocks;
}

void Restorer::grant(OperationIndex index) {
  step(p_.operations.at(index).restore, RestoreEvent::kPin);
  if (!p_.grants.submit(index)) ++stats_.waits;
}

// False: it waits on.
bool Restorer::go_on(OperationIndex index, TimePoint now) {
  Operation& op = p_.operations.at(index);
  while (op.landed < op.pinned.size() && p_.images.sealed(op.pinned[op.landed])) ++op.landed;
  const bool all = op.landed == op.pinned.size();
  if (all && p_.operations.admit(index)) {
    grant(index);
    return true;
  }
  const bool coming = all || p_.images.loading(op.pinned[op.landed]);
  if (coming && now < op.deadline) return false;
  step(op.restore, RestoreEvent::kGiveUp);
  p_.ports.fail(op.key,
                recompute("a block of the restore did not come from the SSD, or not in time; ask again"));
  ++stats_.failed_restores;
  finish(index);
  return true;
}

void Restorer::wake(TimePoint now) {
  std::erase_if(awaiting_, [&](OperationIndex index) { return go_on(index, now); });
}

void Restorer::take_entries(Operation& op, const RestoreInput& in, const Lease& lease) {
  op.blocks.reserve(in.targets.size());
  op.slots.reserve(in.targets.size());
  op.pinned.reserve(in.targets.size());
  for (std::size_t i = 0; i < in.targets.size(); ++i) {
    if (in.targets[i] == kHole) continue;
    const RecordId record = lease.records[in.first + i];
    op.blocks.push_back(in.targets[i]);
    op.slots.push_back(p_.images.slot_of(record, op.group.shard));
    op.pinned.push_back(record);
  }
}

// ---- ends ----

void Restorer::drained(OperationIndex index, const DrainReport& report) {
  Operation& op = p_.operations.at(index);
  step(op.restore, report.success ? RestoreEvent::kVerified : RestoreEvent::kFail);
  if (report.success) {
    stats_.restored += op.slots.size();
    stats_.restored_bytes += op.slots.size() * op.group.slot_bytes.value;
  } else {
    ++stats_.failed_restores;
    drop_failed(op, report);
  }
  p_.ports.reap(op.key);
  finish(index);
}

void Restorer::drop_failed(const Operation& op, const DrainReport& report) {
  std::size_t failed = 0;
  for (std::size_t i = 0; i < op.pinned.size(); ++i) {
    if (!bit_set(report.failed, i)) continue;
    ++failed;
    if (op.pinned[i] == kNoRecord) continue;  // it went with its slab
    p_.spill.suspect(op.pinned[i]);
    p_.images.drop(op.pinned[i]);
  }
  stats_.failed_verifications += failed;
  ORBITKV_WARN("restore %llu of session %u failed, %zu of %zu images did not verify and are dropped: %.*s",
               static_cast<unsigned long long>(op.key.operation.value), op.key.session.value, failed,
               op.pinned.size(), static_cast<int>(report.text.size()), report.text.data());
}

void Restorer::withdraw(OperationIndex index, const Error& why) {
  if (!p_.grants.withdraw(index, why)) return;
  std::erase(awaiting_, index);
  finish(index);
}

// A dead engine reads nothing that others would miss: its sources are free again.
void Restorer::lost(OperationIndex index) {
  step(p_.operations.at(index).restore, RestoreEvent::kLost);
  finish(index);
}

void Restorer::detach(OperationIndex index, SlabSlot slab) {
  Operation& op = p_.operations.at(index);
  bool keeps = false;
  for (std::size_t i = 0; i < op.pinned.size(); ++i) {
    if (op.pinned[i] == kNoRecord) continue;
    if (!p_.images.on_slab(op.slots[i], slab)) {
      keeps = true;
      continue;
    }
    p_.images.unpin({&op.pinned[i], 1});
    op.pinned[i] = op.slots[i].record = kNoRecord;
  }
  if (keeps) return;
  step(op.restore, RestoreEvent::kDetach);
  p_.operations.return_credits(index);
  drop_charge(op);
}

void Restorer::finish(OperationIndex index) {
  Operation& op = p_.operations.at(index);
  p_.leftovers.take(op.pinned, {0, Use::kForeground, std::exchange(op.charge, kNoCharge)});
  p_.operations.close(index);
}

void Restorer::drop_charge(Operation& op) {
  if (op.charge != kNoCharge) p_.budgets.drop(op.charge);
  op.charge = kNoCharge;
}

}  // namespace orbitkv::cache
