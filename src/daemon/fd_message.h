// One message with at most one descriptor over a socket of the Manager's own. Never waits.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "base/unique_fd.h"

namespace orbitkv::daemon {

// As sendmsg(): bytes, or -1 with errno. fd -1: none.
inline ssize_t send_with_fd(int socket, std::span<const std::byte> bytes, int fd) {
  iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// As recvmsg(): bytes, 0 at the end, or -1 with errno. Of several descriptors the first is
// taken and the others are closed.
inline ssize_t receive_with_fd(int socket, std::span<std::byte> into, UniqueFd& fd) {
  iovec data{into.data(), into.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t n = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < n; ++i) {
      int one = -1;
      std::memcpy(&one, CMSG_DATA(head) + i * sizeof(int), sizeof one);
      UniqueFd owned(one);
      if (!fd.valid()) fd = std::move(owned);
    }
  }
  return got;
}

}  // namespace orbitkv::daemon
