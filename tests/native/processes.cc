#include "tests/native/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"
#include "base/time.h"
#include "shm/bootstrap.h"
#include "wire/lifecycle.h"

namespace orbitkv::test {
namespace {
constexpr int kPollMs = 5;

std::vector<std::string> environment_with(const Environment& more) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (!more.contains(text.substr(0, text.find('=')))) out.push_back(text);
  }
  for (const auto& [name, value] : more) out.push_back(name + "=" + value);
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

[[noreturn]] void become(char** command, char** environment, const Process::Options& options, int in,
                         int out) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(in, 0);
  ::dup2(out, 1);
  if (!options.log.empty())
    ::dup2(::open(options.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), 2);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (options.uid != 0 && (::setgid(options.uid) != 0 || ::setuid(options.uid) != 0)) ::_exit(126);
  ::execve(command[0], command, environment);
  ::_exit(127);
}
}  // namespace

// ---- Process ----

Process::Process(const std::vector<std::string>& command, const Options& options) {
  int in[2], out[2];
  ORBITKV_CHECK(::pipe2(in, O_CLOEXEC) == 0 && ::pipe2(out, O_CLOEXEC) == 0, "pipe");
  auto arguments = command;
  auto environment = environment_with(options.environment);
  const auto argv = pointers(arguments), envp = pointers(environment);
  pid_ = ::fork();
  ORBITKV_CHECK(pid_ >= 0, "fork");
  if (pid_ == 0)
    become(const_cast<char**>(argv.data()), const_cast<char**>(envp.data()), options, in[0], out[1]);
  ::close(in[0]);
  ::close(out[1]);
  in_ = UniqueFd(in[1]);
  out_ = UniqueFd(out[0]);
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      in_(std::move(other.in_)),
      out_(std::move(other.out_)),
      pending_(std::move(other.pending_)),
      status_(other.status_) {}

Process::~Process() {
  if (pid_ < 0 || status_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Process::signal(int number) const {
  ::kill(pid_, number);
}

void Process::say(const std::string& line) {
  const std::string text = line + "\n";
  ORBITKV_CHECK(::write(in_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()),
                "write to a child");
}

std::optional<std::string> Process::line(int timeout_ms) {
  const TimePoint deadline = monotonic_now() + milliseconds(timeout_ms);
  for (;;) {
    if (const auto end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    const auto left = static_cast<int>((deadline - monotonic_now()).ns / 1'000'000);
    pollfd entry{out_.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&entry, 1, left) <= 0) return std::nullopt;
    char buffer[4096];
    const ssize_t n = ::read(out_.get(), buffer, sizeof buffer);
    if (n <= 0) return std::nullopt;
    pending_.append(buffer, static_cast<std::size_t>(n));
  }
}

std::optional<int> Process::ended_within(int timeout_ms) {
  const TimePoint deadline = monotonic_now() + milliseconds(timeout_ms);
  while (!status_) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_)
      status_ = status;
    else if (monotonic_now() > deadline)
      return std::nullopt;
    else
      ::usleep(1000);
  }
  return status_;
}

bool Process::running() {
  return !ended_within(0);
}

bool Process::stopped_within(int timeout_ms) {
  const TimePoint deadline = monotonic_now() + milliseconds(timeout_ms);
  while (monotonic_now() < deadline) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG | WUNTRACED) == pid_) {
      if (WIFSTOPPED(status)) return true;
      status_ = status;
      return false;
    }
    ::usleep(1000);
  }
  return false;
}

// ---- Directory ----

Directory::Directory() {
  const char* given = std::getenv("TMPDIR");
  path_ = std::string(given != nullptr ? given : "/tmp") + "/okv-native-XXXXXX";
  ORBITKV_CHECK(::mkdtemp(path_.data()) != nullptr, "mkdtemp");
}

Directory::~Directory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

// ---- StatusView ----

StatusView::StatusView(std::string json) : json_(std::move(json)) {}

std::uint64_t StatusView::operator[](const std::string& path) const {
  auto at = nlohmann::json::parse(json_);
  std::stringstream parts(path);
  for (std::string part; std::getline(parts, part, '.');) {
    nlohmann::json next = at.is_array() ? at.at(std::stoul(part)) : at.at(part);
    at = std::move(next);
  }
  if (at.is_boolean()) return at.get<bool>() ? 1 : 0;
  return at.get<std::uint64_t>();
}

std::uint64_t StatusView::sessions() const {
  return nlohmann::json::parse(json_).at("sessions").size();
}

void end_with_children(Process& keeper) {
  if (!keeper.running()) return;
  keeper.signal(SIGCONT);  // a stop of one that is stopped would not be seen
  keeper.signal(SIGSTOP);
  if (keeper.stopped_within()) {
    const std::string id = std::to_string(keeper.pid());
    std::ifstream children("/proc/" + id + "/task/" + id + "/children");
    for (pid_t child = 0; children >> child;) ::kill(child, SIGKILL);
  }
  keeper.signal(SIGKILL);
  keeper.ended_within();
}

// ---- Guard ----

