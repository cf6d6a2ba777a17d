#include "ssd/write_queue.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"

namespace orbitkv::ssd {
namespace {

std::uint64_t bytes_of(const PendingWrite& write) {
  std::uint64_t bytes = 0;
  for (const SlotMemory& slot : write.slots) bytes += slot.memory.size();
  return bytes;
}

}  // namespace

Result<TransferId> WriteQueue::accept(SpaceIndex index, const BlockHash& hash,
                                      std::span<const SlotMemory> slots) {
  if (state_.closing) return state_.refuse(Refusal::kWriteStopped);
  if (std::none_of(state_.paths.begin(), state_.paths.end(), [](const Path& p) { return p.writable(); })) {
    return state_.refuse(Refusal::kWriteStopped);
  }
  ORBITKV_CHECK(state_.spaces.known(index), "a write to a space that nobody interned");
  Space& space = state_.spaces.at(index);
  ORBITKV_CHECK(slots.size() == space.shape.shards, "a write with another number of images than shards");
  PendingWrite write;
  write.slots.assign(slots.begin(), slots.end());
  const ByteCount bytes(bytes_of(write));
  // One that is larger than the bound goes alone.
  const bool full = count_ > 0 && accepted_ + bytes > state_.config.write_queue;
  if (full || count_ >= limits::kStoreWrites) return state_.refuse(Refusal::kQueueFull);
  const bool known = static_cast<bool>(state_.index.find(index, hash));
  if (!known && !state_.index.has_room(space.shape.shards)) return state_.refuse(Refusal::kIndexFull);
  write.transfer = state_.next_transfer();
  write.space = index;
  write.hash = hash;
  write.sequence = state_.next_record();
  write.arrived = state_.now;
  ++space.holds;
  ++space.writes;
  ++count_;
  accepted_ += bytes;
  waiting_ += bytes;
  state_.stats.queued = accepted_;
  const TransferId transfer = write.transfer;
  users_.push_back(std::move(write));
  return transfer;
}

Writes WriteQueue::take_user() {
  Writes out;
  waiting_ -= ByteCount(bytes_of(users_.front()));
  out.splice(out.end(), users_, users_.begin());
  return out;
}

void WriteQueue::end_user(const PendingWrite& write, Refusal why) {
  const ByteCount bytes(bytes_of(write));
  accepted_ -= bytes;
  --count_;
  state_.stats.queued = accepted_;
  if (why == Refusal::kNone) {
    ++state_.stats.writes;
    state_.stats.written += bytes;
  }
  state_.report({StoreEvent::Kind::kWritten, write.transfer, why == Refusal::kNone, why, Loss::kNone});
  --state_.spaces.at(write.space).holds;
  --state_.spaces.at(write.space).writes;
  state_.spaces.let_go(write.space);
}

void WriteQueue::refuse_all(Refusal why) {
  while (!users_.empty()) end_user(take_user().front(), why);
}

void WriteQueue::drop(SpaceIndex space) {
  const RecordSequence killed = state_.spaces.at(space).killed;
  Writes kept;
  while (!users_.empty()) {
    const PendingWrite& first = users_.front();
    if (first.space == space && first.sequence <= killed) {
      end_user(take_user().front(), Refusal::kDropped);
    } else {
      kept.splice(kept.end(), users_, users_.begin());
    }
  }
  users_ = std::move(kept);
}

bool any_overlaps(const Writes& writes, std::span<const std::byte> memory) {
  return std::any_of(writes.begin(), writes.end(),
                     [memory](const PendingWrite& write) { return any_overlaps(write.slots, memory); });
}

}  // namespace orbitkv::ssd
