// The host without a Manager around it: what its owner is told, and when.
#include "daemon/host.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.h"
#include "wire/lifecycle.h"

namespace orbitkv::daemon {
namespace {

constexpr TimePoint kStart{1'000'000'000};

class HostTest : public testing::Test, public Host::Owner {
 protected:
  HostTest() {
    mem::PoolConfig config;
    config.bytes = kMiB;
    config.prefault = false;
    pool = std::move(*mem::Pool::create(config));
    host = std::make_unique<Host>(cache::CoreConfig{}, *pool, *this, nullptr, Epoch(7));
    host->tick(kStart);
  }
  Session& attach() {
    const Host::Place place = *host->place();
    auto memory = std::move(*shm::SessionMemory::create(place.id, place.epoch));
    UniqueFd again(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0));
    client = std::make_unique<shm::ClientChannel>(
        std::move(*shm::SessionMemory::attach(std::move(again), place.id, place.epoch)),
        std::move(*shm::make_bell()));
    return host->open({place.id, place.epoch, "test", 0,
                       shm::ManagerChannel(std::move(memory), std::move(*shm::make_bell()))},
                      kStart);
  }
  template <class Message>
  void frame(Session& session, const Message& message) {
    std::vector<std::byte> out;
    wire::encode(message, out);
    host->on_frame(session, out, kStart);
  }

  Status send(SessionId, std::vector<std::byte> bytes, std::vector<int> descriptors) override {
    if (!sends.ok()) return sends;
    frames.push_back(std::move(bytes));
    fds += descriptors.size();
    return ok_status();
  }
  void on_closed(Session& session) override { closed.push_back(session.id()); }
  void on_gone(Session& session) override { gone.push_back(session.id()); }
  std::string status_json() const override { return R"({"from": "the owner"})"; }

  Status sends = ok_status();
  std::vector<std::vector<std::byte>> frames;
  std::size_t fds = 0;
  std::vector<SessionId> closed, gone;
  std::unique_ptr<mem::Pool> pool;
  std::unique_ptr<Host> host;
  std::unique_ptr<shm::ClientChannel> client;
};

TEST_F(HostTest, PlacesHaveTheirOwnEpochsAndAreTakenByOpening) {
  EXPECT_EQ(host->place()->epoch, Epoch(7));
  Session& first = attach();
  EXPECT_EQ(first.epoch(), Epoch(8));
  EXPECT_NE(host->place()->id, first.id());
  EXPECT_EQ(host->find(first.id()), &first);
  EXPECT_EQ(host->find(SessionId(63)), nullptr);
  EXPECT_EQ(host->find(SessionId(64)), nullptr);
}

TEST_F(HostTest, ATickOffersTheSlabsAndAFullConnectionGetsThemLater) {
  sends = busy("full");
  Session& session = attach();
  host->tick(kStart);
  EXPECT_EQ(session.life, Session::Life::kOpen);
  EXPECT_EQ(session.slabs_offered, 0u);
  sends = ok_status();
  host->tick(kStart);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(wire::decode_slab_offer(frames[0])->slabs.size(), 1u);
  EXPECT_EQ(fds, 1u);
  host->tick(kStart);
  EXPECT_EQ(frames.size(), 1u);
}

TEST_F(HostTest, AnAnswerThatCannotBeSentClosesTheSession) {
  Session& session = attach();
  sends = busy("full");
  frame(session, wire::StatusRequest{1});
  EXPECT_EQ(closed, std::vector{session.id()});
  EXPECT_EQ(session.life, Session::Life::kClosed);
}

TEST_F(HostTest, ALostClientIsNotOfferedSlabs) {
  Session& session = attach();
  sends = reconnect("gone");
  host->offer_slabs(session, kStart);
  EXPECT_EQ(session.life, Session::Life::kClosed);
}

TEST_F(HostTest, TheOwnerAnswersForTheStatus) {
  frame(attach(), wire::StatusRequest{5});
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(wire::decode_status_reply(frames[0])->json, status_json());
}

TEST_F(HostTest, CommandsAreServedWhenTheClientRang) {
  Session& session = attach();
  EXPECT_FALSE(Host::rung(session));
  EXPECT_TRUE(host->prepare_sleep());
  host->cancel_sleep();
  ASSERT_TRUE(
      client->push_command(wire::encode(wire::Command{wire::Opcode::kPing, 1, session.epoch(), 0, 0})));
  client->ring_manager();
  EXPECT_FALSE(host->prepare_sleep());
  EXPECT_TRUE(Host::rung(session));
  EXPECT_TRUE(host->serve(session, false, kStart));
  EXPECT_TRUE(client->pop_reply().has_value());
}

// One ring may stand for many commands: what is left has its turn without another one.
TEST_F(HostTest, ATurnOfASessionIsBoundedAndTheRestComesWithTheNext) {
  Session& session = attach();
  for (std::uint64_t i = 1; i <= limits::kCommandsPerTurn + 5; ++i)
    ASSERT_TRUE(
        client->push_command(wire::encode(wire::Command{wire::Opcode::kPing, i, session.epoch(), 0, 0})));
  client->ring_manager();
  const auto replies = [&] {
    std::uint32_t n = 0;
    while (client->pop_reply()) ++n;
    return n;
  };
  EXPECT_TRUE(Host::rung(session));
  EXPECT_TRUE(host->serve(session, false, kStart));
  EXPECT_EQ(replies(), limits::kCommandsPerTurn);
  EXPECT_TRUE(Host::rung(session)) << "though nobody rang";
  EXPECT_TRUE(host->serve(session, false, kStart));
  EXPECT_EQ(replies(), 5u);
  EXPECT_FALSE(Host::rung(session));
}

TEST_F(HostTest, LargeRequestsShareATurnByTheirBytes) {
  Session& session = attach();
  const std::vector<BlockHash> list(1500);
  wire::QueryRequest query;
  query.total = 1500;
  query.hashes = list;
  std::vector<std::byte> bytes;
  wire::encode(query, bytes);
  ASSERT_GT(ByteCount(bytes.size()), limits::kRequestBytesPerTurn);
  for (std::uint32_t i = 0; i < 3; ++i) {
    std::copy(bytes.begin(), bytes.end(), client->slot(i));
    ASSERT_TRUE(client->push_command(wire::encode(wire::Command{
        wire::Opcode::kQuery, i + 1, session.epoch(), i, static_cast<std::uint32_t>(bytes.size())})));
  }
  client->ring_manager();
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(Host::rung(session)) << i;
    EXPECT_TRUE(host->serve(session, false, kStart));
    EXPECT_TRUE(client->pop_reply().has_value()) << i;
    EXPECT_FALSE(client->pop_reply().has_value()) << i;
  }
  EXPECT_TRUE(Host::rung(session)) << "it does not know that the last one was";
  EXPECT_FALSE(host->serve(session, false, kStart));
  EXPECT_FALSE(Host::rung(session));
}

TEST_F(HostTest, AClosedSessionGoesWithATickAndAnEndedProcessAtOnce) {
  Session& first = attach();
  const SessionId id = first.id();
  frame(first, wire::Bye{});
  EXPECT_EQ(closed, std::vector{id});
  EXPECT_TRUE(gone.empty());
  host->tick(kStart);
  EXPECT_EQ(gone, std::vector{id});
  EXPECT_TRUE(host->live().empty());
  Session& second = attach();
  EXPECT_EQ(second.id(), id);
  host->on_process_ended(second, kStart);
  EXPECT_EQ(closed.size(), 2u);
  EXPECT_EQ(gone.size(), 2u);
}

TEST_F(HostTest, WhoDoesNotBeatIsStalledAndASignOfLifeRevives) {
  host->watch_stalls({seconds(3), true});
  Session& session = attach();
  TimePoint now = kStart;
  const auto tick = [&](int times) {
    for (int i = 0; i < times; ++i) host->tick(now = now + milliseconds(250));
  };
  const auto health = [&] { return host->stalls().health(session.id()); };
  for (int i = 0; i < 10; ++i) {
    client->beat();
    tick(8);
  }
  EXPECT_EQ(health(), Health::kHealthy);
  tick(40);
  EXPECT_EQ(health(), Health::kStalled) << "and not condemned: it holds nothing";
  EXPECT_EQ(host->core().stats().sessions, 1u);
  ASSERT_TRUE(
      client->push_command(wire::encode(wire::Command{wire::Opcode::kPing, 1, session.epoch(), 0, 0})));
  tick(1);
  EXPECT_EQ(health(), Health::kHealthy) << "a command is a sign, too";
  tick(13);
  frame(session, wire::StatusRequest{5});
  tick(1);
  EXPECT_EQ(host->stalls().stats().revivals, 2u) << "and so is a frame";
  tick(40);
  frame(session, wire::Bye{});
  tick(40);
  EXPECT_EQ(host->stalls().stats().stalls, 3u) << "a closed session is not watched";
}

TEST_F(HostTest, DrainingClosesAllAndTakesNoneIn) {
  attach();
  attach();
  host->drain(kStart);
  EXPECT_EQ(closed.size(), 2u);
  EXPECT_TRUE(host->live().empty());
  EXPECT_EQ(host->place().error().code(), Code::kReconnect);
}

}  // namespace
}  // namespace orbitkv::daemon
