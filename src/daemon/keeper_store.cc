#include "daemon/keeper_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "base/time.h"
#include "daemon/fd_message.h"

namespace orbitkv::daemon {
namespace {

constexpr Duration kAnswerWithin = seconds(5);
constexpr std::size_t kUnsent = 2 * std::size_t{limits::kKeptDescriptors};

std::span<const std::byte> bytes_of(const KeeperMessage& message) {
  return std::as_bytes(std::span(&message, 1)).first(message.size());
}

Error keeper_gone() {
  return busy("the keeper is gone: nothing is kept, and upgrades need a restart of orbitkv serve --keep");
}

KeeperMessage named(KeeperVerb verb, std::string_view name) {
  KeeperMessage message;
  message.verb = verb;
  message.set_text(name);
  return message;
}

// What does not fit is cut off.
KeeperMessage saying(KeeperVerb verb, std::string_view text) {
  return named(verb, text.substr(0, kKeeperSaidBytes));
}

}  // namespace

int keeper_of(int socket) {
  ucred maker{};
  socklen_t size = sizeof maker;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &maker, &size) == 0 ? maker.pid : 0;
}

std::string keeper_named(int pid) {
  return pid > 0 ? format_text("the keeper (pid %d)", pid) : std::string("the keeper");
}

std::string keeper_remedy(int pid) {
  return pid > 0 ? format_text("; if it was stopped: kill -CONT %d", pid)
                 : std::string("; if it was stopped, send it SIGCONT");
}

KeeperStore::KeeperStore(UniqueFd socket) : socket_(std::move(socket)), keeper_(keeper_of(socket_.get())) {}

Error KeeperStore::no_answer() const {
  if (!alive_) return reconnect(keeper_named(keeper_) + " is gone");
  return reconnect(keeper_named(keeper_) + " does not answer" + keeper_remedy(keeper_));
}

void KeeperStore::lose() {
  if (!std::exchange(alive_, false)) return;
  ORBITKV_WARN(
      "the keeper is gone: this Manager goes on, and nothing of it outlives its process any more; restart "
      "orbitkv serve --keep when it suits");
  unsent_.clear();
  puts_.clear();
}

std::uint64_t KeeperStore::post(KeeperMessage message, UniqueFd fd) {
  message.request = ++last_;
  if (alive_) unsent_.push_back({message, std::move(fd)});
  flush();
  return last_;
}

void KeeperStore::flush() {
  while (alive_ && !unsent_.empty()) {
    const Letter& letter = unsent_.front();
    if (send_with_fd(socket_.get(), bytes_of(letter.message), letter.fd.get()) >= 0) {
      unsent_.pop_front();
    } else if (errno == EAGAIN || errno == EINTR) {
      return;
    } else {
      return lose();
    }
  }
}

void KeeperStore::poll() {
  while (alive_) {
    std::array<std::byte, sizeof(KeeperMessage)> bytes;
    UniqueFd fd;
    const ssize_t got = receive_with_fd(socket_.get(), bytes, fd);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    const auto message =
        got > 0 ? read_keeper_message(std::span(bytes).first(static_cast<std::size_t>(got))) : std::nullopt;
    if (!message) return lose();
    take_message(*message);
  }
  flush();
}

void KeeperStore::take_message(const KeeperMessage& message) {
  if (message.verb == KeeperVerb::kLeave) {
    leave_ = true;
    return;
  }
  if (message.request == succession_ && message.verb == KeeperVerb::kReply) {
    succession_ = 0;
    const std::string why(message.view().empty() ? "give an absolute path" : message.view());
    succeeded_ =
        message.code == 0 ? ok_status() : Status(reject("the keeper cannot run that program: " + why));
    return;
  }
  if (const auto put = puts_.find(message.request); put != puts_.end()) {
    if (message.code != 0) refused_.push_back(put->second);
    puts_.erase(put);
    return;
  }
  if (const auto removal = removals_.find(message.request); removal != removals_.end())
    removal->second = true;
}

