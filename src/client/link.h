// Which attachment is current. Callers and the executor hold it shared while they use
// it; the I/O thread swaps it exclusively, after everything on the old one has ended.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "client/attachment.h"

namespace orbitkv::client {

class Link {
 public:
  class Use {
   public:
    Use(std::shared_mutex& mutex, const std::unique_ptr<Attachment>& current)
        : lock_(mutex), now_(current.get()) {}
    Attachment* get() const { return now_; }
    // False: there is no session, it is lost, or its registrations do not stand yet.
    explicit operator bool() const { return now_ && now_->ready() && !now_->lost(); }
    Attachment* operator->() const { return now_; }

   private:
    std::shared_lock<std::shared_mutex> lock_;
    Attachment* now_;
  };

  Use use() {
    if (swapping_.load(std::memory_order_relaxed)) std::lock_guard turn(gate_);
    return Use(mutex_, current_);
  }
  // I/O thread only.
  Attachment* mine() { return current_.get(); }
  // Returns the one before, which is nobody else's any more.
  std::unique_ptr<Attachment> swap(std::unique_ptr<Attachment> next) {
    std::lock_guard turn(gate_);
    swapping_.store(true, std::memory_order_relaxed);
    std::unique_lock lock(mutex_);
    current_.swap(next);
    lock.unlock();
    swapping_.store(false, std::memory_order_relaxed);
    return next;
  }

 private:
  // A shared mutex prefers readers: threads that retry without a pause would keep a swap
  // out for ever. While one waits, who comes new waits behind it.
  std::mutex gate_;
  std::atomic<bool> swapping_{false};
  std::shared_mutex mutex_;
  std::unique_ptr<Attachment> current_;
};

}  // namespace orbitkv::client
