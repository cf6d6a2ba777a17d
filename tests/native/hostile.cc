#include "tests/native/hostile.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <random>

#include "base/time.h"
#include "tests/native/engine.h"
#include "tests/native/raw_session.h"

namespace orbitkv::test {
namespace {
using shm::RecordState;
using shm::SessionLayout;

// What it claimed and broke keeps its sessions until it ends: it leaves room for others.
constexpr std::uint64_t kSessions = 24;

class Hostile {
 public:
  Hostile(RawSession& session, RegistrationId registration, std::mt19937_64& random)
      : raw_(session), registration_(registration), random_(random) {}

  // One step; false: the Manager has cut the session off. Mostly it works, slowly enough
  // to be granted something, so that there is something to damage.
  bool step() {
    if (below(20) == 0) {
      damage();
    } else {
      work();
    }
    raw_.channel().ring_manager();
    if (below(2) == 0) ::usleep(100);
    auto message = raw_.socket().receive();
    return message.ok();
  }
  std::uint64_t damages() const { return damages_; }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::uint64_t strange() {
    switch (below(6)) {
      case 0: return 0;
      case 1: return ~std::uint64_t{0};
      case 2: return std::uint64_t{1} << below(64);
      case 3: return below(2048);
      case 4: return below(1024) << 8 | below(12);  // like a record word
      default: return random_();
    }
  }
  RecordIndex record() { return RecordIndex(static_cast<std::uint32_t>(below(8))); }
  void put(std::uint64_t offset, std::uint64_t value) {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(base() + offset / 8 * 8), value, __ATOMIC_RELAXED);
  }
  std::byte* base() { return reinterpret_cast<std::byte*>(&raw_.memory().header()); }

  void damage() {
    ++damages_;
    auto& header = raw_.memory().header();
    switch (below(14)) {
      case 0: header.command_tail.store(header.command_tail.load() + below(80)); break;
      case 1: header.command_tail.store(strange()); break;
      case 2: header.reply_head.store(strange()); break;
      case 3: header.command_head.store(strange()); break;
      case 4: header.reply_tail.store(strange()); break;
      case 5: header.manager_sleeping.store(static_cast<std::uint32_t>(strange())); break;
      case 6: header.client_sleepers.store(static_cast<std::uint32_t>(strange())); break;
      case 7: header.client_bell.store(strange()); break;
      case 8: raw_.memory().record(record()).word.store(strange()); break;
      case 9: damage_word(); break;
      case 10: raw_.memory().dirty(static_cast<std::uint32_t>(below(16))).store(random_()); break;
      case 11: put(SessionLayout::kCommandRing + below(128 * limits::kRingEntries), strange()); break;
      case 12: scribble(SessionLayout::kPlanBank, 64 * 1024); break;
      default: damage_elsewhere(); break;
    }
  }

  // A believable word: the operation at hand in a state that is not the client's to set.
  void damage_word() {
    auto& word = raw_.memory().record(record()).word;
    word.store((word.load() & ~std::uint64_t{0xFF}) | below(11));
  }
  void scribble(std::uint64_t from, std::uint64_t bytes) {
    for (int i = 0; i < 64; ++i) put(from + below(bytes), random_());
  }
  void damage_elsewhere() {
    switch (below(5)) {
      case 0: scribble(SessionLayout::kSlots, 4 * limits::kDescriptorSlotBytes); break;
      case 1: scribble(SessionLayout::kRecords, 8 * sizeof(shm::RecordLayout)); break;
      case 2: scribble(0, SessionLayout::kRecords); break;
      case 3: {  // the bell: full, blocking, drained
        ::fcntl(raw_.bell(), F_SETFL, ::fcntl(raw_.bell(), F_GETFL) | O_NONBLOCK);
        const std::uint64_t most = ~std::uint64_t{0} - 1;
        [[maybe_unused]] const auto n = ::write(raw_.bell(), &most, sizeof most);
        ::fcntl(raw_.bell(), F_SETFL, ::fcntl(raw_.bell(), F_GETFL) & ~O_NONBLOCK);
        // Only our own end would block on it now.
        ::fcntl(raw_.bell(), F_SETFL, ::fcntl(raw_.bell(), F_GETFL) | O_NONBLOCK);
        break;
      }
      default: {
        const auto garbage = hashes_of(random_(), 3);
        if (below(4) == 0) (void)raw_.socket().send(std::as_bytes(std::span(garbage))).ok();
      }
    }
  }

