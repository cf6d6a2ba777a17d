#include "daemon/keeper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/log.h"

namespace orbitkv::daemon {
namespace {

// In a process of its own: a keeper blocks signals and waits for children.
int keep(const std::string& binary, const std::vector<std::string>& arguments, int signal = 0,
         Duration silence = limits::kStartSilence) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it goes with a test that fails; its child ends by itself
    set_log_level(LogLevel::kOff);
    auto keeper = Keeper::create({binary, arguments, milliseconds(1), {}, silence});
    ::_exit(keeper.ok() ? (*keeper)->run() : 99);
  }
  if (signal != 0) {
    ::usleep(100'000);
    ::kill(pid, signal);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void kill_and_reap(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

// What never served has said why itself.
TEST(Keeper, AChildThatNeverServedIsNotStartedAgain) {
  EXPECT_EQ(keep("/bin/sh", {"-c", "exit 2", "sh"}), 2);
  EXPECT_EQ(keep("/no/such/program", {}), 127);
}

TEST(Keeper, TheChildHasItsSocketAndNoBlockedSignal) {
  EXPECT_EQ(
      keep("/bin/sh",
           {"-c", "test \"$1 $2 $3\" = '--keeper-says any --keeper-fd' && test -S /proc/self/fd/$4", "sh"}),
      0);
  EXPECT_EQ(keep("/bin/sh", {"-c", "kill -TERM $$; exit 5", "sh"}, 0), 1)
      << "it was started until it was given up";
}

// What it started has gone before the next one begins: each says so before it hangs itself.
TEST(Keeper, AStartThatHangsIsEndedWithAllThatItStarted) {
  char directory[] = "/tmp/orbitkv-keeper-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const std::string pids = std::string(directory) + "/pids", beside = std::string(directory) + "/beside";
  const std::string body = "for pid in $(cat " + pids + " 2>/dev/null); do kill -0 $pid && echo $pid >> " +
                           beside + "; done; setsid sh -c 'trap \"\" TERM; echo $$ >> " + pids +
                           "; while :; do sleep 600; done' & echo $$ >> " + pids + "; kill -STOP $$";
  EXPECT_EQ(keep("/bin/sh", {"-c", body, "sh"}, 0, milliseconds(500)), 1)
      << "it was tried until it was given up";
  std::ifstream file(pids);
  int count = 0;
  for (pid_t pid = 0; file >> pid; ++count) EXPECT_NE(::kill(pid, 0), 0) << pid;
  EXPECT_GT(count, 2) << "a start, and what it has started, more than once";
  EXPECT_FALSE(std::ifstream(beside).good()) << "one ran beside the next";
  std::filesystem::remove_all(directory);
}

// As in a container: a shell starts something, and becomes the keeper.
TEST(Keeper, WhatIsNoneOfItsLivesIsLeftAlone) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    set_log_level(LogLevel::kOff);
    const pid_t bystander = ::fork();
    if (bystander == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::execl("/bin/sleep", "sleep", "600", nullptr);
      ::_exit(1);
    }
    auto keeper =
        Keeper::create({"/bin/sh", {"-c", "sleep 600", "sh"}, milliseconds(1), {}, milliseconds(100)});
    const int code = keeper.ok() ? (*keeper)->run() : 99;
    const bool lives = ::kill(bystander, 0) == 0 && ::waitpid(bystander, nullptr, WNOHANG) == 0;
    ::_exit(code == 1 && lives ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Keeper, AStartThatHangsMayBeLeftAlone) {
  EXPECT_EQ(keep("/bin/sh", {"-c", "sleep 3; exit 6", "sh"}, 0, Duration{}), 6);
}

// As a whole: SIGHUP of a terminal that goes is a stop, and one of an operator is an upgrade.
TEST(Keeper, TheEndOfItsTerminalIsAStop) {
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    set_log_level(LogLevel::kOff);
    auto keeper = Keeper::create(
        {"/bin/sh",
         {"-c", "trap 'exit 7' TERM; echo up; i=0; while [ $i -lt 500 ]; do sleep 0.02; i=$((i+1)); done",
          "sh"},
         milliseconds(1)});
    ::_exit(keeper.ok() ? (*keeper)->run() : 99);
  }
  char up[2] = {};
  EXPECT_GT(::read(terminal, up, sizeof up), 0);
  ::close(terminal);
  int status = 0;
  pid_t ended = 0;
  for (int i = 0; i < 2000 && (ended = ::waitpid(pid, &status, WNOHANG)) == 0; ++i) ::usleep(10'000);
  if (ended == 0) kill_and_reap(pid);
  EXPECT_EQ(ended, pid) << "it goes on without its terminal";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

// Whoever reads its log may stand still.
TEST(Keeper, AFullLogHoldsUpNothing) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_GE(::fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  const std::string bytes(4096, 'x');
  while (::write(ends[1], bytes.data(), bytes.size()) > 0) {
  }
  while (::write(ends[1], "x", 1) > 0) {
  }
  ASSERT_GE(::fcntl(ends[1], F_SETFL, 0), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(ends[1], STDERR_FILENO);
    set_log_level(LogLevel::kInfo);
    auto keeper = Keeper::create({"/bin/sh", {"-c", "kill -TERM $$", "sh"}, milliseconds(1)});
    ::_exit(keeper.ok() ? (*keeper)->run() : 99);
  }
  int status = 0;
  pid_t ended = 0;
  for (int i = 0; i < 2000 && (ended = ::waitpid(pid, &status, WNOHANG)) == 0; ++i) ::usleep(10'000);
  if (ended == 0) kill_and_reap(pid);
  EXPECT_EQ(ended, pid) << "it hangs";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Keeper, AStopIsPassedOn) {
  EXPECT_EQ(
      keep("/bin/sh",
           {"-c", "trap 'exit 7' TERM; i=0; while [ $i -lt 500 ]; do sleep 0.02; i=$((i+1)); done", "sh"},
           SIGTERM),
      7);
  EXPECT_EQ(
      keep("/bin/sh",
           {"-c", "trap 'exit 8' QUIT; i=0; while [ $i -lt 500 ]; do sleep 0.02; i=$((i+1)); done", "sh"},
           SIGQUIT),
      8);
}

}  // namespace
}  // namespace orbitkv::daemon
