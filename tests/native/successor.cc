// A Manager whose start takes long and goes on: `successor SIGNS PAUSE_MS PROGRAM ARGUMENTS...` tells
// the keeper at --keeper-fd of the arguments that it counts sheep, SIGNS times, and becomes PROGRAM then.
#include <unistd.h>

#include <cstdlib>
#include <span>
#include <string>

#include "daemon/fd_message.h"
#include "daemon/keeper_protocol.h"

int main(int argc, char** argv) {
  namespace daemon = orbitkv::daemon;
  if (argc < 4) return 2;
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  int keeper = -1;
  for (std::size_t i = 3; i + 1 < words.size(); ++i)
    if (std::string(words[i]) == "--keeper-fd") keeper = std::atoi(words[i + 1]);
  for (int sign = 0; sign < std::atoi(words[1]); ++sign) {
    daemon::KeeperMessage message;
    message.verb = daemon::KeeperVerb::kStarting;
    message.set_text("counts sheep");
    const auto bytes = std::as_bytes(std::span(&message, 1)).first(message.size());
    if (daemon::send_with_fd(keeper, bytes, -1) < 0) return 3;
    ::usleep(static_cast<useconds_t>(std::atoi(words[2])) * 1000);
  }
  ::execv(words[3], &words[3]);
  return 4;
}
