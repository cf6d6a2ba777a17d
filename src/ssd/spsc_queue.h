// Bounded queue of one producer and one consumer, without locks. Never grows; full is an
// answer. Positions are sequentially consistent, so that "queue, then look whether the
// other sleeps" on one side and "say that I sleep, then look at the queue" on the other
// cannot both miss.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <vector>

namespace orbitkv::ssd {

template <class T>
class SpscQueue {
 public:
  explicit SpscQueue(std::size_t capacity) : items_(std::bit_ceil(capacity)) {}

  // Producer only. False: full.
  bool push(const T& item) {
    const std::size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) == items_.size()) return false;
    items_[tail & (items_.size() - 1)] = item;
    tail_.store(tail + 1, std::memory_order_seq_cst);
    return true;
  }
  // Consumer only. False: empty.
  bool pop(T& item) {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    item = items_[head & (items_.size() - 1)];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }
  bool empty() const {
    return head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_seq_cst);
  }

 private:
  std::vector<T> items_;
  alignas(64) std::atomic<std::size_t> head_{0};
  alignas(64) std::atomic<std::size_t> tail_{0};
};

}  // namespace orbitkv::ssd
