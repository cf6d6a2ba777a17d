#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "base/version.h"
#include "daemon/cli/commands.h"
#include "shm/bootstrap.h"
#include "wire/lifecycle.h"

namespace orbitkv::daemon::cli {
namespace {
using nlohmann::json;

Result<shm::Message> ask(shm::Socket& socket, const std::vector<std::byte>& frame, int timeout_ms) {
  ORBITKV_ASSIGN_OR_RETURN(auto reply, socket.ask_within(frame, timeout_ms));
  if (auto refused = wire::decode_socket_error(reply.frame); refused.ok())
    return Error(refused->code, refused->text);
  return reply;
}

Result<std::string> fetch(const std::string& path, int timeout_ms) {
  ORBITKV_ASSIGN_OR_RETURN(auto socket, shm::connect_to(path, timeout_ms));
  ORBITKV_ASSIGN_OR_RETURN(auto peer, shm::authenticate_peer(socket));
  std::vector<std::byte> frame;
  wire::encode(
      wire::Hello{wire::kAbiVersion, wire::PeerRole::kStatus, std::string("orbitkv status ") + kVersion},
      frame);
  ORBITKV_ASSIGN_OR_RETURN(auto hello, ask(socket, frame, timeout_ms));
  ORBITKV_RETURN_IF_ERROR(wire::decode_hello_reply(hello.frame));
  frame.clear();
  wire::encode(wire::StatusRequest{1}, frame);
  ORBITKV_ASSIGN_OR_RETURN(auto reply, ask(socket, frame, timeout_ms));
  ORBITKV_ASSIGN_OR_RETURN(auto status, wire::decode_status_reply(reply.frame));
  return status.json;
}

std::string size_of(const json& object, const char* key) {
  return format_size(ByteCount(object.at(key).get<std::uint64_t>()));
}

void print_text(const json& status) {
  const json& pool = status.at("pool");
  std::printf("orbitkv %s at %s, incarnation %s, up %.0f s%s\n",
              status.at("version").get<std::string>().c_str(), status.at("socket").get<std::string>().c_str(),
              status.at("incarnation").get<std::string>().c_str(), status.at("uptime_s").get<double>(),
              status.at("draining").get<bool>() ? ", DRAINING" : "");
  std::printf(
      "pool      %s of %s used (%s configured), %s leased, %s quarantined, largest free %s, %s in huge "
      "pages\n",
      size_of(pool, "used").c_str(), size_of(pool, "capacity").c_str(), size_of(pool, "configured").c_str(),
      size_of(pool, "leased").c_str(), size_of(pool, "quarantined").c_str(),
      size_of(pool, "largest_free").c_str(), size_of(pool, "huge").c_str());
  const auto count = [&](const char* key) { return status.at(key).get<unsigned long long>(); };
  std::printf("blocks    %llu resident, %llu being written, %llu leases, %llu evicted\n", count("blocks"),
              count("inflight_images"), count("leases"), count("evicted"));
  std::printf("queries   %llu blocks hit, %llu missed\n", count("hits"), count("misses"));
  std::printf("publish   %llu blocks, %llu filtered, %llu dropped, %llu abandoned\n", count("published"),
              count("filtered"), count("dropped"), count("abandoned"));
  std::printf("restore   %llu blocks, %llu failed operations, %llu failed verifications\n", count("restored"),
              count("failed_restores"), count("failed_verifications"));
  for (const json& session : status.at("sessions"))
    std::printf("session   %2d %s, pid %d, %s, %d operations\n", session.at("id").get<int>(),
                session.at("name").get<std::string>().c_str(), session.at("pid").get<int>(),
                session.at("state").get<std::string>().c_str(), session.at("operations").get<int>());
  for (const json& instance : status.at("instances"))
    std::printf("instance  %s, %d of %d ranks, %d leases\n", instance.at("id").get<std::string>().c_str(),
                instance.at("ranks").get<int>(), instance.at("world_size").get<int>(),
                instance.at("leases").get<int>());
}
}  // namespace

int status(const StatusFlags& flags) {
  const std::string path = flags.socket.empty() ? shm::default_socket_path() : flags.socket;
  auto text = fetch(path, static_cast<int>(flags.timeout_ms));
  if (!text.ok()) {
    std::fprintf(stderr, "orbitkv status: %s\n", text.error().message().c_str());
    return 1;
  }
  if (flags.json)
    std::printf("%s\n", text->c_str());
  else
    print_text(json::parse(*text));
  return 0;
}

}  // namespace orbitkv::daemon::cli
