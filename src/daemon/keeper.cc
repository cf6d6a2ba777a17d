#include "daemon/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "daemon/fd_message.h"

namespace orbitkv::daemon {
namespace {

constexpr unsigned kColdAfter = 5;  // failures, until what is kept is let go of
constexpr unsigned kTries = 10;     // failures, until it is given up
constexpr Duration kEndedAtOnce = seconds(1);
constexpr Duration kMostBackoff = seconds(5);
constexpr rlim_t kOwnDescriptors = 32;
constexpr int kCannotRun = 127;
// The image of this very process, whatever stands at its path by now.
constexpr const char* kOwnImage = "/proc/self/exe";

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

std::uint32_t descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 64;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t most = limit.rlim_cur > kOwnDescriptors ? limit.rlim_cur - kOwnDescriptors : 0;
  return static_cast<std::uint32_t>(std::min<rlim_t>(most, limits::kKeptDescriptors));
}

std::string how(int status) {
  if (WIFSIGNALED(status)) return format_text("signal %d", WTERMSIG(status));
  return format_text("exit status %d", WEXITSTATUS(status));
}

int exit_status(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

Keeper::Keeper(const Options& options) : options_(options), path_(options.binary), program_(options.binary) {}

Result<std::unique_ptr<Keeper>> Keeper::create(const Options& options) {
  std::unique_ptr<Keeper> made(new Keeper(options));
  ORBITKV_RETURN_IF_ERROR(made->start());
  return made;
}

Status Keeper::start() {
  shelf_ = std::make_unique<Shelf>(descriptors());
  const sigset_t set = watched();
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) return errno_error("blocking the keeper's signals");
  signals_ = UniqueFd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals_.valid()) return errno_error("signalfd");
  words_ = {options_.binary};
  words_.insert(words_.end(), options_.arguments.begin(), options_.arguments.end());
  words_.push_back("--keeper-fd");
  words_.push_back("0000000000");
  for (std::string& word : words_) argv_.push_back(word.data());
  argv_.push_back(nullptr);
  return ok_status();
}

int Keeper::run() {
  start_child();
  while (!over_) {
    std::array<pollfd, 2> fds{{{signals_.get(), POLLIN, 0},
                               {socket_.get(), static_cast<short>(has_unsent_ ? POLLOUT : POLLIN), 0}}};
    int wait = -1;
    const std::int64_t left = (due_ - monotonic_now()).ns;
    if (phase_ == Phase::kWaiting) wait = static_cast<int>(std::max<std::int64_t>(left, 0) / 1'000'000) + 1;
    if (::poll(fds.data(), fds.size(), wait) < 0 && errno != EINTR) break;
    if (fds[1].revents != 0) has_unsent_ ? send_answer() : (void)take_message();
    if (fds[0].revents != 0) take_signals();
    if (!over_ && phase_ == Phase::kWaiting && monotonic_now() >= due_) start_child();
  }
  return exit_code_;
}

// ---- the child ----

const char* Keeper::program() const {
  return program_.c_str();
}

void Keeper::start_child() {
  int ends[2] = {-1, -1}, failure[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0 || ::pipe2(failure, O_CLOEXEC) != 0)
    return give_up("no sockets for a child");
  socket_ = UniqueFd(ends[0]);
  UniqueFd theirs(ends[1]), failed(failure[0]), fails(failure[1]);
  has_unsent_ = false;
  shelf_->begin_life();
  char* const word = argv_[argv_.size() - 2];
  std::snprintf(word, std::strlen("0000000000") + 1, "%d", theirs.get());
  started_ = monotonic_now();
  child_ = ::fork();
  if (child_ < 0) return give_up("cannot fork");
  if (child_ == 0) become_child(theirs.get(), fails.get());
  phase_ = Phase::kRunning;
  fails.reset();
  int error = 0;
  if (::read(failed.get(), &error, sizeof error) == sizeof error)
    ORBITKV_ERROR("the keeper cannot run %s: %s", program(), std::strerror(error));
}

// Its own process group: Ctrl-C reaches the keeper, which passes on one signal.
void Keeper::become_child(int socket, int failure) {
  (void)::setpgid(0, 0);
  const sigset_t set = watched();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::fcntl(socket, F_SETFD, 0);
  ::execv(program(), argv_.data());
  const int error = errno;
  (void)!::write(failure, &error, sizeof error);
  ::_exit(kCannotRun);
}

void Keeper::take_signals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) reap();
    if (info.ssi_signo == SIGHUP) ask_to_leave();
    if (info.ssi_signo != SIGTERM && info.ssi_signo != SIGINT) continue;
    stopping_ = true;
    if (child_ > 0)
      ::kill(child_, SIGTERM);
    else
      over_ = true;
  }
}

