// The keeper: the parent of a Manager, which holds its descriptors (shelf.h) and starts it again
// when it dies, or its successor when it makes place. A stop of the keeper is a stop of both. One
// thread; after the start it allocates nothing but log lines. It touches no payload, and its own
// death costs a running Manager nothing but what would have been kept.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "base/unique_fd.h"
#include "daemon/shelf.h"

namespace orbitkv::daemon {

class Keeper {
 public:
  struct Options {
    std::string binary;                    // of the first life; absolute
    std::vector<std::string> arguments;    // without the program; "--keeper-fd N" is added
    Duration backoff = milliseconds(100);  // after the first failure; doubled after each, up to 5 s
  };
  static Result<std::unique_ptr<Keeper>> create(const Options& options);
  // Until the child ends for good. Its exit status; 1: it was given up.
  int run();

 private:
  enum class Phase : std::uint8_t { kWaiting, kRunning };  // for the time of the next start; a child
  explicit Keeper(const Options& options);
  Status start();
  void start_child();
  [[noreturn]] void become_child(int socket, int failure);
  const char* program() const;
  void take_signals();
  void ask_to_leave();
  bool take_message();
  void send_answer();
  void reap();
  void child_ended(int status);
  void plan_start(int status);
  void give_up(const char* why);

  Options options_;
  std::vector<std::string> words_;
  std::vector<char*> argv_;
  std::string fd_word_;
  std::unique_ptr<Shelf> shelf_;
  UniqueFd signals_, socket_;
  Shelf::Answer unsent_;
  bool has_unsent_ = false;
  std::string path_;                 // of the binary, as it was last named
  std::string program_, last_good_;  // what runs; what served last
  pid_t child_ = -1;
  Phase phase_ = Phase::kWaiting;
  TimePoint started_, due_;
  unsigned ended_ = 0;     // lives
  unsigned failures_ = 0;  // lives in a row that never served, or ended at once
  bool ever_ready_ = false, stopping_ = false, over_ = false;
  int exit_code_ = 0;
};

}  // namespace orbitkv::daemon
