// Verifies records as they lie on the disk, in slices of 256 KiB, into memory of its own:
// those under suspicion first, and all in turn where a rate asks for it. Owned by the store;
// its thread only. Condemns a record only for bytes that it read itself; looks at no more
// than one slice a step.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "ssd/image_check.h"
#include "ssd/reader.h"

namespace orbitkv::ssd {

class Scrub {
 public:
  Scrub(StoreState& state, std::function<void(StoredRef)> condemn,
        std::function<void(StoredRef)> device_failed)
      : state_(state), condemn_(std::move(condemn)), device_failed_(std::move(device_failed)) {}

  // To be verified soon; forgotten where limits::kSuspects wait.
  void suspect(StoredRef record);
  void step();
  bool idle() const { return !job_ && suspects_.empty(); }
  bool in_flight() const { return job_.has_value(); }
  TimePoint due() const;

 private:
  struct Job {
    StoredRef ref;
    IndexRecord record;
    std::vector<ImageMark> marks;
    ImageCheck check;
    std::uint16_t shard = 0;
    std::uint64_t offset = 0;  // of the next slice, in the image
    std::uint64_t slice = 0;   // bytes that are read or have been
    bool landed = false;       // the slice is in buffer_
    bool paced = false;        // the next slice waits for credit
    bool suspected = false;
    int error = 0;
  };

  bool pick();
  bool pick_in_turn();
  void begin(StoredRef record, bool suspected);
  void read_slice();
  void look();
  void go_on();
  void end(ImageCheck::State state);
  void say_damaged(const std::string& path);
  void refill();

  StoreState& state_;
  std::function<void(StoredRef)> condemn_, device_failed_;
  std::deque<StoredRef> suspects_;
  std::optional<Job> job_;
  PageBuffer buffer_;
  // In turn: records of one segment after the other.
  std::vector<StoredRef> turn_;
  std::uint32_t next_segment_ = 0;
  std::int64_t credit_ = 0;  // bytes that may be read
  TimePoint refilled_;
  TimePoint said_;            // that one was damaged
  std::uint64_t unsaid_ = 0;  // since then
};

}  // namespace orbitkv::ssd
