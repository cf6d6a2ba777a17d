// The keeper: the parent of a Manager, which holds its descriptors (shelf.h) and starts it again
// when it dies, or its successor when it makes place (lives.h says which). A stop of the keeper, or
// the end of its terminal, is a stop of both. A life that gives no sign of progress at its start is ended,
// and the next one begins when it and all that it has started are gone. It claims the socket's path for as
// long as it lives. One thread; it touches no payload and waits for nobody, not even for who reads its log
// (but where that is a socket, which has no other end to open), and its own death costs a running Manager
// nothing but what would have been kept.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.h"
#include "base/result.h"
#include "base/time.h"
#include "base/unique_fd.h"
#include "daemon/life_processes.h"
#include "daemon/lives.h"
#include "daemon/new_paths.h"
#include "daemon/shelf.h"

namespace orbitkv::daemon {

class Keeper {
 public:
  struct Options {
    std::string binary;                        // of the first life; absolute
    std::vector<std::string> arguments;        // without the program; --keeper-says and --keeper-fd are added
    Duration backoff = milliseconds(100);      // after the first failure; doubled after each, up to 5 s
    std::string socket = {};                   // of the Managers; empty: none is claimed
    Duration silence = limits::kStartSilence;  // after which a start is ended; 0: never
  };
  static Result<std::unique_ptr<Keeper>> create(const Options& options);
  // Until the child ends for good. Its exit status; 1: it was given up.
  int run();

 private:
  enum class Phase : std::uint8_t {
    kWaiting,   // for the time of the next start
    kStarting,  // a child, that has not said that it serves
    kServing,
    kEnding,  // a child that hung, and has been sent SIGKILL: until all that it started is gone
    kCount,
  };
  // From the start of a child to the next one's.
  struct Life {
    LifeProcesses processes;
    TimePoint started;
    UniqueFd serving;  // image of a child that serves: of no use if it ends at once
    Duration silent;   // since its last sign, as far as the keeper looked
    Duration ending;   // likewise, since SIGKILL
    std::string hung;  // how, in words
    int end_status = 0;
  };
  explicit Keeper(const Options& options);
  Status start();
  void start_child();
  void prepare_child() const;
  [[noreturn]] void become_child(int socket);
  void go(Phase next);
  int wait_ms() const;
  void look(TimePoint now);
  void watch_start();
  void end_start();
  void settle_end();
  std::string program_named() const;
  void tell(const std::string& what);
  void run_program();
  void count_ooms();
  void take_signals();
  void stop(int signal);
  void let_go(const char* why);
  void upgrade();
  [[noreturn]] void become_upgrade();
  void upgrade_ended(int status);
  void ask_to_leave();
  bool take_message();
  UniqueFd served_image() const;
  void send_answer();
  void reap();
  void child_ended(int status);
  void remove_new_paths() const;
  void give_up(const std::string& why);

  Options options_;
  std::vector<std::string> words_;
  std::vector<char*> argv_;
  std::unique_ptr<Shelf> shelf_;
  Lives lives_;
  UniqueFd claim_;  // of the path
  NewPaths new_paths_;
  bool served_ = false;  // some life
  UniqueFd signals_, socket_;
  UniqueFd log_;    // stderr as it was given: the Manager's
  UniqueFd image_;  // of the program that served last
  Shelf::Answer unsent_;
  bool has_unsent_ = false;
  Life life_;
  pid_t asking_ = -1;  // an orbitkv upgrade of its own
  Phase phase_ = Phase::kWaiting;
  TimePoint due_, looked_;  // looked_: at a start, or an end
  unsigned ended_ = 0;      // lives
  // As the kernel counted them a while ago, and when: what it killed long before an end did not cause it.
  std::uint64_t ooms_ = 0, next_ooms_ = 0;
  TimePoint ooms_read_;
  bool terminal_ = false;  // it was started in one
  bool stopping_ = false, over_ = false;
  int exit_code_ = 0;
};

}  // namespace orbitkv::daemon
