// A fake driver, a device on it and a rig, for tests of one device each: at the end
// nothing may be left in the driver. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device/copier_rig.h"
#include "tests/cuda/driver_bed.h"
#include "tests/cuda/fake_driver.h"

namespace orbitkv::device::cuda {

// What should return and does not ends the process, with its name.
class Watchdog {
 public:
  explicit Watchdog(const char* what)
      : thread_([this, what] {
          for (int i = 0; i < 3000 && !done_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          if (done_) return;
          std::fprintf(stderr, "hangs: %s\n", what);
          std::abort();
        }) {}
  ~Watchdog() {
    done_ = true;
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;
};

class FakeDeviceTest : public testing::Test {
 protected:
  explicit FakeDeviceTest(fake::Config config = {.gpus = {fake::Gpu{}, fake::sm_80()}})
      : fake(std::move(config)), driver(fake.driver()) {
    EXPECT_EQ(driver.cuInit(0), kCuSuccess);
  }
  // Everything that was made in the test is gone by now.
  ~FakeDeviceTest() override {
    device.reset();
    if (expects_order) {
      EXPECT_EQ(fake.complaints(), "");
      EXPECT_EQ(fake.leaks(), "");
    }
  }

  Bed bed(CuDevice ordinal = 0) const { return {&driver, ordinal}; }
  std::shared_ptr<Device> make(const CudaDeviceOptions& options = {}, CuDevice ordinal = 0,
                               const CheckedOptions& checks = {.wait_for_slabs = true}) {
    auto made = make_cuda_device(driver, ordinal, options);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return checked(bed(ordinal), *made, checks);
  }
  void open(const CudaDeviceOptions& options = {}) { device = make(options); }
  suite::Implementation implementation(std::shared_ptr<Device> of, CuDevice ordinal = 0) {
    return {"fake", [this, ordinal] { return make_memory(bed(ordinal)); }, [of] { return of; },
            [this, ordinal] { return make_events(bed(ordinal)); }};
  }
  std::unique_ptr<suite::Rig> new_rig(const suite::EngineLayout& layout, const CopierOptions& options = {}) {
    auto rig = std::make_unique<suite::Rig>(implementation(device), layout, options);
    rig->fill_pages(7);
    return rig;
  }
  static StreamHandle handle(CuStream stream) { return {reinterpret_cast<std::uint64_t>(stream)}; }
  static StreamHandle special(std::uint64_t value) { return {value}; }

  // Saves these blocks; the pages hold something else afterwards.
  std::vector<SlotCopy> saved(suite::Rig& rig, std::vector<std::uint32_t> blocks) {
    std::vector<SlotCopy> slots = rig.new_slots(std::move(blocks));
    const Status status = rig.run(Direction::kSave, slots);
    EXPECT_TRUE(status.ok()) << status.error().message();
    rig.fill_pages(8);
    return slots;
  }
  // One event a layer of the rig.
  std::vector<LayerEvent> layer_events(const suite::Rig& rig, suite::DeviceEvents& events) {
    std::vector<LayerEvent> made;
    for (const FragmentGeometry& fragment : rig.group().fragments) {
      if (made.empty() || made.back().turn != fragment.turn) made.push_back({fragment.turn, events.make()});
    }
    return made;
  }
  // Within what the watchdog allows.
  static void wait_for(suite::DeviceEvents& events, const LayerEvent& event) {
    while (!events.done(event.event)) std::this_thread::yield();
  }

  fake::FakeDriver fake;
  const Driver& driver;
  std::shared_ptr<Device> device;
  bool expects_order = true;
};

inline bool contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

}  // namespace orbitkv::device::cuda
