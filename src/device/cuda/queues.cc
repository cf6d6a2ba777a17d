#include "device/cuda/queues.h"

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "device/cuda/host_memory.h"

namespace orbitkv::device::cuda {
namespace {

CuEvent event_of(EventHandle handle) {
  return reinterpret_cast<CuEvent>(handle.value);
}

// What one DMA call can take in one piece.
struct Run {
  CuPtr page = 0;
  CuPtr image = 0;
  std::uint64_t row_bytes = 0, row_stride = 0;
  std::uint32_t rows = 1;
};

Run run_of(const PlanFragment& f, const PlanSlot& slot) {
  return {f.base + slot.block * f.block_stride, slot.image + f.image_offset, f.row_bytes, f.row_stride,
          f.bytes / f.row_bytes};
}

// Collects one-row copies and hands them over in bounded calls.
class Dma {
 public:
  Dma(const Driver& driver, CuStream stream, Direction direction, bool batched)
      : driver_(driver),
        stream_(stream),
        save_(direction == Direction::kSave),
        batched_(batched && driver.cuMemcpyBatchAsync != nullptr) {}

  Status add(const Run& run, int max_pitch) {
    const bool one_piece = run.rows * run.row_bytes <= to_piece_end(run.image);
    if (run.rows > 1 && one_piece && run.row_stride <= static_cast<std::uint64_t>(max_pitch))
      return add_rows(run);
    for (std::uint32_t row = 0; row < run.rows; ++row)
      ORBITKV_RETURN_IF_ERROR(
          add_row(run.page + row * run.row_stride, run.image + row * run.row_bytes, run.row_bytes));
    return ok_status();
  }
  Status flush() {
    if (to_.empty()) return ok_status();
    ++calls_;
    CuCopyAttributes attributes;
    std::size_t first = 0, failed = 0;
    const CuResult code = driver_.cuMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(), to_.size(),
                                                     &attributes, &first, 1, &failed, stream_);
    to_.clear();
    from_.clear();
    bytes_.clear();
    return status_of(driver_, "cuMemcpyBatchAsync", code);
  }
  std::uint32_t calls() const { return calls_; }

 private:
  // Host memory is registered in pieces.
  Status add_row(CuPtr page, CuPtr image, std::uint64_t bytes) {
    while (bytes > 0) {
      const std::uint64_t here = std::min(bytes, to_piece_end(image));
      ORBITKV_RETURN_IF_ERROR(add_part(page, image, here));
      page += here;
      image += here;
      bytes -= here;
    }
    return ok_status();
  }
  Status add_part(CuPtr page, CuPtr image, std::uint64_t bytes) {
    if (!batched_) {
      ++calls_;
      if (save_)
        return status_of(driver_, "cuMemcpyDtoHAsync",
                         driver_.cuMemcpyDtoHAsync(reinterpret_cast<void*>(image), page, bytes, stream_));
      return status_of(driver_, "cuMemcpyHtoDAsync",
                       driver_.cuMemcpyHtoDAsync(page, reinterpret_cast<const void*>(image), bytes, stream_));
    }
    to_.push_back(save_ ? image : page);
    from_.push_back(save_ ? page : image);
    bytes_.push_back(bytes);
    return to_.size() < kCopiesPerCall ? ok_status() : flush();
  }
  Status add_rows(const Run& run) {
    ++calls_;
    CuCopy2D copy;
    copy.width = run.row_bytes;
    copy.height = run.rows;
    copy.src_type = copy.dst_type = kMemoryTypeUnified;  // both are device addresses
    copy.src_device = save_ ? run.page : run.image;
    copy.dst_device = save_ ? run.image : run.page;
    copy.src_pitch = save_ ? run.row_stride : run.row_bytes;
    copy.dst_pitch = save_ ? run.row_bytes : run.row_stride;
    return status_of(driver_, "cuMemcpy2DAsync", driver_.cuMemcpy2DAsync(&copy, stream_));
  }

