// Managers under `serve --keep`, for tests that kill and upgrade them.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/time.h"
#include "tests/native/engine.h"
#include "tests/native/processes.h"

namespace orbitkv::test {

constexpr int kUpgradedWithinMs = 150'000;  // longer than the command waits for anything

// A keeper and its Manager; both go with it.
class Kept {
 public:
  explicit Kept(const Environment& environment = {}, std::vector<std::string> flags = {})
      : manager_(with_keep(std::move(flags)), environment) {}
  ~Kept() {
    // One whose keeper has gone goes on by itself.
    const pid_t orphan = keeper().running() ? 0 : manager_pid();
    end_with_children(keeper());
    if (orphan > 0) ::kill(orphan, SIGKILL);
  }
  Manager& manager() { return manager_; }
  Process& keeper() { return manager_.process(); }
  // 0: it does not answer.
  pid_t manager_pid() {
    const auto json = manager_.try_status(2000);
    return json.ok() ? static_cast<pid_t>(StatusView(*json)["pid"]) : 0;
  }
  void kill() {
    const pid_t pid = manager_pid();
    ASSERT_GT(pid, 0);
    ::kill(pid, SIGKILL);
  }
  // A Manager with another pid answers.
  bool lives_again(pid_t before) {
    const TimePoint deadline = monotonic_now() + seconds(20);
    for (; monotonic_now() < deadline; ::usleep(5000)) {
      const pid_t now = manager_pid();
      if (now != 0 && now != before) return true;
    }
    return false;
  }
  int upgrade(const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = {orbitkv_binary(), "upgrade", "--bootstrap-socket", manager_.socket()};
    command.insert(command.end(), more.begin(), more.end());
    Process process(command, {{}, said_in(), 0});
    const auto status = process.ended_within(kUpgradedWithinMs);
    return status && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
  }
  // All upgrades, on stderr.
  std::string said() const {
    std::ifstream file(said_in());
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  static std::vector<std::string> with_keep(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--keep", "--keep-with", "keeper", "--retire-after", "50"});
    return flags;
  }
  std::string said_in() const { return directory_.path() + "/said"; }
  Directory directory_;
  Manager manager_;
  Guard guard_{manager_.socket() + ".lock"};
};

inline bool attached_again(Engine& engine, std::uint64_t old_incarnation) {
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  for (; monotonic_now() < deadline; ::usleep(2000)) {
    const auto health = engine.client().health();
    if (health.connected && health.incarnation != old_incarnation) return true;
  }
  return false;
}

}  // namespace orbitkv::test
