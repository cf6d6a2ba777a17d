#include "daemon/processes.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace orbitkv::daemon {
namespace {

constexpr std::size_t kMost = 1024;

bool ended(const UniqueFd& pidfd) {
  pollfd one{pidfd.get(), POLLIN, 0};
  return ::poll(&one, 1, 0) == 1;
}

}  // namespace

// A process id is given again as soon as its process has ended.
Result<ProcessId> Processes::enter(int pid, const UniqueFd& pidfd) {
  for (const Process& each : processes_)
    if (each.pid == pid && !ended(each.pidfd)) return each.id;
  if (processes_.size() >= kMost)
    return busy(format_text("%zu processes that have attached are alive; end some", kMost));
  UniqueFd copy(::fcntl(pidfd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return errno_error("cannot duplicate a pidfd");
  processes_.push_back({ProcessId(++last_), pid, std::move(copy)});
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