namespace {
// The keeper has gone with the test, and starts nobody any more.
[[noreturn]] void guard(int test, const char* lock_file) {
  char byte = 0;
  while (::read(test, &byte, 1) < 0 && errno == EINTR) {
  }
  char number[16] = {};
  const int file = ::open(lock_file, O_RDONLY | O_CLOEXEC);
  const bool held = file >= 0 && ::flock(file, LOCK_EX | LOCK_NB) != 0;
  if (held && ::pread(file, number, sizeof number - 1, 0) > 0)
    if (const int pid = std::atoi(number); pid > 1) ::kill(pid, SIGKILL);
  ::_exit(0);
}
}  // namespace

Guard::Guard(const std::string& lock_file) {
  int ends[2];
  ORBITKV_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "pipe");
  open_ = UniqueFd(ends[1]);
  const UniqueFd read(ends[0]);
  pid_ = ::fork();
  ORBITKV_CHECK(pid_ >= 0, "fork");
  if (pid_ > 0) return;
  (void)::setsid();  // what ends the test's group does not end this
  ::close(ends[1]);
  guard(ends[0], lock_file.c_str());
}

Guard::~Guard() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

// ---- Manager ----

Manager::Manager(std::vector<std::string> flags, Environment environment)
    : flags_(std::move(flags)),
      environment_(std::move(environment)),
      socket_(directory_.path() + "/s/manager.sock") {
  start();
}

void Manager::start() {
  process_.reset();
  std::vector<std::string> command = {orbitkv_binary(), "serve", "--bootstrap-socket", socket_};
  const bool sized = std::find(flags_.begin(), flags_.end(), "--pool-size") != flags_.end();
  if (!sized) command.insert(command.end(), {"--pool-size", "64MiB"});
  // What tests count as quarantined stays so, unless they say otherwise.
  const bool retires = std::find(flags_.begin(), flags_.end(), "--retire-after") != flags_.end();
  if (!retires) command.insert(command.end(), {"--retire-after", "3600000"});
  command.insert(command.end(), flags_.begin(), flags_.end());
  process_.emplace(command, Process::Options{environment_, directory_.path() + "/log", 0});
  const TimePoint deadline = monotonic_now() + seconds(20);
  while (!try_status(1000).ok()) {
    ORBITKV_CHECK(process_->running() && monotonic_now() < deadline,
                  ("the Manager does not start: " + log()).c_str());
    ::usleep(kPollMs * 1000);
  }
  // Tests count extents, so the memory is there before they begin.
  while (status()["pool.capacity"] < status()["pool.configured"]) {
    ORBITKV_CHECK(monotonic_now() < deadline, "the pool is not built");
    ::usleep(kPollMs * 1000);
  }
}

Result<std::string> Manager::try_status(int timeout_ms) const {
  ORBITKV_ASSIGN_OR_RETURN(auto socket, shm::connect_to(socket_, timeout_ms));
  std::vector<std::byte> frame;
  wire::encode(wire::Hello{wire::kAbiVersion, wire::PeerRole::kStatus, "native test"}, frame);
  ORBITKV_ASSIGN_OR_RETURN(auto hello, socket.ask_within(frame, timeout_ms));
  if (auto refused = wire::decode_socket_error(hello.frame); refused.ok())
    return Error(refused->code, refused->text);
  frame.clear();
  wire::encode(wire::StatusRequest{1}, frame);
  ORBITKV_RETURN_IF_ERROR(socket.send_within(frame, {}, timeout_ms));
  ORBITKV_ASSIGN_OR_RETURN(auto message, socket.receive_within(timeout_ms));
  ORBITKV_ASSIGN_OR_RETURN(auto reply, wire::decode_status_reply(message.frame));
  return reply.json;
}

StatusView Manager::status() const {
  auto json = try_status();
  ORBITKV_CHECK(json.ok(), json.ok() ? "" : (json.error().message() + "\n" + log()).c_str());
  return StatusView(*json);
}

namespace {
template <class Read>
std::uint64_t poll_until(std::uint64_t value, Read read) {
  const TimePoint deadline = monotonic_now() + seconds(10);
  for (;;) {
    const std::uint64_t now = read();
    if (now == value || monotonic_now() > deadline) return now;
    ::usleep(kPollMs * 1000);
  }
}
}  // namespace

std::uint64_t Manager::settle(const std::string& path, std::uint64_t value) const {
  return poll_until(value, [&] { return status()[path]; });
}

std::uint64_t Manager::settle_sessions(std::uint64_t value) const {
  return poll_until(value, [&] { return status().sessions(); });
}

std::string Manager::log() const {
  std::ifstream file(directory_.path() + "/log");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string orbitkv_binary() {
  const char* given = std::getenv("ORBITKV_BIN");
  return given != nullptr ? given : ORBITKV_BINARY;
}

Process start_helper(const std::vector<std::string>& arguments, const std::string& fault,
                     const std::string& log) {
  std::vector<std::string> command = {ORBITKV_HELPER};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Process::Options options;
  if (!fault.empty()) options.environment["ORBITKV_FAULT"] = fault;
  options.log = log;
  return Process(command, options);
}

}  // namespace orbitkv::test
