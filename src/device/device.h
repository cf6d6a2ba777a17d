// A device that KV pages live on, as this process sees it: its identity, the slabs it
// can reach, and the order that its streams give. One object a device and process,
// shared by all registrations on it; every call is thread-safe and leaves the caller's
// current device context as it was. device/host is the CPU, device/cuda an NVIDIA GPU.
// It never owns pages: those are the engine's, and lent to copies.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/ids.h"
#include "base/result.h"

namespace orbitkv::device {

// Handles of the device's own API (CUstream, CUevent), as integers.
struct StreamHandle {
  std::uint64_t value = 0;  // 0: the device's default stream
  friend bool operator==(StreamHandle, StreamHandle) = default;
};
struct EventHandle {
  std::uint64_t value = 0;
  friend bool operator==(EventHandle, EventHandle) = default;
};
// Nothing has to be waited for: the pages are ready, or nobody else uses them.
inline constexpr StreamHandle kNoStream{~std::uint64_t{0}};

class FencePool;

// What a copy waits for on the device before its first byte: everything that stood on a
// stream when the fence was made. Empty: nothing. Returns its event when it dies.
class Fence {
 public:
  Fence() = default;
  Fence(FencePool* pool, EventHandle event) : pool_(pool), event_(event) {}
  Fence(Fence&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), event_(other.event_) {}
  Fence& operator=(Fence&& other) noexcept;
  ~Fence();
  explicit operator bool() const { return pool_ != nullptr; }
  EventHandle event() const { return event_; }

 private:
  FencePool* pool_ = nullptr;
  EventHandle event_;
};
class FencePool {
 public:
  virtual ~FencePool() = default;
  virtual void give_back(EventHandle event) = 0;
};

// How copies are carried out. kAuto chooses by shape; the others force (a shape that the
// forced method cannot express is refused by name).
enum class CopyMethod : std::uint8_t { kAuto, kDirect, kKernel };
// kFull: the smallest window that fills the link. kGentle: a small window of the kernel, for
// fragments of every size, unless the method is forced: a quarter to a half of the link, and
// hardly a burden for compute that runs beside (latency-bound decode).
enum class CopyPace : std::uint8_t { kFull, kGentle };

struct CopierOptions {
  bool verify = true;  // false: tests of the tests only
  CopyMethod method = CopyMethod::kAuto;
  CopyPace pace = CopyPace::kFull;
};

class Copier;

class Device {
 public:
  virtual ~Device() = default;
  // What the Manager is told: "cpu:0", "GPU-<uuid>", "MIG-<uuid>".
  virtual std::string identity() const = 0;
  // The NUMA node that it hangs on. kAnyNode: not known, or the CPU, whose pages know theirs.
  virtual NodeId node() const { return kAnyNode; }
  // kReject unless all of it is memory that this device copies from and to, as far as the
  // driver can tell.
  virtual Status check_memory(std::span<const std::byte> memory) const = 0;

  // A slab of the pool as it is mapped here. Returns at once; it is made reachable in the
  // background. Until then, or if it cannot be, copies go through a bounded bounce buffer.
  virtual void add_slab(std::span<std::byte> slab) = 0;
  // Returns when no copy uses the slab and the device has let go of it: from then on it may
  // be unmapped. Like the end of a copier it may wait for all that the device does, the
  // engine's work included. A slab that cannot be let go of ends the process (the reason is logged).
  virtual void remove_slab(std::span<std::byte> slab) = 0;
  // Slabs that copies reach directly, for status and tests.
  virtual std::size_t reachable_slabs() const = 0;

  // In the thread that enqueues on `stream`. An idle stream and kNoStream cost no event.
  // kReject: not a stream of this device, or one that is being captured.
  virtual Result<Fence> fence(StreamHandle stream) = 0;

  // A copier serves one executor. The device must outlive it.
  virtual Result<std::unique_ptr<Copier>> new_copier(const CopierOptions& options) = 0;
};

}  // namespace orbitkv::device
