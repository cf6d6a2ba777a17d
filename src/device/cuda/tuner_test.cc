// The file of windows: what was written is read, anything else is measured again.
#include "device/cuda/tuner.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "device/cuda/plan.h"

namespace orbitkv::device::cuda {
namespace {

class WindowsFile : public testing::Test {
 protected:
  WindowsFile() {
    windows.full[0][0] = {2, 4096, 1, 3};
    windows.full[1][1] = {64, 32 * 1024, kMaxStages, kMaxStages};
  }
  ~WindowsFile() override { std::filesystem::remove_all(root); }
  std::string text() const {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void replace(const std::string& with) const { std::ofstream(path) << with; }

  const std::filesystem::path root =
      std::filesystem::path(testing::TempDir()) / ("windows-" + std::to_string(::getpid()));
  const std::string path = root / "orbitkv/gpu-x-12080.windows";  // neither directory is there
  Windows windows;
};

TEST_F(WindowsFile, IsReadAsItWasWritten) {
  EXPECT_FALSE(read_windows(path));
  ASSERT_TRUE(write_windows(path, windows).ok());
  const auto read = read_windows(path);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->full, windows.full);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root / "orbitkv"), {}), 1)
      << "nothing beside it";
}

TEST_F(WindowsFile, EveryTruncationIsRefused) {
  ASSERT_TRUE(write_windows(path, windows).ok());
  const std::string whole = text();
  for (std::size_t bytes = 0; bytes < whole.rfind(' '); ++bytes) {
    replace(whole.substr(0, bytes));
    EXPECT_FALSE(read_windows(path)) << bytes;
  }
}

TEST_F(WindowsFile, AnotherFormOrAnImplausibleWindowIsRefused) {
  ASSERT_TRUE(write_windows(path, windows).ok());
  const std::string whole = text();
  replace("another " + whole);
  EXPECT_FALSE(read_windows(path));
  const std::string head = whole.substr(0, whole.find('\n') + 1), good = "8 8192 2 2\n";
  replace(head + good + good + good + good);
  EXPECT_TRUE(read_windows(path));
  for (const char* bad : {"0 8192 2 2", "65 8192 2 2", "8 8200 2 2", "8 512 2 2", "8 65536 2 2", "8 8192 0 2",
                          "8 8192 2 0", "8 8192 9 2", "8 8192 2 9", "8 8192 2", "x"}) {
    replace(head + good + good + bad + "\n" + good);
    EXPECT_FALSE(read_windows(path)) << bad;
  }
}

TEST_F(WindowsFile, APlaceThatCannotBeWrittenIsSaid) {
  const Status status = write_windows("/proc/none/orbitkv/x.windows", windows);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message().find("/proc/none"), std::string::npos) << status.error().message();
}

}  // namespace
}  // namespace orbitkv::device::cuda