  const Driver& driver_;
  CuStream stream_;
  bool save_, batched_;
  std::uint32_t calls_ = 0;
  std::vector<CuPtr> to_, from_;
  std::vector<std::size_t> bytes_;
};

PlanLaunch parameters_of(const LaunchPlan& plan, LaunchMemory& transfer) {
  PlanLaunch p{};
  p.fragment_count = static_cast<std::uint32_t>(plan.fragments.size());
  p.slot_count = static_cast<std::uint32_t>(plan.slots.size());
  if (p.fragment_count <= kSmallFragments && p.slot_count <= kSmallSlots) {
    std::copy(plan.fragments.begin(), plan.fragments.end(), p.small.fragments);
    std::copy(plan.slots.begin(), plan.slots.end(), p.small.slots);
  } else {
    std::copy(plan.fragments.begin(), plan.fragments.end(), transfer.fragments);
    std::copy(plan.slots.begin(), plan.slots.end(), transfer.slots);
    p.fragments = transfer.device_fragments;
    p.slots = transfer.device_slots;
  }
  p.sums = transfer.device_sums;
  p.flags = transfer.device_flags;
  p.counters = transfer.counters;
  p.nonce = transfer.nonce;
  p.units = plan.units;
  p.signals = static_cast<std::uint32_t>(plan.turns.size());
  p.sequence = transfer.sequence;
  p.stage_bytes = plan.stage_bytes;
  p.skip_sums = plan.skip_sums ? 1 : 0;
  return p;
}

}  // namespace

Result<std::unique_ptr<Queues>> Queues::create(std::shared_ptr<Context> context, QueueOptions options) {
  std::unique_ptr<Queues> queues(new Queues(std::move(context), options));
  Scope scope(*queues->context_);
  ORBITKV_RETURN_IF_ERROR(queues->make_streams());
  return queues;
}

// A restore holds a request up, nobody waits for a save. Signals are served before all.
Status Queues::make_streams() {
  const Driver& d = context_->driver();
  const auto make = [&](CuStream& stream, int priority) {
    return status_of(d, "cuStreamCreateWithPriority",
                     d.cuStreamCreateWithPriority(&stream, kStreamNonBlocking, priority));
  };
  const int least = context_->least_priority(), greatest = context_->greatest_priority();
  const int restore = std::min(least, greatest + 1);
  ORBITKV_RETURN_IF_ERROR(make(copy_[static_cast<std::size_t>(Direction::kSave)], least));
  ORBITKV_RETURN_IF_ERROR(make(sum_[static_cast<std::size_t>(Direction::kSave)], least));
  ORBITKV_RETURN_IF_ERROR(make(copy_[static_cast<std::size_t>(Direction::kRestore)], restore));
  ORBITKV_RETURN_IF_ERROR(make(sum_[static_cast<std::size_t>(Direction::kRestore)], restore));
  ORBITKV_RETURN_IF_ERROR(make(signal_, greatest));
  options_.wait_values = options_.wait_values && d.cuStreamWaitValue32 != nullptr;
  return status_of(d, "cuEventCreate", d.cuEventCreate(&copied_, kEventDisableTiming));
}

Queues::~Queues() {
  Scope scope(*context_);
  const Driver& d = context_->driver();
  for (CuStream stream : {copy_[0], copy_[1], sum_[0], sum_[1], signal_})
    if (stream != nullptr) d.cuStreamDestroy(stream);
  if (copied_ != nullptr) d.cuEventDestroy(copied_);
}

Status Queues::wait_for(Direction direction, EventHandle event, bool layers) {
  const Driver& d = context_->driver();
  const auto wait = [&](CuStream stream) {
    return status_of(d, "cuStreamWaitEvent", d.cuStreamWaitEvent(stream, event_of(event), 0));
  };
  ORBITKV_RETURN_IF_ERROR(wait(copy_stream(direction)));
  return layers ? wait(signal_) : ok_status();
}

Status Queues::launch_kernel(const LaunchPlan& plan, PlanLaunch& p, const Window& window, CuStream stream) {
  const Driver& d = context_->driver();
  const Kernels& k = context_->kernels();
  const bool bulk = plan.width == Width::kBulk && k.bulk != nullptr && p.sum_only == 0;
  p.loads = window.loads;
  p.stores = window.stores;
  const auto most = static_cast<std::uint32_t>(context_->traits().shared_bytes);
  while (bulk && bulk_shared_bytes(p) > most && p.loads + p.stores > 2)
    --(p.loads > p.stores ? p.loads : p.stores);
  const CuFunction function = bulk                      ? k.bulk
                              : plan.width == Width::k8 ? k.any8
                              : plan.width == Width::k1 ? k.any1
                                                        : k.any16;
  void* parameters[] = {&p};
  const std::uint32_t ctas = std::min(std::max(plan.units, 1u), window.ctas);
  const CuResult code =
      d.cuLaunchKernel(function, ctas, 1, 1, bulk ? kBulkThreads : kAnyThreads, 1, 1,
                       bulk ? bulk_shared_bytes(p) : any_shared_bytes(p), stream, parameters, nullptr);
  return status_of(d, "cuLaunchKernel", code);
}

