// What is to be written and is not in a batch yet: writes of users, bounded in bytes and
// number, and copies forward, bounded by whoever makes them. Owned by the writer; the
// store's thread only. Users' sequences ascend, so the first is the oldest.
#pragma once

#include <functional>
#include <list>
#include <span>
#include <vector>

#include "ssd/store_state.h"

namespace orbitkv::ssd {

struct PendingWrite {
  TransferId transfer;  // 0: a copy forward
  SpaceIndex space;
  BlockHash hash;
  RecordSequence sequence;
  std::vector<SlotMemory> slots;
  TimePoint arrived;
  bool fenced = false;  // it becomes no record
  // Of a copy forward: the record and where it was; `done` once, whatever becomes of it.
  StoredRef origin;
  SegmentIndex from;
  std::function<void()> done;

  bool forward() const { return transfer == TransferId{}; }
};
using Writes = std::list<PendingWrite>;
// One of them names memory of this range.
bool any_overlaps(const Writes& writes, std::span<const std::byte> memory);

class WriteQueue {
 public:
  explicit WriteQueue(StoreState& state) : state_(state) {}

  Result<TransferId> accept(SpaceIndex space, const BlockHash& hash, std::span<const SlotMemory> slots);
  void add_forward(PendingWrite copy) { forwards_.push_back(std::move(copy)); }

  Writes& users() { return users_; }
  Writes& forwards() { return forwards_; }
  const Writes& users() const { return users_; }
  const Writes& forwards() const { return forwards_; }
  ByteCount waiting() const { return waiting_; }  // of users, not in a batch

  // The first of the users' goes into a batch, or is refused.
  Writes take_user();
  // A user's write ended in its batch, or before: tells the caller, gives its bytes back.
  void end_user(const PendingWrite& write, Refusal why);
  void refuse_all(Refusal why);
  // Those of the space that a drop has ended.
  void drop(SpaceIndex space);

 private:
  StoreState& state_;
  Writes users_, forwards_;
  ByteCount waiting_, accepted_;
  std::uint32_t count_ = 0;
};

}  // namespace orbitkv::ssd