Status KeeperStore::put(const std::string& name, const UniqueFd& fd) {
  if (!alive_) return keeper_gone();
  if (!is_kept_name(name)) return reject("'" + name + "' is no name of a kept descriptor");
  if (unsent_.size() >= kUnsent) return busy("the keeper does not read");
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return errno_error("cannot duplicate a descriptor to be kept");
  const std::uint64_t request = post(named(KeeperVerb::kPut, name), std::move(copy));
  if (alive_) puts_.emplace(request, name);
  return alive_ ? ok_status() : Status(keeper_gone());
}

FdStore::Ticket KeeperStore::remove(const std::string& name) {
  const std::uint64_t request = post(named(KeeperVerb::kRemove, name));
  removals_.emplace(request, false);
  return Ticket(request);
}

void KeeperStore::forget(const std::string& name) {
  post(named(KeeperVerb::kRemove, name));
}

bool KeeperStore::removed(Ticket ticket) {
  poll();
  const auto it = removals_.find(ticket.value);
  if (it == removals_.end()) return true;
  if (alive_ && !it->second) return false;
  removals_.erase(it);
  return true;
}

std::vector<std::string> KeeperStore::refused() {
  return std::exchange(refused_, {});
}

bool KeeperStore::leave_asked() {
  return std::exchange(leave_, false);
}

// Answers that nobody reads would keep the keeper from reading this.
void KeeperStore::starting(std::string_view what) {
  poll();
  if (unsent_.empty()) post(saying(KeeperVerb::kStarting, what));
}

void KeeperStore::fails(std::string_view why) {
  poll();
  post(saying(KeeperVerb::kFails, why));
}

void KeeperStore::ready() {
  KeeperMessage message;
  message.verb = KeeperVerb::kReady;
  message.value = static_cast<std::uint32_t>(::getpid());
  post(message);
}

// Answers to what was posted before come first.
Result<KeeperStore::Reply> KeeperStore::ask(KeeperMessage message) {
  const std::uint64_t request = post(message);
  const TimePoint deadline = monotonic_now() + kAnswerWithin;
  for (TimePoint now = monotonic_now(); alive_ && now < deadline; now = monotonic_now()) {
    pollfd ready{socket_.get(), static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    ::poll(&ready, 1, static_cast<int>((deadline - now).ns / 1'000'000) + 1);
    flush();
    std::array<std::byte, sizeof(KeeperMessage)> bytes;
    Reply reply;
    const ssize_t got = receive_with_fd(socket_.get(), bytes, reply.fd);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    const auto in =
        got > 0 ? read_keeper_message(std::span(bytes).first(static_cast<std::size_t>(got))) : std::nullopt;
    if (!in) {
      lose();
      break;
    }
    if (in->version != kKeeperVersion)
      return reject(
          format_text("the keeper speaks version %u, this Manager version %u: restart orbitkv serve",
                      in->version, kKeeperVersion));
    if (in->request != request || in->verb != KeeperVerb::kReply) {
      take_message(*in);
      continue;
    }
    reply.message = *in;
    return reply;
  }
  return no_answer();
}

Result<std::vector<FdStore::Named>> KeeperStore::take() {
  std::vector<Named> found;
  KeeperMessage message;
  message.verb = KeeperVerb::kGet;
  for (;; ++message.value) {
    ORBITKV_ASSIGN_OR_RETURN(Reply reply, ask(message));
    if (reply.message.code != 0)
      return reject("the keeper refuses to say what it holds: restart orbitkv serve");
    if (message.value >= reply.message.value ||
        message.value >= limits::kKeptDescriptors + kKeeperTablePlaces)
      return found;
    if (!reply.fd.valid() || !is_kept_name(reply.message.view()))
      return busy("the keeper sent no descriptor: is the limit of open files reached?");
    found.push_back({std::string(reply.message.view()), std::move(reply.fd)});
  }
}

Status KeeperStore::succeed(const Successor& successor) {
  if (!alive_) return keeper_gone();
  KeeperMessage message;
  message.verb = KeeperVerb::kSucceed;
  message.value = successor.cold ? 1 : 0;
  if (!message.set_text(successor.binary)) return reject("the path of the binary is too long");
  succeeded_.reset();
  succession_ = post(message);
  return ok_status();
}

std::optional<Status> KeeperStore::succeeded() {
  if (!alive_ && std::exchange(succession_, 0) != 0) return Status(keeper_gone());
  return std::exchange(succeeded_, std::nullopt);
}

}  // namespace orbitkv::daemon
