// Opens an NVIDIA GPU as a Device, on the process's own primary context. The driver is
// loaded at run time; nothing of CUDA is linked. Any thread.
#pragma once

#include <memory>
#include <string>

#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "device/cuda/driver.h"
#include "device/cuda/host_memory.h"
#include "device/device.h"

namespace orbitkv::device::cuda {

// "cuda:<ordinal>" as this process counts them, "GPU-<uuid>" or "MIG-<uuid>". One object a
// GPU and process, whatever it was called. kReject: no driver, or no such GPU.
Result<std::shared_ptr<Device>> open_cuda_device(const std::string& name);

// For tests and benchmarks: a device of any driver table, not shared.
struct CudaDeviceOptions {
  SlabOptions slabs = {};
  bool wait_values = true;                  // false: as on a driver without them
  bool batched_dma = true;                  // false: as on a driver older than CUDA 12.8
  bool tunes = false;                       // measures its windows in the background (open_cuda_device does)
  ByteCount bounce = limits::kBounceBytes;  // the bounce buffer, each direction
};
Result<std::shared_ptr<Device>> make_cuda_device(const Driver& driver, CuDevice ordinal,
                                                 const CudaDeviceOptions& options);

}  // namespace orbitkv::device::cuda
