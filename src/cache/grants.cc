#include "cache/grants.h"

#include "base/check.h"
#include "model/slot_image.h"

namespace orbitkv::cache {

namespace {

using model::PlanKind;

void step_both(Operation& op, PublishEvent save, RestoreEvent restore) {
  if (op.kind == PlanKind::kSave) {
    step(op.publish, save);
  } else {
    step(op.restore, restore);
  }
}

// Not known to the client beyond a record in state Preparing.
bool before_grant(const Operation& op) {
  if (op.kind == PlanKind::kSave) return op.publish < PublishState::kGranted;
  return op.restore < RestoreState::kGranted;
}

}  // namespace

const model::Plan& Grants::plan_of(const Operation& op) {
  plan_.kind = op.kind;
  plan_.operation = op.key.operation;
  plan_.registration = op.registration;
  plan_.group = op.group.group;
  plan_.shard = op.group.shard;
  plan_.slot_bytes = op.group.slot_bytes.value;
  plan_.entries.clear();
  model::SlotKey key{p_.namespaces.digest(op.space.name_space), op.group.group, {}, op.group.shard, {}};
  for (std::size_t i = 0; i < op.slots.size(); ++i) {
    const SlotWords w = p_.images.words(op.slots[i]);
    key.hash = p_.images.table().hot(op.slots[i].record).hash;
    key.revision = w.revision;
    plan_.entries.push_back({.slab = p_.images.slab_name(w.extent.slab),
                             .block = op.blocks[i],
                             .offset = w.extent.offset,
                             .revision = w.revision,
                             .seed = model::slot_seed(key),
                             .digest = op.kind == PlanKind::kRestore ? w.digest : 0});
  }
  return plan_;
}

Ports::Grant Grants::try_grant(Operation& op) {
  const Ports::Grant result = p_.ports.grant(op.key, plan_of(op));
  if (result == Ports::Grant::kGranted) {
    step_both(op, PublishEvent::kGrant, RestoreEvent::kGrant);
  } else {
    step_both(op, PublishEvent::kBankFull, RestoreEvent::kBankFull);
  }
  return result;
}

bool Grants::submit(OperationIndex index) {
  Operation& op = p_.operations.at(index);
  Session& session = p_.sessions.at(op.key.session);
  if (session.bank_queue.empty() && try_grant(op) == Ports::Grant::kGranted) return true;
  session.bank_queue.push_back(index);
  return false;
}

void Grants::bank_freed(SessionId session_id) {
  Session& session = p_.sessions.at(session_id);
  while (!session.bank_queue.empty()) {
    if (try_grant(p_.operations.at(session.bank_queue.front())) == Ports::Grant::kBankFull) return;
    session.bank_queue.pop_front();
  }
}

bool Grants::withdraw(OperationIndex index, const Error& why) {
  Operation& op = p_.operations.at(index);
  if (before_grant(op)) {
    p_.ports.fail(op.key, why);
  } else if (p_.ports.revoke(op.key, why) == Ports::Revoke::kAlreadyClaimed) {
    step_both(op, PublishEvent::kClaimSeen, RestoreEvent::kClaimSeen);
    return false;
  }
  step_both(op, PublishEvent::kWithdraw, RestoreEvent::kWithdraw);
  return true;
}

}  // namespace orbitkv::cache
