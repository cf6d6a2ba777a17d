// The compute that a layer's consumer does, on a fake GPU: as much as asked for, on all of
// it, and nothing else.
#include "bench/compute_gpu.h"

#include <gtest/gtest.h>

#include "tests/cuda/fake_driver.h"

namespace orbitkv::bench {
namespace {

using device::cuda::Driver;
using device::cuda::fake::FakeDriver;

class ComputeGpu : public testing::Test {
 protected:
  ComputeGpu() {
    use_driver([this]() -> Result<const Driver*> {
      fake.driver().cuInit(0);
      return &fake.driver();
    });
  }
  ~ComputeGpu() override { use_driver(device::cuda::load_driver); }

  FakeDriver fake;
};

TEST_F(ComputeGpu, ALaunchIsSeveralWavesOfAllMultiprocessors) {
  {
    auto gpu = Gpu::open("cuda:0");
    ASSERT_TRUE(gpu.ok()) << gpu.error().message();
    auto stream = GpuStream::make(**gpu);
    auto kernel = ComputeKernel::make(**gpu);
    ASSERT_TRUE(stream.ok() && kernel.ok()) << kernel.error().message();
    for (const std::uint32_t rounds : {0u, 1u, 1000u}) EXPECT_TRUE((*kernel)->launch(**stream, rounds).ok());
    EXPECT_TRUE((*stream)->mark().ok() && (*stream)->finish().ok());
    const auto multiprocessors = static_cast<std::uint32_t>((*gpu)->context()->traits().multiprocessors);
    EXPECT_EQ(fake.grids(), std::vector<std::uint32_t>(3, 32 * multiprocessors));
  }
  EXPECT_EQ(fake.complaints(), "");
  EXPECT_EQ(fake.leaks(), "");
}

TEST_F(ComputeGpu, ADriverThatCannotCompileItIsNamed) {
  auto gpu = Gpu::open("cuda:0");
  ASSERT_TRUE(gpu.ok());
  fake.fail({.entry = "cuModuleLoadData", .code = 218});  // invalid PTX
  const auto kernel = ComputeKernel::make(**gpu);
  ASSERT_FALSE(kernel.ok());
  EXPECT_NE(kernel.error().message().find("cuModuleLoadData"), std::string::npos);
}

}  // namespace
}  // namespace orbitkv::bench
