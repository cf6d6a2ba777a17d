#include "shm/bootstrap.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/limits.h"
#include "base/time.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace orbitkv::shm {
namespace {

// A frame and the kernel's bookkeeping for it; the kernel doubles what is asked for.
constexpr int kSendBuffer = 2 * static_cast<int>(limits::kSocketFrameBytes);

Status grow_send_buffer(int fd) {
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
  int got = 0;
  socklen_t length = sizeof got;
  ::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &got, &length);
  if (got >= kSendBuffer) return ok_status();
  return reject("a socket buffer of " + std::to_string(kSendBuffer) + " bytes is needed, the kernel gives " +
                std::to_string(got) + "; raise net.core.wmem_max");
}

// Poll until `events`; false when the deadline has passed.
bool wait_for(int fd, short events, TimePoint deadline) {
  for (;;) {
    const std::int64_t left_ns = std::max<std::int64_t>(0, (deadline - monotonic_now()).ns);
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>((left_ns + 999'999) / 1'000'000));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return true;  // the call that follows says what is wrong
  }
}

Error socket_error(std::string_view what) {
  switch (errno) {
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN: return reconnect(std::string(what) + ": the other side has closed the connection");
    case EAGAIN: return busy(std::string(what) + ": the other side does not read; try again");
    case ETOOMANYREFS:
      return busy(std::string(what) + ": too many descriptors in flight; raise the limit of open files");
    default: return errno_error(what);
  }
}

using ControlBuffer = char[CMSG_SPACE(sizeof(int) * limits::kFdsPerMessage)];

void attach_fds(msghdr& message, std::span<const int> fds, char* control) {
  if (fds.empty()) return;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
}

std::vector<UniqueFd> take_fds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

Result<Socket> Socket::adopt(UniqueFd fd) {
  ORBITKV_RETURN_IF_ERROR(grow_send_buffer(fd.get()));
  return Socket(std::move(fd));
}

Result<std::pair<Socket, Socket>> Socket::pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) {
    return errno_error("socketpair");
  }
  UniqueFd first(fds[0]), second(fds[1]);
  ORBITKV_ASSIGN_OR_RETURN(auto a, adopt(std::move(first)));
  ORBITKV_ASSIGN_OR_RETURN(auto b, adopt(std::move(second)));
  return std::pair(std::move(a), std::move(b));
}

