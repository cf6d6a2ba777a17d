// Clients that mean harm: the Manager serves on, honest bytes stay right, and nothing
// is lost but what such a client may still be writing.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/times.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>

#include "base/time.h"
#include "shm/bootstrap.h"
#include "tests/native/engine.h"
#include "tests/native/processes.h"
#include "tests/native/raw_session.h"

namespace orbitkv::test {
namespace {

constexpr std::uint64_t kHostileSlot = 256;
constexpr std::uint64_t kHonestSlot = 128 + 4 * 4096;

// CPU time of a process so far, in clock ticks.
std::uint64_t cpu_ticks(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string field;
  std::uint64_t user = 0, system = 0;
  for (int i = 0; i < 11; ++i) fields >> field;
  fields >> user >> system;
  return user + system;
}

TEST(Hostile, RewritesEverythingSharedWhileOthersAreServed) {
  Manager manager;
  Engine honest({.socket = manager.socket(), .shape = {}, .instance = 1});
  ASSERT_EQ(honest.connect().message, "");
  std::uint64_t hash = 1, rounds = 0, sessions = 0, damages = 0;
  for (const int seed : {1, 2, 3, 4}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto hostile =
        start_helper({"hostile", "socket=" + manager.socket(), "seed=" + std::to_string(seed), "ms=1200"});
    while (hostile.running()) {
      const auto saved = honest.save(0, hash, 8);
      ASSERT_TRUE(saved.success) << saved.message << "\n" << manager.log();
      const auto restored = honest.restore(32, hash, 8);
      ASSERT_TRUE(restored.hits == 0 || restored.status.success) << restored.status.message;
      ASSERT_EQ(restored.wrong, 0u);
      hash += 8;
      ++rounds;
    }
    const auto report = hostile.line();
    ASSERT_TRUE(report && report->starts_with("hostile ")) << manager.log();
    std::istringstream(report->substr(8)) >> sessions >> damages;
    EXPECT_GT(sessions, 1u);  // it was cut off and came back
    EXPECT_GT(damages, 20u);
  }
  EXPECT_GT(rounds, 10u);
  ASSERT_TRUE(manager.alive());
  ASSERT_EQ(manager.settle_sessions(1), 1u);
  EXPECT_EQ(manager.settle("operations", 0), 0u);
  EXPECT_EQ(manager.settle("pool.leased", 0), 0u);
  EXPECT_EQ(honest.client().health().reconnects, 0u);
  // Every byte of the pool is accounted for: resident, or quarantined.
  const auto status = manager.status();
  EXPECT_EQ(status["inflight_images"], 0u);
  EXPECT_GT(status["published"], rounds * 8);  // it got as far as receipts
  EXPECT_EQ(status["pool.quarantined"], status["quarantined_extents"] * kHostileSlot);
  const auto honest_bytes = rounds * 8 * kHonestSlot;  // the pool is large enough to evict none
  if (status["evicted"] == 0) {
    EXPECT_EQ(status["pool.used"],
              honest_bytes + (status["blocks"] - rounds * 8) * kHostileSlot + status["pool.quarantined"]);
  }
}

// One thing at a time, with what must follow: cut off, and no other session is touched.
void expect_cut_off(const std::function<void(RawSession&, RegistrationId)>& crime,
                    const std::string& log_line) {
  Manager manager;
  Engine honest({.socket = manager.socket(), .shape = {}, .instance = 1});
  ASSERT_EQ(honest.connect().message, "");
  auto raw = RawSession::open(manager.socket());
  ASSERT_TRUE(raw.ok());
  auto registration = (*raw)->register_rank(small_rank(9));
  ASSERT_TRUE(registration.ok()) << registration.error().message();
  crime(**raw, *registration);
  (*raw)->channel().ring_manager();
  auto after = (*raw)->receive();
  EXPECT_FALSE(after.ok()) << log_line;
  EXPECT_EQ(after.ok() ? Code::kOk : after.error().code(), Code::kReconnect);
  EXPECT_NE(manager.log().find(log_line), std::string::npos) << manager.log();
  EXPECT_TRUE(honest.save(0, 1, 8).success);
  EXPECT_EQ(honest.restore(8, 1, 8).wrong, 0u);
  raw->reset();
}

void publish_one(RawSession& raw, RegistrationId registration) {
  ASSERT_TRUE(raw.publish(registration, RecordIndex(0), 1, 4).ok());
  ASSERT_TRUE(raw.wait_state(RecordIndex(0), shm::RecordState::kGranted));
}

TEST(Hostile, AnImpossibleTail) {
  expect_cut_off([](RawSession& raw, RegistrationId) { raw.memory().header().command_tail.store(500); },
                 "tail is impossible");
}

TEST(Hostile, AnImpossibleReplyHead) {
  expect_cut_off(
      [](RawSession& raw, RegistrationId) {
        raw.memory().header().reply_head.store(77);
        for (int i = 0; i < 63; ++i) raw.push(wire::Opcode::kPing, {});
        raw.push(wire::Opcode::kPing, {});
        ::usleep(50'000);
        for (int i = 0; i < 4; ++i) raw.push(wire::Opcode::kPing, {});
      },
      "does not take its replies");
}

TEST(Hostile, ADamagedRingEntry) {
  expect_cut_off(
      [](RawSession& raw, RegistrationId) {
        std::memset(raw.memory().ring(shm::Side::kClient), 0xEE, wire::kCommandBytes);
        raw.memory().header().command_tail.store(1);
      },
      "is cut off");
}

TEST(Hostile, ASlotOrLengthOutOfRange) {
  for (const std::size_t field : {24u, 28u}) {
    expect_cut_off(
        [&](RawSession& raw, RegistrationId) {
          auto bytes = wire::encode(wire::Command{wire::Opcode::kQuery, 1, raw.epoch(), 0, 100});
          bytes[field + 2] = std::byte{0x7F};  // the CRC no longer fits: as hostile as it gets
          raw.channel().push_command(bytes);
        },
        "is cut off");
  }
}

TEST(Hostile, AnotherEpoch) {
  expect_cut_off(
      [](RawSession& raw, RegistrationId) {
        raw.channel().push_command(
            wire::encode(wire::Command{wire::Opcode::kPing, 1, Epoch(raw.epoch().value + 1), 0, 0}));
      },
      "another epoch");
}

TEST(Hostile, RecordWordsThatAreNotTheClients) {
  for (const std::uint64_t state : {1, 2, 6, 7, 8, 9, 10, 255}) {
    expect_cut_off(
        [&](RawSession& raw, RegistrationId registration) {
          publish_one(raw, registration);
          auto& word = raw.memory().record(RecordIndex(0)).word;
          word.store((word.load() & ~std::uint64_t{0xFF}) | state);
          raw.channel().mark_dirty(RecordIndex(0));
        },
        "grant record");
  }
}

TEST(Hostile, AnotherOperationInAnOpenRecord) {
  expect_cut_off(
      [](RawSession& raw, RegistrationId registration) {
        publish_one(raw, registration);
        raw.memory().record(RecordIndex(0)).word.store(std::uint64_t{99} << 8 | 1);
        raw.channel().mark_dirty(RecordIndex(0));
      },
      "reused before its operation ended");
}

TEST(Hostile, FramesThatOnlyTheManagerSends) {
  expect_cut_off(
      [](RawSession& raw, RegistrationId) {
        wire::Buffer frame;
        wire::encode(wire::UnregisterReply{1}, frame);
        ASSERT_TRUE(raw.socket().send(frame).ok());
      },
      "only the Manager sends");
}

TEST(Hostile, AFrameLargerThanTheLimit) {
  expect_cut_off(
      [](RawSession& raw, RegistrationId) {
        std::vector<char> large(limits::kSocketFrameBytes + 1);
        ASSERT_GT(::send(raw.socket().fd(), large.data(), large.size(), MSG_NOSIGNAL), 0);
      },
      "a message has at most");
}

TEST(Hostile, GarbageFrames) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 4; ++i) {
    expect_cut_off(
        [&](RawSession& raw, RegistrationId) {
          std::vector<std::byte> garbage(1 + random() % 300);
          for (auto& b : garbage) b = static_cast<std::byte>(random());
          ASSERT_TRUE(raw.socket().send(garbage).ok());
        },
        "closed");
  }
}

// Results that do not fit are failures of the save; the session lives on.
TEST(Hostile, ReceiptsThatDoNotFitKeepNothing) {
  Manager manager;
  auto raw = RawSession::open(manager.socket());
  ASSERT_TRUE(raw.ok());
  auto registration = (*raw)->register_rank(small_rank(9));
  ASSERT_TRUE(registration.ok());
  RawSession& session = **raw;
  wire::Buffer other, few;
  wire::encode(wire::PublishResult{OperationId(12345), {1, 2, 3, 4}}, other);
  wire::encode(wire::PublishResult{OperationId(3), {1}}, few);
  const std::vector<std::byte> garbage(64, std::byte{0x5A});
  const std::string long_text(4000, '\x1b');
  std::uint64_t hash = 1;
  for (const auto& result : {std::span<const std::byte>(other), std::span<const std::byte>(few),
                             std::span<const std::byte>(garbage), std::span<const std::byte>()}) {
    ASSERT_TRUE(session.publish(*registration, RecordIndex(0), hash += 10, 4).ok());
    ASSERT_TRUE(session.wait_state(RecordIndex(0), shm::RecordState::kGranted));
    session.drain_with(RecordIndex(0), Code::kOk, result, long_text);
    ASSERT_TRUE(session.wait_state(RecordIndex(0), shm::RecordState::kReaped));
  }
  EXPECT_EQ(manager.status()["blocks"], 0u);
  EXPECT_EQ(manager.status()["pool.used"], 0u);
  EXPECT_EQ(manager.status().sessions(), 1u);
  EXPECT_EQ(manager.log().find('\x1b'), std::string::npos);  // no control characters in the log
}

TEST(Hostile, ConnectionsThatSayNothingAreBoundedAndDoNoHarm) {
  Manager manager;
  Engine honest({.socket = manager.socket(), .shape = {}});
  ASSERT_EQ(honest.connect().message, "");
  std::vector<shm::Socket> flood;
  std::uint32_t refused = 0;
  for (int i = 0; i < 80; ++i) {
    auto socket = shm::connect_to(manager.socket(), kRawTimeoutMs);
    ASSERT_TRUE(socket.ok()) << socket.error().message();
    flood.push_back(std::move(*socket));
  }
  for (auto& socket : flood) {
    auto message = socket.receive_within(30);
    if (!message.ok()) continue;
    auto why = wire::decode_socket_error(message->frame);
    refused += why.ok() && why->code == Code::kBusy;
  }
  EXPECT_GE(refused, 40u);
  EXPECT_TRUE(honest.save(0, 1, 8).success);
  EXPECT_EQ(honest.restore(8, 1, 8).wrong, 0u);
  flood.clear();
  EXPECT_EQ(manager.settle_sessions(1), 1u);  // status is heard again
}

TEST(Hostile, AClientThatNeverReadsItsSocketIsCutOff) {
  Manager manager;
  Engine honest({.socket = manager.socket(), .shape = {}});
  ASSERT_EQ(honest.connect().message, "");
  auto raw = RawSession::open(manager.socket());
  ASSERT_TRUE(raw.ok());
  wire::Buffer ask;
  wire::encode(wire::StatusRequest{1}, ask);
  const TimePoint deadline = monotonic_now() + seconds(15);
  Status sent = ok_status();
  while (monotonic_now() < deadline && (sent.ok() || sent.error().code() == Code::kBusy))
    sent = (*raw)->socket().send_within(ask, {}, 100);
  EXPECT_FALSE(sent.ok());
  EXPECT_NE(manager.log().find("does not read its socket"), std::string::npos) << manager.log();
  EXPECT_TRUE(honest.save(0, 1, 8).success);
  EXPECT_EQ(manager.settle_sessions(1), 1u);
}

// Answers that waited for a slow reader arrive once it reads.
TEST(Hostile, ASlowReaderGetsAllItsAnswers) {
  Manager manager;
  auto raw = RawSession::open(manager.socket());
  ASSERT_TRUE(raw.ok());
  constexpr std::uint64_t kAsked = 400;
  wire::Buffer ask;
  std::uint64_t answered = 0, asked = 0;
  while (asked < kAsked) {
    for (int i = 0; i < 200 && asked < kAsked; ++i) {
      ask.clear();
      wire::encode(wire::StatusRequest{++asked}, ask);
      ASSERT_TRUE((*raw)->socket().send_within(ask, {}, kRawTimeoutMs).ok());
    }
    ::usleep(100'000);
    while (answered < asked) {
      auto reply = (*raw)->receive();
      ASSERT_TRUE(reply.ok()) << answered << ": " << reply.error().message();
      auto status = wire::decode_status_reply(*reply);
      ASSERT_TRUE(status.ok() && status->request == ++answered);
    }
  }
}

// A session that was cut off goes on writing: nobody listens, nobody spins.
TEST(Hostile, ACutOffSessionKeepsNobodyAwake) {
  Manager manager;
  auto raw = RawSession::open(manager.socket());
  ASSERT_TRUE(raw.ok());
  auto registration = (*raw)->register_rank(small_rank(9));
  ASSERT_TRUE(registration.ok());
  publish_one(**raw, *registration);
  (*raw)->claim(RecordIndex(0));  // keeps the session until this process ends
  ::usleep(300'000);
  std::memset((*raw)->memory().ring(shm::Side::kClient), 0xEE, 64 * wire::kCommandBytes);
  (*raw)->memory().header().command_tail.store(3);
  for (std::uint32_t w = 0; w < 16; ++w) (*raw)->memory().dirty(w).store(~std::uint64_t{0});
  (*raw)->channel().ring_manager();
  ASSERT_FALSE((*raw)->receive().ok());
  const auto before = cpu_ticks(manager.pid());
  for (int i = 0; i < 10; ++i) {
    (*raw)->memory().header().command_tail.fetch_add(1);
    ::usleep(50'000);
  }
  EXPECT_LT(cpu_ticks(manager.pid()) - before, 15u);  // of 50 and more, had it spun
  EXPECT_EQ(manager.status()["sessions.0.operations"], 1u);
}

}  // namespace
}  // namespace orbitkv::test
