// The memory of one traced operation, made again on a GPU: buffers with the traced bases,
// strides and blocks, and images in the traced order. What is far apart in the trace lies
// in buffers of its own; blocks are renumbered where the whole geometry has no room.
#pragma once

#include <memory>
#include <vector>

#include "bench/gpu.h"
#include "bench/trace_line.h"
#include "device/cuda/cuda_copier.h"

namespace orbitkv::bench {

class ReplayRig {
 public:
  // kReject: a geometry that cannot be, or has no room on this GPU.
  static Result<std::unique_ptr<ReplayRig>> make(Gpu& gpu, const TraceLine& line,
                                                 const device::cuda::Windows& windows);
  ~ReplayRig();
  ReplayRig(const ReplayRig&) = delete;
  Result<std::unique_ptr<device::Copier>> copier(const device::CopierOptions& options) {
    return device::cuda::make_cuda_copier(parts_, options, {});
  }
  device::CopyBatch batch(device::Direction direction);
  std::vector<device::cuda::PlanGroup> plan_groups() const;
  std::uint64_t typical_fragment() const { return groups_[0].geometry.fragments[0].bytes(); }
  std::uint64_t payload() const;

  // Pages as they were at the beginning, or spoiled; whether only the operation's blocks
  // are as at the beginning and all else is spoiled.
  Status fill();
  Status spoil();
  Result<bool> restored() const;

 private:
  struct Buffer {
    std::int64_t first = 0, end = 0;  // as the trace counts
    std::unique_ptr<GpuMemory> memory;
    std::vector<std::byte> content;
    std::uint64_t lead = 0;  // bytes before `first`, so that alignment is as it was
  };
  struct Group {
    device::GroupGeometry geometry;
    model::SlotLayout layout;
    std::vector<device::SlotCopy> slots;
  };
  explicit ReplayRig(Gpu& gpu) : gpu_(gpu) {}
  Status make_buffers(const std::vector<TracedGroup>& groups);
  Status make_groups(const std::vector<TracedGroup>& groups);
  Status make_images(const std::vector<TracedGroup>& groups);
  const Buffer& buffer_at(std::int64_t base) const;

  Gpu& gpu_;
  std::vector<Buffer> buffers_;
  std::vector<Group> groups_;
  std::unique_ptr<FileMemory> slab_;
  std::shared_ptr<device::cuda::DeviceParts> parts_;
};

}  // namespace orbitkv::bench
