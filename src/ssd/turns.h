// Accepted requests that wait for the device: reads first, but of four turns at least
// one belongs to the writes and syncs, in the order in which they came. Bounded by what
// the Io accepts. One thread, or the caller's lock.
#pragma once

#include <cstdint>
#include <deque>

#include "ssd/transfer.h"

namespace orbitkv::ssd {

class Turns {
 public:
  void push(const Accepted& accepted) { queue_of(accepted).push_back(accepted); }
  bool empty() const { return reads_.empty() && writes_.empty(); }
  // Whose turn it is. Not empty.
  const Accepted& front() const { return writes_turn() ? writes_.front() : reads_.front(); }
  void pop() {
    const bool write = writes_turn();
    reads_in_row_ = write ? 0 : reads_in_row_ + 1;
    (write ? writes_ : reads_).pop_front();
  }

 private:
  static constexpr std::uint32_t kReadsInRow = 3;

  std::deque<Accepted>& queue_of(const Accepted& accepted) {
    return accepted.request.op == IoOp::kRead ? reads_ : writes_;
  }
  bool writes_turn() const { return reads_.empty() || (!writes_.empty() && reads_in_row_ >= kReadsInRow); }

  std::deque<Accepted> reads_, writes_;
  std::uint32_t reads_in_row_ = 0;
};

}  // namespace orbitkv::ssd