  // Something legal, or almost.
  void work() {
    wire::Buffer frame;
    const RecordIndex at = record();
    take_replies();
    const std::uint64_t choice = below(5);
    // In use: mostly it finishes that first, sometimes it reserves it all the same.
    if (choice != 1 && in_use(at) && below(64) != 0) return finish(at);
    switch (choice) {
      case 0:
        encode_publish(at, frame);
        push(wire::Opcode::kPublish, frame);
        break;
      case 1: {
        const auto hashes = hashes_of(below(64) * 64, 16);
        wire::encode(
            wire::QueryRequest{instance_of(99), GroupId(0), wire::QueryMode::kRead, "h", 0, 16, hashes},
            frame);
        push(wire::Opcode::kQuery, frame);
        break;
      }
      case 2: {
        const auto targets = blocks_of(0, 4);
        LeaseId lease = lease_;
        if (below(4) == 0) lease.bytes[0] ^= std::byte{1};
        wire::encode(
            wire::RestoreRequest{registration_, reserve(at), at, lease, static_cast<std::uint32_t>(below(3)),
                                 std::as_bytes(std::span(targets))},
            frame);
        push(wire::Opcode::kRestore, frame);
        break;
      }
      case 3: finish(at); break;
      default: push(wire::Opcode::kPing, frame); break;
    }
  }
  OperationId reserve(RecordIndex at) {
    // Beside the channel, which would stop at an edge that is not the client's.
    const OperationId op(++operation_);
    raw_.memory().record(at).word.store(op.value << 8 | static_cast<std::uint64_t>(RecordState::kReserved));
    return op;
  }
  void encode_publish(RecordIndex at, wire::Buffer& frame) {
    const auto count = static_cast<std::uint32_t>(1 + below(64));
    const auto blocks = blocks_of(static_cast<std::uint32_t>(below(32'800)), count);
    const auto hashes = hashes_of(below(64) * 64, count);
    wire::encode(wire::PublishRequest{registration_, GroupId(static_cast<std::uint16_t>(below(8) == 0)),
                                      reserve(at), at, std::as_bytes(std::span(blocks)), hashes},
                 frame);
  }
  void push(wire::Opcode opcode, wire::Buffer& frame) {
    if (below(8) == 0 && !frame.empty()) frame[below(frame.size())] ^= std::byte{1};
    raw_.push(opcode, frame, static_cast<std::uint32_t>(below(limits::kDescriptorSlots)));
  }
  bool in_use(RecordIndex at) {
    const std::uint64_t state = raw_.memory().record(at).word.load() & 0xFF;
    return state >= static_cast<std::uint64_t>(RecordState::kReserved) &&
           state <= static_cast<std::uint64_t>(RecordState::kDrained);
  }
  // Entries of the plan in the bank; 0: there is none.
  std::uint64_t planned(RecordIndex at) {
    const auto grant = raw_.channel().read_grant(at);
    if (std::uint64_t{grant.plan_offset} + grant.plan_bytes > limits::kPlanBankBytes) return 0;
    wire::Buffer frame;
    raw_.channel().copy_bank(grant.plan_offset, grant.plan_bytes, frame);
    const auto plan = wire::decode_plan(frame);
    return plan.ok() ? plan->entries.size() : 0;
  }
  void finish(RecordIndex at) {
    auto& record = raw_.memory().record(at);
    const std::uint64_t word = record.word.load();
    if (word >> 8 == 0 || (word & 0xFF) != static_cast<std::uint64_t>(RecordState::kGranted)) return;
    const auto entries = below(4) == 0 ? 1 + below(70) : planned(at);
    if (entries == 0) return;
    record.word.store((word & ~std::uint64_t{0xFF}) | static_cast<std::uint64_t>(RecordState::kActive));
    wire::Buffer result;
    if (below(8) != 0)
      wire::encode(
          wire::PublishResult{OperationId(word >> 8), std::vector<std::uint64_t>(entries, random_())},
          result);
    else
      wire::encode(wire::RestoreResult{OperationId(word >> 8), static_cast<std::uint32_t>(entries),
                                       std::vector<std::uint64_t>((entries + 63) / 64, 0)},
                   result);
    const auto grant = raw_.channel().read_grant(at);
    if (std::uint64_t{grant.result_offset} + result.size() <= limits::kPlanBankBytes)
      raw_.channel().write_bank(grant.result_offset, result);
    const auto bytes =
        below(8) == 0 ? static_cast<std::uint32_t>(strange()) : static_cast<std::uint32_t>(result.size());
    const auto code = static_cast<Code>(below(3) == 0 ? below(8) : 0);
    raw_.channel().write_client_result(at, code, bytes, std::string(below(200), '\x01'));
    if (below(4) == 0) record.client.text_bytes = static_cast<std::uint16_t>(strange());
    record.word.store((word & ~std::uint64_t{0xFF}) | static_cast<std::uint64_t>(RecordState::kDrained));
    raw_.channel().mark_dirty(at);
  }
  void take_replies() {
    while (auto bytes = raw_.channel().pop_reply()) {
      auto reply = wire::decode_reply(*bytes);
      if (!reply.ok() || reply->opcode != wire::Opcode::kQuery || reply->code != Code::kOk) continue;
      wire::Buffer frame(reply->length);
      if (reply->length > 0) std::memcpy(frame.data(), raw_.channel().slot(reply->slot), reply->length);
      if (auto answer = wire::decode_query_reply(frame); answer.ok() && answer->lease) lease_ = answer->lease;
    }
  }

  RawSession& raw_;
  RegistrationId registration_;
  std::mt19937_64& random_;
  LeaseId lease_{{std::byte{1}}};
  std::uint64_t operation_ = 0, damages_ = 0;
};
}  // namespace

int hostile_main(const std::string& socket, std::uint64_t seed, int ms) {
  std::mt19937_64 random(seed);
  const TimePoint end = monotonic_now() + milliseconds(ms);
  std::uint64_t sessions = 0, damages = 0;
  while (monotonic_now() < end && sessions < kSessions) {
    auto raw = RawSession::open(socket);
    if (!raw.ok()) {
      ::usleep(2000);  // its dead sessions keep slots until their records end
      continue;
    }
    auto registration = (*raw)->register_rank(small_rank(99, 32'768, "hostile"));
    if (!registration.ok()) continue;
    ++sessions;
    Hostile hostile(**raw, *registration, random);
    while (monotonic_now() < end && hostile.step()) {
    }
    damages += hostile.damages();
  }
  std::printf("hostile %llu %llu\n", static_cast<unsigned long long>(sessions),
              static_cast<unsigned long long>(damages));
  return 0;
}

}  // namespace orbitkv::test
