// The Copier of an NVIDIA GPU: cuts batches into launches, keeps as many of them on the
// queues as there are transfers, checks sums while later layers are still under way, and
// ends a batch only after everything accepted has drained. One thread at a time.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "device/copier.h"
#include "device/cuda/batch.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/host_memory.h"
#include "device/cuda/launch_memory.h"
#include "device/cuda/queues.h"

namespace orbitkv::device::cuda {

// Shared by the copiers of a device.
struct DeviceParts {
  std::shared_ptr<Context> context;
  std::shared_ptr<SlabTable> slabs;

  // The defaults until the machine has been measured.
  Windows windows() const {
    std::lock_guard lock(mutex);
    return windows_now;
  }
  void set_windows(const Windows& windows) {
    std::lock_guard lock(mutex);
    windows_now = windows;
  }
  mutable std::mutex mutex;
  Windows windows_now;
};

Result<std::unique_ptr<Copier>> make_cuda_copier(std::shared_ptr<DeviceParts> parts,
                                                 const CopierOptions& options,
                                                 const CudaDeviceOptions& device);

}  // namespace orbitkv::device::cuda
