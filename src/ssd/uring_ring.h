// The ring itself: made in the newest way that the kernel takes, entered, waited for.
// Entries carry a Chunk. One thread. What a kernel lacks is a refusal with the remedy.
#pragma once

#include <liburing.h>

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "base/unique_fd.h"
#include "ssd/transfer.h"

namespace orbitkv::ssd {

// A part of a request on the ring: where it lies in the request. No bytes: a sync, the end
// of a delay, or a result that needed no device.
struct Chunk {
  std::uint32_t slot = 0;
  std::uint64_t begin = 0, bytes = 0;
};
inline constexpr ByteCount kChunk = 4 * kMiB;  // most of one
inline constexpr std::uint32_t kMostSlots = 4096;

std::uint64_t pack(const Chunk& chunk);
Chunk unpack(std::uint64_t word);

class UringRing {
 public:
  static Result<std::unique_ptr<UringRing>> make();
  ~UringRing();
  UringRing(const UringRing&) = delete;

  io_uring& raw() { return ring_; }
  // Readable while results wait. The ring's own descriptor wakes no epoll where results wait to
  // be let in (IORING_SETUP_DEFER_TASKRUN).
  int fd() const { return told_.get(); }
  // Before results are taken: lets in those that wait. False, and no system call: there are
  // none, and the descriptor says so.
  bool begin_take();
  void end_take();  // some may be left
  // Makes the descriptor readable: there is something to be done at the next take.
  void call_again();
  // An empty entry; what is queued is submitted if there is no room.
  io_uring_sqe* entry();
  // Submits what is queued, and lets results in that wait to be looked at.
  void enter();
  // The same, until there is a result or the time is over (negative: no end).
  void enter_and_wait(Duration most);

 private:
  UringRing() = default;
  void check(int status) const;
  // From now on the ring belongs to the calling thread.
  void start();

  io_uring ring_{};
  UniqueFd told_;
  bool made_ = false, started_ = false;
  bool quiet_ = true;  // nothing has ended since the descriptor was last read
};

}  // namespace orbitkv::ssd
