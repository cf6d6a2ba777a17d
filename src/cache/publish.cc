#include "cache/publish.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"

namespace orbitkv::cache {

namespace {

constexpr std::uint64_t kMetadataPerBlock = sizeof(BlockHash) + sizeof(std::uint32_t);

}  // namespace

Status Publisher::check(const PublishInput& in, const Registration& registration) const {
  const std::size_t n = in.hashes.size();
  if (registration.find_group(in.group) == nullptr) {
    return reject(format_text("group %u is not part of registration %llu", in.group.value,
                              static_cast<unsigned long long>(registration.id.value)));
  }
  if (n != in.blocks.size() || n > limits::kBlocksPerGrant) {
    return reject(format_text("publish of %zu hashes and %zu blocks; they must be as many, %u at most", n,
                              in.blocks.size(), limits::kBlocksPerGrant));
  }
  for (const std::uint32_t block : in.blocks) {
    if (block >= registration.num_blocks) {
      return reject(format_text("engine block %u of %u does not exist", block, registration.num_blocks));
    }
  }
  return ok_status();
}

Result<PublishAnswer> Publisher::publish(const PublishInput& in, Registration& registration, TimePoint now) {
  ORBITKV_RETURN_IF_ERROR(check(in, registration));
  const ByteCount metadata(kMetadataPerBlock * in.hashes.size());
  ORBITKV_ASSIGN_OR_RETURN(const OperationIndex index,
                           p_.operations.open({in.op, model::PlanKind::kSave, metadata}, registration));
  Operation& op = p_.operations.at(index);
  op.group = *registration.find_group(in.group);
  op.space = p_.images.table().key_space(registration.name_space, in.group);
  op.opened = now;
  op.deadline = now + p_.wait;
  const std::uint32_t repeated = take_list(op, in);
  PublishAnswer answer = advance(index, now);
  answer.resident += repeated;
  stats_.filtered += repeated;
  return answer;
}

// Copies the list without repeats and looks it up; returns how many were left out. A
// rank that is not its shard's declared writer has nothing to copy at all.
std::uint32_t Publisher::take_list(Operation& op, const PublishInput& in) {
  const std::size_t n = op.group.writer ? in.hashes.size() : 0;
  if (lookups_.size() < n) lookups_.resize(n);
  p_.images.table().find_batch(op.space, in.hashes.first(n), lookups_);
  repeats_.begin(n);
  for (std::size_t i = 0; i < n; ++i) {
    // By keyed 64-bit hash: a collision would only leave a block unsaved.
    if (!repeats_.insert(lookups_[i].hash)) continue;
    lookups_[op.hashes.size()] = lookups_[i];
    op.hashes.push_back(in.hashes[i]);
    op.blocks.push_back(in.blocks[i]);
  }
  return static_cast<std::uint32_t>(in.hashes.size() - op.hashes.size());
}

void Publisher::look_up(const Operation& op) {
  if (lookups_.size() < op.hashes.size()) lookups_.resize(op.hashes.size());
  p_.images.table().find_batch(op.space, op.hashes, lookups_);
}

SlotState Publisher::state_of(const Operation& op, std::size_t i, OperationIndex* owner) const {
  const RecordId record = lookups_[i].record;
  if (record == kNoRecord) return SlotState::kAbsent;
  const Images::SlotView view = p_.images.view(record, op.group.shard);
  *owner = view.owner;
  return view.state;
}

PublishAnswer Publisher::classify(const Operation& op, Blocker& blocker) const {
  PublishAnswer answer;
  for (std::size_t i = 0; i < op.hashes.size(); ++i) {
    OperationIndex owner = kNoOperation;
    switch (state_of(op, i, &owner)) {
      case SlotState::kAbsent: ++answer.accepted; break;
      case SlotState::kCommitted: ++answer.resident; break;
      case SlotState::kLent:
        ++answer.waiting;
        if (!blocker) blocker.operation = owner;
        break;
      case SlotState::kLoading:
        ++answer.waiting;
        if (!blocker) blocker.load = lookups_[i].record;
        break;
    }
  }
  return answer;
}

// lookups_ holds what the tables say about op.hashes: waits, or lends and grants.
PublishAnswer Publisher::advance(OperationIndex index, TimePoint now) {
  Operation& op = p_.operations.at(index);
  Blocker blocker;
  PublishAnswer answer = classify(op, blocker);
  if (!blocker) blocker.memory = answer.accepted > 0 && p_.images.memory_coming();
  if (blocker && now < op.deadline) {
    wait_for(index, blocker);
    if (blocker.memory) answer.waiting += std::exchange(answer.accepted, 0);
    return answer;
  }
  stats_.filtered += answer.resident + answer.waiting;
  lend_wanted(index, answer);
  stop_waiting(index);
  if (op.slots.empty()) {
    step(op.publish, PublishEvent::kNothing);
    p_.ports.reap(op.key);
    finish(index, now);
    return answer;
  }
  step(op.publish, PublishEvent::kReserve);
  if (!p_.grants.submit(index)) ++stats_.waits;
  return answer;
}

void Publisher::wait_for(OperationIndex index, const Blocker& blocker) {
  Operation& op = p_.operations.at(index);
  if (op.publish == PublishState::kSubmitted) {
    waiting_.push_back({index, blocker});
    ++stats_.waits;
  } else {
    std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& w) {
      return w.index == index;
    })->blocker = blocker;
  }
  step(op.publish, PublishEvent::kWait);
  if (blocker.operation != kNoOperation) p_.operations.at(blocker.operation).awaited = true;
}

