#include "daemon/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "daemon/exits.h"
#include "daemon/fd_message.h"
#include "mem/host_memory.h"
#include "shm/bootstrap.h"

namespace orbitkv::daemon {
namespace {

constexpr rlim_t kOwnDescriptors = 32;
constexpr std::size_t kWordBytes = 10;  // of what changes from life to life
constexpr Duration kOomsEvery = seconds(10);
constexpr Duration kServedFor = seconds(1);  // that an image is one to go back to
constexpr Duration kLook = seconds(1);
constexpr Duration kSayEnding = seconds(30);

// What stops a job of a terminal is ignored: a keeper that stands still is of no use to anybody.
constexpr std::array kIgnored = {SIGTSTP, SIGTTIN, SIGTTOU};

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

bool has_terminal() {
  return UniqueFd(::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC | O_NONBLOCK)).valid();
}

// From the terminal that goes, or from the shell that goes with it; else it is an operator's.
bool terminal_goes(const signalfd_siginfo& info) {
  return info.ssi_code == SI_KERNEL || static_cast<pid_t>(info.ssi_pid) == ::getsid(0);
}

// stderr by a description of its own, so that a full pipe loses a line and holds up nobody.
void log_without_waiting() {
  struct stat status{};
  if (::fstat(STDERR_FILENO, &status) != 0 || S_ISREG(status.st_mode)) return;
  const UniqueFd again(::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (again.valid()) ::dup2(again.get(), STDERR_FILENO);
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

Duration most(Duration a, Duration b) {
  return a < b ? b : a;
}

int exit_status(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

Keeper::Keeper(const Options& options) : options_(options), lives_(options.binary, options.backoff) {}

Result<std::unique_ptr<Keeper>> Keeper::create(const Options& options) {
  std::unique_ptr<Keeper> made(new Keeper(options));
  const Status started = made->start();
  if (started.ok()) return made;
  made->remove_new_paths();
  return started.error();
}

void Keeper::remove_new_paths() const {
  if (claim_.valid()) new_paths_.remove_file(shm::claim_file_of(options_.socket));
  new_paths_.remove_directories();
}

Status Keeper::start() {
  if (!options_.socket.empty()) {
    new_paths_.note(shm::claim_file_of(options_.socket));
    ORBITKV_ASSIGN_OR_RETURN(claim_, shm::claim_path(options_.socket));
  }
  shelf_ = std::make_unique<Shelf>(descriptors());
  const sigset_t set = watched();
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) return errno_error("blocking the keeper's signals");
  signals_ = UniqueFd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals_.valid()) return errno_error("signalfd");
  words_ = {options_.binary};
  words_.insert(words_.end(), options_.arguments.begin(), options_.arguments.end());
  for (const char* option : {"--keeper-says", "--keeper-fd"}) {
    words_.push_back(option);
    words_.push_back(std::string(kWordBytes, '0'));
  }
  for (std::string& word : words_) argv_.push_back(word.data());
  argv_.push_back(nullptr);
  log_ = UniqueFd(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  terminal_ = has_terminal();
  log_without_waiting();
  for (const int signal : kIgnored) ::signal(signal, SIG_IGN);
  // What a wrapper has started becomes this process's child when the wrapper ends, so that its end is known.
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return errno_error("PR_SET_CHILD_SUBREAPER");
  return ok_status();
}

int Keeper::run() {
  start_child();
  while (!over_) {
    std::array<pollfd, 2> fds{{{signals_.get(), POLLIN, 0},
                               {socket_.get(), static_cast<short>(has_unsent_ ? POLLOUT : POLLIN), 0}}};
    if (::poll(fds.data(), fds.size(), wait_ms()) < 0 && errno != EINTR) break;
    if (fds[1].revents != 0) has_unsent_ ? send_answer() : (void)take_message();
    if (fds[0].revents != 0) take_signals();
    if (!over_) look(monotonic_now());
  }
  if (!served_) remove_new_paths();
  return exit_code_;
}

void Keeper::go(Phase next) {
  using enum Phase;
  constexpr std::size_t kPhases = static_cast<std::size_t>(kCount);
  // Rows: from; columns: to.
  constexpr std::array<std::array<bool, kPhases>, kPhases> kEdges = {{
      {false, true, false, false},  // kWaiting
      {true, false, true, true},    // kStarting
      {true, false, false, false},  // kServing
      {true, false, false, false},  // kEnding
  }};
  ORBITKV_CHECK(kEdges[static_cast<std::size_t>(phase_)][static_cast<std::size_t>(next)],
                "a life goes from one phase to the next");
  phase_ = next;
  looked_ = monotonic_now();
}

int Keeper::wait_ms() const {
  Duration wait = kLook;
  if (phase_ == Phase::kWaiting) wait = most(due_ - monotonic_now(), Duration{});
  if (phase_ == Phase::kStarting && options_.silence.ns > 0)
    wait = std::min(wait, Duration{options_.silence.ns / 4});
  if (phase_ == Phase::kServing) wait = kOomsEvery;
  return static_cast<int>(wait.ns / 1'000'000) + 1;
}

// Time counts as it is looked at, a second at most: when the keeper stood still itself, or the host did,
// nobody was silent.
void Keeper::look(TimePoint now) {
  const Duration passed = std::min(now - looked_, kLook);
  if (phase_ == Phase::kWaiting) {
    if (now >= due_) start_child();
    return;
  }
  if (now - ooms_read_ >= kOomsEvery) count_ooms();
  looked_ = now;
  life_.silent.ns += passed.ns;
  if (phase_ == Phase::kStarting) watch_start();
  if (phase_ != Phase::kEnding) return;
  const std::int64_t before = life_.ending.ns / kSayEnding.ns;
  life_.ending.ns += passed.ns;
  if (life_.ending.ns / kSayEnding.ns != before)
    ORBITKV_WARN(
        "what hung does not end, %lld s after SIGKILL: nothing is started before it has; a process "
        "that waits for a device ends when that answers",
        static_cast<long long>(life_.ending.ns / 1'000'000'000));
}

// ---- the child ----

// Its own process group: Ctrl-C reaches the keeper, which passes on one signal.
void Keeper::prepare_child() const {
  (void)::setpgid(0, 0);
  const sigset_t set = watched();
  for (const int signal : kIgnored) ::signal(signal, SIG_DFL);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  if (log_.valid()) ::dup2(log_.get(), STDERR_FILENO);
}

void Keeper::start_child() {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return give_up("no sockets for a child");
  socket_ = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  has_unsent_ = false;
  shelf_->begin_life();
  std::snprintf(argv_[argv_.size() - 2], kWordBytes + 1, "%d", theirs.get());
  std::snprintf(argv_[argv_.size() - 4], kWordBytes + 1, "%s", life_start_name(lives_.begins_as()).data());
  count_ooms();
  ooms_ = next_ooms_;
  life_ = {};
  life_.processes = LifeProcesses(format_text("%d.%u", ::getpid(), ended_));
  life_.started = monotonic_now();
  const pid_t child = ::fork();
  if (child < 0) return give_up("cannot fork");
  if (child == 0) become_child(theirs.get());
  life_.processes.begin(child);
  go(Phase::kStarting);
  tell("starts " + program_named());
}

// The keeper does not wait for it: a file system that does not answer holds up only the child.
void Keeper::become_child(int socket) {
  prepare_child();
  ::fcntl(socket, F_SETFD, 0);
  ::setenv(kLifeCame, life_came_name(lives_.came()).data(), 1);
  ::setenv(kLifeWhy, lives_.why_came().c_str(), 1);
  ::setenv(LifeProcesses::kVariable, life_.processes.name().c_str(), 1);
  ::setenv(kLifeHung, std::to_string(lives_.hung()).c_str(), 1);
  run_program();
  KeeperMessage message;
  message.verb = KeeperVerb::kFails;
  message.set_text(std::string("it cannot be run: ") + std::strerror(errno));
  ORBITKV_ERROR("the keeper cannot run %s: %s", lives_.program(), message.text);
  (void)send_with_fd(socket, std::as_bytes(std::span(&message, 1)).first(message.size()), -1);
  ::_exit(kExitCannotRun);
}

std::string Keeper::program_named() const {
  const std::string program =
      lives_.program() == Lives::kServedImage ? "the image that served last" : lives_.program();
  return program + " (pid " + std::to_string(life_.processes.child()) + ")";
}

// For who asks while no Manager answers.
void Keeper::tell(const std::string& what) {
  shm::say_in_claim(claim_, what);
}

// Returns if it cannot be run.
void Keeper::run_program() {
  if (image_.valid() && lives_.program() == Lives::kServedImage) {
    std::array<char, 32> path{};
    std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", image_.get());
    ::execv(path.data(), argv_.data());
  }
  ::execv(lives_.program(), argv_.data());
}

// Twice: an end that is heard of late is still held against the count before it.
void Keeper::count_ooms() {
  ooms_ = std::exchange(next_ooms_, mem::read_oom_kills().value_or(0));
  ooms_read_ = monotonic_now();
}

void Keeper::take_signals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD)
      reap();
    else if (number == SIGHUP && !(terminal_ && terminal_goes(info)))
      upgrade();
    else
      stop(number == SIGQUIT ? SIGQUIT : SIGTERM);
  }
}

void Keeper::stop(int signal) {
  stopping_ = true;
  if (asking_ > 0) ::kill(asking_, SIGTERM);
  if (life_.processes.child() > 0) {
    ::kill(life_.processes.child(), signal);
  } else {
    over_ = true;
    let_go("stopped while no Manager ran");
  }
}

// It ends, and nobody has drained what it holds.
void Keeper::let_go(const char* why) {
  if (shelf_->count() > 0)
    ORBITKV_WARN("the keeper ends (%s): the blocks that were kept in memory are let go of", why);
  else
    ORBITKV_INFO("the keeper ends (%s); nothing was kept", why);
}

// By the image that serves: it asks first what stands at the path, and says what comes of it.
void Keeper::upgrade() {
  if (life_.processes.child() <= 0 || stopping_)
    return ORBITKV_WARN("SIGHUP: no Manager runs that could make place");
  if (asking_ > 0) return ORBITKV_WARN("SIGHUP: an upgrade is under way already");
  if (!life_.serving.valid() || options_.socket.empty()) return ask_to_leave();
  asking_ = ::fork();
  if (asking_ < 0) return ask_to_leave();
  if (asking_ == 0) become_upgrade();
}

void Keeper::become_upgrade() {
  prepare_child();
  std::array<std::string, 5> words{"orbitkv", "upgrade", "--log", "--bootstrap-socket", options_.socket};
  std::array<char*, 6> argv{};
  for (std::size_t i = 0; i < words.size(); ++i) argv[i] = words[i].data();
  const std::string image = "/proc/self/fd/" + std::to_string(life_.serving.get());
  ::execv(image.c_str(), argv.data());
  ::_exit(kExitCannotRun);
}

// It says itself what comes of it, but where it is none: what serves may be the interpreter of a script.
void Keeper::upgrade_ended(int status) {
  if (stopping_) return;
  const bool asked =
      WIFEXITED(status) && (WEXITSTATUS(status) == kExitDone || WEXITSTATUS(status) == kExitFailed);
  if (asked) return;
  if (WIFSIGNALED(status)) return ORBITKV_WARN("SIGHUP: the upgrade ended by signal %d", WTERMSIG(status));
  ORBITKV_WARN("SIGHUP: what serves cannot upgrade itself (exit status %d): it is asked to make place",
               WEXITSTATUS(status));
  ask_to_leave();
}

void Keeper::ask_to_leave() {
  if (life_.processes.child() <= 0 || stopping_) return;
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
  life_.silent = {};  // whatever it says
  if (got == 0 || unsent_.broken) {
    if (got > 0) ORBITKV_WARN("the Manager sent the keeper what is no message; nothing more of it is kept");
    socket_.reset();
    return false;
  }
  if (shelf_->ready() && phase_ == Phase::kStarting) {
    if (ended_ > 0) ORBITKV_INFO("the Manager serves again");
    go(Phase::kServing);
    tell("");
    lives_.serves();
    life_.serving = served_image();
  } else if (phase_ == Phase::kStarting && !shelf_->said().empty()) {
    tell("starts " + program_named() + ": " + std::string(shelf_->said()));
  }
  has_unsent_ = unsent_.send;
  if (has_unsent_) send_answer();
  return true;
}

// None where the child is a wrapper: its image is a shell, or another tool.
UniqueFd Keeper::served_image() const {
  const bool is_child =
      shelf_->manager() == 0 || static_cast<pid_t>(shelf_->manager()) == life_.processes.child();
  if (!is_child) return {};
  const std::string image = "/proc/" + std::to_string(life_.processes.child()) + "/exe";
  return UniqueFd(::open(image.c_str(), O_PATH | O_CLOEXEC));
}

void Keeper::send_answer() {
  const auto bytes = std::as_bytes(std::span(&unsent_.message, 1)).first(unsent_.message.size());
  if (send_with_fd(socket_.get(), bytes, unsent_.fd) < 0 && (errno == EAGAIN || errno == EINTR)) return;
  has_unsent_ = false;
}

// ---- ends ----

// One that the keeper cannot hear any more may serve by now: it goes on, and is not kept.
void Keeper::watch_start() {
  if (!socket_.valid()) return;
  if (options_.silence.ns > 0 && life_.silent >= options_.silence) end_start();
}

// SIGKILL ends also what stands still. What it has started ends with it: a wrapper's Manager could serve yet.
void Keeper::end_start() {
  life_.hung = format_text("no sign of progress for %lld s",
                           static_cast<long long>(options_.silence.ns / 1'000'000'000));
  if (!shelf_->said().empty()) life_.hung += ", the last one: " + std::string(shelf_->said());
  ORBITKV_WARN("%s hangs at its start (%s): it is ended; serve --start-silence is how long that may be",
               program_named().c_str(), life_.hung.c_str());
  tell("has ended " + program_named() + ", which hung at its start, and waits until it is gone");
  go(Phase::kEnding);
  life_.processes.kill();
}

// Of the last life nothing runs any more: what was below a process that ended is a child of this one by now.
void Keeper::settle_end() {
  if (life_.processes.child() > 0) return;
  life_.processes.kill();  // those that have come to this process since
  if (!life_.processes.gone()) return;
  child_ended(life_.end_status);
}

void Keeper::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    const bool was_child = pid == life_.processes.child();
    life_.processes.reaped(pid);
    if (pid == asking_) {
      asking_ = -1;
      upgrade_ended(status);
    } else if (was_child) {
      // What it said last counts; nobody waits for answers.
      do has_unsent_ = false;
      while (take_message());
      socket_.reset();
      life_.end_status = status;
      if (phase_ != Phase::kEnding) child_ended(status);
    }
  }
  if (phase_ == Phase::kEnding) settle_end();
}

void Keeper::child_ended(int status) {
  // A fault that was asked for (base/fault.h) strikes two lives at most: the first, or the next.
  if (++ended_ == 2) ::unsetenv("ORBITKV_FAULT");
  served_ |= shelf_->ready();
  if (stopping_) {
    over_ = true;
    exit_code_ = exit_status(status);
    if (ended_ > 1 && !shelf_->ready()) let_go("stopped before the next Manager served");
    return;
  }
  if (shelf_->succession()) lives_.succeed(shelf_->successor(), shelf_->cold());
  const bool oom = mem::read_oom_kills().value_or(0) > ooms_;
  const TimePoint now = monotonic_now();
  UniqueFd served = std::move(life_.serving);
  const bool good =
      now - life_.started >= kServedFor || (WIFEXITED(status) && WEXITSTATUS(status) == kExitMadePlace);
  if (served.valid() && good) image_ = std::move(served);
  const bool hung = phase_ == Phase::kEnding;
  const std::string said = hung ? life_.hung : std::string(shelf_->why());
  const Lives::Decision next = lives_.ended({.status = status,
                                             .took = shelf_->took(),
                                             .ready = shelf_->ready(),
                                             .oom = oom,
                                             .lived = now - life_.started,
                                             .now = now,
                                             .hung = hung,
                                             .said = said});
  exit_code_ = next.exit_code;
  if (next.next == Lives::Next::kGiveUp) return give_up(next.why);
  if (!next.why.empty())
    ORBITKV_WARN("%s%s", next.why.c_str(), shelf_->count() > 0 && !next.clear ? " (with what is kept)" : "");
  over_ = next.next == Lives::Next::kEnd;
  if (over_) return;
  if (next.clear) shelf_->clear();
  go(Phase::kWaiting);
  due_ = now + next.backoff;
  tell("starts the next one soon: " + next.why);
  if (next.backoff == Duration{}) start_child();
}

void Keeper::give_up(const std::string& why) {
  ORBITKV_ERROR("the keeper gives the Manager up: %s; what was kept goes", why.c_str());
  over_ = true;
  exit_code_ = kExitFailed;
}

}  // namespace orbitkv::daemon
