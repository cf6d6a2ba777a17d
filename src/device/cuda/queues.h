// The device queues of one copier: for restores and for saves a stream of copies and one
// of the sums that follow DMA, and one that turns raised flags into the engine's layer
// events. Enqueues only; drain() alone waits. Used from one thread at a time, inside a
// Scope.
//
// No stream ever waits for the host: a layer's event is enqueued after the launch that
// raises its flag, and the signal stream starts behind the batch's fence like the copy
// itself, so that whatever shares a hardware channel with it is delayed, never stuck.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/copier.h"
#include "device/cuda/context.h"
#include "device/cuda/launch_memory.h"
#include "device/cuda/plan_builder.h"
#include "device/cuda/windows.h"

namespace orbitkv::device::cuda {

struct QueueOptions {
  bool wait_values = true;
  bool batched_dma = true;
};

class Queues {
 public:
  static Result<std::unique_ptr<Queues>> create(std::shared_ptr<Context> context, QueueOptions options);
  ~Queues();

  // Copies of this direction that are enqueued from now on wait for the event, and with them
  // the sums that follow; with `layers` also the layer events of restores.
  Status wait_for(Direction direction, EventHandle event, bool layers);
  // The plan lies in the transfer. One launch; the transfer's `ended` is recorded behind it.
  Status launch(const LaunchPlan& plan, LaunchMemory& transfer, Direction direction, const Window& window);
  // The same by DMA, then a kernel that sums; `submissions` grows by the calls.
  Status copy_direct(const LaunchPlan& plan, LaunchMemory& transfer, Direction direction,
                     std::uint32_t& submissions);
  // The event fires when the signal of the launch is raised.
  Status record_after(LaunchMemory& transfer, std::uint32_t signal, EventHandle event);
  // The event fires after what record_after() enqueued before.
  Status record(EventHandle event);
  // The last record_after() of this transfer has been enqueued.
  Status close_signals(LaunchMemory& transfer);
  // After a failed enqueue: the transfer's `ended` is recorded behind what was accepted.
  Status fence_accepted(LaunchMemory& transfer, Direction direction);
  // Blocks until all copies have ended; the driver's word for it.
  CuResult drain();
  // False: nothing but the end of a launch says that its layers are there.
  bool signals_layers() const { return options_.wait_values; }

 private:
  Queues(std::shared_ptr<Context> context, QueueOptions options)
      : context_(std::move(context)), options_(options) {}
  Status make_streams();
  Status launch_kernel(const LaunchPlan& plan, PlanLaunch& parameters, const Window& window, CuStream stream);
  Status record_ended_on_sums(LaunchMemory& transfer, Direction direction);
  CuStream copy_stream(Direction direction) const { return copy_[static_cast<std::size_t>(direction)]; }

  const std::shared_ptr<Context> context_;
  QueueOptions options_;
  std::array<CuStream, 2> copy_{};  // by Direction
  std::array<CuStream, 2> sum_{};
  CuStream signal_ = nullptr;
  CuEvent copied_ = nullptr;
};

}  // namespace orbitkv::device::cuda
