#include "daemon/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "base/limits.h"
#include "base/text.h"
#include "shm/bootstrap.h"

namespace orbitkv::daemon {
namespace {
// 0: of a PID namespace that we cannot see; -1: it has ended.
int pid_of(const UniqueFd& pidfd) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(pidfd.get()));
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("Pid:")) return std::atoi(line.c_str() + 4);
  return 0;
}
// Linux 6.9 gives pidfds inodes, one a process and never given again.
constexpr std::uint64_t kPidFs = 0x50494446;
std::uint64_t inode_of(const UniqueFd& pidfd) {
  struct statfs system{};
  struct stat status{};
  if (::fstatfs(pidfd.get(), &system) != 0 || static_cast<std::uint64_t>(system.f_type) != kPidFs) return 0;
  return ::fstat(pidfd.get(), &status) == 0 ? status.st_ino : 0;
}
}  // namespace

OldProcess Processes::enter(const UniqueFd& pidfd) {
  if (shm::process_ended(pidfd)) return {};
  const int pid = std::max(pid_of(pidfd), 0);
  const auto id = enter(pid, pidfd);
  return id.ok() ? OldProcess{*id, pid} : OldProcess{};
}

// A process id is given again as soon as its process has ended. 0: of a PID namespace that we
// cannot see; each session is its own where the pidfd does not tell.
Result<ProcessId> Processes::enter(int pid, const UniqueFd& pidfd) {
  const std::uint64_t inode = inode_of(pidfd);
  for (const Process& each : processes_) {
    if (inode != 0 && each.inode == inode) return each.id;
    if (inode == 0 && pid > 0 && each.pid == pid && !shm::process_ended(each.pidfd)) return each.id;
  }
  if (processes_.size() >= limits::kProcesses)
    return busy(format_text("%u processes that have attached are alive; end some", limits::kProcesses));
  UniqueFd copy(::fcntl(pidfd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return errno_error("cannot duplicate a pidfd");
  processes_.push_back({ProcessId(++last_), pid, std::move(copy), inode});
  return processes_.back().id;
}

std::vector<ProcessId> Processes::take_ended() {
  std::vector<ProcessId> gone;
  std::vector<pollfd> fds;
  for (const Process& each : processes_) fds.push_back({each.pidfd.get(), POLLIN, 0});
  if (fds.empty() || ::poll(fds.data(), fds.size(), 0) <= 0) return gone;
  for (std::size_t i = 0; i < fds.size(); ++i)
    if (fds[i].revents != 0) gone.push_back(processes_[i].id);
  std::erase_if(processes_, [&](const Process& each) {
    return std::find(gone.begin(), gone.end(), each.id) != gone.end();
  });
  return gone;
}

}  // namespace orbitkv::daemon