Status Socket::send(std::span<const std::byte> frame, std::span<const int> fds) {
  // An empty packet would look like the end of the connection.
  if (frame.empty() || frame.size() > limits::kSocketFrameBytes || fds.size() > limits::kFdsPerMessage) {
    return reject("a socket message of " + std::to_string(frame.size()) + " bytes and " +
                  std::to_string(fds.size()) + " descriptors is over the limits (" +
                  std::to_string(limits::kSocketFrameBytes) + ", " + std::to_string(limits::kFdsPerMessage) +
                  ")");
  }
  alignas(cmsghdr) ControlBuffer control{};
  iovec part{const_cast<std::byte*>(frame.data()), frame.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  attach_fds(message, fds, control);
  for (;;) {
    if (::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return ok_status();
    if (errno != EINTR) return socket_error("cannot send");
  }
}

Result<std::optional<Message>> Socket::receive() {
  std::byte probe;
  ssize_t size;
  do {
    size = ::recv(fd_.get(), &probe, 1, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && errno == EAGAIN) return std::optional<Message>();
  if (size < 0) return socket_error("cannot receive");
  if (size == 0) return reconnect("the other side has closed the connection");
  Message out;
  out.frame.resize(std::min<std::size_t>(static_cast<std::size_t>(size), limits::kSocketFrameBytes));
  alignas(cmsghdr) ControlBuffer control;
  iovec part{out.frame.data(), out.frame.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return socket_error("cannot receive");
  out.fds = take_fds(message);
  if (message.msg_flags & MSG_TRUNC) {
    return reject("the other side sent " + std::to_string(size) + " bytes, a message has at most " +
                  std::to_string(limits::kSocketFrameBytes));
  }
  if (message.msg_flags & MSG_CTRUNC) {
    return reject("descriptors of a message were lost: more than " + std::to_string(limits::kFdsPerMessage) +
                  " were sent, or the limit of open files (ulimit -n) is reached");
  }
  return std::optional<Message>(std::move(out));
}

Status Socket::send_within(std::span<const std::byte> frame, std::span<const int> fds, int timeout_ms) {
  const TimePoint deadline = monotonic_now() + milliseconds(timeout_ms);
  for (bool again = false;; again = true) {
    Status sent = send(frame, fds);
    if (sent.ok() || sent.error().code() != Code::kBusy) return sent;
    if (monotonic_now() >= deadline || !wait_for(fd_.get(), POLLOUT, deadline)) return sent;
    // Too many descriptors in flight does not show in poll().
    if (again) ::usleep(1000);
  }
}

Result<Message> Socket::receive_within(int timeout_ms) {
  const TimePoint deadline = monotonic_now() + milliseconds(timeout_ms);
  for (;;) {
    ORBITKV_ASSIGN_OR_RETURN(auto message, receive());
    if (message) return std::move(*message);
    if (!wait_for(fd_.get(), POLLIN, deadline)) {
      return busy("no answer within " + std::to_string(timeout_ms) + " ms; is the other process stopped?");
    }
  }
}

Result<Message> Socket::ask_within(std::span<const std::byte> frame, int timeout_ms) {
  Status sent = send_within(frame, {}, timeout_ms);
  if (!sent.ok() && sent.error().code() != Code::kReconnect) return sent.error();
  auto answer = receive_within(timeout_ms);
  if (answer.ok() || answer.error().code() != Code::kReconnect) return answer;
  // Closed with our frame unread: the kernel says so once, ahead of what is queued.
  auto left = receive();
  if (left.ok() && left->has_value()) return std::move(**left);
  return answer;
}

Result<Peer> authenticate_peer(const Socket& socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return errno_error("cannot read the credentials of the other side");
  }
  if (credentials.uid != ::geteuid()) {
    return reject("the other side runs as uid " + std::to_string(credentials.uid) + ", this process as uid " +
                  std::to_string(::geteuid()) + "; run Manager and engines as one user");
  }
  Peer peer{credentials.pid, credentials.uid, UniqueFd()};
  int fd = -1;
  length = sizeof fd;
  if (::getsockopt(socket.fd(), SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
    peer.pidfd = UniqueFd(fd);
  } else if (errno == ENOPROTOOPT && peer.pid > 0) {
    peer.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  }
  if (peer.pidfd.valid()) {
    ::fcntl(peer.pidfd.get(), F_SETFD, FD_CLOEXEC);
    return peer;
  }
  if (peer.pid <= 0) {
    return reject("the other side's process cannot be seen from this PID namespace; share it (--pid=host)");
  }
  if (errno == ESRCH || errno == EINVAL || errno == ENODATA)
    return reconnect("the other side's process has ended");
  return errno_error("cannot watch the other side's process (pidfd)");
}

bool process_ended(const UniqueFd& pidfd) {
  pollfd entry{pidfd.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & POLLIN) != 0;
}

Result<Socket> connect_to(const std::string& path, int timeout_ms) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return reject("socket path " + path + " is longer than " + std::to_string(sizeof address.sun_path - 1) +
                  " bytes; give a shorter --bootstrap-socket");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno_error("cannot make a socket");
  ORBITKV_ASSIGN_OR_RETURN(auto socket, Socket::adopt(std::move(fd)));
  const TimePoint deadline = monotonic_now() + milliseconds(timeout_ms);
  while (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EINTR) continue;
    if (errno == ENOENT || errno == ECONNREFUSED) {
      return reconnect("no Manager listens at " + path +
                       "; start `orbitkv serve`, or give the path that it uses as --bootstrap-socket");
    }
    if (errno == EACCES) return reject("socket " + path + " belongs to another user; run as one user");
    if (errno != EAGAIN) return errno_error("cannot connect to " + path);
    // The queue of the listener is full, which poll() does not show.
    if (monotonic_now() >= deadline)
      return busy("the Manager at " + path + " does not accept; is it stopped?");
    ::usleep(1000);
  }
  return socket;
}

}  // namespace orbitkv::shm
