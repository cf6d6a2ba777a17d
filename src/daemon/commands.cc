#include "daemon/commands.h"

#include "base/limits.h"
#include "base/text.h"
#include "cache/instances.h"
#include "wire/messages.h"

namespace orbitkv::daemon {

namespace {

wire::TicketState to_wire(cache::TicketState state) {
  switch (state) {
    case cache::TicketState::kUnknown: break;
    case cache::TicketState::kLoading: return wire::TicketState::kLoading;
    case cache::TicketState::kReady: return wire::TicketState::kReady;
    case cache::TicketState::kMissing: return wire::TicketState::kMissing;
  }
  return wire::TicketState::kUnknown;
}
wire::Missing to_wire(cache::Missing why) {
  switch (why) {
    case cache::Missing::kNone: break;
    case cache::Missing::kGone: return wire::Missing::kGone;
    case cache::Missing::kTimeout: return wire::Missing::kTimeout;
    case cache::Missing::kNoMemory: return wire::Missing::kNoMemory;
    case cache::Missing::kTooLarge: return wire::Missing::kTooLarge;
  }
  return wire::Missing::kNone;
}
wire::TicketReply to_wire(const cache::TicketAnswer& a) {
  wire::TicketReply out{to_wire(a.state), to_wire(a.why), a.missing, a.admitted,
                        a.hit_blocks,     a.revision,     {},        a.again};
  for (const cache::TicketLease& l : a.leases) out.leases.push_back({l.group, l.blocks, l.lease});
  return out;
}

wire::InterestReply to_wire(const wire::InterestName& name, const cache::InterestAnswer& a) {
  wire::InterestReply out{name.interest,  name.operation, a.operation, a.authority, a.phase,
                          to_wire(a.why), a.missing,      a.admitted,  a.blocks,    {}};
  for (const cache::TicketLease& l : a.leases) out.leases.push_back({l.group, l.blocks, l.lease});
  return out;
}

cache::TicketKind to_core(wire::TicketKind kind) {
  switch (kind) {
    case wire::TicketKind::kPrefix: break;
    case wire::TicketKind::kRecovery: return cache::TicketKind::kRecovery;
    case wire::TicketKind::kWarm: return cache::TicketKind::kWarm;
  }
  return cache::TicketKind::kPrefix;
}

}  // namespace

std::optional<wire::CommandBytes> CommandServer::pop(Session& session) {
  if (session.poisoned()) return std::nullopt;
  auto bytes = session.channel().pop_command();
  if (!session.channel().poisoned()) return bytes;
  session.poison("the command ring's tail is impossible");
  return std::nullopt;
}

ByteCount CommandServer::answer(Session& session, const wire::CommandBytes& bytes, TimePoint now) {
  auto command = wire::decode_command(bytes);
  if (!command.ok() || command->epoch != session.epoch()) {
    session.poison(command.ok() ? "a command names another epoch" : command.error().message());
    return {};
  }
  reply_.clear();
  Status status = dispatch(session, *command, now);
  wire::Reply reply{command->opcode, command->request, session.epoch(), command->slot, 0, Code::kOk};
  if (!status.ok()) {
    reply.code = status.error().code();
    reply_.clear();
    wire::encode(wire::ErrorReply{reply.code, status.error().message()}, reply_);
  }
  if (!reply_.empty()) session.channel().write_slot(command->slot, reply_);
  reply.length = static_cast<std::uint32_t>(reply_.size());
  if (!session.channel().push_reply(wire::encode(reply)))
    session.poison("the client does not take its replies");
  // It walks the operations of an instance's sessions.
  const bool walks = command->opcode == wire::Opcode::kPublishActivity;
  return walks ? limits::kRequestBytesPerTurn : ByteCount(command->length);
}

Status CommandServer::dispatch(Session& session, const wire::Command& command, TimePoint now) {
  if (command.opcode == wire::Opcode::kPing) return ok_status();
  if (refusing_) return reconnect("the Manager is shutting down");
  session.channel().copy_slot(command.slot, command.length, request_);
  switch (command.opcode) {
    case wire::Opcode::kPing: break;
    case wire::Opcode::kQuery: return query(session, now);
    case wire::Opcode::kPublish: return publish(session, now);
    case wire::Opcode::kRestore: return restore(session, now);
    case wire::Opcode::kRelease: return release(session);
    case wire::Opcode::kCancelQuery: return cancel(session);
    case wire::Opcode::kPoll: return poll(session, now);
    case wire::Opcode::kReadRecovery: return read_recovery(session, now);
    case wire::Opcode::kWarm: return warm(session, now);
    case wire::Opcode::kPublishActivity: return publish_activity(now);
    case wire::Opcode::kSubmitInterest: return submit_interest(session, now);
    case wire::Opcode::kInterest: return interest(session, now);
  }
  return reject("unknown command");
}

Status CommandServer::query(Session& session, TimePoint now) {
  ORBITKV_ASSIGN_OR_RETURN(auto in, wire::decode_query_request(request_));
  const auto mode = in.mode == wire::QueryMode::kRead ? cache::QueryMode::kRead : cache::QueryMode::kDiscover;
  const cache::QueryPart part{in.instance, in.group,   mode,          in.request_id,
                              in.first,    in.total,   in.hashes,     in.early_lease,
                              in.revision, in.prepare, in.full_prefix};
  ORBITKV_ASSIGN_OR_RETURN(auto answer, core_.query(session.id(), part, now));
  wire::QueryReply out;
  out.first = in.first;
  out.count = static_cast<std::uint32_t>(in.hashes.size());
  out.hit_blocks = answer.hit_blocks;
  out.revision = answer.revision;
  out.lease = answer.lease;
  out.resident = std::move(answer.resident);
  out.stored = std::move(answer.stored);
  out.loading = answer.loading;
  out.admitted = answer.admitted;
  out.again = answer.again;
  wire::encode(out, reply_);
  return ok_status();
}

void CommandServer::fail_if_prepared(Session& session, const cache::OperationKey& op, const Error& why) {
  if (session.preparing(op.record, op.operation)) session.fail(op, why);
}

Status CommandServer::publish(Session& session, TimePoint now) {
  ORBITKV_ASSIGN_OR_RETURN(auto in, wire::decode_publish_request(request_));
  ORBITKV_RETURN_IF_ERROR(session.begin(in.record, in.operation));
  indices_.resize(in.count());
  for (std::uint32_t i = 0; i < in.count(); ++i) indices_[i] = in.block_id(i);
  const cache::OperationKey op{session.id(), in.record, in.operation};
  auto answer = core_.publish({op, in.registration, in.group, indices_, in.hashes}, now);
  if (!answer.ok()) {
    fail_if_prepared(session, op, answer.error());
    return answer.error();
  }
  wire::encode(wire::PublishReply{answer->accepted, answer->resident, answer->waiting, answer->dropped},
               reply_);
  return ok_status();
}

Status CommandServer::restore(Session& session, TimePoint now) {
  ORBITKV_ASSIGN_OR_RETURN(auto in, wire::decode_restore_request(request_));
  ORBITKV_RETURN_IF_ERROR(session.begin(in.record, in.operation));
  indices_.resize(in.count());
  for (std::uint32_t i = 0; i < in.count(); ++i) indices_[i] = in.target(i);
  const cache::OperationKey op{session.id(), in.record, in.operation};
  auto blocks = core_.restore({op, in.registration, in.lease, in.first, indices_}, now);
  if (!blocks.ok()) {
    fail_if_prepared(session, op, blocks.error());
    return blocks.error();
  }
  wire::encode(wire::RestoreReply{*blocks}, reply_);
  return ok_status();
}

Status CommandServer::release(Session& session) {
  ORBITKV_ASSIGN_OR_RETURN(auto in, wire::decode_release_request(request_));
  return core_.release(session.id(), in.lease);
}

Status CommandServer::cancel(Session& session) {
  ORBITKV_ASSIGN_OR_RETURN(auto in, wire::decode_cancel_query_request(request_));
  return core_.cancel(session.id(), {in.instance, in.group, in.request_id, to_core(in.kind)}, in.revision);
}

Status CommandServer::poll(Session& session, TimePoint now) {
  ORBITKV_ASSIGN_OR_RETURN(auto in, wire::decode_poll_request(request_));
  ORBITKV_ASSIGN_OR_RETURN(
      auto answer,
      core_.poll(session.id(), {in.instance, in.group, in.request_id, to_core(in.kind)}, in.revision, now));
  wire::encode(to_wire(answer), reply_);
  return ok_status();
}

Status CommandServer::read_recovery(Session& session, TimePoint now) {
  ORBITKV_ASSIGN_OR_RETURN(auto in, wire::decode_recovery_request(request_));
  const cache::RecoveryPart part{in.instance, in.request_id, {in.origin, in.boundary},
                                 in.first,    in.total,      in.hashes,
                                 in.revision, in.prepare};
  ORBITKV_ASSIGN_OR_RETURN(auto answer, core_.read_recovery(session.id(), part, now));
  wire::encode(to_wire(answer), reply_);
  return ok_status();
}

Status CommandServer::publish_activity(TimePoint now) {
  ORBITKV_ASSIGN_OR_RETURN(auto in, wire::decode_activity_request(request_));
  const auto activity = core_.publish_activity(in.instance, now);
  if (!activity) {
    return reject(format_text("instance %s is not registered here; ask when a rank of it has registered",
                              cache::short_hex(in.instance.bytes).c_str()));
  }
  wire::encode(wire::ActivityReply{activity->open, activity->waiting, activity->lent, activity->dropped,
                                   activity->oldest},
               reply_);
  return ok_status();
}

Status CommandServer::submit_interest(Session& session, TimePoint now) {
  ORBITKV_ASSIGN_OR_RETURN(auto in, wire::decode_interest_submit(request_));
  cache::InterestPart part;
  part.name = {in.name.instance, in.name.interest, in.name.operation};
  part.authority = in.authority;
  part.group = in.group;
  if (in.kind == wire::InterestKind::kRecovery) part.tail = cache::TokenTail{in.origin, in.boundary};
  part.first = in.first;
  part.total = in.total;
  part.hashes = in.hashes;
  ORBITKV_ASSIGN_OR_RETURN(const auto answer, core_.submit_interest(session.id(), part, now));
  wire::encode(to_wire(in.name, answer), reply_);
  return ok_status();
}

Status CommandServer::interest(Session& session, TimePoint now) {
  ORBITKV_ASSIGN_OR_RETURN(auto in, wire::decode_interest_call(request_));
  const cache::InterestCall call{
      {in.name.instance, in.name.interest, in.name.operation}, in.authority, in.verb, in.blocks};
  ORBITKV_ASSIGN_OR_RETURN(const auto answer, core_.interest(session.id(), call, now));
  wire::encode(to_wire(in.name, answer), reply_);
  return ok_status();
}

Status CommandServer::warm(Session& session, TimePoint now) {
  ORBITKV_ASSIGN_OR_RETURN(auto in, wire::decode_warm_request(request_));
  const cache::WarmHint hint{milliseconds(in.first_use_ms), milliseconds(in.max_wait_ms), in.priority,
                             in.confidence};
  return core_.warm(session.id(), {in.instance, in.group, in.request_id, in.hashes, hint}, now);
}

}  // namespace orbitkv::daemon
