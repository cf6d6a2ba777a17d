#include "tests/native/gpu_bed.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "base/time.h"
#include "device/cuda/context.h"
#include "device/cuda/tuner.h"

namespace orbitkv::test {
namespace {
using namespace device::cuda;

CuStream as_stream(std::uint64_t handle) {
  return reinterpret_cast<CuStream>(handle);
}
CuContext primary() {
  static const CuContext made = [] {
    CuContext context = nullptr;
    ORBITKV_CHECK(fake_gpu().driver().cuDevicePrimaryCtxRetain(&context, 0) == kCuSuccess, "the fake GPU");
    return context;
  }();
  return made;
}
}  // namespace

FakeDriver& fake_gpu() {
  static const CuResult once = fake::of_this_process().driver().cuInit(0);
  ORBITKV_CHECK(once == kCuSuccess, "the fake driver");
  return fake::of_this_process();
}

EngineOptions on_gpu(EngineOptions options) {
  options.device = "cuda:0";
  options.allocate = [](std::size_t bytes) {
    const CuPtr at = fake_gpu().device_memory(primary(), ByteCount(bytes));
    return std::span(reinterpret_cast<std::byte*>(at), bytes);
  };
  return options;
}

void keep_windows_in(const std::string& directory) {
  ::setenv("XDG_CACHE_HOME", directory.c_str(), 1);
  auto context = Context::open(fake_gpu().driver(), 0);
  ORBITKV_CHECK(context.ok() && write_windows(windows_path(**context), Windows{}).ok(), "copy windows");
}

std::uint64_t new_stream() {
  return reinterpret_cast<std::uint64_t>(fake_gpu().new_stream(0));
}
void hold(std::uint64_t stream) {
  fake_gpu().hold(as_stream(stream));
}
void let_go(std::uint64_t stream) {
  fake_gpu().let_go(as_stream(stream));
}

bool registered_within(std::uint32_t count, std::uint32_t timeout_ms) {
  const TimePoint deadline = monotonic_now() + milliseconds(timeout_ms);
  while (fake_gpu().registrations() != count) {
    if (monotonic_now() > deadline) return false;
    ::usleep(500);
  }
  return true;
}

Layers::Layers(const Engine& engine) {
  for (const client::Layer& layer : engine.description().layers)
    if (std::find(names_.begin(), names_.end(), layer.name) == names_.end()) names_.push_back(layer.name);
  for (const std::string& name : names_)
    events_.push_back({name, reinterpret_cast<std::uint64_t>(fake_gpu().new_event(0))});
  stream_ = new_stream();
  arm();
}

void Layers::arm() {
  hold(stream_);
  const Driver& driver = fake_gpu().driver();
  driver.cuCtxPushCurrent(primary());
  for (const client::LayerEvent& event : events_)
    ORBITKV_CHECK(
        driver.cuEventRecord(reinterpret_cast<CuEvent>(event.event), as_stream(stream_)) == kCuSuccess,
        "an event");
  driver.cuCtxPopCurrent(nullptr);
}

void Layers::disarm() {
  let_go(stream_);
}

bool Layers::fired() const {
  return std::all_of(events_.begin(), events_.end(), [](const client::LayerEvent& event) {
    return fake_gpu().driver().cuEventQuery(reinterpret_cast<CuEvent>(event.event)) == kCuSuccess;
  });
}

bool Layers::fire_within(std::uint32_t timeout_ms) const {
  const TimePoint deadline = monotonic_now() + milliseconds(timeout_ms);
  while (!fired()) {
    if (monotonic_now() > deadline) return false;
    ::usleep(500);
  }
  return true;
}

Process start_gpu_helper(const std::vector<std::string>& arguments, const std::string& fault,
                         const std::string& log) {
  std::vector<std::string> command = {ORBITKV_GPU_HELPER};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Process::Options options;
  if (!fault.empty()) options.environment["ORBITKV_FAULT"] = fault;
  // An exit without close leaves threads and memory, and that is what is tested.
  for (const auto& [name, without] :
       {std::pair("TSAN_OPTIONS", ":report_thread_leaks=0"), std::pair("ASAN_OPTIONS", ":detect_leaks=0")}) {
    const char* given = std::getenv(name);
    options.environment[name] = std::string(given ? given : "") + without;
  }
  options.log = log;
  return Process(command, options);
}

}  // namespace orbitkv::test
