// Results on their way to the owner: bounded, with a descriptor that is readable while
// any wait. Pushed by the threads of an implementation, popped by the owner of the Io.
// The descriptor is written once while it is not drained, so that a burst costs one
// system call. Never grows: the owner accepts no more requests than there is room for.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "base/time.h"
#include "base/unique_fd.h"
#include "ssd/io.h"

namespace orbitkv::ssd {

// A result and what the statistics want to know about it.
struct Finished {
  IoResult result;
  IoOp op = IoOp::kRead;
  ByteCount bytes;
  std::uint32_t continued = 0;  // submissions after the first
  std::uint64_t order = 0;      // Accepted::order; 0: refused
};

class Completions {
 public:
  explicit Completions(std::uint32_t capacity);

  void push(std::span<const Finished> finished);  // any thread
  // Owner only. When it has taken the last one, the descriptor is silent.
  std::size_t pop(std::span<Finished> out);
  // Until one is there or the time is over (negative: no end).
  void wait(Duration most) const;
  int fd() const { return ready_.get(); }

 private:
  UniqueFd ready_;
  std::mutex mutex_;
  std::vector<Finished> ring_;
  std::size_t first_ = 0, count_ = 0;
  bool signalled_ = false;
};

}  // namespace orbitkv::ssd
