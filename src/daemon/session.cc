#include "daemon/session.h"

#include <utility>

#include "base/check.h"
#include "base/fault.h"
#include "base/log.h"
#include "wire/messages.h"

namespace orbitkv::daemon {
namespace {
using shm::RecordState;
using shm::RecordWord;

bool ended(RecordState state) {
  return state == RecordState::kFree || state == RecordState::kReaped || state == RecordState::kFailed ||
         state == RecordState::kRevoked || state == RecordState::kAcknowledged;
}
}  // namespace

Session::Session(Parts parts) : parts_(std::move(parts)), bank_(parts_.bank_bytes) {}

Status Session::begin(RecordIndex record, OperationId operation) {
  Shadow& shadow = shadows_[record.value];
  if (!ended(shadow.state)) return reject("the grant record is in use by an operation that has not ended");
  if (operation.value <= shadow.operation.value)
    return reject("the operation id does not rise; a session never reuses one");
  const RecordWord reserved{operation, RecordState::kReserved};
  if (parts_.channel.exchange(record, reserved, {operation, RecordState::kPreparing}))
    return reject("the grant record does not hold the operation that the command names");
  shadow = Shadow{operation, RecordState::kPreparing, model::PlanKind::kSave, 0, {}, {}, {}};
  ++open_;
  return ok_status();
}

Session::Shadow& Session::shadow_of(const cache::OperationKey& op) {
  Shadow& shadow = shadows_[op.record.value];
  ORBITKV_CHECK(op.session == id() && shadow.operation == op.operation, "operation of another record");
  return shadow;
}

bool Session::preparing(RecordIndex record, OperationId operation) const {
  const Shadow& shadow = shadows_[record.value];
  return shadow.operation == operation && shadow.state == RecordState::kPreparing;
}

// An edge that only the Manager may take: a word that differs means the client broke
// the protocol. The shadow moves all the same, so that the core stays consistent.
void Session::move(RecordIndex record, Shadow& shadow, RecordState to) {
  const RecordWord from{shadow.operation, shadow.state};
  if (parts_.channel.exchange(record, from, {shadow.operation, to}))
    poison("a grant record changed under the Manager");
  shadow.state = to;
}

void Session::free_bank(Shadow& shadow) {
  if (shadow.plan.bytes) bank_.release(shadow.plan);
  if (shadow.result.bytes) bank_.release(shadow.result);
  if (shadow.plan.bytes || shadow.result.bytes) bank_freed_ = true;
  shadow.plan = shadow.result = {};
}

void Session::end(RecordIndex record, Shadow& shadow, RecordState to) {
  free_bank(shadow);
  move(record, shadow, to);
  ORBITKV_CHECK(open_ > 0, "more operations ended than began");
  --open_;
}

shm::GrantFields Session::grant_of(const Shadow& shadow) {
  const auto plan_bytes = static_cast<std::uint32_t>(wire::plan_frame_bytes(shadow.entries));
  const auto result_bytes = static_cast<std::uint32_t>(wire::result_frame_bytes(shadow.kind, shadow.entries));
  return {shadow.plan.offset,       plan_bytes, shadow.result.offset, result_bytes, shadow.dropped.blocks,
          shadow.dropped.being_made};
}

cache::Ports::Grant Session::grant(const cache::OperationKey& op, const model::Plan& plan) {
  Shadow& shadow = shadow_of(op);
  ORBITKV_CHECK(shadow.state == RecordState::kPreparing, "grant of an operation that is not prepared");
  const auto entries = static_cast<std::uint32_t>(plan.entries.size());
  const auto plan_bytes = static_cast<std::uint32_t>(wire::plan_frame_bytes(entries));
  const auto result_bytes = static_cast<std::uint32_t>(wire::result_frame_bytes(plan.kind, entries));
  auto plan_range = bank_.allocate(plan_bytes);
  if (!plan_range) return cache::Ports::Grant::kBankFull;
  auto result_range = bank_.allocate(result_bytes);
  if (!result_range) {
    bank_.release(*plan_range);
    return cache::Ports::Grant::kBankFull;
  }
  shadow.plan = *plan_range;
  shadow.result = *result_range;
  shadow.kind = plan.kind;
  shadow.entries = entries;
  scratch_.clear();
  wire::encode(plan, scratch_);
  parts_.channel.write_bank(shadow.plan.offset, scratch_);
  parts_.channel.write_grant(op.record, grant_of(shadow));
  fault_hit(FaultPoint::kManagerBeforeGrant);
  move(op.record, shadow, RecordState::kGranted);
  return cache::Ports::Grant::kGranted;
}

cache::Ports::Revoke Session::revoke(const cache::OperationKey& op, const Error& why) {
  Shadow& shadow = shadow_of(op);
  if (shadow.state != RecordState::kGranted) return cache::Ports::Revoke::kAlreadyClaimed;
  // Where the client has claimed it already, the next Manager may have to read its plan.
  parts_.channel.write_failure(op.record, why.code(), why.message(), grant_of(shadow));
  const RecordWord granted{op.operation, RecordState::kGranted};
  if (auto found = parts_.channel.exchange(op.record, granted, {op.operation, RecordState::kRevoked})) {
    return cache::Ports::Revoke::kAlreadyClaimed;  // follow() will see what the client made of it
  }
  shadow.state = RecordState::kRevoked;
  free_bank(shadow);
  --open_;
  return cache::Ports::Revoke::kRevoked;
}

void Session::fail(const cache::OperationKey& op, const Error& why) {
  Shadow& shadow = shadow_of(op);
  ORBITKV_CHECK(shadow.state == RecordState::kPreparing, "only a prepared operation can fail");
  parts_.channel.write_failure(op.record, why.code(), why.message());
  end(op.record, shadow, RecordState::kFailed);
}

void Session::reap(const cache::OperationKey& op) {
  Shadow& shadow = shadow_of(op);
  fault_hit(FaultPoint::kManagerBeforeReap);
  if (shadow.state == RecordState::kPreparing)
    parts_.channel.write_grant(op.record, {0, 0, 0, 0, shadow.dropped.blocks, shadow.dropped.being_made});
  end(op.record, shadow, RecordState::kReaped);
}

void Session::drop(const cache::OperationKey& op, const cache::Ports::Dropped& dropped) {
  shadow_of(op).dropped = dropped;
}

void Session::follow(bool all, std::vector<Receipt>& receipts) {
  dirty_.clear();
  parts_.channel.take_dirty(dirty_);
  if (all) {
    dirty_.clear();
    for (std::uint32_t i = 0; i < limits::kRecords; ++i)
      if (!ended(shadows_[i].state)) dirty_.push_back(RecordIndex(i));
  }
  for (RecordIndex record : dirty_) {
    if (poisoned_) return;
    follow_record(record, receipts);
  }
}

void Session::follow_record(RecordIndex record, std::vector<Receipt>& receipts) {
  Shadow& shadow = shadows_[record.value];
  const auto word = shm::unpack(parts_.channel.load_word(record));
  if (!word) return poison("a grant record holds a state that does not exist");
  if (word->operation != shadow.operation || ended(shadow.state)) {
    // After the end the client acknowledges and reserves as it likes; begin() checks.
    if (!ended(shadow.state)) poison("a grant record was reused before its operation ended");
    return;
  }
  if (word->state == shadow.state) return;
  const bool claim = shadow.state == RecordState::kGranted && word->state == RecordState::kActive;
  const bool receipt = (shadow.state == RecordState::kGranted || shadow.state == RecordState::kActive) &&
                       word->state == RecordState::kDrained;
  if (!claim && !receipt) return poison("a grant record took a step that is not the client's");
  shadow.state = word->state;
  if (receipt) receipts.push_back(read_receipt(record, shadow));
}

// The result area is copied before it is decoded; a result that is missing or wrong
// turns a success into a failure: on doubt a miss.
Session::Receipt Session::read_receipt(RecordIndex record, const Shadow& shadow) {
  const auto result = parts_.channel.read_client_result(record);
  Receipt receipt{{id(), record, shadow.operation}, result.code == 0, result.text, {}, shadow.kind};
  const bool needed = shadow.kind == model::PlanKind::kSave && receipt.success;
  if (result.result_bytes == 0 && !needed) return receipt;
  if (result.result_bytes == 0 || result.result_bytes > shadow.result.bytes) {
    receipt.success = false;
    receipt.text = "the result frame is missing or longer than its area";
    return receipt;
  }
  parts_.channel.copy_bank(shadow.result.offset, result.result_bytes, scratch_);
  const auto refuse = [&](std::string_view why) {
    receipt.success = false;
    receipt.words.clear();
    receipt.text = why;
  };
  if (shadow.kind == model::PlanKind::kSave) {
    auto decoded = wire::decode_publish_result(scratch_);
    if (!decoded.ok())
      refuse(decoded.error().message());
    else if (decoded->operation != shadow.operation || decoded->digests.size() != shadow.entries)
      refuse("the publish result belongs to another operation");
    else
      receipt.words = std::move(decoded->digests);
  } else {
    auto decoded = wire::decode_restore_result(scratch_);
    if (!decoded.ok())
      refuse(decoded.error().message());
    else if (decoded->operation != shadow.operation || decoded->entries != shadow.entries)
      refuse("the restore result belongs to another operation");
    else
      receipt.words = std::move(decoded->failed);
  }
  return receipt;
}

void Session::poison(std::string_view why) {
  if (poisoned_) return;
  poisoned_ = true;
  ORBITKV_WARN("session %u (%s, pid %d) broke the protocol and is cut off: %.*s", id().value,
               parts_.name.c_str(), parts_.pid, static_cast<int>(why.size()), why.data());
}

}  // namespace orbitkv::daemon
