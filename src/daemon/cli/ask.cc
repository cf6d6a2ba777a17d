#include "daemon/cli/ask.h"

#include <vector>

#include "base/limits.h"
#include "base/text.h"
#include "base/version.h"
#include "shm/bootstrap.h"
#include "wire/lifecycle.h"

namespace orbitkv::daemon::cli {
namespace {

Result<shm::Message> ask(shm::Socket& socket, std::span<const std::byte> frame, int timeout_ms) {
  ORBITKV_ASSIGN_OR_RETURN(auto reply, socket.ask_within(frame, timeout_ms));
  if (auto refused = wire::decode_socket_error(reply.frame); refused.ok())
    return Error(refused->code, refused->text);
  return reply;
}

}  // namespace

Result<std::string> ask_manager(const Asker& asker, std::span<const std::byte> question) {
  const std::string path = asker.socket.empty() ? shm::default_socket_path() : asker.socket;
  const int timeout_ms = static_cast<int>(asker.timeout_ms);
  ORBITKV_ASSIGN_OR_RETURN(auto socket, shm::connect_to(path, timeout_ms));
  ORBITKV_ASSIGN_OR_RETURN(auto peer, shm::authenticate_peer(socket));
  std::vector<std::byte> hello;
  wire::encode(wire::Hello{wire::kAbiVersion, wire::PeerRole::kStatus,
                           std::string("orbitkv ") + asker.command + " " + kVersion},
               hello);
  ORBITKV_ASSIGN_OR_RETURN(auto greeting, ask(socket, hello, timeout_ms));
  ORBITKV_RETURN_IF_ERROR(wire::decode_hello_reply(greeting.frame));
  ORBITKV_ASSIGN_OR_RETURN(auto reply, ask(socket, question, timeout_ms));
  ORBITKV_ASSIGN_OR_RETURN(auto answer, wire::decode_status_reply(reply.frame));
  return answer.json;
}

Result<std::string> ask_control(const Asker& asker, const std::string& command) {
  if (command.size() > limits::kControlBytes)
    return reject(format_text("the command has %zu bytes, of at most %u; name less at once", command.size(),
                              static_cast<unsigned>(limits::kControlBytes)));
  std::vector<std::byte> question;
  wire::encode(wire::ControlRequest{1, command}, question);
  return ask_manager(asker, question);
}

}  // namespace orbitkv::daemon::cli
