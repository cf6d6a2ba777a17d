// Who is let in, at which path, and how a Manager leaves.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/bootstrap.h"
#include "tests/native/engine.h"
#include "tests/native/processes.h"
#include "tests/native/raw_session.h"

namespace orbitkv::test {
namespace {

constexpr unsigned kNobody = 65534;

std::string refusal(const std::string& path, const wire::Hello& hello) {
  auto socket = shm::connect_to(path, kRawTimeoutMs);
  if (!socket.ok()) return socket.error().to_string();
  auto reply = greet(*socket, hello);
  return reply.ok() ? "" : reply.error().to_string();
}

TEST(Bootstrap, AnotherAbiIsToldWhatToUpgrade) {
  Manager manager;
  const auto newer = refusal(manager.socket(), {wire::kAbiVersion + 1, wire::PeerRole::kEngine, "new"});
  const auto older = refusal(manager.socket(), {wire::kAbiVersion - 1, wire::PeerRole::kEngine, "old"});
  EXPECT_NE(newer.find("upgrade the Manager"), std::string::npos) << newer;
  EXPECT_NE(older.find("upgrade the client"), std::string::npos) << older;
  EXPECT_EQ(refusal(manager.socket(), {wire::kAbiVersion, wire::PeerRole::kEngine, "same"}), "");
}

TEST(Bootstrap, AnotherUserIsRefusedByName) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  Manager manager;
  const std::string directory = manager.socket().substr(0, manager.socket().rfind('/'));
  const std::string above = directory.substr(0, directory.rfind('/'));
  // As made, the path cannot even be reached.
  const auto as_nobody = [&] {
    int out[2];
    EXPECT_EQ(::pipe(out), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) ::_exit(1);
      const std::string text =
          refusal(manager.socket(), {wire::kAbiVersion, wire::PeerRole::kEngine, "nobody"});
      [[maybe_unused]] const auto n = ::write(out[1], text.data(), text.size());
      ::_exit(0);
    }
    ::close(out[1]);
    char text[2048] = {};
    [[maybe_unused]] const auto n = ::read(out[0], text, sizeof text - 1);
    ::close(out[0]);
    ::waitpid(child, nullptr, 0);
    return std::string(text);
  };
  const auto closed = as_nobody();
  EXPECT_NE(closed.find("belongs to another user"), std::string::npos) << closed;
  // With every mode opened the credentials still decide.
  ASSERT_EQ(::chmod(above.c_str(), 0755) | ::chmod(directory.c_str(), 0755) |
                ::chmod(manager.socket().c_str(), 0777),
            0);
  const auto seen = as_nobody();
  EXPECT_NE(seen.find("uid 65534"), std::string::npos) << seen;
  EXPECT_EQ(manager.status().sessions(), 0u);
}

// Exit status and stderr of a `serve` that must not start.
std::pair<int, std::string> serve_fails(const std::string& socket, const std::string& log,
                                        const std::vector<std::string>& more = {}) {
  std::vector<std::string> command = {orbitkv_binary(), "serve",       "--bootstrap-socket",
                                      socket,           "--pool-size", "8MiB"};
  command.insert(command.end(), more.begin(), more.end());
  Process::Options options;
  options.log = log;
  Process process(command, options);
  const auto status = process.ended_within();
  char text[4096] = {};
  UniqueFd fd(::open(log.c_str(), O_RDONLY | O_CLOEXEC));
  [[maybe_unused]] const auto n = ::read(fd.get(), text, sizeof text - 1);
  ::unlink(log.c_str());
  return {status && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1, text};
}

TEST(Bootstrap, ASecondManagerOnThePathIsRefusedAndTheFirstServesOn) {
  Manager manager;
  Directory scratch;
  const auto [code, text] = serve_fails(manager.socket(), scratch.path() + "/log");
  EXPECT_EQ(code, 1);
  EXPECT_NE(text.find("another Manager (pid " + std::to_string(manager.pid())), std::string::npos) << text;
  EXPECT_EQ(manager.status().sessions(), 0u);
}

TEST(Bootstrap, ADirectoryThatOthersMayEnterIsRefused) {
  Directory scratch;
  const std::string directory = scratch.path() + "/open";
  ASSERT_EQ(::mkdir(directory.c_str(), 0700) | ::chmod(directory.c_str(), 0755), 0);
  const auto [code, text] = serve_fails(directory + "/m.sock", scratch.path() + "/log");
  EXPECT_EQ(code, 1);
  EXPECT_NE(text.find("chmod 0700"), std::string::npos) << text;
}

