// One question to a running Manager over its bootstrap socket. Main thread; waits. Between two Managers
// of a keeper it waits for the next one, a moment long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "shm/bootstrap.h"

namespace orbitkv::daemon::cli {

// Who starts the Managers at a path, what it does just now, and its log: a clause.
std::string starter_text(const shm::PathClaim& claim);
// Where a keeper's last words stand, and those of the Managers that it starts: "; its log: /tmp/serve.log".
std::string log_text(int keeper);

struct Asker {
  std::string socket;  // empty: the default path
  const char* command = "";
  std::uint32_t timeout_ms = 5000;
  bool next = true;  // a Manager that makes place sends it on to the next one
};
// The JSON of the StatusReply. Errors say what is wrong with the socket, or are the Manager's.
Result<std::string> ask_manager(const Asker& asker, std::span<const std::byte> question);
Result<std::string> ask_status(const Asker& asker);
// A command (daemon/control.h), as JSON; so is the answer. One that a Manager may have begun is not
// asked a second time.
Result<std::string> ask_control(const Asker& asker, const std::string& command);

}  // namespace orbitkv::daemon::cli
