#include "daemon/life_processes.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

namespace orbitkv::daemon {
namespace {

bool has_children_in(pid_t group) {
  siginfo_t info{};
  return group > 0 && ::waitid(P_PGID, static_cast<id_t>(group), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

bool names(pid_t pid, const std::string& life) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
  const std::string environment{std::istreambuf_iterator<char>(file), {}};
  const std::string mark = std::string(LifeProcesses::kVariable) + "=" + life + '\0';
  return environment.starts_with(mark) || environment.find('\0' + mark) != std::string::npos;
}

}  // namespace

void LifeProcesses::reaped(pid_t pid) {
  killed_.erase(pid);
  if (pid == child_) child_ = -1;
}

// The environment of a process that hangs in the kernel may not be readable, and whoever reads it waits
// as well: it is not asked of those that are known without it.
bool LifeProcesses::is_member(pid_t pid) const {
  return pid == child_ || (group_ > 0 && ::getpgid(pid) == group_) || killed_.contains(pid) ||
         names(pid, name_);
}

void LifeProcesses::kill() {
  if (child_ > 0) ::kill(child_, SIGKILL);
  if (has_children_in(group_)) ::kill(-group_, SIGKILL);
  const std::string id = std::to_string(::getpid());
  std::ifstream list("/proc/" + id + "/task/" + id + "/children");
  for (pid_t pid = 0; list >> pid;) {
    if (!is_member(pid)) continue;
    ::kill(pid, SIGKILL);
    killed_.insert(pid);
  }
}

bool LifeProcesses::gone() const {
  return child_ < 0 && killed_.empty() && !has_children_in(group_);
}

}  // namespace orbitkv::daemon
