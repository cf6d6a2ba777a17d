// What the conformance suites need of a GPU, over any driver table: memory of its primary
// context, events, and a stream that stands still; and a Device that checks around every
// call that the calling thread's contexts are as they were. Tests only.
#pragma once

#include <memory>

#include "device/copier_rig.h"
#include "device/cuda/cuda_device.h"

namespace orbitkv::device::cuda {

// The driver (loaded) and a GPU of it.
struct Bed {
  const Driver* driver = nullptr;
  CuDevice device = 0;
};

// The primary context is current while it lives; retained, and released at the end.
class PrimaryScope {
 public:
  explicit PrimaryScope(const Bed& bed);
  ~PrimaryScope();
  PrimaryScope(const PrimaryScope&) = delete;

 private:
  const Bed bed_;
};

std::unique_ptr<suite::DeviceMemory> make_memory(const Bed& bed);
std::unique_ptr<suite::DeviceEvents> make_events(const Bed& bed);

struct CheckedOptions {
  bool wait_for_slabs = false;            // add_slab() returns when the slab is reachable
  CopyMethod method = CopyMethod::kAuto;  // of copiers that are asked for without one
};
// Every call of the device and of its copiers leaves the thread's stack of contexts and its
// capture mode as they were; else the running test fails.
std::shared_ptr<Device> checked(const Bed& bed, std::shared_ptr<Device> device,
                                const CheckedOptions& options = {});

}  // namespace orbitkv::device::cuda
