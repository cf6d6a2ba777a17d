#include "device/cuda/code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

namespace orbitkv::device::cuda {
namespace {

bool names(const std::vector<char>& image, std::string_view kernel) {
  return std::search(image.begin(), image.end(), kernel.begin(), kernel.end()) != image.end();
}

// What a driver that does not take the fatbin needs; the compiler itself needs no GPU.
TEST(Code, TheKernelsCompileWhereTheyRun) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "NVRTC itself is not clean under sanitizers";
#endif
  for (const auto& [major, minor] : {std::pair(8, 0), std::pair(9, 0)}) {
    const auto image = compile_kernels(major, minor);
    if (!image.ok() && image.error().message().find("no libnvrtc") != std::string::npos)
      GTEST_SKIP() << image.error().message();
    ASSERT_TRUE(image.ok()) << image.error().message();
    for (const char* kernel : {"orbitkv_copy_bulk", "orbitkv_copy_16", "orbitkv_copy_8", "orbitkv_copy_1"})
      EXPECT_TRUE(names(*image, kernel)) << kernel << " for sm_" << major << minor;
  }
}

TEST(Code, AnUnknownArchitectureIsNamed) {
  const auto image = compile_kernels(1, 3);
  ASSERT_FALSE(image.ok());
  const std::string& text = image.error().message();
  EXPECT_TRUE(text.find("sm_13") != std::string::npos || text.find("libnvrtc") != std::string::npos) << text;
}

}  // namespace
}  // namespace orbitkv::device::cuda
