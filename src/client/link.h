// Which attachment is current. Callers and the executor hold it shared while they use
// it; the I/O thread swaps it exclusively, after everything on the old one has ended.
#pragma once

#include <memory>
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

  Use use() { return Use(mutex_, current_); }
  // I/O thread only.
  Attachment* mine() { return current_.get(); }
  void swap(std::unique_ptr<Attachment> next) {
    std::unique_lock lock(mutex_);
    current_.swap(next);
    lock.unlock();
  }

 private:
  std::shared_mutex mutex_;
  std::unique_ptr<Attachment> current_;
};

}  // namespace orbitkv::client
