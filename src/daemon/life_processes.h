// The processes of one life of a Manager, for its keeper: the child, its process group, and what has the
// life's name in its environment. Owned by the keeper, which is a subreaper: what a process of the life
// leaves behind becomes a child of the keeper.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

namespace orbitkv::daemon {

class LifeProcesses {
 public:
  // In the environment of a life and of what it starts: which one of this keeper's. Where the keeper was
  // started by exec(), or is the first process of its PID namespace, it has children that are none of its
  // lives'.
  static constexpr const char* kVariable = "ORBITKV_LIFE";

  LifeProcesses() = default;
  explicit LifeProcesses(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }
  // It leads a process group of its own.
  void begin(pid_t child) { child_ = group_ = child; }
  // -1: there is none, or it has been reaped.
  pid_t child() const { return child_; }
  void reaped(pid_t pid);
  // SIGKILL to all that can be found; what those leave behind is found by another call.
  void kill();
  // Nothing that was found is left to be reaped.
  bool gone() const;

 private:
  bool is_member(pid_t pid) const;

  std::string name_;
  pid_t child_ = -1, group_ = -1;
  std::set<pid_t> killed_;  // and not reaped yet
};

}  // namespace orbitkv::daemon
