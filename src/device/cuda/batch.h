// One batch while it runs: what is still to be launched, and what its fragments should sum
// to (restore) or were found to sum to (save). Host state only: the copier drives it and
// enqueues. Used from one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "device/copier.h"
#include "device/cuda/host_memory.h"
#include "device/cuda/launch_memory.h"
#include "device/cuda/plan_builder.h"
#include "device/cuda/windows.h"
#include "model/slot_image.h"

namespace orbitkv::device::cuda {

// Where images of slabs that the device does not reach pass through.
struct BounceBuffer {
  std::byte* host = nullptr;
  CuPtr device = 0;
  ByteCount room;
};

class Batch {
 public:
  struct Group {
    const GroupGeometry* geometry = nullptr;
    model::SlotLayout layout;
    std::span<SlotCopy> slots;
    std::vector<CuPtr> images;                     // of each slot, as the device sees it; 0: bounces
    std::vector<std::uint64_t> expected;           // restore: checks, slots x fragments
    std::vector<model::SlotHeaderWriter> headers;  // save: of each slot
    std::vector<std::uint8_t> wrong;               // of each slot
  };
  // A launch on the device's queues.
  struct Running {
    LaunchMemory* transfer = nullptr;
    std::size_t plan = 0;      // of `launches`
    std::uint32_t signal = 0;  // next one to be raised
    std::size_t entry = 0;     // of the plan: the fragment, and its slot, whose sum is next
    std::uint32_t slot = 0;
    bool only_drains = false;  // of a failed enqueue: waits for the end, reads no sums
  };

  // Checks everything and takes the slabs. An error: nothing was taken.
  static Result<std::unique_ptr<Batch>> open(CopyBatch batch, SlabTable& slabs, bool verify);

  Direction direction() const { return batch_.direction; }
  bool bounces() const { return bounces_; }
  Fence& ready() { return batch_.ready; }
  const std::vector<LayerEvent>& events() const { return batch_.events; }

  // Headers are read and checked (restore) or begun (save), `most` at a call. True: all.
  bool take_headers(std::uint32_t most);
  // Checks (restore) or keeps (save) the sums of the launch's next signal, which is raised.
  // False: not all of them have arrived; ask again, and it goes on where it stopped.
  bool collect(Running& launch);
  // Writes digests (save) or verdicts (restore).
  void settle();
  // Launches come in rounds: one of all groups, or, where images bounce, one a window of the
  // buffer. False: there is no further round.
  bool next_round(const PlanRules& rules, const BounceBuffer& buffer);
  // After the last signal of a bounced save's round: payloads go from the buffer to the images.
  void end_round(const std::byte* buffer);
  std::uint64_t largest_slot() const;
  std::uint64_t bytes() const;  // payload
  // Of the size that most fragments have: the first group's.
  std::uint64_t typical_fragment() const;
  // Everything that is planned stands on the queues.
  bool all_launched() const { return rounds_done_ && next_launch == launches.size(); }

  Windows windows;  // as they were when the batch began
  CopyStats stats;
  Status failure = ok_status();
  std::vector<LaunchPlan> launches;  // of the present round
  std::size_t next_launch = 0;
  std::size_t next_event = 0;
  std::deque<Running> running;
  std::uint32_t quiet_polls = 0;
  CuEvent fired = nullptr;  // recorded behind the last layer event

 private:
  explicit Batch(CopyBatch batch, bool verify) : batch_(std::move(batch)), verify_(verify) {}
  Status add_group(const GroupCopy& copy, SlabTable& slabs);
  Status locate(Group& group, SlabTable& slabs);
  void read_header(Group& group, std::size_t i);
  struct Window {
    std::size_t group = 0;
    std::uint32_t first = 0, slots = 0;
  };
  bool next_window(ByteCount room);
  std::vector<PlanGroup> plan_groups(CuPtr device_buffer) const;
  std::byte* image_of(const Window& window, std::uint32_t slot) const;
  bool collect_slot(const LaunchPlan& plan, const Running& launch);

  CopyBatch batch_;
  bool verify_;
  bool bounces_ = false;
  std::vector<Group> groups_;
  std::vector<SlabTable::Use> uses_;
  bool rounds_done_ = false;
  std::size_t header_group_ = 0, header_slot_ = 0;  // next to be taken
  Window window_;                                   // bounces
  std::vector<std::byte> header_;                   // the private copy that is checked
};

}  // namespace orbitkv::device::cuda
