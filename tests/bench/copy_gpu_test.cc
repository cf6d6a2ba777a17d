// The copy bench on a fake GPU: what it prints, that it compares bytes, and what it does
// where there is no GPU. Figures mean nothing here.
#include "bench/copy_gpu.h"

#include <gtest/gtest.h>

#include "bench/bench.h"
#include "bench/gpu.h"
#include "tests/cuda/fake_driver.h"

namespace orbitkv::bench {
namespace {

using device::cuda::Driver;
using device::cuda::fake::FakeDriver;

class CopyGpu : public testing::Test {
 protected:
  CopyGpu() {
    options.json = true;
    options.runs = 1;
    options.device = "cuda:0";
    options.window = "2,16,2,2";
    load.set_bytes = 256 * kKiB.value;
    load.rival_bytes = 64 * kKiB.value;
    load.operations = 2;
    load.fragments = {4096};
    use_driver([this]() -> Result<const Driver*> {
      fake.driver().cuInit(0);
      return &fake.driver();
    });
  }
  ~CopyGpu() override { use_driver(device::cuda::load_driver); }

  // Status, and what was printed.
  std::pair<int, std::string> run(const std::string& only) {
    options.only_case = only;
    testing::internal::CaptureStdout();
    const int status = run_copy_gpu_bench(options, load);
    return {status, testing::internal::GetCapturedStdout()};
  }

  FakeDriver fake;
  Options options;
  CopyLoad load;
};

TEST_F(CopyGpu, ALineSaysWhatWasCopiedAndHow) {
  const auto [status, out] = run("h2d_4KiB_auto_2");
  EXPECT_EQ(status, 0);
  EXPECT_NE(out.find(R"("bench":"copy","case":"h2d_4KiB_auto_2")"), std::string::npos) << out;
  EXPECT_NE(out.find(R"("bytes":262144,"fragments":64,"runs":1,"ceiling":{"name":"one_dma",)"),
            std::string::npos)
      << out;
  EXPECT_NE(out.find(R"("method":"kernel","submissions":1,"plan_bytes":)"), std::string::npos) << out;
  EXPECT_NE(out.find(R"("window":{"ctas":2,"stage_bytes":16384,"loads":2,"stores":2})"), std::string::npos)
      << out;
  EXPECT_EQ(fake.leaks(), "");
  EXPECT_EQ(fake.complaints(), "");
}

TEST_F(CopyGpu, EveryWayAndMethodHasALine) {
  const auto [status, out] = run("");
  EXPECT_EQ(status, 0);
  for (const char* name :
       {"h2d_4KiB_auto_2", "h2d_4KiB_unverified_2", "h2d_4KiB_kernel_2", "h2d_4KiB_direct_0",
        "h2d_4KiB_calls_0", "h2d_4KiB_batched_0", "d2h_4KiB_split_auto_2", "d2h_4KiB_direct_0",
        "both_4KiB_auto_2", "both_4KiB_split_kernel_2"})
    EXPECT_NE(out.find(std::string("\"case\":\"") + name + "\""), std::string::npos) << name;
  EXPECT_NE(out.find("dma_both_ways"), std::string::npos);
  EXPECT_EQ(fake.complaints(), "");
}

// The fake's kernel is told to leave a layer out: the copier says so, the bench fails.
TEST_F(CopyGpu, AFailedCopyFailsTheBench) {
  fake.drop_flags(1);
  EXPECT_EQ(run("h2d_4KiB_auto_2").first, 1);
}

// A save that does not arrive: the driver says it was done.
TEST_F(CopyGpu, AWrongByteFailsTheBench) {
  static const Driver* real;
  real = &fake.driver();
  static Driver table;
  table = *real;
  table.cuMemcpyDtoH = [](void* to, device::cuda::CuPtr from, std::size_t bytes) {
    const auto code = real->cuMemcpyDtoH(to, from, bytes);
    static_cast<std::byte*>(to)[bytes / 2] ^= std::byte{1};
    return code;
  };
  use_driver([]() -> Result<const Driver*> { return &table; });
  table.cuInit(0);
  for (const char* only : {"h2d_4KiB_auto_2", "h2d_4KiB_calls_0", "h2d_4KiB_batched_0"})
    EXPECT_EQ(run(only).first, 1) << only;
}

TEST_F(CopyGpu, WithoutADriverItIsSkipped) {
  use_driver([]() -> Result<const Driver*> { return reject("no driver"); });
  testing::internal::CaptureStderr();
  EXPECT_EQ(run("").first, kSkipped);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "bench copy: skipped: no driver\n");
}

TEST_F(CopyGpu, AGpuThatIsNotThereIsNamed) {
  options.device = "cuda:7";
  testing::internal::CaptureStderr();
  EXPECT_EQ(run("").first, kSkipped);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("there is no cuda:7: this process sees 1 GPUs"),
            std::string::npos);
}

TEST_F(CopyGpu, ADeviceThatNobodyKnowsIsNotMeasuredAsTheCpu) {
  for (const char* device : {"gpu0", "cuda", "cuda:", "cuda:0x", "cpu", ""}) {
    Flags flags;
    flags.name = "copy";
    flags.device = device;
    testing::internal::CaptureStderr();
    EXPECT_EQ(bench::run(flags, "orbitkv"), 2) << device;
    EXPECT_NE(testing::internal::GetCapturedStderr().find("use cpu:0 or cuda:<number>"), std::string::npos);
  }
}

TEST_F(CopyGpu, AWindowThatCannotBeReadIsRefused) {
  options.window = "4x16";
  EXPECT_EQ(run("").first, 1);
}

}  // namespace
}  // namespace orbitkv::bench
