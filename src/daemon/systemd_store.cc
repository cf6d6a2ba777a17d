#include "daemon/systemd_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/limits.h"
#include "base/text.h"
#include "daemon/fd_message.h"
#include "daemon/keeper_protocol.h"

namespace orbitkv::daemon {
namespace {

constexpr int kFirstPassed = 3;
constexpr Duration kNoSilence = seconds(24 * 3600);  // where a start may say nothing for as long as it likes
constexpr std::size_t kUnsent = 2 * std::size_t{limits::kKeptDescriptors};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A line is an assignment.
std::string one_line(std::string_view text) {
  std::string line(text.substr(0, kKeeperSaidBytes));
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

}  // namespace

SystemdStore::Given SystemdStore::read_environment() {
  Given given;
  given.notify_socket = variable("NOTIFY_SOCKET");
  given.most = static_cast<std::uint32_t>(std::strtoul(variable("FDSTORE").c_str(), nullptr, 10));
  const bool ours = variable("LISTEN_PID") == std::to_string(::getpid());
  const int count = ours ? std::atoi(variable("LISTEN_FDS").c_str()) : 0;
  const std::string names = variable("LISTEN_FDNAMES") + ":";
  std::size_t at = 0;
  for (int i = 0; i < count && at < names.size(); ++i) {
    const std::size_t end = names.find(':', at);
    UniqueFd fd(kFirstPassed + i);
    if (::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
      (void)fd.release();
      break;
    }
    given.stored.push_back({names.substr(at, end - at), std::move(fd)});
    at = end + 1;
  }
  for (const char* name : {"NOTIFY_SOCKET", "FDSTORE", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"})
    ::unsetenv(name);
  return given;
}

bool SystemdStore::offered() {
  return !variable("NOTIFY_SOCKET").empty() && std::strtoul(variable("FDSTORE").c_str(), nullptr, 10) > 0;
}

Result<std::unique_ptr<SystemdStore>> SystemdStore::open(Given given, Duration silence) {
  if (given.most == 0 || given.notify_socket.empty())
    return reject(
        "systemd keeps no descriptors of this unit; set FileDescriptorStoreMax= and NotifyAccess=main, "
        "with systemd 254 or later");
  std::unique_ptr<SystemdStore> made(new SystemdStore(std::move(given), silence));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& path = made->given_.notify_socket;
  if (path.size() >= sizeof address.sun_path) return reject("$NOTIFY_SOCKET is too long");
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  made->socket_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!made->socket_.valid()) return errno_error("cannot make a socket");
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (::connect(made->socket_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0)
    return errno_error("cannot reach $NOTIFY_SOCKET");
  return made;
}

void SystemdStore::post(Letter letter) {
  unsent_.push_back(std::move(letter));
  flush();
}

// systemd reads nothing while it reloads itself, and all units share its socket.
void SystemdStore::flush() {
  while (!unsent_.empty()) {
    const Letter& letter = unsent_.front();
    if (send_with_fd(socket_.get(), bytes_of(letter.text), letter.fd.get()) < 0) {
      // What is removed is removed, and nothing says so before; what cannot be stored is told.
      if (errno == EAGAIN || errno == EINTR || (letter.put.empty() && !letter.news)) return;
      names_.erase(letter.put);
      if (!letter.put.empty()) refused_.push_back(letter.put);
    }
    unsent_.pop_front();
  }
}

Result<std::vector<FdStore::Named>> SystemdStore::take() {
  for (const Named& each : given_.stored) names_.insert(each.name);
  return std::exchange(given_.stored, {});
}

Status SystemdStore::put(const std::string& name, const UniqueFd& fd) {
  if (!is_kept_name(name)) return reject("'" + name + "' is no name of a kept descriptor");
  if (names_.size() >= given_.most)
    return busy(format_text("systemd stores %u descriptors of this unit; raise FileDescriptorStoreMax=",
                            given_.most));
  if (unsent_.size() >= kUnsent) return busy("systemd does not read its notifications");
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return errno_error("cannot duplicate a descriptor to be kept");
  names_.insert(name);
  post({"FDSTORE=1\nFDNAME=" + name + "\nFDPOLL=0", std::move(copy), name});
  return ok_status();
}

void SystemdStore::forget(const std::string& name) {
  if (names_.erase(name) > 0) post({"FDSTOREREMOVE=1\nFDNAME=" + name, {}, {}});
}

// The barrier is closed when all before it has been handled.
FdStore::Ticket SystemdStore::remove(const std::string& name) {
  const Ticket ticket(++last_);
  if (!names_.contains(name)) return ticket;
  forget(name);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return ticket;  // then it is not known, and counts as done
  barriers_[ticket.value] = UniqueFd(ends[0]);
  post({"BARRIER=1", UniqueFd(ends[1]), {}});
  return ticket;
}

bool SystemdStore::removed(Ticket ticket) {
  flush();
  const auto it = barriers_.find(ticket.value);
  if (it == barriers_.end()) return true;
  pollfd ready{it->second.get(), POLLIN, 0};
  if (::poll(&ready, 1, 0) != 1 || (ready.revents & POLLHUP) == 0) return false;
  barriers_.erase(it);
  return true;
}

void SystemdStore::poll() {
  flush();
}

std::vector<std::string> SystemdStore::refused() {
  return std::exchange(refused_, {});
}

// A start that goes on may take longer than TimeoutStartSec=.
void SystemdStore::starting(std::string_view what) {
  flush();
  if (!unsent_.empty()) return;
  std::string text = "STATUS=starts: " + one_line(what);
  const Duration silence = silence_.ns > 0 ? silence_ : kNoSilence;
  text += format_text("\nEXTEND_TIMEOUT_USEC=%lld", static_cast<long long>(silence.ns / 1000));
  post({std::move(text), {}, {}, true});
}

void SystemdStore::fails(std::string_view why) {
  post({"STATUS=failed: " + one_line(why), {}, {}, true});
}

void SystemdStore::ready() {
  post({"STATUS=serves", {}, {}, true});
  post({"READY=1", {}, {}});  // whoever starts us gives up waiting, and says so
}

Status SystemdStore::succeed(const Successor&) {
  return reject(
      "systemd starts the next Manager: put the new binary in its place, then systemctl reload (the unit "
      "needs "
      "ExecReload= and Restart=, as docs/upgrade.md has them)");
}

}  // namespace orbitkv::daemon
