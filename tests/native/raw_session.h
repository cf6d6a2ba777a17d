// A client without manners: the protocol by hand, one thread. Limits are reached with
// it that the real client would not reach, and hostile.cc breaks the rules with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/geometry.h"
#include "shm/bootstrap.h"
#include "shm/channel.h"
#include "wire/lifecycle.h"
#include "wire/messages.h"

namespace orbitkv::test {

inline constexpr int kRawTimeoutMs = 10'000;

// Hello of an engine, answered or refused.
Result<shm::Message> greet(shm::Socket& socket, const wire::Hello& hello);

class RawSession {
 public:
  static Result<std::unique_ptr<RawSession>> open(const std::string& socket);

  shm::Socket& socket() { return socket_; }
  shm::ClientChannel& channel() { return *channel_; }
  shm::SessionMemory& memory() { return *memory_; }  // the same pages, mapped again
  int bell() const { return bell_.get(); }
  Epoch epoch() const { return hello_.epoch; }
  SessionId session() const { return hello_.session; }

  // Answers other than slab offers; offers are counted and dropped.
  Result<wire::Buffer> receive(int timeout_ms = kRawTimeoutMs);
  Result<RegistrationId> register_rank(const model::RankRegistration& rank);
  std::uint32_t slabs_offered() const { return slabs_offered_; }

  // Puts the frame into slot `slot` and pushes the command; false: ring full.
  bool push(wire::Opcode opcode, std::span<const std::byte> frame, std::uint32_t slot = 0);
  Result<wire::Buffer> call(wire::Opcode opcode, std::span<const std::byte> frame,
                            int timeout_ms = kRawTimeoutMs);

  // Free or acknowledged → Reserved; the id rises by itself.
  OperationId reserve(RecordIndex record);
  Result<wire::Buffer> publish(RegistrationId registration, RecordIndex record, std::uint64_t first_hash,
                               std::uint32_t count);
  Result<wire::Buffer> restore(RegistrationId registration, RecordIndex record, const LeaseId& lease,
                               std::uint32_t first, std::span<const std::uint32_t> targets);
  shm::RecordState state(RecordIndex record) const;
  bool wait_state(RecordIndex record, shm::RecordState state, int timeout_ms = kRawTimeoutMs);
  // Granted → Active → Drained, with a result that the Manager accepts.
  void drain(RecordIndex record, model::PlanKind kind);
  // The same with any code, bytes and text.
  void drain_with(RecordIndex record, Code code, std::span<const std::byte> result, std::string_view text);
  void claim(RecordIndex record);

 private:
  RawSession(shm::Socket socket) : socket_(std::move(socket)) {}

  shm::Socket socket_;
  wire::HelloReply hello_;
  std::unique_ptr<shm::SessionMemory> memory_;
  std::unique_ptr<shm::ClientChannel> channel_;
  UniqueFd bell_;
  std::uint64_t next_request_ = 1, next_operation_ = 1;
  std::vector<OperationId> last_ = std::vector<OperationId>(limits::kRecords);
  std::uint32_t slabs_offered_ = 0;
};

// One group of one small fragment: slots of 256 bytes.
model::RankRegistration small_rank(std::uint8_t instance, std::uint32_t num_blocks = 32'768,
                                   const std::string& name_space = "raw");

}  // namespace orbitkv::test
