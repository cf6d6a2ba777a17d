// The ring and what its thread does: takes commands, gives requests their turn within
// the bounds, submits them in batches, goes on with short ones, hands results back. A
// request is cut into chunks that the block layer takes without blocking, one entry of
// the ring each. Made, used and destroyed on its own thread; the owner's side is
// UringShared.
#pragma once

#include <liburing.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "ssd/depth_tuner.h"
#include "ssd/io.h"
#include "ssd/io_front.h"
#include "ssd/spsc_queue.h"
#include "ssd/transfer.h"
#include "ssd/turns.h"
#include "ssd/uring_memory.h"

namespace orbitkv::ssd {

struct UringCommand {
  enum class Kind : std::uint8_t { kRequest, kAddFile, kAddMemory, kRemoveMemory } kind = Kind::kRequest;
  Accepted accepted{};  // kAddFile: file and fd
  std::span<std::byte> memory{};
};

// What the owner and the ring's thread share.
struct UringShared {
  explicit UringShared(std::uint32_t queue);
  // After commands were queued or `stop` set: wakes the thread if it sleeps.
  void wake();

  SpscQueue<UringCommand> commands;
  std::atomic<bool> sleeping{false}, stop{false};
  UniqueFd bell;
};

class UringRing {
 public:
  static Result<std::unique_ptr<UringRing>> make(UringShared& shared, Completions& completions,
                                                 IoGauges& gauges, const IoOptions& options);
  ~UringRing();
  UringRing(const UringRing&) = delete;

  // Until stop is set and everything accepted has ended.
  void run();

 private:
  // A request on the device.
  struct Slot {
    Transfer transfer;
    Transfer::Step step;
    std::uint32_t chunks = 0;   // on the ring
    std::uint64_t reached = 0;  // of the request's bytes: all before it were moved
    std::int64_t error = 0;     // of the chunk at `reached`: -errno; 0: it was short or none failed
    TimePoint due;              // while delayed
  };

  UringRing(UringShared& shared, Completions& completions, IoGauges& gauges, const IoOptions& options);
  Status set_up();

  void take_commands();
  void start_what_may();
  void start_delayed(TimePoint now);
  // Until a step is on its way or the request is over.
  void go_on(std::uint32_t slot, TimePoint now);
  void submit_step(std::uint32_t slot);
  void submit_chunk(std::uint32_t slot, std::uint64_t begin, const iovec& memory);
  io_uring_sqe* new_entry();
  void wait();
  void take_completions();
  void report();
  void chunk_ended(std::uint64_t chunk, std::int64_t result, TimePoint now);
  void finish(std::uint32_t slot, TimePoint now);
  void arm_bell();
  void show();

  UringShared& shared_;
  Completions& completions_;
  IoGauges& gauges_;
  const IoOptions options_;
  io_uring ring_{};
  bool made_ = false;
  std::unique_ptr<UringMemory> memory_;
  std::vector<bool> registered_files_;
  Turns turns_;
  DepthTuner tuner_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> delayed_;
  std::vector<Finished> finished_;  // of this turn
};

}  // namespace orbitkv::ssd
