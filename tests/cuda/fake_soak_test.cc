// The soak on the fake driver, a few rounds with several seeds; tests/gpu runs the same on
// a GPU for as long as one likes.
#include <gtest/gtest.h>

#include "tests/cuda/copier_soak.h"
#include "tests/cuda/fake_driver.h"

namespace orbitkv::device::cuda {
namespace {

class FakeSoakTest : public testing::TestWithParam<std::uint64_t> {};

TEST_P(FakeSoakTest, NothingIsEverWrong) {
  const std::uint64_t seed = GetParam();
  fake::FakeDriver fake({.gpus = {fake::Gpu{}, fake::sm_80()}, .seed = seed});
  ASSERT_EQ(fake.driver().cuInit(0), kCuSuccess);
  const SoakReport report =
      run_soak({&fake.driver(), static_cast<CuDevice>(seed % 2)}, {.rounds = 60, .seed = seed});
  EXPECT_TRUE(report.right()) << report.line();
  EXPECT_GT(report.damaged, 0u) << report.line();
  EXPECT_GT(report.failed_batches, 0u) << report.line();
  EXPECT_EQ(fake.complaints(), "");
  EXPECT_EQ(fake.leaks(), "");
}
INSTANTIATE_TEST_SUITE_P(Seeds, FakeSoakTest, testing::Range<std::uint64_t>(1, 9));

}  // namespace
}  // namespace orbitkv::device::cuda
