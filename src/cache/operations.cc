#include "cache/operations.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::cache {

namespace {

// A recycled object keeps small buffers only, so that 64 K of them stay small.
constexpr std::size_t kKeptEntries = 64;

template <class T>
void recycle(std::vector<T>& v) {
  v.clear();
  if (v.capacity() > kKeptEntries) std::vector<T>().swap(v);
}

}  // namespace

Result<OperationIndex> Operations::open(const Want& want, Registration& registration) {
  Session& session = sessions_.at(want.key.session);
  if (want.key.record.value >= limits::kRecords || want.key.operation.value == 0) {
    return reject(format_text("grant record %u does not exist, or operation id is 0", want.key.record.value));
  }
  if (session.operation_of[want.key.record.value] != kNoOperation) {
    return reject(format_text("grant record %u holds an open operation", want.key.record.value));
  }
  auto metadata = session.metadata->reserve(want.metadata);
  if (!metadata) {
    return busy(
        format_text("page lists of this session take %llu bytes, the limit is %llu; wait for operations",
                    static_cast<unsigned long long>(session.metadata->used().value),
                    static_cast<unsigned long long>(limits::kMetadataPerSession.value)));
  }
  const bool on_device = want.kind == model::PlanKind::kRestore && !want.awaits;
  if (on_device && !instances_.devices().admit_restore(registration.device)) {
    session.metadata->release(std::move(*metadata));
    return busy(format_text("%u restores are open on device %s; wait for one", limits::kRestoresPerDevice,
                            instances_.devices().name(registration.device).c_str()));
  }
  if (free_.empty()) {
    free_.emplace_back(static_cast<std::uint32_t>(operations_.size()));
    operations_.emplace_back();
  }
  const OperationIndex index = free_.back();
  free_.pop_back();
  Operation& op = at(index);
  op.key = want.key;
  op.kind = want.kind;
  op.publish = PublishState::kSubmitted;
  op.restore = RestoreState::kSubmitted;
  op.registration = registration.id;
  op.device = registration.device;
  op.node = registration.node;
  op.open = true;
  op.looks_again = false;
  op.lent = 0;
  op.awaited = false;
  op.on_device = on_device;
  op.landed = 0;
  op.metadata = std::move(*metadata);
  session.operation_of[want.key.record.value] = index;
  ++session.open_operations;
  ++registration.open_operations;
  ++count_;
  return index;
}

OperationIndex Operations::find(const OperationKey& key) const {
  if (key.session.value >= limits::kSessions || key.record.value >= limits::kRecords) return kNoOperation;
  const Session& session = sessions_.at(key.session);
  if (session.operation_of.empty()) return kNoOperation;
  const OperationIndex index = session.operation_of[key.record.value];
  return index != kNoOperation && at(index).key == key ? index : kNoOperation;
}

bool Operations::admit(OperationIndex index) {
  Operation& op = at(index);
  ORBITKV_CHECK(!op.on_device, "restore admitted twice");
  op.on_device = instances_.devices().admit_restore(op.device);
  return op.on_device;
}

void Operations::return_credits(OperationIndex index) {
  Operation& op = at(index);
  if (op.metadata.open()) sessions_.at(op.key.session).metadata->release(std::move(op.metadata));
  if (op.on_device) instances_.devices().end_restore(op.device);
  op.on_device = false;
}

void Operations::close(OperationIndex index) {
  Operation& op = at(index);
  ORBITKV_CHECK(op.open, "operation closed twice");
  Session& session = sessions_.at(op.key.session);
  return_credits(index);
  session.operation_of[op.key.record.value] = kNoOperation;
  --session.open_operations;
  std::erase(session.bank_queue, index);
  if (Registration* r = instances_.find(op.registration)) --r->open_operations;
  op.open = false;
  recycle(op.blocks);
  recycle(op.slots);
  recycle(op.hashes);
  recycle(op.pinned);
  free_.push_back(index);
  --count_;
  if (session.state == SessionState::kClosing && session.open_operations == 0) {
    step(session.state, SessionEvent::kEmptied);
  }
}

std::vector<OperationIndex> Operations::of_session(SessionId session) const {
  std::vector<OperationIndex> out;
  for (const OperationIndex i : sessions_.at(session).operation_of) {
    if (i != kNoOperation) out.push_back(i);
  }
  return out;
}

}  // namespace orbitkv::cache