void Keeper::ask_to_leave() {
  if (child_ <= 0 || stopping_) return;
  KeeperMessage message;
  message.verb = KeeperVerb::kLeave;
  const auto bytes = std::as_bytes(std::span(&message, 1)).first(message.size());
  if (send_with_fd(socket_.get(), bytes, -1) < 0) ORBITKV_WARN("the Manager does not hear its keeper");
}

// ---- messages: one answer at a time, so that none is lost ----

bool Keeper::take_message() {
  if (!socket_.valid() || has_unsent_) return false;
  std::array<std::byte, sizeof(KeeperMessage)> bytes;
  UniqueFd fd;
  const ssize_t got = receive_with_fd(socket_.get(), bytes, fd);
  if (got < 0) return errno == EINTR;
  if (got > 0) unsent_ = shelf_->handle(std::span(bytes).first(static_cast<std::size_t>(got)), std::move(fd));
  if (got == 0 || unsent_.broken) {
    if (got > 0) ORBITKV_WARN("the Manager sent the keeper what is no message; nothing more of it is kept");
    socket_.reset();
    return false;
  }
  if (shelf_->ready()) {
    if (failures_ > 0) ORBITKV_INFO("the Manager serves again");
    ever_ready_ = true;
    last_good_ = program_;
  }
  has_unsent_ = unsent_.send;
  if (has_unsent_) send_answer();
  return true;
}

void Keeper::send_answer() {
  const auto bytes = std::as_bytes(std::span(&unsent_.message, 1)).first(unsent_.message.size());
  if (send_with_fd(socket_.get(), bytes, unsent_.fd) < 0 && (errno == EAGAIN || errno == EINTR)) return;
  has_unsent_ = false;
}

// ---- ends ----

void Keeper::reap() {
  int status = 0;
  while (child_ > 0 && ::waitpid(child_, &status, WNOHANG) == child_) {
    // What it said last counts; nobody waits for answers.
    do has_unsent_ = false;
    while (take_message());
    socket_.reset();
    child_ = -1;
    child_ended(status);
  }
}

void Keeper::child_ended(int status) {
  // A fault that was asked for (base/fault.h) strikes two lives at most: the first, or the next.
  if (++ended_ == 2) ::unsetenv("ORBITKV_FAULT");
  if (stopping_) {
    over_ = true;
    exit_code_ = exit_status(status);
    return;
  }
  if (shelf_->succession()) {
    if (!shelf_->successor().empty()) path_ = std::string(shelf_->successor());
    program_ = path_;
    failures_ = 0;
    ORBITKV_INFO("the Manager made place (%s); next: %s", how(status).c_str(), program());
    return start_child();
  }
  // A life that nobody else ended: one that was told to stop, by its own signal, ends both.
  if (shelf_->ready() && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    over_ = true;
    return;
  }
  if (!ever_ready_ && WIFEXITED(status)) {  // it has said why
    over_ = true;
    exit_code_ = WEXITSTATUS(status);
    return;
  }
  plan_start(status);
}

void Keeper::plan_start(int status) {
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  const bool served = shelf_->ready() && (killed || monotonic_now() - started_ >= kEndedAtOnce);
  failures_ = served ? 0 : failures_ + 1;
  if (failures_ == kTries) return give_up("it ends whenever it is started");
  if (!shelf_->ready() && program_ != last_good_ && !last_good_.empty() && failures_ > 0) {
    ORBITKV_WARN("%s does not serve (%s): back to %s", program(), how(status).c_str(), last_good_.c_str());
    program_ = last_good_;
  } else if (failures_ == 2 && ever_ready_) {
    program_ = kOwnImage;
    ORBITKV_WARN("the keeper starts the image that it runs itself");
  }
  if (failures_ == kColdAfter) {
    ORBITKV_WARN("the Manager ended %u times in a row: what was kept is let go of", failures_);
    shelf_->clear();
  }
  const Duration backoff =
      failures_ == 0 ? Duration{0} : std::min(Duration{options_.backoff.ns << (failures_ - 1)}, kMostBackoff);
  ORBITKV_WARN("the Manager ended by %s: it is started again%s", how(status).c_str(),
               shelf_->count() > 0 ? " with what was kept" : "");
  phase_ = Phase::kWaiting;
  due_ = monotonic_now() + backoff;
  if (failures_ == 0) start_child();
}

void Keeper::give_up(const char* why) {
  ORBITKV_ERROR("the keeper gives the Manager up: %s; what was kept goes", why);
  over_ = true;
  exit_code_ = 1;
}

}  // namespace orbitkv::daemon
