// Child processes of the native tests: a Manager in a directory of its own and helper
// engines that are driven by lines. Every wait has a deadline; destructors kill.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace orbitkv::test {

using Environment = std::map<std::string, std::string>;

// One spawned program; stdin and stdout are pipes, stderr goes to a file.
class Process {
 public:
  struct Options {
    Environment environment;  // beside ours
    std::string log;          // stderr; empty: ours
    unsigned uid = 0;         // 0: ours
  };
  Process(const std::vector<std::string>& command, const Options& options);
  Process(Process&& other) noexcept;
  Process(const Process&) = delete;
  ~Process();  // SIGKILL

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  void say(const std::string& line);
  // Next line of its stdout; nullopt: it ended or the time is over.
  std::optional<std::string> line(int timeout_ms = 20'000);
  // Wait status (WIFSIGNALED, ...); nullopt: it runs on.
  std::optional<int> ended_within(int timeout_ms = 20'000);
  bool running();
  // Waits until the process is stopped (fault action `stop`).
  bool stopped_within(int timeout_ms = 20'000);

 private:
  pid_t pid_ = -1;
  UniqueFd in_, out_;
  std::string pending_;
  std::optional<int> status_;
};

// The Manager that a keeper has forked goes with it. The keeper first stands still, so that it starts
// no other meanwhile; nobody is asked, for a Manager that starts, or has just been killed, does not answer.
void end_with_children(Process& keeper);

// Beside a Manager that a keeper has forked: when the test's process ends in whatever way, the process
// whose number stands in the lock file is ended.
class Guard {
 public:
  explicit Guard(const std::string& lock_file);
  Guard(const Guard&) = delete;
  ~Guard();

 private:
  pid_t pid_ = -1;
  UniqueFd open_;  // as long as the test lives
};

// A directory of its own, under TMPDIR, that goes with the test.
class Directory {
 public:
  Directory();
  ~Directory();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The Manager's status object, read once.
class StatusView {
 public:
  explicit StatusView(std::string json);
  // "pool.quarantined", "blocks", "sessions.0.operations"; fails the process if absent.
  std::uint64_t operator[](const std::string& path) const;
  std::uint64_t sessions() const;

 private:
  std::string json_;
};

class Manager {
 public:
  explicit Manager(std::vector<std::string> flags = {}, Environment environment = {});
  void start();  // again, on the same path; returns when it answers
  void set_environment(Environment environment) { environment_ = std::move(environment); }
  const std::string& socket() const { return socket_; }
  Process& process() { return *process_; }
  pid_t pid() const { return process_->pid(); }
  Result<std::string> try_status(int timeout_ms = 10'000) const;
  StatusView status() const;
  // Polls until the field has the value, for at most 10 s; returns the last value.
  std::uint64_t settle(const std::string& path, std::uint64_t value) const;
  std::uint64_t settle_sessions(std::uint64_t value) const;
  std::string log() const;
  bool alive() { return process_->running(); }

 private:
  Directory directory_;
  std::vector<std::string> flags_;
  Environment environment_;
  std::string socket_;
  std::optional<Process> process_;
};

std::string orbitkv_binary();  // ORBITKV_BIN, or this build's
// The helper as an engine: see helper.cc for the lines it understands.
Process start_helper(const std::vector<std::string>& arguments, const std::string& fault = {},
                     const std::string& log = "/dev/null");

}  // namespace orbitkv::test
