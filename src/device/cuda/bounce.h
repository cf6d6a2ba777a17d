// Pinned memory through which images of unregistered slabs are copied, one batch at a
// time; a copier has one a direction. Made at first need. One thread at a time, inside a
// Scope.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "device/cuda/batch.h"
#include "device/cuda/context.h"

namespace orbitkv::device::cuda {

class Bounce {
 public:
  Bounce(std::shared_ptr<Context> context, ByteCount bytes) : context_(std::move(context)), bytes_(bytes) {}
  ~Bounce() {
    Scope scope(*context_);
    for (void* host : made_) context_->driver().cuMemFreeHost(host);
  }
  // Room for one image at least.
  Status ready(std::uint64_t slot_bytes) {
    if (buffer_.room.value >= slot_bytes) return ok_status();
    const Driver& d = context_->driver();
    // A smaller one is kept: freeing it would wait for all that the device does.
    const ByteCount room(std::max(bytes_.value, slot_bytes));
    void* host = nullptr;
    ORBITKV_RETURN_IF_ERROR(status_of(
        d, "cuMemHostAlloc", d.cuMemHostAlloc(&host, room.value, kHostAllocPortable | kHostAllocDeviceMap)));
    made_.push_back(host);
    CuPtr device = 0;
    ORBITKV_RETURN_IF_ERROR(
        status_of(d, "cuMemHostGetDevicePointer", d.cuMemHostGetDevicePointer(&device, host, 0)));
    buffer_ = {static_cast<std::byte*>(host), device, room};
    return ok_status();
  }
  const BounceBuffer& buffer() const { return buffer_; }

  const Batch* user = nullptr;

 private:
  const std::shared_ptr<Context> context_;
  ByteCount bytes_;
  BounceBuffer buffer_;
  std::vector<void*> made_;
};

}  // namespace orbitkv::device::cuda
