// One request on its way: what is done, what the next submission to the device moves, and
// how it ends. Holds the rules that all implementations share: short transfers go on,
// EAGAIN and EINTR are tried again, an end of file is EIO, and what IoFaults wants. A
// value; used by one thread at a time. Does no I/O.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "base/time.h"
#include "ssd/completions.h"
#include "ssd/io.h"

namespace orbitkv::ssd {

// A request that has been checked, with what its file is.
struct Accepted {
  IoRequest request;
  int fd = -1;
  IoAlignment alignment;
  ByteCount bytes;
  std::uint64_t order = 0;  // of its acceptance, from 1
};

inline constexpr ByteCount kMostRequest = 1024 * kGiB;

// 0, or EINVAL where the request breaks a rule of IoRequest.
int check_request(const IoRequest& request, IoAlignment alignment);
ByteCount bytes_of(const IoRequest& request);

class Transfer {
 public:
  Transfer() = default;
  explicit Transfer(const Accepted& accepted) : accepted_(accepted) {}

  // What the next submission moves: `bytes` from done() on, after `delay`. Nothing goes to
  // the device where `skip` is set; then ended(0) follows.
  struct Step {
    std::uint64_t bytes = 0;
    Duration delay;
    bool skip = false;
  };
  Step next(IoFaults* faults, TimePoint now);
  // What the device said about the step: bytes that it moved from done() on without a gap,
  // or -errno. True: the request is over.
  bool ended(std::int64_t result);

  const Accepted& accepted() const { return accepted_; }
  std::uint64_t done() const { return done_; }
  std::uint64_t file_offset() const { return accepted_.request.offset + done_; }
  Finished finished(TimePoint now) const;

  // The memory of `bytes` from `begin` on (of the request's bytes); number of entries.
  std::size_t memory_of(std::uint64_t begin, std::uint64_t bytes, std::span<iovec> out) const;

 private:
  bool fail(int error);
  bool go_on(std::uint64_t moved);

  Accepted accepted_;
  std::uint64_t done_ = 0;
  std::uint64_t step_ = 0;  // bytes of the submission that runs
  TimePoint started_;
  int error_ = 0;
  int fault_error_ = 0;  // ends the request once the step has moved its bytes
  bool skipped_ = false;
  std::uint32_t submissions_ = 0;
  std::uint32_t stuck_ = 0;  // submissions in a row that moved nothing
};

}  // namespace orbitkv::ssd