Status Queues::launch(const LaunchPlan& plan, LaunchMemory& transfer, Direction direction,
                      const Window& window) {
  const Driver& d = context_->driver();
  PlanLaunch p = parameters_of(plan, transfer);
  p.to_image = direction == Direction::kSave ? 1 : 0;
  ORBITKV_RETURN_IF_ERROR(launch_kernel(plan, p, window, copy_stream(direction)));
  return status_of(d, "cuEventRecord", d.cuEventRecord(transfer.ended, copy_stream(direction)));
}

// The bytes that landed are summed (a restore's pages, or the pages that a save reads) on
// a stream of its own, while the next copy runs.
Status Queues::copy_direct(const LaunchPlan& plan, LaunchMemory& transfer, Direction direction,
                           std::uint32_t& submissions) {
  const Driver& d = context_->driver();
  const CuStream copies = copy_stream(direction), sums = sum_[static_cast<std::size_t>(direction)];
  Dma dma(d, copies, direction, options_.batched_dma);
  for (const PlanFragment& f : plan.fragments)
    for (std::uint32_t i = 0; i < f.slots; ++i)
      ORBITKV_RETURN_IF_ERROR(dma.add(run_of(f, plan.slots[f.first_slot + i]), context_->traits().max_pitch));
  ORBITKV_RETURN_IF_ERROR(dma.flush());
  submissions += dma.calls() + 1;
  ORBITKV_RETURN_IF_ERROR(status_of(d, "cuEventRecord", d.cuEventRecord(copied_, copies)));
  ORBITKV_RETURN_IF_ERROR(status_of(d, "cuStreamWaitEvent", d.cuStreamWaitEvent(sums, copied_, 0)));
  PlanLaunch p = parameters_of(plan, transfer);
  p.sum_only = 1;
  Window window;
  window.ctas = kSumCtas;
  ORBITKV_RETURN_IF_ERROR(launch_kernel(plan, p, window, sums));
  return record_ended_on_sums(transfer, direction);
}

Status Queues::record_ended_on_sums(LaunchMemory& transfer, Direction direction) {
  const Driver& d = context_->driver();
  transfer.ended_by_sums = true;
  return status_of(d, "cuEventRecord",
                   d.cuEventRecord(transfer.ended, sum_[static_cast<std::size_t>(direction)]));
}

Status Queues::record_after(LaunchMemory& transfer, std::uint32_t signal, EventHandle event) {
  const Driver& d = context_->driver();
  if (options_.wait_values) {
    ORBITKV_RETURN_IF_ERROR(
        status_of(d, "cuStreamWaitValue32",
                  d.cuStreamWaitValue32(signal_, transfer.device_flags + signal * sizeof(std::uint32_t),
                                        transfer.sequence, kWaitValueEqual)));
    transfer.waited_for = true;
  } else {
    ORBITKV_RETURN_IF_ERROR(
        status_of(d, "cuStreamWaitEvent", d.cuStreamWaitEvent(signal_, transfer.ended, 0)));
  }
  return record(event);
}

Status Queues::record(EventHandle event) {
  const Driver& d = context_->driver();
  return status_of(d, "cuEventRecord of a layer event", d.cuEventRecord(event_of(event), signal_));
}

Status Queues::close_signals(LaunchMemory& transfer) {
  const Driver& d = context_->driver();
  if (!transfer.waited_for) return ok_status();
  return status_of(d, "cuEventRecord", d.cuEventRecord(transfer.signalled, signal_));
}

Status Queues::fence_accepted(LaunchMemory& transfer, Direction direction) {
  const Driver& d = context_->driver();
  const CuStream copies = copy_stream(direction), sums = sum_[static_cast<std::size_t>(direction)];
  ORBITKV_RETURN_IF_ERROR(status_of(d, "cuEventRecord", d.cuEventRecord(copied_, copies)));
  ORBITKV_RETURN_IF_ERROR(status_of(d, "cuStreamWaitEvent", d.cuStreamWaitEvent(sums, copied_, 0)));
  return record_ended_on_sums(transfer, direction);
}

CuResult Queues::drain() {
  for (CuStream stream : {copy_[0], copy_[1], sum_[0], sum_[1]})
    if (const CuResult code = context_->driver().cuStreamSynchronize(stream); code != kCuSuccess) return code;
  return kCuSuccess;
}

}  // namespace orbitkv::device::cuda
