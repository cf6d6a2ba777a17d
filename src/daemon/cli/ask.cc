#include "daemon/cli/ask.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/limits.h"
#include "base/text.h"
#include "base/time.h"
#include "base/version.h"
#include "shm/bootstrap.h"
#include "wire/lifecycle.h"

namespace orbitkv::daemon::cli {
namespace {

constexpr Duration kNextWithin = seconds(2);
constexpr useconds_t kPauseUs = 20'000;

// How far it came with a Manager that did not answer.
enum class Told : std::uint8_t { kNothing, kQuestion, kSentOn };

Result<shm::Message> ask(shm::Socket& socket, std::span<const std::byte> frame, int timeout_ms, Told& told) {
  ORBITKV_ASSIGN_OR_RETURN(auto reply, socket.ask_within(frame, timeout_ms));
  auto refused = wire::decode_socket_error(reply.frame);
  if (!refused.ok()) return reply;
  told = Told::kSentOn;
  return Error(refused->code, refused->text);
}

Result<std::string> ask_once(const Asker& asker, const std::string& path, std::span<const std::byte> question,
                             Told& told) {
  const int timeout_ms = static_cast<int>(asker.timeout_ms);
  told = Told::kNothing;
  ORBITKV_ASSIGN_OR_RETURN(auto socket, shm::connect_to(path, timeout_ms));
  ORBITKV_ASSIGN_OR_RETURN(auto peer, shm::authenticate_peer(socket));
  std::vector<std::byte> hello;
  wire::encode(wire::Hello{wire::kAbiVersion, wire::PeerRole::kStatus,
                           std::string("orbitkv ") + asker.command + " " + kVersion},
               hello);
  ORBITKV_ASSIGN_OR_RETURN(auto greeting, ask(socket, hello, timeout_ms, told));
  ORBITKV_RETURN_IF_ERROR(wire::decode_hello_reply(greeting.frame));
  told = Told::kQuestion;
  ORBITKV_ASSIGN_OR_RETURN(auto reply, ask(socket, question, timeout_ms, told));
  ORBITKV_ASSIGN_OR_RETURN(auto answer, wire::decode_status_reply(reply.frame));
  return answer.json;
}

// `again`: a question that may be asked twice.
Result<std::string> ask_next(const Asker& asker, std::span<const std::byte> question, bool again) {
  const std::string path = asker.socket.empty() ? shm::default_socket_path() : asker.socket;
  const TimePoint end = monotonic_now() + std::min(kNextWithin, milliseconds(asker.timeout_ms));
  for (;; ::usleep(kPauseUs)) {
    Told told = Told::kNothing;
    auto answer = ask_once(asker, path, question, told);
    const auto claim = shm::path_claim(path);
    const bool starts = claim && claim->pid > 0 && !claim->says.empty();
    if (!answer.ok() && answer.error().code() == Code::kBusy && told == Told::kNothing && starts)
      return busy("the Manager at " + path + " does not answer yet: " + starter_text(*claim));
    if (answer.ok() || answer.error().code() != Code::kReconnect) return answer;
    if (told == Told::kQuestion && !again)
      return reconnect("the Manager ended before it answered; look whether it did so, and ask again");
    if (!claim || (told == Told::kSentOn && !asker.next)) return answer;
    if (monotonic_now() >= end)
      return reconnect("no Manager serves at " + path + " yet: " + starter_text(*claim) + "; ask again");
  }
}

// Of a process, as /proc/PID/stat has it; 0: it cannot be told.
char state_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = stat.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= stat.size() ? '\0' : stat[name_end + 2];
}

}  // namespace

std::string log_text(int keeper) {
  const char* const unknown = "; see the log of orbitkv serve";
  if (keeper <= 0) return unknown;
  std::error_code error;
  const std::string target =
      std::filesystem::read_symlink("/proc/" + std::to_string(keeper) + "/fd/2", error);
  if (error || target.empty()) return unknown;
  if (target[0] == '/' && target != "/dev/null") return "; its log: " + target;
  if (target.starts_with("socket:")) return "; its log: where its service manager has it (journalctl)";
  return unknown;
}

std::string starter_text(const shm::PathClaim& claim) {
  if (claim.pid <= 0) return "its systemd unit starts the next one; see systemctl status and journalctl";
  const std::string keeper = format_text("its keeper (pid %d) ", claim.pid);
  const char state = state_of(claim.pid);
  if (state == 'T' || state == 't')
    return keeper + format_text("is stopped: kill -CONT %d", claim.pid) + log_text(claim.pid);
  return keeper + (claim.says.empty() ? "is there, and no Manager answers yet" : claim.says) +
         log_text(claim.pid);
}

Result<std::string> ask_manager(const Asker& asker, std::span<const std::byte> question) {
  return ask_next(asker, question, true);
}

Result<std::string> ask_status(const Asker& asker) {
  std::vector<std::byte> question;
  wire::encode(wire::StatusRequest{1}, question);
  return ask_manager(asker, question);
}

Result<std::string> ask_control(const Asker& asker, const std::string& command) {
  if (command.size() > limits::kControlBytes)
    return reject(format_text("the command has %zu bytes, of at most %u; name less at once", command.size(),
                              static_cast<unsigned>(limits::kControlBytes)));
  std::vector<std::byte> question;
  wire::encode(wire::ControlRequest{1, command}, question);
  return ask_next(asker, question, false);
}

}  // namespace orbitkv::daemon::cli