TEST(Bootstrap, FlagsAreCheckedTogetherAtStart) {
  Directory scratch;
  const std::string socket = scratch.path() + "/s/m.sock", log = scratch.path() + "/log";
  EXPECT_EQ(serve_fails(socket, log, {"--publish-wait", "61000"}).first, 2);
  EXPECT_EQ(serve_fails(socket, log, {"--lease-ttl", "0"}).first, 2);
  EXPECT_EQ(serve_fails(socket, log, {"--hugepages", "on", "--no-prefault"}).first, 2);
  EXPECT_EQ(serve_fails(socket, log, {"--numa", "on"}).first, 2);
  EXPECT_EQ(serve_fails(socket, log, {"--stall-after", "2"}).first, 2);
  EXPECT_EQ(serve_fails(socket, log, {"--stalled-engine", "ignore"}).first, 2);
  EXPECT_EQ(serve_fails(socket, log, {"--log-level", "loud"}).first, 2);
  EXPECT_EQ(serve_fails(socket, log, {"--full-prefix-wait", "31"}).first, 2);
  EXPECT_EQ(serve_fails(socket, log, {"--query-budget", "0%"}).first, 2);
  EXPECT_EQ(serve_fails(socket, log, {"--query-budget", "50%x"}).first, 2);
  EXPECT_EQ(serve_fails(socket, log, {"--query-budget", "50%", "--query-instance-budget", "60%"}).first, 2);
}

TEST(Bootstrap, SocketAndDirectoryAreClosedToOthersAndAStaleFileIsReplaced) {
  Manager manager;
  struct stat file{}, directory{};
  ASSERT_EQ(::stat(manager.socket().c_str(), &file), 0);
  ASSERT_EQ(::stat(manager.socket().substr(0, manager.socket().rfind('/')).c_str(), &directory), 0);
  EXPECT_EQ(file.st_mode & 07777, 0600u);
  EXPECT_EQ(directory.st_mode & 07777, 0700u);
  manager.process().signal(SIGKILL);
  ASSERT_TRUE(manager.process().ended_within());
  ASSERT_EQ(::stat(manager.socket().c_str(), &file), 0);  // left behind
  manager.start();
  EXPECT_EQ(manager.status().sessions(), 0u);
}

// ---- how it leaves ----

class Stop : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, Stop, testing::Values(SIGTERM, SIGINT));

TEST_P(Stop, AnIdleManagerLeavesAtOnceAndTakesItsSocketAlong) {
  Manager manager;
  auto raw = RawSession::open(manager.socket());
  ASSERT_TRUE(raw.ok());
  manager.process().signal(GetParam());
  const auto status = manager.process().ended_within();
  ASSERT_TRUE(status && WIFEXITED(*status));
  EXPECT_EQ(WEXITSTATUS(*status), 0);
  EXPECT_NE(::access(manager.socket().c_str(), F_OK), 0);
}

TEST_P(Stop, WaitsForAClaimedCopyAndKeepsNoNewWork) {
  Manager manager;
  auto engine = start_helper({"engine", "socket=" + manager.socket()}, "client_mid_copy:stop:1");
  ASSERT_EQ(engine.line(), "ready ");
  engine.say("save 0 1 8");
  ASSERT_TRUE(engine.stopped_within());
  manager.process().signal(GetParam());
  EXPECT_FALSE(manager.process().ended_within(300));
  // Status is still told; a new engine is sent away.
  EXPECT_EQ(manager.status()["sessions.0.operations"], 1u);
  const auto refused = refusal(manager.socket(), {wire::kAbiVersion, wire::PeerRole::kEngine, "late"});
  EXPECT_NE(refused.find("shutting down"), std::string::npos) << refused;
  engine.signal(SIGCONT);
  const auto status = manager.process().ended_within();
  ASSERT_TRUE(status && WIFEXITED(*status));
  EXPECT_EQ(WEXITSTATUS(*status), 0);
  const auto answer = engine.line();
  EXPECT_TRUE(answer && answer->starts_with("saved "));  // either way it ends
}

TEST_P(Stop, ASecondSignalSaysWhatIsPendingAndEnds) {
  Manager manager;
  auto engine = start_helper({"engine", "socket=" + manager.socket()}, "client_claimed:stop:1");
  ASSERT_EQ(engine.line(), "ready ");
  engine.say("save 0 1 8");
  ASSERT_TRUE(engine.stopped_within());
  manager.process().signal(GetParam());
  ASSERT_FALSE(manager.process().ended_within(200));
  manager.process().signal(GetParam());
  const auto status = manager.process().ended_within();
  ASSERT_TRUE(status && WIFEXITED(*status));
  EXPECT_EQ(WEXITSTATUS(*status), 1);
  const std::string expected = "pid " + std::to_string(engine.pid()) + ") has 1 claimed operation";
  EXPECT_NE(manager.log().find(expected), std::string::npos) << manager.log();
}

}  // namespace
}  // namespace orbitkv::test
