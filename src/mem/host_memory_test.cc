#include "mem/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "mem/pool.h"

namespace orbitkv::mem {
namespace {

// A tree of the files that are read, under a directory of its own.
class HostMemoryTree : public testing::Test {
 protected:
  HostMemoryTree() {
    std::string pattern = testing::TempDir() + "orbitkv-host-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
    put("/proc/meminfo", "MemTotal:       99999999 kB\nMemAvailable:   8388608 kB\nCached: 1 kB\n");
  }
  ~HostMemoryTree() override { std::filesystem::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void mount_v2(const std::string& cgroup, const std::string& mounted = "/") {
    put("/proc/self/mountinfo", "30 20 0:26 / /proc rw - proc proc rw\n35 30 0:30 " + mounted +
                                    " /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n");
    put("/proc/self/cgroup", "0::" + cgroup + "\n");
  }
  HostMemory read() const { return read_host_memory(root_); }

  std::string root_;
};

TEST_F(HostMemoryTree, WithoutCgroupsItIsMemAvailable) {
  EXPECT_EQ(read().available, 8 * kGiB);
  EXPECT_EQ(read().bound_by, "MemAvailable");
  EXPECT_EQ(read().reserved_huge, ByteCount(0));
}

TEST_F(HostMemoryTree, PressureIsCountedUpToTheRoot) {
  EXPECT_FALSE(read_memory_pressure(root_));
  mount_v2("/user/engine");
  EXPECT_FALSE(read_memory_pressure(root_)) << "no file counts it";
  put("/sys/fs/cgroup/user/engine/memory.events", "low 1\nhigh 7\nmax 9\noom 0\n");
  EXPECT_EQ(read_memory_pressure(root_), 7u);
  put("/sys/fs/cgroup/user/memory.events", "low 0\nhigh 30\nmax 0\n");
  EXPECT_EQ(read_memory_pressure(root_), 37u);
}

TEST_F(HostMemoryTree, KillsForWantOfMemoryAreThoseOfTheNearestThatCountsThem) {
  EXPECT_FALSE(read_oom_kills(root_));
  put("/proc/vmstat", "pgfault 9\noom_kill 5\nnumb 1\n");
  EXPECT_EQ(read_oom_kills(root_), 5u);
  mount_v2("/user/engine");
  put("/sys/fs/cgroup/user/memory.events", "oom 4\noom_kill 3\n");
  EXPECT_EQ(read_oom_kills(root_), 3u);
  put("/sys/fs/cgroup/user/engine/memory.events", "low 1\noom 2\noom_kill 1\noom_group_kill 0\n");
  EXPECT_EQ(read_oom_kills(root_), 1u);
}

TEST_F(HostMemoryTree, EveryV2LimitUpToTheRootCounts) {
  mount_v2("/user/engine");
  put("/sys/fs/cgroup/user/engine/memory.max", "6442450944\n");  // 6 GiB
  put("/sys/fs/cgroup/user/engine/memory.high", "max\n");
  put("/sys/fs/cgroup/user/engine/memory.current", "1073741824\n");
  EXPECT_EQ(read().available, 5 * kGiB);
  EXPECT_EQ(read().bound_by, root_ + "/sys/fs/cgroup/user/engine/memory.max");
  put("/sys/fs/cgroup/user/memory.max", "4294967296\n");  // 4 GiB, all of it in use
  put("/sys/fs/cgroup/user/memory.current", "4294967296\n");
  EXPECT_EQ(read().available, ByteCount(0));
  // Half of that is page cache that makes way.
  put("/sys/fs/cgroup/user/memory.stat", "anon 5\ninactive_file 2147483648\n");
  EXPECT_EQ(read().available, 2 * kGiB);
  put("/sys/fs/cgroup/user/engine/memory.high", "2147483648\n");  // 2 GiB, 1 in use
  EXPECT_EQ(read().available, kGiB);
}

TEST_F(HostMemoryTree, V1NamesAreRead) {
  put("/proc/self/mountinfo",
      "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
      "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  put("/proc/self/cgroup", "5:cpu:/x\n4:memory:/a/b\n0::/\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "3221225472\n");
  put("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "2147483648\n");
  put("/sys/fs/cgroup/memory/a/b/memory.stat", "inactive_file 7\ntotal_inactive_file 1073741824\n");
  EXPECT_EQ(read().available, 2 * kGiB);
}

TEST_F(HostMemoryTree, AContainersOwnMountIsItsCgroup) {
  // The mount shows the container's cgroup itself; the path in cgroup is the host's.
  mount_v2("/docker/abc/inner", "/docker/abc");
  put("/sys/fs/cgroup/memory.max", "2147483648\n");
  put("/sys/fs/cgroup/inner/memory.max", "1073741824\n");
  EXPECT_EQ(read().available, kGiB);
  mount_v2("/somewhere/not/visible");
  EXPECT_EQ(read().available, 2 * kGiB);
}

TEST_F(HostMemoryTree, ReservedHugePagesThatNobodyHas) {
  put("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "512\n");
  put("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "112\n");
  EXPECT_EQ(read().reserved_huge, 800 * kMiB);
}

TEST(DefaultPoolBytes, QuarterOfTheMemoryButAtMostThirtyGibibytes) {
  EXPECT_EQ(default_pool_bytes({8 * kGiB, "", {}}), 2 * kGiB);
  EXPECT_EQ(default_pool_bytes({8 * kGiB + ByteCount(12345), "", {}}), 2 * kGiB);
  EXPECT_EQ(default_pool_bytes({1024 * kGiB, "", {}}), 30 * kGiB);
  EXPECT_EQ(default_pool_bytes({kMiB, "", {}}), 2 * kMiB);
  EXPECT_GE(default_pool_bytes(), 2 * kMiB);
}

}  // namespace
}  // namespace orbitkv::mem
