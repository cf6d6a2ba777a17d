// Clients of the Manager: their sessions, frames and ends.
#include <fcntl.h>

#include <utility>

#include "sim/manager_node.h"
#include "sim/process.h"
#include "sim/session_memories.h"
#include "sim/world.h"

namespace orbitkv::sim {
namespace {
UniqueFd duplicate(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}
}  // namespace

Result<ManagerNode::Seat> ManagerNode::attach(Process& process) {
  if (!listens()) return reconnect("nobody listens");
  return seat(&process, process.number());
}

Result<ManagerNode::Seat> ManagerNode::seat(Process* client, std::uint32_t process) {
  ORBITKV_ASSIGN_OR_RETURN(const daemon::Host::Place place, host_->place());
  auto memory = session_memory(place.id, place.epoch);
  ORBITKV_ASSIGN_OR_RETURN(auto bell, shm::make_bell());
  UniqueFd their_bell = duplicate(bell.get());
  peers_.emplace(place.epoch, Peer{place.id, process, client, memory, 0, 0, {}});
  if (keep_) {
    shelf_.lend(memory);
    keep_->open_session({place.id, place.epoch, daemon::ProcessId(process)}, *memory,
                        shelf_.process(process));
  }
  wire::HelloReply hello{place.id, place.epoch, Incarnation(life_), shm::SessionLayout::kBytes, "sim"};
  daemon::Session& session =
      host_->open({place.id, place.epoch, "process " + std::to_string(process), static_cast<int>(process),
                   shm::ManagerChannel(memory->alias(), std::move(bell)), daemon::ProcessId(process),
                   world_.config().bank_bytes},
                  world_.now());
  host_->offer_slabs(session, world_.now());
  return Seat{hello, std::move(memory), std::move(their_bell), view_};
}

// They do nothing but be there.
void ManagerNode::crowd(Duration time) {
  if (!listens()) return;
  std::vector<std::pair<Epoch, std::uint32_t>> guests;
  for (;;) {
    const std::uint32_t process = world_.next_process();
    auto taken = seat(nullptr, process);
    if (!taken.ok()) break;
    guests.emplace_back(taken->hello.epoch, process);
  }
  world_.events().after(time, [this, guests = std::move(guests)] {
    for (const auto& [epoch, process] : guests) {
      shelf_.end_process(process);
      on_hang_up(epoch);
      on_process_ended(process);
    }
  });
}

ManagerNode::Peer* ManagerNode::peer_of(Epoch epoch) {
  const auto it = peers_.find(epoch);
  return it == peers_.end() ? nullptr : &it->second;
}

daemon::Session* ManagerNode::session_of(Epoch epoch) {
  if (!alive() || doomed_) return nullptr;
  const Peer* peer = peer_of(epoch);
  daemon::Session* session = peer ? host_->find(peer->session) : nullptr;
  return session && session->epoch() == epoch ? session : nullptr;
}

void ManagerNode::on_frame(Epoch from, const std::vector<std::byte>& frame) {
  if (stopped()) return world_.events().at(stopped_until_, [this, from, frame] { on_frame(from, frame); });
  daemon::Session* session = session_of(from);
  if (!session || session->life != daemon::Session::Life::kOpen) return;
  host_->on_frame(*session, frame, world_.now());
  after_turn();
}

void ManagerNode::on_hang_up(Epoch from) {
  if (world_.plant() == Plant::kUnheardDeath) return;
  if (stopped()) return world_.events().at(stopped_until_, [this, from] { on_hang_up(from); });
  daemon::Session* session = session_of(from);
  if (!session) return;
  host_->close(*session, "it closed its socket", world_.now());
  after_turn();
}

void ManagerNode::on_process_ended(std::uint32_t process) {
  if (world_.plant() == Plant::kUnheardDeath) return;
  if (stopped()) return world_.events().at(stopped_until_, [this, process] { on_process_ended(process); });
  for (const Epoch epoch : epochs()) {
    Peer* peer = peer_of(epoch);
    daemon::Session* session = session_of(epoch);
    if (!peer || !session || peer->process != process) continue;
    const ByteCount claimed = expect_claimed_saves(*peer, session->poisoned());
    world_.say("the Manager hears of the end of %s, %llu bytes claimed", session->name().c_str(),
               static_cast<unsigned long long>(claimed.value));
    host_->on_process_ended(*session, world_.now());
  }
  if (alive() && !doomed_) host_->on_process_ended(daemon::ProcessId(process));
  after_turn();
}

Status ManagerNode::send(SessionId session, std::vector<std::byte> frame, std::vector<int> fds) {
  const auto epoch = epoch_of(session);
  Peer* peer = epoch ? peer_of(*epoch) : nullptr;
  if (doomed_ || !peer || !peer->client) return ok_status();
  const bool offer = !fds.empty();
  if (offer) map_offered(frame);
  if (!offer && lose_frames_ > 0) {
    --lose_frames_;
    return ok_status();
  }
  if (!offer && garble_frame_) {
    frame[*garble_frame_ % frame.size()] ^= std::byte{32};
    garble_frame_.reset();
  }
  std::vector<UniqueFd> descriptors;
  for (const int fd : fds) descriptors.push_back(duplicate(fd));
  peer->client->receive(*epoch, {std::move(frame), std::move(descriptors)});
  return ok_status();
}

std::optional<Epoch> ManagerNode::epoch_of(SessionId session) const {
  // The newest: an older one of the same place is gone.
  for (auto it = peers_.rbegin(); it != peers_.rend(); ++it)
    if (it->second.session == session) return it->first;
  return std::nullopt;
}

void ManagerNode::on_closed(daemon::Session& session) {
  Peer* peer = peer_of(session.epoch());
  if (peer) note_plans(*peer);
  if (!doomed_ && peer && peer->client) peer->client->on_hang_up(session.epoch(), Process::HangUp::kUsual);
}

void ManagerNode::on_gone(daemon::Session& session) {
  if (keep_) keep_->close_session(session.epoch());
  if (!doomed_) peers_.erase(session.epoch());
}

void ManagerNode::end_process(daemon::Session& session) {
  Peer* peer = peer_of(session.epoch());
  if (!doomed_ && peer && peer->client) peer->client->condemn();
}

}  // namespace orbitkv::sim
