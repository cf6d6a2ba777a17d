#include "daemon/keeper.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/log.h"

namespace orbitkv::daemon {
namespace {

// In a process of its own: a keeper blocks signals and waits for children.
int keep(const std::string& binary, const std::vector<std::string>& arguments, int signal = 0) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    set_log_level(LogLevel::kOff);
    auto keeper = Keeper::create({binary, arguments, milliseconds(1)});
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

// What never served has said why itself.
TEST(Keeper, AChildThatNeverServedIsNotStartedAgain) {
  EXPECT_EQ(keep("/bin/sh", {"-c", "exit 2", "sh"}), 2);
  EXPECT_EQ(keep("/no/such/program", {}), 127);
}

TEST(Keeper, TheChildHasItsSocketAndNoBlockedSignal) {
  EXPECT_EQ(keep("/bin/sh", {"-c", "test \"$1\" = --keeper-fd && test -S /proc/self/fd/$2", "sh"}), 0);
  EXPECT_EQ(keep("/bin/sh", {"-c", "kill -TERM $$; exit 5", "sh"}, 0), 1)
      << "it was started until it was given up";
}

TEST(Keeper, AStopIsPassedOn) {
  EXPECT_EQ(keep("/bin/sh", {"-c", "trap 'exit 7' TERM; while :; do sleep 0.02; done", "sh"}, SIGTERM), 7);
}

}  // namespace
}  // namespace orbitkv::daemon