// Lending evicts, and what it evicts may stand in lookups_: everything is decided before.
void Publisher::lend_wanted(OperationIndex index, PublishAnswer& answer) {
  Operation& op = p_.operations.at(index);
  std::size_t wanted = 0;
  for (std::size_t i = 0; i < op.hashes.size(); ++i) {
    OperationIndex owner = kNoOperation;
    if (state_of(op, i, &owner) != SlotState::kAbsent) continue;
    op.hashes[wanted] = op.hashes[i];
    op.blocks[wanted++] = op.blocks[i];
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < wanted; ++i) {
    const auto slot = p_.images.lend({.key = {op.hashes[i], op.space.name_space, op.group.group},
                                      .shard = op.group.shard,
                                      .shards = op.group.shards,
                                      .bytes = op.group.slot_bytes,
                                      .owner = index,
                                      .near = op.node,
                                      .writer = {op.key.session, op.key.record, op.key.operation}});
    if (!slot) {
      --answer.accepted;
      ++answer.dropped;
      ++stats_.dropped;
      p_.instances.count_dropped(op.registration);
      continue;
    }
    op.slots.push_back(*slot);
    op.blocks[kept++] = op.blocks[i];
  }
  op.blocks.resize(kept);
  op.lent = static_cast<std::uint32_t>(kept);
  p_.ports.drop(op.key, {static_cast<std::uint32_t>(wanted - kept), p_.images.memory_coming()});
  std::vector<BlockHash>().swap(op.hashes);
}

bool Publisher::saved_by_others(RecordId record, const InstanceId& instance, TimePoint now) const {
  if (p_.images.sealed(record) || p_.images.loading(record)) return false;
  // Some ranks have saved their part: as long as publishes wait for each other, the next may come.
  if (const auto idle = p_.images.idle_since(record)) return now - *idle < p_.wait;
  for (std::uint16_t s = 0; s < p_.images.shards(record); ++s) {
    const Images::SlotView view = p_.images.view(record, ShardId(s));
    if (view.state != SlotState::kLent) continue;
    const Operation& op = p_.operations.at(view.owner);
    const bool granted = op.publish == PublishState::kGranted || op.publish == PublishState::kClaimed;
    if (!granted) continue;
    const Registration* saves = p_.instances.find(op.registration);  // nullptr: its session closed
    if (saves == nullptr || saves->instance != instance) return true;
  }
  return false;
}

// ---- ends ----

