// Engines whose pages lie on the fake driver's GPU, in the test's own process and in the
// GPU helper's. The fake is this process's libcuda; one a process, shared by all tests.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/fake_libcuda.h"
#include "tests/native/engine.h"
#include "tests/native/processes.h"

namespace orbitkv::test {

using device::cuda::fake::FakeDriver;
FakeDriver& fake_gpu();

// The same engine on cuda:0.
EngineOptions on_gpu(EngineOptions options);

// Copy windows are found in a file and not measured: a measurement would take the faults
// that are meant for a test. In the environment, so for children too.
void keep_windows_in(const std::string& directory);

// A stream of the engine, as its handle.
std::uint64_t new_stream();
void hold(std::uint64_t stream);
void let_go(std::uint64_t stream);
// Held for as long as it lives.
class HeldStream {
 public:
  HeldStream() : stream_(new_stream()) { hold(stream_); }
  ~HeldStream() { let_go(stream_); }
  HeldStream(const HeldStream&) = delete;
  std::uint64_t get() const { return stream_; }

 private:
  std::uint64_t stream_;
};
// Until the device reaches this many slabs: before that copies go through a buffer, and
// those behind a stream that stands still are not enqueued.
bool registered_within(std::uint32_t count, std::uint32_t timeout_ms = kDoneWithinMs);

// One event a layer of the engine's registration.
class Layers {
 public:
  explicit Layers(const Engine& engine);
  std::span<const client::LayerEvent> events() const { return events_; }
  bool fired() const;
  bool fire_within(std::uint32_t timeout_ms) const;
  // Recorded behind a stream that is held: not fired until it is let go. What nobody records
  // again afterwards stays so.
  void arm();
  void disarm();

 private:
  std::vector<std::string> names_;
  std::vector<client::LayerEvent> events_;
  std::uint64_t stream_ = 0;
};

// The GPU helper as an engine: see gpu_helper.cc for the lines it understands.
Process start_gpu_helper(const std::vector<std::string>& arguments, const std::string& fault = {},
                         const std::string& log = "/dev/null");

}  // namespace orbitkv::test
