// The tests with engines on a GPU, and those engines: the program starts itself with `role=...`.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tests/gpu/gpu_engine.h"

int main(int argc, char** argv) {
  using namespace orbitkv;
  if (argc > 1 && std::string(argv[1]).starts_with("role="))
    return test::gpu_engine_main(std::vector<std::string>(argv + 1, argv + argc));
  testing::InitGoogleTest(&argc, argv);
  const auto beside = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "orbitkv";
  ::setenv("ORBITKV_BIN", beside.c_str(), 0);
  auto loaded = device::cuda::load_driver();
  if (!loaded.ok()) {
    std::printf("nothing tested: %s\n", loaded.error().message().c_str());
    return 0;
  }
  return RUN_ALL_TESTS();
}
