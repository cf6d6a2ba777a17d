// One GPU's primary context as this process uses it, with the copy kernels loaded into
// it. The engine's own context: it is retained, never created for us alone, reset or
// configured. Shared by everything on the device; thread-safe.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "device/cuda/driver.h"

namespace orbitkv::device::cuda {

struct Traits {
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int shared_bytes = 0;  // dynamic shared memory that one CTA may ask for
  int max_pitch = 0;
};

// The kernels of kernels.cu. `bulk` is null before sm_90.
struct Kernels {
  CuFunction bulk = nullptr, any16 = nullptr, any8 = nullptr, any1 = nullptr;
};

class Context {
 public:
  static Result<std::shared_ptr<Context>> open(const Driver& driver, CuDevice device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Driver& driver() const { return driver_; }
  CuDevice device() const { return device_; }
  CuContext handle() const { return context_; }
  const Traits& traits() const { return traits_; }
  const Kernels& kernels() const { return kernels_; }
  // "GPU-<uuid>" or "MIG-<uuid>".
  const std::string& identity() const { return identity_; }
  // Priorities that streams may have: a smaller number is served first.
  int least_priority() const { return least_; }
  int greatest_priority() const { return greatest_; }

 private:
  Context(const Driver& driver, CuDevice device) : driver_(driver), device_(device) {}
  Status prepare();
  Status load_kernels();

  const Driver& driver_;
  CuDevice device_;
  CuContext context_ = nullptr;
  CuModule module_ = nullptr;
  Traits traits_;
  Kernels kernels_;
  std::string identity_;
  int least_ = 0, greatest_ = 0;
};

// While it lives, the context is current in this thread and calls that a capture in some
// other thread would forbid are allowed; both are as before afterwards.
class Scope {
 public:
  explicit Scope(const Context& context);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kCaptureRelaxed;
  bool pushed_ = false;
};

// What a device is called, without a context on it.
Result<std::string> identity_of(const Driver& driver, CuDevice device);

// kCuSuccess or the driver's words for what `call` met.
Status status_of(const Driver& driver, const char* call, CuResult code);

}  // namespace orbitkv::device::cuda
