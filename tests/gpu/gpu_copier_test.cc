// The conformance suites and the soak on a real GPU (ordinal 0 of this process):
//   gpu_copier_test                                 the suites and a short soak
//   ORBITKV_SOAK_ROUNDS=100000 ORBITKV_SOAK_SEED=7 gpu_copier_test --gtest_filter=*Soak*
//                                                   (gpu-check has several do it side by side)
// Without a driver or a GPU it says what is missing, and succeeds.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "device/copier_events_suite.h"
#include "device/copier_suite.h"
#include "tests/cuda/copier_soak.h"
#include "tests/cuda/driver_bed.h"

namespace orbitkv::device::cuda {
namespace {

using suite::CopierEventsSuite;
using suite::CopierSuite;

const Driver* driver = nullptr;  // of main()

Bed bed() {
  return {driver, 0};
}

struct Variant {
  std::string name;
  CudaDeviceOptions options = {};
  CheckedOptions checks = {.wait_for_slabs = true, .method = CopyMethod::kKernel};
};

// A device is made once a variant: its module is loaded once.
std::shared_ptr<Device> device_of(const Variant& variant) {
  static auto* made = new std::map<std::string, std::shared_ptr<Device>>;
  auto& device = (*made)[variant.name];
  if (device == nullptr) {
    auto opened = make_cuda_device(*driver, 0, variant.options);
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    device = checked(bed(), *opened, variant.checks);
  }
  return device;
}

suite::Implementation implementation(const Variant& variant) {
  return {variant.name, [] { return make_memory(bed()); }, [variant] { return device_of(variant); },
          [] { return make_events(bed()); }};
}

std::vector<suite::Implementation> direct_implementations() {
  const CheckedOptions direct{.wait_for_slabs = true, .method = CopyMethod::kDirect};
  return {implementation({"kernel"}), implementation({"kernel_without_wait_values", {.wait_values = false}}),
          implementation({"direct", {}, direct}),
          implementation({"direct_one_by_one", {.wait_values = false, .batched_dma = false}, direct})};
}
std::vector<suite::Implementation> implementations() {
  auto all = direct_implementations();
  all.push_back(
      implementation({"bounce", {.slabs = {.registers = false}, .bounce = 16 * kKiB}, CheckedOptions{}}));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Gpu, CopierSuite,
                         testing::Combine(testing::ValuesIn(implementations()),
                                          testing::ValuesIn(suite::engine_layouts())),
                         suite::test_name);
INSTANTIATE_TEST_SUITE_P(Gpu, CopierEventsSuite,
                         testing::Combine(testing::ValuesIn(direct_implementations()),
                                          testing::ValuesIn(suite::engine_layouts())),
                         suite::test_name);

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(GpuSoak, NothingIsEverWrong) {
  const SoakReport report =
      run_soak(bed(), {.rounds = static_cast<std::uint32_t>(number("ORBITKV_SOAK_ROUNDS", 200)),
                       .seed = number("ORBITKV_SOAK_SEED", 1)});
  std::printf("%s\n", report.line().c_str());
  EXPECT_TRUE(report.right()) << report.line();
}

}  // namespace
}  // namespace orbitkv::device::cuda

int main(int argc, char** argv) {
  using namespace orbitkv::device::cuda;
  testing::InitGoogleTest(&argc, argv);
  auto loaded = load_driver();
  if (!loaded.ok()) {
    std::printf("gpu_copier_test: nothing tested: %s\n", loaded.error().message().c_str());
    return 0;
  }
  driver = *loaded;
  // Its primary context lives as long as the process: to make one takes longer than a test.
  CuContext context = nullptr;
  if (driver->cuDevicePrimaryCtxRetain(&context, 0) != kCuSuccess) {
    std::printf("gpu_copier_test: GPU 0 has no context to give\n");
    return 1;
  }
  return RUN_ALL_TESTS();
}