void Publisher::drained(OperationIndex index, const DrainReport& report, TimePoint now) {
  Operation& op = p_.operations.at(index);
  const bool complete = report.success && report.digests.size() == op.slots.size();
  if (!complete) {
    ORBITKV_WARN("save %llu of session %u failed in its engine, %zu blocks are not kept: %.*s",
                 static_cast<unsigned long long>(op.key.operation.value), op.key.session.value,
                 op.slots.size(), static_cast<int>(report.text.size()), report.text.data());
  }
  step(op.publish, complete ? PublishEvent::kCommit : PublishEvent::kFail);
  // Last block first: the head of a prefix becomes the most recent.
  for (std::size_t i = op.slots.size(); i-- > 0;) {
    if (op.slots[i].record == kNoRecord) continue;  // it went with its slab
    if (!complete) {
      p_.images.give_back(op.slots[i], now);
      continue;
    }
    commit(op, i, report.digests[i], now);
    ++stats_.published;
    stats_.published_bytes += op.group.slot_bytes.value;
  }
  p_.ports.reap(op.key);
  finish(index, now);
}

void Publisher::commit(const Operation& op, std::size_t i, std::uint64_t digest, TimePoint now) {
  if (p_.images.commit(op.slots[i], digest, now)) p_.spill.sealed(op.slots[i].record);
}

void Publisher::withdraw(OperationIndex index, const Error& why, TimePoint now) {
  if (!p_.grants.withdraw(index, why)) return;
  stop_waiting(index);
  for (const ImageSlot& slot : p_.operations.at(index).slots) p_.images.give_back(slot, now);
  finish(index, now);
}

void Publisher::lost(OperationIndex index, TimePoint now) {
  Operation& op = p_.operations.at(index);
  step(op.publish, PublishEvent::kLost);
  for (const ImageSlot& slot : op.slots)
    if (slot.record != kNoRecord) p_.images.quarantine(slot, now);
  ORBITKV_WARN("engine of session %u ended inside save %llu: %zu extents of %llu bytes are quarantined",
               op.key.session.value, static_cast<unsigned long long>(op.key.operation.value), op.slots.size(),
               static_cast<unsigned long long>(op.group.slot_bytes.value));
  finish(index, now);
}

void Publisher::detach(OperationIndex index, SlabSlot slab, TimePoint now) {
  Operation& op = p_.operations.at(index);
  bool keeps = false;
  for (ImageSlot& slot : op.slots) {
    if (slot.record == kNoRecord) continue;
    if (!p_.images.on_slab(slot, slab)) {
      keeps = true;
      continue;
    }
    p_.images.quarantine(slot, now);
    slot.record = kNoRecord;
    --op.lent;
  }
  if (!keeps) {
    step(op.publish, PublishEvent::kDetach);
    p_.operations.return_credits(index);
  }
  if (std::exchange(op.awaited, false)) wake_waiting(index, now);
}

// Closes the operation and lets those that waited for it look again.
void Publisher::finish(OperationIndex index, TimePoint now) {
  const bool awaited = p_.operations.at(index).awaited;
  p_.operations.close(index);
  if (awaited) wake_waiting(index, now);
}

void Publisher::stop_waiting(OperationIndex index) {
  p_.operations.at(index).looks_again = false;
  std::erase_if(waiting_, [&](const Waiting& w) { return w.index == index; });
}

// They look again in their order, when nobody does.
template <class Which>
void Publisher::wake_if(Which which) {
  for (const Waiting& w : waiting_) {
    if (!which(w) || std::exchange(p_.operations.at(w.index).looks_again, true)) continue;
    woken_.push_back(w.index);
  }
}

void Publisher::wake_waiting(OperationIndex index, TimePoint now) {
  wake_if([&](const Waiting& w) { return w.blocker.operation == index; });
  turn(now);
}

void Publisher::wake(RecordId record, TimePoint now) {
  wake_if([&](const Waiting& w) { return w.blocker.load == record; });
  turn(now);
}

void Publisher::tick(TimePoint now) {
  const bool coming = p_.images.memory_coming();
  wake_if([&](const Waiting& w) {
    return p_.operations.at(w.index).deadline <= now || (w.blocker.memory && !coming);
  });
  turn(now);
}

void Publisher::turn(TimePoint now) {
  if (std::exchange(looking_, true)) return;
  for (; looks_ > 0 && !woken_.empty();) {
    const OperationIndex index = woken_.front();
    woken_.pop_front();
    // It may have ended, and another be in its place.
    Operation& op = p_.operations.at(index);
    if (!std::exchange(op.looks_again, false)) continue;
    looks_ -= std::min(looks_, op.hashes.size());
    look_up(op);
    advance(index, now);
  }
  looking_ = false;
}

}  // namespace orbitkv::cache
