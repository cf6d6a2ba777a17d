// Sessions of the host from place to end: frames, slab offers, closing, collecting.
#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "daemon/host.h"
#include "daemon/scope.h"
#include "wire/lifecycle.h"

namespace orbitkv::daemon {

Result<Host::Place> Host::place() {
  if (draining_) return reconnect("the Manager is shutting down");
  auto slot = std::find(sessions_.begin(), sessions_.end(), nullptr);
  if (slot == sessions_.end()) {
    collect_all();  // those that said goodbye since the last tick are gone already
    slot = std::find(sessions_.begin(), sessions_.end(), nullptr);
  }
  if (slot == sessions_.end())
    return busy(
        format_text("all %u sessions are taken; close an engine or wait until an ended one is collected",
                    limits::kSessions));
  return Place{SessionId(static_cast<std::uint32_t>(slot - sessions_.begin())), Epoch(next_epoch_++)};
}

Session& Host::open(Session::Parts parts, TimePoint now) {
  const SessionId id = parts.id;
  auto& slot = sessions_[id.value];
  ORBITKV_CHECK(slot == nullptr, "a session's place is taken");
  slot = std::make_unique<Session>(std::move(parts));
  live_.push_back(id);
  stalls_.reset(id);
  core_.open_session(id, now);
  slabs_.open(*slot, slot->process());
  return *slot;
}

void Host::on_frame(Session& session, std::span<const std::byte> bytes, TimePoint now) {
  ++session.heard;
  auto frame = wire::open_frame(bytes);
  if (!frame.ok()) return close(session, frame.error().message().c_str(), now);
  switch (frame->type) {
    case wire::FrameType::kRegister: return on_register(session, bytes, now);
    case wire::FrameType::kUnregister: return on_unregister(session, bytes, now);
    case wire::FrameType::kSlabReleased: return on_slab_released(session, bytes, now);
    case wire::FrameType::kBye:
      take_receipts(session, true, now);
      session.said_goodbye = true;
      return close(session, "it said goodbye", now);
    case wire::FrameType::kStatusRequest: return on_status_request(session, bytes, now);
    default: return close(session, "it sent a frame that only the Manager sends", now);
  }
}

void Host::answer(Session& session, std::vector<std::byte> frame, TimePoint now) {
  const Status sent = owner_.send(session.id(), std::move(frame), {});
  if (sent.ok()) return;
  const bool busy = sent.error().code() == Code::kBusy;
  close(session, busy ? "it does not read its socket" : sent.error().message().c_str(), now);
}

void Host::on_register(Session& session, std::span<const std::byte> frame, TimePoint now) {
  auto in = wire::decode_register(frame);
  if (!in.ok()) return close(session, in.error().message().c_str(), now);
  offer_slabs(session, now);
  if (session.life != Session::Life::kOpen) return;
  const Status scope = check_scope(in->rank.name_space);
  const auto made =
      scope.ok() ? core_.register_rank(session.id(), in->rank, now) : Result<RegistrationId>(scope.error());
  std::vector<std::byte> out;
  if (made.ok()) {
    ORBITKV_INFO("session %u registered rank %u of %u on %s: %u blocks, %zu groups", session.id().value,
                 in->rank.rank, in->rank.world_size, in->rank.device.c_str(), in->rank.num_blocks,
                 in->rank.groups.size());
    wire::encode(wire::RegisterReply{in->request, *made, pool_.id()}, out);
  } else {
    wire::encode(wire::SocketError{in->request, made.error().code(), made.error().message()}, out);
  }
  answer(session, std::move(out), now);
}

void Host::on_unregister(Session& session, std::span<const std::byte> frame, TimePoint now) {
  auto in = wire::decode_unregister(frame);
  if (!in.ok()) return close(session, in.error().message().c_str(), now);
  serve(session, true, now);  // receipts that are on their way count
  auto done = core_.unregister(session.id(), in->registration);
  std::vector<std::byte> out;
  if (done.ok())
    wire::encode(wire::UnregisterReply{in->request}, out);
  else
    wire::encode(wire::SocketError{in->request, done.error().code(), done.error().message()}, out);
  answer(session, std::move(out), now);
}

void Host::on_status_request(Session& session, std::span<const std::byte> frame, TimePoint now) {
  auto in = wire::decode_status_request(frame);
  if (!in.ok()) return close(session, in.error().message().c_str(), now);
  std::vector<std::byte> out;
  wire::encode(wire::StatusReply{in->request, owner_.status_json()}, out);
  answer(session, std::move(out), now);
}

void Host::offer_slabs(Session& session, TimePoint now) {
  if (session.life != Session::Life::kOpen) return;
  const Status offered = slabs_.offer(session);
  if (!offered.ok()) close(session, offered.error().message().c_str(), now);
}

// Receipts of copies on the slab count before it.
void Host::on_slab_released(Session& session, std::span<const std::byte> frame, TimePoint now) {
  auto in = wire::decode_slab_released(frame);
  if (!in.ok()) return close(session, in.error().message().c_str(), now);
  take_receipts(session, true, now);
  if (slabs_.released(session, in->slab)) return;
  session.poison("it lets go of a slab that it was not asked to let go of, or copies there still");
  close(session, "it broke the protocol", now);
}

void Host::close(Session& session, const char* why, TimePoint now) {
  if (session.life != Session::Life::kOpen) return;
  ORBITKV_INFO("session %u (%s) closed: %s; %u operations open", session.id().value, session.name().c_str(),
               why, session.open_operations());
  session.life = Session::Life::kClosed;
  owner_.on_closed(session);
  core_.close_session(session.id(), now);
  // Who still holds a claim has not unmapped anything, whatever it said.
  const bool unmapped = session.said_goodbye && session.open_operations() == 0;
  slabs_.close(session.id(), unmapped ? Mappers::Parting::kUnmapped : Mappers::Parting::kUnknown);
  session.channel().ring_client();
}

// What it had not claimed goes back at once; what it had waits for its receipt, or for the
// end of its process. No time gives memory back.
void Host::look_for_stall(Session& session, TimePoint now) {
  if (!stalls_.on() || session.life != Session::Life::kOpen) return;
  const std::uint64_t signs = session.channel().beat() + session.heard;
  const unsigned id = session.id().value;
  const char* name = session.name().c_str();
  switch (stalls_.look(session.id(), signs, session.open_operations() > 0)) {
    case StallWatch::Verdict::kNone: return;
    case StallWatch::Verdict::kStalled:
      core_.stall_session(session.id(), now);
      ORBITKV_WARN(
          "session %u (%s, pid %d) is stalled: no sign of life for %lld s; it holds %u claimed operations",
          id, name, session.pid(), static_cast<long long>(stalls_.silent(session.id()).ns / 1'000'000'000),
          session.open_operations());
      return;
    case StallWatch::Verdict::kRevived:
      core_.revive_session(session.id());
      ORBITKV_INFO("session %u (%s, pid %d) goes on", id, name, session.pid());
      return;
    case StallWatch::Verdict::kCondemned:
      ORBITKV_WARN("session %u (%s, pid %d) stands still with %u claimed operations: its process is ended",
                   id, name, session.pid(), session.open_operations());
      return owner_.end_process(session);
  }
}

// Every store of the process is visible now: the receipts that it managed to publish come
// before what settles the rest.
void Host::on_process_ended(Session& session, TimePoint now) {
  close(session, "its process ended", now);
  serve(session, true, now);
  session.life = Session::Life::kEnded;
  core_.process_ended(session.id(), now);
  slabs_.process_ended(session.process());
  collect(session);
}

void Host::collect(Session& session) {
  if (session.life == Session::Life::kOpen || !core_.session_gone(session.id())) return;
  const SessionId id = session.id();
  owner_.on_gone(session);
  live_.erase(std::find(live_.begin(), live_.end(), id));
  sessions_[id.value].reset();
}

void Host::collect_all() {
  const std::vector<SessionId> ids = live_;
  for (SessionId id : ids) collect(session(id));
}

}  // namespace orbitkv::daemon
