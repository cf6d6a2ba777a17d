// Which GPU a device is, and which memory is its.
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "device/cuda/numa_node.h"
#include "tests/cuda/fake_bed.h"

namespace orbitkv::device::cuda {
namespace {

fake::Gpu instance() {
  return {.name = "Fake MIG", .uuid = 0x31, .mig = true};
}

// As with CUDA_VISIBLE_DEVICES=2,0: the process's order, not the machine's.
class IdentityTest : public FakeDeviceTest {
 protected:
  IdentityTest() : FakeDeviceTest({.gpus = {fake::sm_80(), fake::Gpu{}, instance()}}) {}
};

TEST_F(IdentityTest, IsTheUuid) {
  EXPECT_EQ(make({}, 0)->identity(), "GPU-80808080-8080-8080-8080-808080808080");
  EXPECT_EQ(make({}, 1)->identity(), "GPU-90909090-9090-9090-9090-909090909090");
  EXPECT_EQ(make({}, 2)->identity(), "MIG-31313131-3131-3131-3131-313131313131");
}

TEST_F(IdentityTest, WithoutTheParentsUuidAnInstanceIsAGpu) {
  Driver old = driver;
  old.cuDeviceGetUuidOfParent = nullptr;
  auto made = make_cuda_device(old, 2, {});
  ASSERT_TRUE(made.ok()) << made.error().message();
  EXPECT_EQ((*made)->identity(), "GPU-31313131-3131-3131-3131-313131313131");
}

TEST_F(IdentityTest, TheNumaNodeIsThatOfThePciAddress) {
  fake::FakeDriver machine({.gpus = {{.bus = 0x3b}, {.bus = 0xd8}, {.bus = 0x5e}}});
  ASSERT_EQ(machine.driver().cuInit(0), kCuSuccess);
  std::string root = testing::TempDir() + "orbitkv-pci-XXXXXX";
  ASSERT_NE(::mkdtemp(root.data()), nullptr);
  const auto put = [&](const std::string& address, const std::string& node) {
    const auto at = std::filesystem::path(root) / "sys/bus/pci/devices" / address;
    std::filesystem::create_directories(at);
    std::ofstream(at / "numa_node") << node << "\n";
  };
  put("0000:3b:00.0", "1");
  put("0000:d8:00.0", "-1");
  EXPECT_EQ(numa_node_of(machine.driver(), 0, root), NodeId(1));
  EXPECT_EQ(numa_node_of(machine.driver(), 1, root), kAnyNode) << "the kernel does not know";
  EXPECT_EQ(numa_node_of(machine.driver(), 2, root), kAnyNode) << "not in /sys";
  put("0000:d8:00.0", "4096");
  EXPECT_EQ(numa_node_of(machine.driver(), 1, root), kAnyNode) << "no number of a node";
  machine.fail({.entry = "cuDeviceGetAttribute", .call = 2, .code = kCuInvalidContext});
  EXPECT_EQ(numa_node_of(machine.driver(), 0, root), kAnyNode) << "the driver does not say";
  std::filesystem::remove_all(root);
}

TEST_F(IdentityTest, ADeviceTakesItsOwnMemoryOnly) {
  device = make({}, 0);
  auto memory = make_memory(bed(0)), others = make_memory(bed(1));
  const auto expect_refused = [&](std::span<const std::byte> bytes, const std::string& words) {
    const Status status = device->check_memory(bytes);
    ASSERT_FALSE(status.ok()) << words;
    EXPECT_EQ(status.error().code(), Code::kReject);
    EXPECT_TRUE(contains(status.error().message(), words)) << status.error().message();
  };
  const std::span own(memory->alloc(4 * kKiB), 4096);
  EXPECT_TRUE(device->check_memory(own).ok());
  expect_refused({own.data(), 4097}, "not GPU memory");
  expect_refused({others->alloc(4 * kKiB), 4096}, "device 1");
  std::vector<std::byte> host(64);
  expect_refused(host, "cpu:0");
  const CuPtr foreign = fake.device_memory(fake.new_context(0), 4 * kKiB);
  expect_refused({reinterpret_cast<const std::byte*>(foreign), 4096}, "another CUDA context");
  expect_refused({}, "empty");
}

TEST(OpenCudaDevice, SaysWhatIsMissingWithoutADriver) {
  const auto loaded = load_driver();
  if (loaded.ok()) GTEST_SKIP() << "this machine has a driver";
  EXPECT_EQ(loaded.error().code(), Code::kReject);
  for (const char* name : {"cuda:0", "GPU-90909090-9090-9090-9090-909090909090"}) {
    auto device = open_cuda_device(name);
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.error().code(), Code::kReject);
    EXPECT_TRUE(contains(device.error().message(), "NVIDIA driver")) << device.error().message();
  }
}

}  // namespace
}  // namespace orbitkv::device::cuda
