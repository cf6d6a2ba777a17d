// The conformance suites on the copier for NVIDIA GPUs over the fake driver: with and
// without bulk copies, wait values, batched DMA and registered slabs. After every test
// nothing may be left in the driver, and no rule of it may have been broken.
#include <functional>

#include "device/copier_events_suite.h"
#include "device/copier_suite.h"
#include "tests/cuda/driver_bed.h"
#include "tests/cuda/fake_driver.h"

namespace orbitkv::device::cuda {
namespace {

using suite::CopierEventsSuite;
using suite::CopierSuite;

std::unique_ptr<fake::FakeDriver> driver_of_test;

// A driver for every test, in an order of its own.
class Listener final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& info) override {
    const std::string name = std::string(info.test_suite_name()) + info.name();
    driver_of_test = std::make_unique<fake::FakeDriver>(
        fake::Config{.gpus = {fake::Gpu{}, fake::sm_80()}, .seed = std::hash<std::string>()(name)});
    EXPECT_EQ(driver_of_test->driver().cuInit(0), kCuSuccess);
  }
  void OnTestEnd(const testing::TestInfo&) override {
    EXPECT_EQ(driver_of_test->complaints(), "");
    EXPECT_EQ(driver_of_test->leaks(), "");
    driver_of_test.reset();
  }
};
const bool listening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new Listener);
  return true;
}();

struct Variant {
  std::string name;
  CuDevice device = 0;  // 0: with bulk copies
  CudaDeviceOptions options = {};
  CheckedOptions checks = {.wait_for_slabs = true, .method = CopyMethod::kKernel};
};

suite::Implementation implementation(const Variant& variant) {
  const auto bed = [variant] { return Bed{&driver_of_test->driver(), variant.device}; };
  return {variant.name, [bed] { return make_memory(bed()); },
          [bed, variant] {
            auto device = make_cuda_device(*bed().driver, variant.device, variant.options);
            EXPECT_TRUE(device.ok()) << device.error().message();
            return checked(bed(), *device, variant.checks);
          },
          [bed] { return make_events(bed()); }};
}

// Copies reach the slabs directly.
std::vector<Variant> direct_variants() {
  const CheckedOptions direct{.wait_for_slabs = true, .method = CopyMethod::kDirect};
  return {
      {"sm_90_kernel"},
      {"sm_80_kernel", 1},
      {"sm_90_without_wait_values", 0, {.wait_values = false}},
      {"sm_90_direct", 0, {}, direct},
      {"sm_80_direct_one_by_one", 1, {.batched_dma = false}, direct},
      {"sm_90_direct_without_wait_values", 0, {.wait_values = false}, direct},
  };
}
std::vector<suite::Implementation> direct_implementations() {
  std::vector<suite::Implementation> all;
  for (const Variant& variant : direct_variants()) all.push_back(implementation(variant));
  return all;
}
std::vector<suite::Implementation> implementations() {
  std::vector<suite::Implementation> all = direct_implementations();
  // A window of one or two images.
  all.push_back(implementation(
      {"sm_90_bounce", 0, {.slabs = {.registers = false}, .bounce = 16 * kKiB}, CheckedOptions{}}));
  all.push_back(implementation({"sm_80_slabs_come_late", 1, {}, CheckedOptions{}}));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Fake, CopierSuite,
                         testing::Combine(testing::ValuesIn(implementations()),
                                          testing::ValuesIn(suite::engine_layouts())),
                         suite::test_name);
// What bounces is enqueued only with its last window, so it cannot be watched behind a
// stream that stands still.
INSTANTIATE_TEST_SUITE_P(Fake, CopierEventsSuite,
                         testing::Combine(testing::ValuesIn(direct_implementations()),
                                          testing::ValuesIn(suite::engine_layouts())),
                         suite::test_name);

}  // namespace
}  // namespace orbitkv::device::cuda
