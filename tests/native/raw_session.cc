#include "tests/native/raw_session.h"

#include <fcntl.h>
#include <cstring>

#include "base/time.h"
#include "tests/native/engine.h"

namespace orbitkv::test {
using shm::RecordState;

Result<shm::Message> greet(shm::Socket& socket, const wire::Hello& hello) {
  std::vector<std::byte> frame;
  wire::encode(hello, frame);
  ORBITKV_ASSIGN_OR_RETURN(auto reply, socket.ask_within(frame, kRawTimeoutMs));
  if (auto refused = wire::decode_socket_error(reply.frame); refused.ok())
    return Error(refused->code, refused->text);
  return reply;
}

Result<std::unique_ptr<RawSession>> RawSession::open(const std::string& path) {
  ORBITKV_ASSIGN_OR_RETURN(auto socket, shm::connect_to(path, kRawTimeoutMs));
  std::unique_ptr<RawSession> made(new RawSession(std::move(socket)));
  ORBITKV_ASSIGN_OR_RETURN(auto reply,
                           greet(made->socket_, {wire::kAbiVersion, wire::PeerRole::kEngine, "raw"}));
  ORBITKV_ASSIGN_OR_RETURN(made->hello_, wire::decode_hello_reply(reply.frame));
  const auto& hello = made->hello_;
  UniqueFd again(::fcntl(reply.fds.at(0).get(), F_DUPFD_CLOEXEC, 0));
  made->bell_ = UniqueFd(::fcntl(reply.fds.at(1).get(), F_DUPFD_CLOEXEC, 0));
  ORBITKV_ASSIGN_OR_RETURN(auto memory,
                           shm::SessionMemory::attach(std::move(again), hello.session, hello.epoch));
  made->memory_ = std::make_unique<shm::SessionMemory>(std::move(memory));
  ORBITKV_ASSIGN_OR_RETURN(auto mine,
                           shm::SessionMemory::attach(std::move(reply.fds[0]), hello.session, hello.epoch));
  made->channel_ = std::make_unique<shm::ClientChannel>(std::move(mine), std::move(reply.fds[1]));
  return made;
}

Result<wire::Buffer> RawSession::receive(int timeout_ms) {
  for (;;) {
    ORBITKV_ASSIGN_OR_RETURN(auto message, socket_.receive_within(timeout_ms));
    ORBITKV_ASSIGN_OR_RETURN(auto view, wire::open_frame(message.frame));
    if (view.type == wire::FrameType::kSlabOffer) {
      slabs_offered_ += static_cast<std::uint32_t>(message.fds.size());
      continue;
    }
    if (auto refused = wire::decode_socket_error(message.frame); refused.ok())
      return Error(refused->code, refused->text);
    return std::move(message.frame);
  }
}

Result<RegistrationId> RawSession::register_rank(const model::RankRegistration& rank) {
  wire::Buffer frame;
  wire::encode(wire::Register{7, rank}, frame);
  ORBITKV_RETURN_IF_ERROR(socket_.send_within(frame, {}, kRawTimeoutMs));
  ORBITKV_ASSIGN_OR_RETURN(auto reply, receive());
  ORBITKV_ASSIGN_OR_RETURN(auto made, wire::decode_register_reply(reply));
  return made.registration;
}

bool RawSession::push(wire::Opcode opcode, std::span<const std::byte> frame, std::uint32_t slot) {
  if (!frame.empty()) std::memcpy(channel_->slot(slot), frame.data(), frame.size());
  const auto length = static_cast<std::uint32_t>(frame.size());
  if (!channel_->push_command(
          wire::encode(wire::Command{opcode, next_request_++, hello_.epoch, slot, length})))
    return false;
  channel_->ring_manager();
  return true;
}

Result<wire::Buffer> RawSession::call(wire::Opcode opcode, std::span<const std::byte> frame, int timeout_ms) {
  if (!push(opcode, frame)) return busy("the ring is full");
  const TimePoint deadline = monotonic_now() + milliseconds(timeout_ms);
  while (monotonic_now() < deadline) {
    const std::uint64_t seen = channel_->bell();
    while (auto bytes = channel_->pop_reply()) {
      ORBITKV_ASSIGN_OR_RETURN(auto reply, wire::decode_reply(*bytes));
      if (reply.request + 1 != next_request_) continue;
      wire::Buffer out(reply.length);
      if (reply.length > 0) std::memcpy(out.data(), channel_->slot(reply.slot), reply.length);
      if (reply.code == Code::kOk) return out;
      auto error = wire::decode_error_reply(out);
      return Error(reply.code, error.ok() ? std::string(error->text) : "no text");
    }
    channel_->wait(seen, 100, 10);
  }
  return reconnect("no answer");
}

OperationId RawSession::reserve(RecordIndex record) {
  const OperationId last = last_[record.value], next(next_operation_++);
  // Whatever ended the last operation is acknowledged first.
  for (const auto ended : {RecordState::kReaped, RecordState::kFailed, RecordState::kRevoked})
    if (last.value != 0) channel_->exchange(record, {last, ended}, {last, RecordState::kAcknowledged});
  const auto free = last.value == 0 ? RecordState::kFree : RecordState::kAcknowledged;
  channel_->exchange(record, {last, free}, {next, RecordState::kReserved});
  last_[record.value] = next;
  return next;
}

Result<wire::Buffer> RawSession::publish(RegistrationId registration, RecordIndex record,
                                         std::uint64_t first_hash, std::uint32_t count) {
  const auto blocks = blocks_of(0, count);
  const auto hashes = hashes_of(first_hash, count);
  wire::Buffer frame;
  wire::encode(wire::PublishRequest{registration, GroupId(0), reserve(record), record,
                                    std::as_bytes(std::span(blocks)), hashes},
               frame);
  return call(wire::Opcode::kPublish, frame);
}

Result<wire::Buffer> RawSession::restore(RegistrationId registration, RecordIndex record,
                                         const LeaseId& lease, std::uint32_t first,
                                         std::span<const std::uint32_t> targets) {
  wire::Buffer frame;
  wire::encode(
      wire::RestoreRequest{registration, reserve(record), record, lease, first, std::as_bytes(targets)},
      frame);
  return call(wire::Opcode::kRestore, frame);
}

RecordState RawSession::state(RecordIndex record) const {
  const auto word = shm::unpack(channel_->load_word(record));
  return word ? word->state : RecordState::kFree;
}

bool RawSession::wait_state(RecordIndex record, RecordState wanted, int timeout_ms) {
  const TimePoint deadline = monotonic_now() + milliseconds(timeout_ms);
  while (state(record) != wanted) {
    if (monotonic_now() > deadline) return false;
    channel_->wait(channel_->bell(), 100, 1);
  }
  return true;
}

void RawSession::claim(RecordIndex record) {
  const OperationId op = last_[record.value];
  channel_->exchange(record, {op, RecordState::kGranted}, {op, RecordState::kActive});
}

void RawSession::drain_with(RecordIndex record, Code code, std::span<const std::byte> result,
                            std::string_view text) {
  const OperationId op = last_[record.value];
  const auto grant = channel_->read_grant(record);
  if (grant.result_offset + result.size() <= limits::kPlanBankBytes)
    channel_->write_bank(grant.result_offset, result);
  channel_->write_client_result(record, code, static_cast<std::uint32_t>(result.size()), text);
  claim(record);
  channel_->exchange(record, {op, RecordState::kActive}, {op, RecordState::kDrained});
  channel_->mark_dirty(record);
  channel_->ring_manager();
}

void RawSession::drain(RecordIndex record, model::PlanKind kind) {
  wire::Buffer result;
  if (kind == model::PlanKind::kSave) {
    const auto grant = channel_->read_grant(record);
    wire::Buffer plan;
    channel_->copy_bank(grant.plan_offset, grant.plan_bytes, plan);
    auto decoded = wire::decode_plan(plan);
    if (!decoded.ok()) return;
    wire::encode(
        wire::PublishResult{last_[record.value], std::vector<std::uint64_t>(decoded->entries.size(), 1)},
        result);
  }
  drain_with(record, Code::kOk, result, {});
}

model::RankRegistration small_rank(std::uint8_t instance, std::uint32_t num_blocks,
                                   const std::string& name_space) {
  model::RankRegistration rank;
  rank.instance = instance_of(instance);
  rank.name_space = name_space;
  rank.device = "cpu:0";
  rank.num_blocks = num_blocks;
  rank.block_tokens = 16;
  model::GroupShape group;
  group.fragments = {{0, 0, ByteCount(64)}};
  rank.groups = {group};
  return rank;
}

}  // namespace orbitkv::test
