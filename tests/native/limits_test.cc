// Every limit of base/limits.h that a client can reach, reached by a client process
// against a Manager with default limits: answered by `busy` or a clear error, and what
// fits is served on. Each test ends with an engine that works.
#include <gtest/gtest.h>

#include "base/limits.h"
#include "tests/native/engine.h"
#include "tests/native/processes.h"
#include "tests/native/raw_session.h"

namespace orbitkv::test {
namespace {

class Limits : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = RawSession::open(manager.socket());
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    raw = std::move(*opened);
    auto made = raw->register_rank(small_rank(1));
    ASSERT_TRUE(made.ok()) << made.error().message();
    registration = *made;
  }
  void TearDown() override {
    raw.reset();
    if (IsSkipped() || HasFatalFailure()) return;
    Engine engine({.socket = manager.socket(), .shape = {}, .instance = 77, .name_space = "afterwards"});
    ASSERT_EQ(engine.connect().message, "");
    EXPECT_TRUE(engine.save(0, 900'000, 4).success);
    EXPECT_EQ(engine.restore(8, 900'000, 4).wrong, 0u);
    EXPECT_EQ(manager.settle("operations", 0), 0u);
  }
  // Publishes and drains, so that the blocks are there.
  void store(std::uint64_t first_hash, std::uint32_t count) {
    ASSERT_TRUE(raw->publish(registration, RecordIndex(1023), first_hash, count).ok());
    ASSERT_TRUE(raw->wait_state(RecordIndex(1023), shm::RecordState::kGranted));
    raw->drain(RecordIndex(1023), model::PlanKind::kSave);
    ASSERT_TRUE(raw->wait_state(RecordIndex(1023), shm::RecordState::kReaped));
  }
  Result<wire::QueryReply> query(const std::string& id, std::uint32_t first, std::uint32_t total,
                                 std::span<const BlockHash> hashes) {
    wire::Buffer frame;
    wire::encode(
        wire::QueryRequest{instance_of(1), GroupId(0), wire::QueryMode::kRead, id, first, total, hashes},
        frame);
    auto reply = raw->call(wire::Opcode::kQuery, frame);
    if (!reply.ok()) return reply.error();
    return wire::decode_query_reply(*reply);
  }

  Manager manager;
  std::unique_ptr<RawSession> raw;
  RegistrationId registration;
};

template <class T>
std::string error_of(const Result<T>& result, Code code) {
  if (result.ok()) return "no error";
  return result.error().code() == code ? result.error().message() : result.error().to_string();
}

#define EXPECT_REFUSED(result, code, text) \
  EXPECT_NE(error_of(result, code).find(text), std::string::npos) << error_of(result, code)

TEST_F(Limits, Sessions) {
  std::vector<std::unique_ptr<RawSession>> sessions;
  for (std::uint32_t i = 1; i < limits::kSessions; ++i) {
    auto opened = RawSession::open(manager.socket());
    ASSERT_TRUE(opened.ok()) << i << ": " << opened.error().message();
    sessions.push_back(std::move(*opened));
  }
  EXPECT_REFUSED(RawSession::open(manager.socket()), Code::kBusy, "64 sessions");
  EXPECT_EQ(manager.status().sessions(), limits::kSessions);  // status needs no session
  // The real client waits in the background and attaches when there is room.
  Engine engine({.socket = manager.socket(), .shape = {}, .instance = 3});
  EXPECT_FALSE(engine.client().health().connected);
  EXPECT_NE(engine.client().health().message.find("64 sessions"), std::string::npos);
  sessions.pop_back();
  EXPECT_TRUE(engine.client().wait_connected(kDoneWithinMs).ok());
}

TEST_F(Limits, Records) {
  for (std::uint32_t i = 0; i < limits::kRecords; ++i)
    ASSERT_TRUE(raw->publish(registration, RecordIndex(i), 1 + i, 1).ok()) << i;
  EXPECT_EQ(manager.status()["operations"], limits::kRecords);
  EXPECT_REFUSED(raw->publish(registration, RecordIndex(5), 5000, 1), Code::kReject, "in use");
  wire::Buffer frame;
  const std::uint32_t block = 0;
  const BlockHash hash = hash_of(1);
  wire::encode(wire::PublishRequest{registration,
                                    GroupId(0),
                                    OperationId(9999),
                                    RecordIndex(1023),
                                    std::as_bytes(std::span(&block, 1)),
                                    {&hash, 1}},
               frame);
  EXPECT_FALSE(raw->call(wire::Opcode::kPublish, frame).ok());
  for (std::uint32_t i = 0; i < limits::kRecords; ++i)
    if (i != 5) raw->drain(RecordIndex(i), model::PlanKind::kSave);
  EXPECT_EQ(manager.settle("operations", 1), 1u);
}

// The real client: 1,024 saves that wait for another publisher, and one more.
TEST(LimitsOfTheClient, RecordsAreBusyBeforeAnythingIsLent) {
  Manager manager({"--publish-wait", "30000"});
  auto holder = start_helper({"engine", "socket=" + manager.socket(), "instance=9"}, "client_claimed:stop:1");
  ASSERT_EQ(holder.line(), "ready ");
  holder.say("save 0 1 1");
  ASSERT_TRUE(holder.stopped_within());
  Engine engine({.socket = manager.socket(), .shape = {}});
  ASSERT_EQ(engine.connect().message, "");
  const auto block = blocks_of(0, 1);
  const auto hash = hashes_of(1, 1);
  std::vector<client::OperationHandle> handles(limits::kRecords);
  for (auto& handle : handles) ASSERT_EQ(engine.start_save(block, hash, handle).message, "");
  client::OperationHandle more;
  const auto full = engine.start_save(block, hash, more);
  EXPECT_EQ(full.action, client::Action::kRetry);
  EXPECT_NE(full.message.find("1024"), std::string::npos) << full.message;
  holder.signal(SIGCONT);
  for (const auto handle : handles) ASSERT_TRUE(engine.client().wait(handle, kDoneWithinMs).success);
  EXPECT_TRUE(engine.save(1, 50, 4).success);
  EXPECT_EQ(manager.settle("operations", 0), 0u);
}

TEST_F(Limits, RestoresOfADevice) {
  store(1, 200);
  auto answer = query("r", 0, 200, hashes_of(1, 200));
  ASSERT_TRUE(answer.ok()) << answer.error().message();
  ASSERT_EQ(answer->hit_blocks, 200u);
  for (std::uint32_t i = 0; i < limits::kRestoresPerDevice; ++i) {
    const std::uint32_t target = i;
    ASSERT_TRUE(raw->restore(registration, RecordIndex(i), answer->lease, i, {&target, 1}).ok()) << i;
  }
  const std::uint32_t target = 500;
  EXPECT_REFUSED(raw->restore(registration, RecordIndex(200), answer->lease, 128, {&target, 1}), Code::kBusy,
                 "128 restores");
  // The refused one consumed nothing; it goes through when another has ended.
  raw->drain_with(RecordIndex(3), Code::kOk, {}, {});
  ASSERT_TRUE(raw->wait_state(RecordIndex(3), shm::RecordState::kReaped));
  EXPECT_TRUE(raw->restore(registration, RecordIndex(201), answer->lease, 128, {&target, 1}).ok());
}

TEST_F(Limits, MetadataOfAnOperationAndOfASession) {
  constexpr std::uint32_t kMost = limits::kMetadataPerOperation.value / limits::kBlockHashBytes;
  const auto hashes = hashes_of(1, 16);
  EXPECT_TRUE(query("a", 0, kMost, hashes).ok());  // 32 MiB promised
  EXPECT_TRUE(query("b", 0, kMost, hashes).ok());  // 64 MiB in all
  EXPECT_REFUSED(query("c", 0, 16 * 1024, hashes), Code::kBusy, "of 67108864 bytes");
  wire::Buffer cancel;
  wire::encode(wire::CancelQueryRequest{instance_of(1), GroupId(0), "a", {}}, cancel);
  ASSERT_TRUE(raw->call(wire::Opcode::kCancelQuery, cancel).ok());
  EXPECT_TRUE(query("c", 0, 16 * 1024, hashes).ok());
}

TEST(LimitsOfTheClient, AQueryOverTheMetadataLimitIsRefused) {
  Manager manager;
  Engine engine({.socket = manager.socket(), .shape = {}});
  ASSERT_EQ(engine.connect().message, "");
  const std::vector<BlockHash> hashes(limits::kMetadataPerOperation.value / limits::kBlockHashBytes + 1);
  client::Candidates candidates;
  const auto outcome = engine.client().query_candidates(engine.instance(), hashes, "q", 0, candidates);
  EXPECT_EQ(outcome.action, client::Action::kReject);
  EXPECT_NE(outcome.message.find("1048576"), std::string::npos) << outcome.message;
}

TEST_F(Limits, PlanBank) {
  constexpr std::uint32_t kBlocks = 1000;
  std::uint32_t granted = 0, sent = 0;
  for (; sent < 30; ++sent) {
    ASSERT_TRUE(raw->publish(registration, RecordIndex(sent), 1 + sent * kBlocks, kBlocks).ok()) << sent;
    granted += raw->state(RecordIndex(sent)) == shm::RecordState::kGranted;
  }
  EXPECT_GT(granted, 10u);
  ASSERT_LT(granted, sent);  // the bank is full: the rest waits
  EXPECT_EQ(raw->state(RecordIndex(granted)), shm::RecordState::kPreparing);
  EXPECT_EQ(manager.status()["waits"], sent - granted);
  // In order of arrival, as space comes free.
  for (std::uint32_t i = 0; i < sent; ++i) {
    ASSERT_TRUE(raw->wait_state(RecordIndex(i), shm::RecordState::kGranted)) << i;
    raw->drain(RecordIndex(i), model::PlanKind::kSave);
    ASSERT_TRUE(raw->wait_state(RecordIndex(i), shm::RecordState::kReaped)) << i;
  }
  EXPECT_EQ(manager.status()["published"], std::uint64_t{sent} * kBlocks);
}

TEST(LimitsOfTheClient, DescriptorSlotsAndRingEntriesOfAHangingManager) {
  Manager manager;
  Engine engine({.socket = manager.socket(), .shape = {}, .timeout_ms = 40});
  ASSERT_TRUE(engine.connect().ok());
  // On a busy machine the registration may have taken longer, and another session.
  for (int i = 0; i < 500 && !engine.client().ping().ok(); ++i) ::usleep(10'000);
  ASSERT_TRUE(engine.client().health().connected);
  manager.process().signal(SIGSTOP);
  client::Candidates candidates;
  const auto hashes = hashes_of(1, 4);
  const auto ask = [&] {
    return engine.client().query_candidates(engine.instance(), hashes, "q", 0, candidates);
  };
  for (std::uint32_t i = 0; i < limits::kDescriptorSlots; ++i)
    ASSERT_EQ(ask().action, client::Action::kReconnect) << i;
  const auto full = ask();
  EXPECT_EQ(full.action, client::Action::kRetry);
  EXPECT_NE(full.message.find("descriptor slot"), std::string::npos) << full.message;
  std::uint32_t pings = 0;
  while (engine.client().ping().action == client::Action::kReconnect)
    ASSERT_LT(++pings, 2 * limits::kRingEntries);
  EXPECT_EQ(pings, limits::kRingEntries - limits::kDescriptorSlots);
  manager.process().signal(SIGCONT);
  // The late replies give everything back.
  client::Outcome outcome;
  for (int i = 0; i < 200 && !(outcome = ask()).ok(); ++i) ::usleep(10'000);
  EXPECT_TRUE(outcome.ok()) << outcome.message;
  for (int i = 0; i < 20; ++i) (void)ask();
  EXPECT_TRUE(manager.alive());
}

TEST(LimitsOfTheClient, RequestIdLength) {
  Manager manager;
  Engine engine({.socket = manager.socket(), .shape = {}});
  ASSERT_EQ(engine.connect().message, "");
  client::Ready ready;
  const auto hashes = hashes_of(1, 4);
  const auto ask = [&](std::size_t n) {
    return engine.client().query_prefetch(engine.instance(), hashes, std::string(n, 'x'), 0, ready);
  };
  EXPECT_TRUE(ask(limits::kRequestIdBytes).ok());
  const auto refused = ask(limits::kRequestIdBytes + 1);
  EXPECT_EQ(refused.action, client::Action::kReject);
  EXPECT_NE(refused.message.find("256"), std::string::npos) << refused.message;
  EXPECT_EQ(engine.client().cancel_query(engine.instance(), std::string(257, 'x'), 0).action,
            client::Action::kReject);
}

TEST_F(Limits, QueriesOfASession) {
  store(1, 1);
  const auto hashes = hashes_of(1, 1);
  for (std::uint32_t i = 0; i < limits::kQueriesPerSession; ++i)
    ASSERT_TRUE(query("q" + std::to_string(i), 0, 1, hashes).ok()) << i;
  EXPECT_REFUSED(query("one more", 0, 1, hashes), Code::kBusy, "1024 queries");
}

TEST_F(Limits, InstancesAndRegistrations) {
  for (std::uint32_t i = 1; i < limits::kRegistrationsPerSession; ++i)
    ASSERT_TRUE(raw->register_rank(small_rank(static_cast<std::uint8_t>(1 + i))).ok()) << i;
  EXPECT_REFUSED(raw->register_rank(small_rank(200)), Code::kBusy, "16 registrations");
  std::vector<std::unique_ptr<RawSession>> sessions;
  std::uint8_t instance = limits::kRegistrationsPerSession;
  for (int s = 0; s < 3; ++s) {
    auto opened = RawSession::open(manager.socket());
    ASSERT_TRUE(opened.ok());
    sessions.push_back(std::move(*opened));
    for (int i = 0; i < 16; ++i)
      ASSERT_TRUE(sessions.back()->register_rank(small_rank(++instance)).ok()) << int{instance};
  }
  auto last = RawSession::open(manager.socket());
  ASSERT_TRUE(last.ok());
  EXPECT_REFUSED((*last)->register_rank(small_rank(201)), Code::kBusy, "64 instances");
}

// Shapes are refused by name, before they travel.
TEST(LimitsOfTheClient, GroupsLayersShardsAndNames) {
  Manager manager;
  Engine engine({.socket = manager.socket(), .shape = {}});
  ASSERT_EQ(engine.connect().message, "");
  const auto refused = [&](auto change) {
    client::Registration registration = engine.description();
    registration.instance = instance_of(50);
    change(registration);
    client::RegistrationHandle handle;
    const auto outcome = engine.client().register_rank(registration, handle);
    EXPECT_TRUE(outcome.ok() || outcome.action == client::Action::kReject) << outcome.message;
    return outcome.message;
  };
  EXPECT_NE(refused([](auto& r) {
              for (std::uint16_t g = 1; g <= limits::kGroups; ++g) {
                r.groups.push_back({g, 0, 1, true});
                r.layers.push_back(r.layers.front());
                r.layers.back().group = g;
              }
            }),
            "");
  EXPECT_NE(refused([](auto& r) {
              const auto first = r.layers.front();
              for (std::uint32_t l = 0; l <= limits::kLayers; ++l) {
                r.layers.push_back(first);
                r.layers.back().name = "more " + std::to_string(l);
              }
            }),
            "");
  EXPECT_NE(refused([](auto& r) { r.groups.front().shards = limits::kShards + 1; }), "");
  EXPECT_NE(refused([](auto& r) { r.name_space = std::string(limits::kNamespaceBytes + 1, 'n'); }), "");
  EXPECT_NE(refused([](auto& r) { r.device = std::string(limits::kDeviceNameBytes + 1, 'd'); }), "");
  EXPECT_NE(refused([](auto& r) { r.layers.front().row_bytes = 12; }), "");
  EXPECT_NE(refused([](auto& r) { r.layers.front().bytes = 100; }), "");
  EXPECT_EQ(refused([](auto&) {}), "");
}

TEST(LimitsOfTheClient, ABlockLargerThanTheLargestSlabIsRefusedByName) {
  Manager manager({"--pool-size", "2MiB"});
  const Shape shape{.layers = 1, .row_bytes = 4 << 20, .blocks = 4};
  Engine engine({.socket = manager.socket(), .shape = shape});
  const auto refused = engine.connect();
  EXPECT_EQ(refused.action, client::Action::kReject);
  EXPECT_NE(refused.message.find("--pool-size"), std::string::npos) << refused.message;
}

// Texts that cross are bounded on both sides.
TEST_F(Limits, ErrorTexts) {
  ASSERT_TRUE(raw->publish(registration, RecordIndex(0), 1, 4).ok());
  ASSERT_TRUE(raw->wait_state(RecordIndex(0), shm::RecordState::kGranted));
  raw->drain_with(RecordIndex(0), Code::kRecompute, {}, std::string(5000, 'e'));
  ASSERT_TRUE(raw->wait_state(RecordIndex(0), shm::RecordState::kReaped));
  EXPECT_EQ(manager.log().find(std::string(limits::kErrorTextBytes + 1, 'e')), std::string::npos);
  EXPECT_NE(manager.log().find(std::string(limits::kErrorTextBytes, 'e')), std::string::npos);
  auto refused = raw->publish(RegistrationId(424242), RecordIndex(1), 1, 4);
  ASSERT_FALSE(refused.ok());
  EXPECT_LE(refused.error().message().size(), limits::kSocketErrorBytes);
  EXPECT_EQ(raw->state(RecordIndex(1)), shm::RecordState::kFailed);
  EXPECT_LE(raw->channel().read_failure(RecordIndex(1)).text.size(), limits::kErrorTextBytes);
}

}  // namespace
}  // namespace orbitkv::test
