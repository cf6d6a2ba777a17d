// orbitkv upgrade: asks the new binary whether it could go on, then the Manager to make place, and
// waits for who comes.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "base/time.h"
#include "base/unique_fd.h"
#include "daemon/cli/ask.h"
#include "daemon/cli/commands.h"
#include "daemon/exits.h"
#include "shm/bootstrap.h"

namespace orbitkv::daemon::cli {
namespace {
using nlohmann::json;

constexpr std::uint32_t kAskMs = 10'000;
constexpr Duration kServesWithin = seconds(120);  // without a word of its keeper
constexpr std::uint32_t kAskAgainMs = 2000;
constexpr Duration kTellEvery = seconds(5);
constexpr useconds_t kPauseUs = 20'000;
constexpr Duration kSaysWithin = seconds(10);
constexpr Duration kEndsWithin = seconds(2);  // when it has said all
constexpr std::size_t kMostSaid = 4096;
constexpr const char* kCameAsAsked = "successor";

std::string path_of(const UpgradeFlags& flags) {
  return flags.socket.empty() ? shm::default_socket_path() : flags.socket;
}

// Its wait status; one that has not ended by then is ended.
int ended_by(pid_t child, TimePoint deadline) {
  int status = 0;
  for (; ::waitpid(child, &status, WNOHANG) == 0; ::usleep(1000)) {
    if (monotonic_now() < deadline) continue;
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    break;
  }
  return status;
}

// stdout of `binary serve --can-keep`, if it ends well within its time.
Result<std::string> said_by(const std::string& binary) {
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno_error("pipe");
  UniqueFd ours(ends[0]), theirs(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return errno_error("fork");
  if (child == 0) {
    ::dup2(theirs.get(), STDOUT_FILENO);
    ::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    ::execl(binary.c_str(), binary.c_str(), "serve", "--can-keep", nullptr);
    ::_exit(127);
  }
  theirs.reset();
  std::string text;
  const TimePoint deadline = monotonic_now() + kSaysWithin;
  std::array<char, 512> part;
  for (ssize_t got = 1; got > 0 && text.size() < kMostSaid;) {
    pollfd ready{ours.get(), POLLIN, 0};
    const std::int64_t left = (deadline - monotonic_now()).ns / 1'000'000;
    got = left > 0 && ::poll(&ready, 1, static_cast<int>(left)) == 1
              ? ::read(ours.get(), part.data(), part.size())
              : -1;
    if (got > 0) text.append(part.data(), static_cast<std::size_t>(got));
  }
  ours.reset();
  // What says that much more is none of ours.
  const int status = ended_by(child, text.size() < kMostSaid ? monotonic_now() + kEndsWithin : TimePoint{});
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return reject("it does not know serve --can-keep");
  return text;
}

// What the running one keeps, at which path it stands, and how it came to be.
struct Running {
  std::uint64_t format = 0, blocks = 0;
  std::string path, incarnation, version, came, why;
  int pid = 0;
  bool alive = true;  // who keeps
};
Result<Running> running(const std::string& socket, std::uint32_t timeout_ms = kAskMs) {
  ORBITKV_ASSIGN_OR_RETURN(const std::string text, ask_status({socket, "upgrade", timeout_ms}));
  const json status = json::parse(text, nullptr, false);
  if (!status.is_object()) return bug("the Manager's status is no JSON object");
  if (!status.contains("kept")) return reject("nothing of this Manager outlives it; start it with --keep");
  Running out;
  out.format = status["kept"].value("format", std::uint64_t{0});
  out.blocks = status["kept"].value("blocks", std::uint64_t{0});
  out.alive = status["kept"].value("alive", true);
  out.came = status["kept"].value("came", "");
  out.why = status["kept"].value("why", "");
  out.incarnation = status.value("incarnation", "");
  out.version = status.value("version", "");
  out.pid = status.value("pid", 0);
  std::error_code error;
  out.path = std::filesystem::read_symlink("/proc/" + std::to_string(status.value("pid", 0)) + "/exe", error);
  const std::string gone = " (deleted)";
  if (out.path.ends_with(gone)) out.path.resize(out.path.size() - gone.size());
  return out;
}

Status check_successor(const UpgradeFlags& flags, const Running& now) {
  const std::string& path = flags.binary.empty() ? now.path : flags.binary;
  if (path.empty())
    return reject(
        "where the running binary stands cannot be read (another user, or another PID namespace?); "
        "give --binary");
  if (::access(path.c_str(), X_OK) != 0)
    return errno_error("'" + path + "' cannot be run: put a program there, or give --binary");
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return reject("'" + path + "' is a directory: give the program in it with --binary");
  const char* const unasked =
      ". Is it orbitkv? If it is, --cold upgrades to it without asking, and lets go of what is kept";
  const auto said = said_by(path);
  if (!said.ok())
    return reject(path + " cannot say what it could go on with: " + said.error().message() + unasked);
  const json can = json::parse(*said, nullptr, false);
  if (!can.is_object() || !can.contains("kept_format"))
    return reject(path + " cannot say what it could go on with: it gave no answer to serve --can-keep" +
                  unasked);
  const auto format = can.value("kept_format", std::uint64_t{0});
  const auto from = can.value("kept_format_from", format);
  if (from <= now.format && now.format <= format) return ok_status();
  return reject(
      format_text("%s goes on with kept memory of formats %llu to %llu, what is kept has format %llu; "
                  "--cold upgrades all the same, and lets go of what is kept",
                  path.c_str(), static_cast<unsigned long long>(from),
                  static_cast<unsigned long long>(format), static_cast<unsigned long long>(now.format)));
}

// Whom the one that was asked for follows.
struct Left {
  std::string incarnation;
  bool claimed = false;  // its keeper had claimed the path
  std::string log;       // where the keeper's last words stand; a clause
};

Result<Left> ask_for_place(const UpgradeFlags& flags) {
  Left left;
  const auto claim = shm::path_claim(path_of(flags));
  left.claimed = claim.has_value();
  left.log = log_text(claim ? claim->pid : 0);
  // While its binary was asked another one may have come.
  ORBITKV_ASSIGN_OR_RETURN(const Running now, running(flags.socket));
  json request = {{"command", "upgrade"}};
  if (!flags.binary.empty()) request["binary"] = flags.binary;
  if (flags.cold) request["cold"] = true;
  ORBITKV_ASSIGN_OR_RETURN(
      const std::string text,
      ask_control({.socket = flags.socket, .command = "upgrade", .timeout_ms = kAskMs, .next = false},
                  request.dump()));
  const json answer = json::parse(text, nullptr, false);
  if (answer.is_object()) left.incarnation = answer.value("incarnation", "");
  if (left.incarnation.empty()) return bug("the Manager's answer does not say which one makes place");
  return left;
}

void say(const UpgradeFlags& flags, LogLevel level, const std::string& text) {
  if (flags.log)
    ORBITKV_LOG(level, "upgrade: %s", text.c_str());
  else
    std::fprintf(stderr, "orbitkv upgrade: %s\n", text.c_str());
}

// That another one than the successor serves.
Error no_successor(const Running& now, const std::string& log) {
  const auto blocks = static_cast<unsigned long long>(now.blocks);
  if (now.came == "back")
    return reject(
        format_text("the successor does not serve; the Manager before serves again, with %llu blocks "
                    "taken over: %s%s",
                    blocks, now.why.c_str(), log.c_str()));
  return reject(
      format_text("a Manager serves, with %llu blocks taken over, but it is not the successor: that one "
                  "served and has ended, or another was started: %s%s",
                  blocks, now.why.c_str(), log.c_str()));
}

// What the keeper says while nobody serves: each word of it is a reason to wait on.
class Following {
 public:
  explicit Following(const UpgradeFlags& flags) : flags_(flags) {}
  // False: no word for long. `claim`: as it is now.
  bool look(const std::optional<shm::PathClaim>& claim) {
    const TimePoint now = monotonic_now();
    if (claim && std::exchange(said_ns_, claim->said_ns) != claim->said_ns) heard_ = now;
    if (claim && !claim->says.empty() && now - told_ >= kTellEvery) {
      told_ = now;
      say(flags_, LogLevel::kInfo, "no Manager serves yet: " + starter_text(*claim));
    }
    return now - heard_ < kServesWithin;
  }

 private:
  const UpgradeFlags& flags_;
  std::int64_t said_ns_ = 0;
  TimePoint heard_ = monotonic_now(), told_ = monotonic_now();
};

// The one that serves after it; an error: it is not the successor.
Result<Running> next_after(const UpgradeFlags& flags, const Left& left) {
  Following following(flags);
  for (;; ::usleep(kPauseUs)) {
    const auto now = running(flags.socket, kAskAgainMs);
    if (now.ok() && now->incarnation != left.incarnation) {
      if (now->came == kCameAsAsked || now->came.empty()) return *now;
      return no_successor(*now, left.log);
    }
    const auto claim = shm::path_claim(path_of(flags));
    if (!now.ok() && left.claimed && !claim)
      return reject(
          "neither the successor nor the Manager before serves, and the keeper has ended: start "
          "orbitkv serve --keep again" +
          left.log);
    if (!following.look(claim))
      return busy("the Manager made place, and its successor does not serve yet: " +
                  (claim ? starter_text(*claim) : "see orbitkv status" + left.log));
  }
}

Result<Running> put_in_place(const UpgradeFlags& flags) {
  ORBITKV_ASSIGN_OR_RETURN(const Running before, running(flags.socket));
  if (!before.alive)
    return reject(format_text(
        "the keeper of the Manager (pid %d) has ended, so there is nobody to start another one: it "
        "serves on, and what is in memory ends with it; when it suits, stop it and start orbitkv "
        "serve --keep again",
        before.pid));
  if (!flags.cold) ORBITKV_RETURN_IF_ERROR(check_successor(flags, before));
  ORBITKV_ASSIGN_OR_RETURN(const Left left, ask_for_place(flags));
  return next_after(flags, left);
}
}  // namespace

int upgrade(const UpgradeFlags& flags) {
  if (!flags.binary.empty() && flags.binary[0] != '/') {
    say(flags, LogLevel::kWarning,
        "--binary '" + flags.binary + "': give an absolute path, for the keeper runs it");
    return kExitUsage;
  }
  const auto now = put_in_place(flags);
  if (!now.ok()) {
    say(flags, LogLevel::kWarning, now.error().message());
    return 1;
  }
  const bool sure = now->came == kCameAsAsked;
  const std::string done = format_text(
      "orbitkv %s serves in the place of the one before (pid %d)%s", now->version.c_str(), now->pid,
      sure ? ""
           : "; its wrapper does not pass on the keeper's environment, which "
             "says whether it is the successor");
  if (flags.log)
    say(flags, LogLevel::kInfo, done);
  else if (flags.json)
    std::printf("%s\n",
                json({{"upgraded", sure ? json(true) : json()}, {"version", now->version}, {"pid", now->pid}})
                    .dump()
                    .c_str());
  else
    std::printf("%s\n", done.c_str());
  return 0;
}

}  // namespace orbitkv::daemon::cli
