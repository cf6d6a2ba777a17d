// The engine-side executor: one thread, one copy queue. It waits for grants of the
// parts given to it, carries them out in order of arrival and reports to the
// operation table. It waits on the channel only while it has parts.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "client/grant_runner.h"
#include "client/link.h"
#include "client/operations.h"

namespace orbitkv::client {

class Executor {
 public:
  Executor(Link& link, OperationTable& operations, bool verify);
  ~Executor();  // stop()

  // Takes the part over. It may be given before its command is sent: a record that is
  // still Reserved waits.
  void add(std::unique_ptr<Part> part);
  // Returns when no part is left (a lost Manager ends all of them soon).
  void wait_empty();
  void stop();

  // Ends a part: operation table, registration, completion.
  static void settle(OperationTable& operations, const Part& part, const PartOutcome& outcome);

 private:
  void run();
  bool sweep();  // true if some part ended
  bool look_at(Attachment* link, Part& part);

  Link& link_;
  OperationTable& operations_;
  GrantRunner runner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Part>> parts_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace orbitkv::client
