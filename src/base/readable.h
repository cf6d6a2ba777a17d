// Whether a descriptor has something to be read, without waiting.
#pragma once

#include <poll.h>

namespace orbitkv {

// False for -1. An end of file and a hang-up are something to be read.
inline bool is_readable(int fd) {
  pollfd watched{fd, POLLIN, 0};
  return fd >= 0 && ::poll(&watched, 1, 0) > 0;
}

}  // namespace orbitkv
