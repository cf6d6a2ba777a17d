// How a client becomes a session: accept, hello, credentials, session memory.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "base/version.h"
#include "daemon/manager.h"

namespace orbitkv::daemon {
namespace {
constexpr std::size_t kVisitors = 32;  // connections that have not become sessions
constexpr Duration kHelloWithin = seconds(5);
constexpr Duration kControlWithin = seconds(120);  // a command may wait for the device

}  // namespace

void Manager::refuse(shm::Socket& socket, const Error& why) {
  std::vector<std::byte> out;
  wire::encode(wire::SocketError{0, why.code(), why.message()}, out);
  if (!socket.send(out).ok()) ORBITKV_DEBUG("a refused client had already left");
  ORBITKV_WARN("refused a client: %s", why.message().c_str());
}

void Manager::on_connection() {
  for (int i = 0; i < 8; ++i) {
    auto accepted = listener_->accept();
    if (!accepted.ok()) return pause_listening(accepted.error());
    if (!accepted->has_value()) return;
    said_accept_failure_ = false;
    shm::Socket socket = std::move(**accepted);
    auto peer = shm::authenticate_peer(socket);
    if (!peer.ok()) {
      refuse(socket, peer.error());
      continue;
    }
    if (visitors_.size() >= kVisitors) {
      refuse(socket, busy(format_text("%zu connections are still saying hello; try again", kVisitors)));
      continue;
    }
    const int fd = socket.fd();
    auto visitor = std::make_unique<Visitor>(Visitor{
        std::move(socket), std::move(*peer), monotonic_now() + kHelloWithin, false, false, next_visitor_++});
    auto added = loop_->add(fd, rt::kReadable, [this, fd](rt::Ready) { on_visitor(fd); });
    if (!added.ok()) {
      refuse(visitor->socket, added.error());
      continue;
    }
    visitors_.push_back(std::move(visitor));
  }
}

// What waits at the listener keeps it readable: without a pause the loop would spin on it.
void Manager::pause_listening(const Error& why) {
  if (!std::exchange(said_accept_failure_, true)) ORBITKV_WARN("accept: %s", why.message().c_str());
  loop_->remove(listener_->fd());
  listening_ = false;
}

// Nobody else serves at the path: whoever removed the socket wanted to tidy up.
void Manager::renew_listener() {
  if (!listener_->gone()) {
    said_gone_ = false;
    return;
  }
  const int old = listener_->fd();
  loop_->remove(old);
  listening_ = false;
  const Status renewed = listener_->renew();
  if (!std::exchange(said_gone_, true)) {
    ORBITKV_WARN("the socket %s was removed; %s", options_.socket.c_str(),
                 renewed.ok() ? "it is made anew" : renewed.error().message().c_str());
  }
}

void Manager::listen_again() {
  if (listening_) return;
  Status added = loop_->add(listener_->fd(), rt::kReadable, [this](rt::Ready) { on_connection(); });
  listening_ = added.ok();
}

void Manager::drop_visitor(int fd) {
  loop_->remove(fd);
  std::erase_if(visitors_, [fd](const auto& visitor) { return visitor->socket.fd() == fd; });
}

void Manager::on_visitor(int fd) {
  auto it = std::find_if(visitors_.begin(), visitors_.end(), [fd](auto& v) { return v->socket.fd() == fd; });
  if (it == visitors_.end()) return;
  Visitor& visitor = **it;
  auto message = visitor.socket.receive();
  if (message.ok() && !message->has_value()) return;
  if (!message.ok()) return drop_visitor(fd);
  const auto& frame = (*message)->frame;
  if (visitor.greeted) return on_question(visitor, frame);
  auto hello = wire::decode_hello(frame);
  if (!hello.ok()) {
    refuse(visitor.socket, hello.error());
    return drop_visitor(fd);
  }
  greet(visitor, *hello);
  // A status visitor stays for its question; an engine's socket has moved into its
  // session, which watches the same descriptor now.
  if (visitor.socket.fd() != fd)
    std::erase_if(visitors_, [&](const auto& v) { return v.get() == &visitor; });
  else if (!visitor.greeted)
    drop_visitor(fd);
}

void Manager::on_question(Visitor& visitor, std::span<const std::byte> frame) {
  const int fd = visitor.socket.fd();
  if (auto command = wire::decode_control_request(frame); command.ok()) {
    visitor.deadline = monotonic_now() + kControlWithin;
    visitor.asking = true;
    return on_control(visitor.number, *command);
  }
  auto asked = wire::decode_status_request(frame);
  if (!asked.ok()) return drop_visitor(fd);
  std::vector<std::byte> out;
  wire::encode(wire::StatusReply{asked->request, status_json()}, out);
  if (!visitor.socket.send(out).ok()) drop_visitor(fd);
}

void Manager::greet(Visitor& visitor, const wire::Hello& hello) {
  if (hello.abi != wire::kAbiVersion) {
    const bool older = hello.abi < wire::kAbiVersion;
    return refuse(visitor.socket,
                  reject(format_text(
                      "the client speaks ABI %u, this Manager (orbitkv %s) speaks ABI %u: upgrade the %s",
                      hello.abi, kVersion, wire::kAbiVersion, older ? "client" : "Manager")));
  }
  if (hello.role == wire::PeerRole::kStatus) {
    std::vector<std::byte> out;
    wire::encode(wire::HelloReply{SessionId(), Epoch(), incarnation_, 0, std::string("orbitkv ") + kVersion},
                 out);
    visitor.greeted = visitor.socket.send(out).ok();
    return;
  }
  auto made = make_session(visitor, hello);
  if (!made.ok()) refuse(visitor.socket, made.error());
}

Status Manager::make_session(Visitor& visitor, const wire::Hello& hello) {
  ORBITKV_ASSIGN_OR_RETURN(const Host::Place place, host_->place());
  ORBITKV_ASSIGN_OR_RETURN(const ProcessId process, processes_.enter(visitor.peer.pid, visitor.peer.pidfd));
  ORBITKV_ASSIGN_OR_RETURN(auto memory, shm::SessionMemory::create(place.id, place.epoch));
  ORBITKV_ASSIGN_OR_RETURN(auto bell, shm::make_bell());
  std::vector<std::byte> out;
  wire::encode(wire::HelloReply{place.id, place.epoch, incarnation_, shm::SessionLayout::kBytes,
                                std::string("orbitkv ") + kVersion},
               out);
  if (keep_) keep_->open_session({place.id, place.epoch, process}, memory, visitor.peer.pidfd);
  const int fds[] = {memory.fd(), bell.get()};
  if (const Status sent = visitor.socket.send(out, fds); !sent.ok()) {
    if (keep_) keep_->close_session(place.epoch);
    return sent;
  }
  loop_->remove(visitor.socket.fd());
  auto& connection = connections_[place.id.value];
  connection = std::make_unique<Connection>(std::move(visitor.socket), std::move(visitor.peer));
  Session& session = host_->open({place.id, place.epoch, hello.client, connection->peer().pid,
                                  shm::ManagerChannel(std::move(memory), std::move(bell)), process},
                                 monotonic_now());
  adopt(session, *connection);
  return ok_status();
}

// Watches everything that a session can be heard through.
void Manager::adopt(Session& session, Connection& connection) {
  const SessionId id = session.id();
  Status watched =
      loop_->add(connection.socket().fd(), rt::kReadable, [this, id](rt::Ready r) { on_socket(id, r); });
  if (watched.ok())
    watched = loop_->add(connection.peer().pidfd.get(), rt::kReadable,
                         [this, id](rt::Ready) { on_process_ended(id); });
  if (watched.ok()) watched = loop_->add(session.channel().wake_fd(), rt::kReadableEdge, [](rt::Ready) {});
  if (!watched.ok()) return host_->close(session, watched.error().message().c_str(), monotonic_now());
  ORBITKV_INFO("session %u attached: %s, pid %d", id.value, session.name().c_str(), session.pid());
  host_->offer_slabs(session, monotonic_now());
}

}  // namespace orbitkv::daemon
