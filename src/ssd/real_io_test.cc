// What only real files and this kernel can show: limits of memory and space, refusals.
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>

#include "base/log.h"
#include "ssd/io_rig.h"

namespace orbitkv::ssd::suite {
namespace {

constexpr std::size_t kStep = 4096;

std::string refusal(Io& io, const std::string& path, ByteCount bytes = {}) {
  const auto opened = io.open(path, bytes);
  EXPECT_FALSE(opened.ok());
  return opened.ok() ? "" : opened.error().message();
}
bool says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

class RealIo : public testing::TestWithParam<IoKind> {
 protected:
  void SetUp() override {
    if (const std::string why = bed_.missing(); !why.empty()) GTEST_SKIP() << why;
  }
  RealBed bed_{GetParam()};
};

TEST_P(RealIo, RefusalsNamePathAndRemedy) {
  auto io = bed_.make({});
  const std::string inside = bed_.path("no_directory") + "/file";
  EXPECT_TRUE(says(refusal(*io, inside), inside)) << refusal(*io, inside);
  EXPECT_TRUE(says(refusal(*io, inside), "make its directory")) << refusal(*io, inside);
  EXPECT_TRUE(says(refusal(*io, "/dev/null"), "neither a file nor a block device"))
      << refusal(*io, "/dev/null");
  EXPECT_TRUE(says(refusal(*io, "/"), "/")) << refusal(*io, "/");
  // A file that cannot be as long as asked for is not left behind.
  const std::string path = bed_.path("long");
  EXPECT_TRUE(says(refusal(*io, path, ByteCount(std::uint64_t{1} << 61)), "ask for fewer"));
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

// Whoever sleeps in epoll since before the request was made: poll(2) looks for itself.
TEST_P(RealIo, EpollIsWokenByResultsAndByThoseThatWereLeft) {
  Rig it(bed_, {}, ByteCount(8 * kStep));
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{EPOLLIN, {}};
  ASSERT_EQ(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, it.io().completion_fd(), &event), 0);
  Memory memory(2 * kStep);
  for (int round = 0; round < 20; ++round) {
    const IoRequest both[] = {it.request(IoOp::kRead, 1, 0, {memory.at(0, kStep)}),
                              it.request(IoOp::kRead, 2, kStep, {memory.at(kStep, kStep)})};
    ASSERT_EQ(it.io().submit(both), 2u);
    for (int left = 2; left > 0; --left) {
      IoResult one[1];
      std::size_t got = 0;
      while (got == 0) {
        const int woken = ::epoll_wait(epoll.get(), &event, 1, 20'000);
        if (woken < 0 && errno == EINTR) continue;  // a ring's own work, too, ends a wait so
        ASSERT_EQ(woken, 1) << "nobody was woken";
        got = it.io().reap(one, {});
      }
      EXPECT_EQ(one[0].error, 0);
    }
  }
}

// A file system of 1 MiB: reserving says so, and so does a write into a hole.
TEST_P(RealIo, AFullFileSystemSaysSo) {
  const std::string directory = bed_.path("small");
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  const bool mounted = ::mount("tmpfs", directory.c_str(), "tmpfs", 0, "size=1m") == 0;
  const int error = errno;
  if (mounted) {
    Rig it(bed_, {}, {}, "small/file");
    EXPECT_TRUE(says(refusal(it.io(), directory + "/large", 2 * kMiB), "free space there"));
    EXPECT_LE(it.io().free_space(it.path()), kMiB);
    Memory memory(2 * kMiB.value);
    fill(memory.all(), 1);
    EXPECT_EQ(it.write(0, memory.all()), ENOSPC);
    EXPECT_EQ(it.write(0, memory.at(0, kStep)), 0) << "what has space can be written again";
    it.end();
    ::umount2(directory.c_str(), MNT_DETACH);
  }
  ::rmdir(directory.c_str());
  if (!mounted) GTEST_SKIP() << "cannot mount a small file system: " << std::strerror(error);
}

TEST_P(RealIo, AReadOnlyFileSystemIsRefused) {
  const std::string directory = bed_.path("frozen");
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  const bool mounted = ::mount("tmpfs", directory.c_str(), "tmpfs", MS_RDONLY, "size=1m") == 0;
  const int error = errno;
  if (mounted) {
    auto io = bed_.make({});
    EXPECT_TRUE(says(refusal(*io, directory + "/file"), "mount its file system writable"));
    ::umount2(directory.c_str(), MNT_DETACH);
  }
  ::rmdir(directory.c_str());
  if (!mounted) GTEST_SKIP() << "cannot mount a file system: " << std::strerror(error);
}

INSTANTIATE_TEST_SUITE_P(All, RealIo, testing::Values(IoKind::kUring, IoKind::kThreads),
                         [](const auto& of) { return of.param == IoKind::kUring ? "Uring" : "Threads"; });

std::string g_log;

// With little locked memory, in a process that may not exceed it: slower, and said once.
int run_below_the_limit(const std::string& path) {
  const rlimit little{256 * 1024, 256 * 1024};
  if (::setrlimit(RLIMIT_MEMLOCK, &little) != 0) return 2;
  if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) return 3;
  set_log_sink([](LogLevel, const char* line) { g_log += line; });
  auto io = make_io(IoKind::kUring, {});
  if (!io.ok()) return 4;
  const auto opened = (*io)->open(path, {});
  if (!opened.ok()) return 5;
  Memory memory(8 * kMiB.value), more(8 * kMiB.value);
  (*io)->add_memory(memory.all());
  (*io)->add_memory(more.all());
  if ((*io)->stats().registered != ByteCount{}) return 6;
  const Pieces pieces = {memory.all()};
  const IoRequest request{IoTag(1), IoOp::kRead, opened->file, 0, pieces};
  IoResult result;
  if ((*io)->submit({&request, 1}) != 1 || (*io)->reap({&result, 1}, seconds(60)) != 1) return 7;
  if (result.error != 0 || !holds(memory.all(), 5)) return 8;
  const auto first = g_log.find("LimitMEMLOCK");
  if (first == g_log.npos) return 9;
  return g_log.find("LimitMEMLOCK", first + 1) == g_log.npos ? 0 : 10;
}

TEST(UringMemoryLimit, WorksWithoutRegistrationAndSaysSoOnce) {
  RealBed bed(IoKind::kUring);
  if (const std::string why = bed.missing(); !why.empty()) GTEST_SKIP() << why;
  std::string path;
  {
    Rig it(bed, {}, 8 * kMiB);
    Memory memory(8 * kMiB.value);
    fill(memory.all(), 5);
    ASSERT_EQ(it.write(0, memory.all()), 0);
    path = it.path();
  }
  ::chmod(path.substr(0, path.rfind('/')).c_str(), 0755);
  ::chmod(path.c_str(), 0666);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(run_below_the_limit(path));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 5) GTEST_SKIP() << "an ordinary user cannot open " << path;
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(MakeIo, AutoGivesOneOfThem) {
  auto io = make_io(IoKind::kAuto, {});
  ASSERT_TRUE(io.ok());
  const std::string name = (*io)->name();
  EXPECT_EQ(name, make_io(IoKind::kUring, {}).ok() ? "io_uring" : "threads");
  EXPECT_STREQ((*make_io(IoKind::kThreads, {}))->name(), "threads");
}

}  // namespace
}  // namespace orbitkv::ssd::suite
