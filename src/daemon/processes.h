// The processes that have attached and live, by pidfd: a name for each, and when it has
// ended, however many sessions it had. Owned by the Manager; core thread. Bounded.
#pragma once

#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/mappers.h"

namespace orbitkv::daemon {

// One of an earlier life of the Manager, that lives on. Nobody: it has ended, or cannot be told apart.
struct OldProcess {
  ProcessId id;
  int pid = 0;
  SlabId below{0xFFFFFFFFu};  // it knows of no slab from this name on
};

class Processes {
 public:
  // The same name for every session of a living process. kBusy: too many live.
  Result<ProcessId> enter(int pid, const UniqueFd& pidfd);
  // One of which there is the pidfd alone.
  OldProcess enter(const UniqueFd& pidfd);
  // Those that have ended, once.
  std::vector<ProcessId> take_ended();
  std::size_t count() const { return processes_.size(); }

 private:
  struct Process {
    ProcessId id;
    int pid = 0;
    UniqueFd pidfd;
    std::uint64_t inode = 0;  // of the pidfd, where it names the process; 0: it does not
  };
  std::vector<Process> processes_;
  std::uint64_t last_ = 0;
};

}  // namespace orbitkv::daemon
