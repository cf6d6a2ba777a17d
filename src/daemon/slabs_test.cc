// Slabs that retire under a host: who is told what, when memory counts as free again, and
// what a client may not say.
#include "daemon/slabs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>

#include "base/log.h"
#include "daemon/host.h"
#include "daemon/keep.h"
#include "daemon/keep_store_test.h"
#include "wire/lifecycle.h"

namespace orbitkv::daemon {
namespace {
using shm::RecordState;

constexpr ByteCount kSlab = kMiB;

model::RankRegistration rank(ByteCount fragment = ByteCount(4096)) {
  model::GroupShape group;
  group.shards = 1;
  group.writer = true;
  group.fragments = {{0, 0, fragment}};
  model::RankRegistration rank;
  rank.name_space = "test";
  rank.world_size = 1;
  rank.device = "cpu:0";
  rank.num_blocks = 100;
  rank.block_tokens = 16;
  rank.groups = {group};
  return rank;
}

class SlabsTest : public ::testing::Test, public Host::Owner {
 protected:
  struct Client {
    Session* session = nullptr;
    std::unique_ptr<shm::ClientChannel> channel;
    RegistrationId registration;
    SessionId id;
  };
  struct Sent {
    SessionId to;
    wire::FrameType type;
    std::vector<SlabId> slabs;
  };

  SlabsTest() { start({}); }
  ~SlabsTest() override {
    if (keep) keep->stop();
  }
  // What outlives the process, from the next start() on.
  Slabs::Config keep_in(testing::Shelves& shelves) {
    keep = std::make_unique<Keep>(std::make_unique<testing::TestStore>(shelves));
    EXPECT_TRUE(keep->find(64).ok());
    Slabs::Config config;
    config.keep = keep.get();
    return config;
  }
  void start(const Slabs::Config& config, ByteCount bytes = kSlab) {
    set_log_level(LogLevel::kOff);
    host.reset();
    mem::PoolConfig small;
    small.bytes = bytes;
    small.slab = kSlab;
    small.prefault = false;
    pool = std::move(*mem::Pool::create(small));
    if (tier) tier->use_pool(*pool);
    cache::CoreConfig core;
    if (keep) core.max_blocks = 1000, core.kept = *keep->make_table(*pool, core.max_blocks, 64);
    host = std::make_unique<Host>(core, *pool, *this, tier.get(), Epoch(7), config);
    if (keep) keep->adopt(host->core()), keep->ready();
    host->tick(now);
  }
  Client attach(std::uint64_t process, std::uint8_t instance = 0, ByteCount fragment = ByteCount(4096)) {
    const Host::Place place = *host->place();
    auto memory = std::move(*shm::SessionMemory::create(place.id, place.epoch));
    UniqueFd again(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0));
    Client client;
    client.channel = std::make_unique<shm::ClientChannel>(
        std::move(*shm::SessionMemory::attach(std::move(again), place.id, place.epoch)),
        std::move(*shm::make_bell()));
    client.session = &host->open(
        {place.id, place.epoch, "test", static_cast<int>(process),
         shm::ManagerChannel(std::move(memory), std::move(*shm::make_bell())), ProcessId(process)},
        now);
    client.id = place.id;
    host->offer_slabs(*client.session, now);
    model::RankRegistration mine = rank(fragment);
    mine.instance.bytes[0] = std::byte{instance};
    client.registration = *host->core().register_rank(place.id, mine, now);
    return client;
  }
  // A save of `n` blocks that the client has claimed.
  void claim_save(Client& client, std::uint64_t operation, std::uint32_t n) {
    const RecordIndex record(static_cast<std::uint32_t>(operation));
    const OperationId id(operation);
    client.channel->exchange(record, {OperationId(), RecordState::kFree}, {id, RecordState::kReserved});
    ASSERT_TRUE(client.session->begin(record, id).ok());
    std::vector<std::uint32_t> blocks;
    std::vector<BlockHash> hashes(n);
    for (std::uint32_t i = 0; i < n; ++i) {
      blocks.push_back(i);
      hashes[i].bytes[0] = static_cast<std::byte>(++last_hash_);
      hashes[i].bytes[1] = static_cast<std::byte>(last_hash_ >> 8);
    }
    ASSERT_TRUE(host->core()
                    .publish({{client.id, record, id}, client.registration, GroupId(0), blocks, hashes}, now)
                    .ok());
    EXPECT_FALSE(client.channel->exchange(record, {id, RecordState::kGranted}, {id, RecordState::kActive}));
  }
  void die_in_save(std::uint64_t process) {
    Client client = attach(process, 9);
    claim_save(client, 1, 2);
    host->on_process_ended(*client.session, now);
  }
  void pass(Duration d) {
    now = now + d;
    host->tick(now);
    while (host->turn(now)) {
    }
  }
  template <class Message>
  void frame(Client& client, const Message& message) {
    std::vector<std::byte> out;
    wire::encode(message, out);
    host->on_frame(*client.session, out, now);
  }
  std::vector<SlabId> told(const Client& client, wire::FrameType type) const {
    std::vector<SlabId> out;
    for (const Sent& each : sent)
      if (each.to == client.id && each.type == type)
        out.insert(out.end(), each.slabs.begin(), each.slabs.end());
    return out;
  }
  std::vector<SlabId> offered(const Client& c) const { return told(c, wire::FrameType::kSlabOffer); }
  std::vector<SlabId> retired(const Client& c) const { return told(c, wire::FrameType::kSlabRetire); }
  mem::PoolStats stats() const { return pool->stats(); }
  const Slabs& slabs() const { return host->slabs(); }

  Status send(SessionId session, std::vector<std::byte> bytes, std::vector<int> fds) override {
    if (!sends.ok()) return sends;
    const wire::FrameType type = wire::open_frame(bytes)->type;
    Sent one{session, type, {}};
    if (type == wire::FrameType::kSlabRetire) one.slabs = {wire::decode_slab_retire(bytes)->slab};
    if (type == wire::FrameType::kSlabOffer) {
      const auto offer = wire::decode_slab_offer(bytes);
      EXPECT_EQ(offer->slabs.size(), fds.size());
      for (const auto& slab : offer->slabs) one.slabs.push_back(slab.id);
    }
    sent.push_back(one);
    return ok_status();
  }
  bool retract(SessionId, SlabId) override { return retracts; }
  void on_closed(Session& session) override { closed.insert(session.id()); }
  void on_gone(Session&) override {}
  std::string status_json() const override { return {}; }

  TimePoint now{1'000'000'000};
  Status sends = ok_status();
  bool retracts = false;
  std::vector<Sent> sent;
  std::set<SessionId> closed;
  std::unique_ptr<Keep> keep;
  std::unique_ptr<mem::Pool> pool;
  std::unique_ptr<SsdTier> tier;  // nullptr: none
  std::unique_ptr<Host> host;
  std::uint32_t last_hash_ = 0;
};

TEST_F(SlabsTest, QuarantineEndsAndTheSlabIsReplaced) {
  Client witness = attach(1);
  EXPECT_EQ(offered(witness), std::vector{SlabId(0)});
  die_in_save(2);
  pass(milliseconds(300));
  EXPECT_GT(stats().quarantined, ByteCount(0));
  pass(milliseconds(500));
  EXPECT_TRUE(retired(witness).empty()) << "too early";
  pass(milliseconds(600));
  pass(milliseconds(250));
  EXPECT_EQ(stats().quarantined, ByteCount(0));
  EXPECT_EQ(stats().capacity, kSlab);
  EXPECT_EQ(retired(witness), std::vector{SlabId(0)});
  EXPECT_EQ(offered(witness), (std::vector{SlabId(0), SlabId(1)}));
  EXPECT_EQ(slabs().retired_bytes(), kSlab) << "the witness may map it still";
  ASSERT_EQ(slabs().abandoned().size(), 1u);
  EXPECT_EQ(slabs().abandoned()[0].processes, std::vector{1});
  frame(witness, wire::SlabReleased{SlabId(0)});
  pass(milliseconds(250));
  EXPECT_EQ(slabs().retired_bytes(), ByteCount(0));
  EXPECT_TRUE(closed.count(witness.id) == 0);
  sent.clear();  // ids of sessions are given again
  EXPECT_EQ(offered(attach(3, 3)), std::vector{SlabId(1)}) << "who comes later hears of the new one only";
}

TEST_F(SlabsTest, AHundredDeathsCostNoCapacity) {
  for (std::uint32_t i = 0; i < 100; ++i) {
    die_in_save(10 + i);
    pass(milliseconds(250));
    pass(milliseconds(1001));
    pass(milliseconds(250));
    ASSERT_EQ(stats().quarantined, ByteCount(0)) << i;
    ASSERT_EQ(stats().capacity, kSlab) << i;
    ASSERT_EQ(slabs().retired_bytes(), ByteCount(0));
  }
  EXPECT_EQ(slabs().retired(), 100u);
  EXPECT_EQ(pool->slabs().size(), 2u) << "slots are used again";
}

TEST_F(SlabsTest, WithoutHeadroomThePoolIsSmallerUntilTheLastMapperAnswers) {
  Client slow = attach(1);
  die_in_save(2);
  pass(milliseconds(250));
  pass(milliseconds(1001));
  pass(milliseconds(250));
  ASSERT_EQ(stats().capacity, kSlab) << "the headroom is one slab";
  die_in_save(3);
  pass(milliseconds(250));
  pass(milliseconds(1001));
  pass(seconds(20));
  EXPECT_EQ(stats().capacity, ByteCount(0));
  EXPECT_EQ(slabs().retired_bytes(), 2 * kSlab);
  frame(slow, wire::SlabReleased{SlabId(0)});
  pass(seconds(6));
  pass(milliseconds(250));
  EXPECT_EQ(stats().capacity, kSlab);
  EXPECT_EQ(slabs().wanted(), 1u);
}

TEST_F(SlabsTest, AProcessThatLeftWithoutGoodbyeHoldsItsBytesUntilItEnds) {
  Client polite = attach(1), lost = attach(2, 1);
  host->close(*lost.session, "scripted", now);
  frame(polite, wire::Bye{});
  die_in_save(3);
  pass(milliseconds(250));
  pass(milliseconds(1001));
  pass(milliseconds(250));
  EXPECT_EQ(stats().quarantined, ByteCount(0)) << "it needs no receipt";
  EXPECT_EQ(slabs().retired_bytes(), kSlab);
  EXPECT_EQ(slabs().abandoned()[0].processes, std::vector{2});
  host->on_process_ended(ProcessId(2));
  pass(milliseconds(250));
  EXPECT_EQ(slabs().retired_bytes(), ByteCount(0));
}

TEST_F(SlabsTest, GoodbyeWithAnOpenClaimIsNotBelieved) {
  Client liar = attach(1);
  claim_save(liar, 1, 2);
  frame(liar, wire::Bye{});
  die_in_save(2);
  pass(milliseconds(250));
  pass(milliseconds(1001));
  pass(seconds(3));
  EXPECT_EQ(stats().quarantined, ByteCount(0)) << "and keeps nobody waiting";
  EXPECT_EQ(slabs().retired_bytes(), kSlab);
}

TEST_F(SlabsTest, ReceiptsThatNobodyAskedForBreakTheProtocol) {
  Client one = attach(1);
  frame(one, wire::SlabReleased{SlabId(0)});
  EXPECT_TRUE(closed.contains(one.id)) << "the slab does not retire";
  Client two = attach(2, 2);
  frame(two, wire::SlabReleased{SlabId(77)});
  EXPECT_TRUE(closed.contains(two.id)) << "there is no such slab";
  Client three = attach(3, 3);
  closed.clear();
  die_in_save(4);
  pass(milliseconds(250));
  pass(milliseconds(1001));
  pass(milliseconds(250));
  frame(three, wire::SlabReleased{SlabId(0)});
  EXPECT_FALSE(closed.contains(three.id));
  frame(three, wire::SlabReleased{SlabId(0)});
  EXPECT_TRUE(closed.contains(three.id)) << "twice";
}

TEST_F(SlabsTest, AReceiptFromOneWhoCopiesThereStillBreaksTheProtocol) {
  Client copies = attach(1);
  claim_save(copies, 1, 2);
  die_in_save(2);
  pass(milliseconds(250));
  pass(milliseconds(1001));
  pass(milliseconds(250));
  ASSERT_EQ(retired(copies), std::vector{SlabId(0)});
  closed.clear();
  frame(copies, wire::SlabReleased{SlabId(0)});
  EXPECT_TRUE(closed.contains(copies.id));
}

TEST_F(SlabsTest, AnEngineThatNeverAnswersDelaysNobody) {
  Client stopped = attach(1);
  claim_save(stopped, 1, 2);
  die_in_save(2);
  pass(milliseconds(250));
  pass(milliseconds(1001));
  pass(milliseconds(250));
  EXPECT_GT(stats().quarantined, ByteCount(0)) << "the claim is waited for";
  pass(seconds(2));
  pass(milliseconds(250));
  EXPECT_EQ(stats().quarantined, ByteCount(0));
  EXPECT_EQ(stats().capacity, kSlab);
  // It goes on: the receipt is taken, and nothing of it is kept.
  const OperationId id(1);
  stopped.channel->write_client_result(RecordIndex(1), Code::kRecompute, 0, "late");
  stopped.channel->exchange(RecordIndex(1), {id, RecordState::kActive}, {id, RecordState::kDrained});
  stopped.channel->mark_dirty(RecordIndex(1));
  pass(milliseconds(250));
  EXPECT_EQ(host->core().stats().operations, 0u);
  frame(stopped, wire::SlabReleased{SlabId(0)});
  EXPECT_FALSE(closed.contains(stopped.id));
}

TEST_F(SlabsTest, AnOfferThatWasNotSentIsTakenBack) {
  Client deaf = attach(1);
  retracts = true;
  die_in_save(2);
  pass(milliseconds(250));
  pass(milliseconds(1001));
  pass(milliseconds(250));
  EXPECT_TRUE(retired(deaf).empty());
  EXPECT_EQ(slabs().retired_bytes(), ByteCount(0));
}

TEST_F(SlabsTest, AClientThatReadsNothingIsToldLater) {
  Client deaf = attach(1);
  die_in_save(2);
  sends = busy("full");
  pass(milliseconds(250));
  pass(milliseconds(1001));
  pass(milliseconds(250));
  EXPECT_TRUE(retired(deaf).empty());
  EXPECT_EQ(stats().capacity, kSlab);
  sends = ok_status();
  pass(milliseconds(250));
  EXPECT_EQ(retired(deaf), std::vector{SlabId(0)});
  EXPECT_EQ(offered(deaf), (std::vector{SlabId(0), SlabId(1)}));
}

TEST_F(SlabsTest, SlabsAreAddedAndDrainedByOrder) {
  Client client = attach(1);
  EXPECT_EQ(*host->slabs().add(3 * kSlab), 4u);
  for (int i = 0; i < 8; ++i) pass(seconds(6));
  EXPECT_EQ(stats().capacity, 4 * kSlab);
  EXPECT_EQ(offered(client).size(), 4u);
  EXPECT_EQ(*host->slabs().drain(SlabId(2)), 3u);
  pass(milliseconds(250));
  pass(milliseconds(250));
  EXPECT_EQ(retired(client), std::vector{SlabId(2)});
  EXPECT_EQ(*host->slabs().drain(2 * kSlab), 1u);
  for (int i = 0; i < 4; ++i) pass(milliseconds(250));
  EXPECT_EQ(stats().capacity, kSlab);
  EXPECT_FALSE(host->slabs().drain(kSlab).ok()) << "one must stay";
  EXPECT_FALSE(host->slabs().drain(SlabId(2)).ok()) << "it is gone";
  EXPECT_FALSE(host->slabs().add(ByteCount(0)).ok());
  EXPECT_FALSE(host->slabs().add(limits::kSlabs * kSlab).ok());
  // A death does not bring drained slabs back.
  die_in_save(2);
  for (int i = 0; i < 10; ++i) pass(seconds(1));
  EXPECT_LE(stats().capacity, kSlab);
}

TEST_F(SlabsTest, ASmallLastSlabIsReplacedByAWholeOne) {
  Slabs::Config config;
  config.headroom = ByteCount(4096);
  start(config, ByteCount(5 * kSlab.value / 2));
  EXPECT_EQ(*host->slabs().drain(SlabId(2)), 2u);
  for (int i = 0; i < 4; ++i) pass(milliseconds(250));
  ASSERT_EQ(stats().capacity, 2 * kSlab);
  EXPECT_EQ(*host->slabs().add(kSlab), 3u);
  for (int i = 0; i < 4; ++i) pass(seconds(6));
  EXPECT_EQ(stats().capacity, 3 * kSlab);
}

// ---- what outlives the process ----

// The next turn may be the next Manager's.
TEST_F(SlabsTest, WhatTheOperatorWantsIsKeptAtOnce) {
  testing::Shelves shelves;
  start(keep_in(shelves));
  const auto table =
      mem::KeptTable::open(UniqueFd(::fcntl(shelves.held.at("table-1").get(), F_DUPFD_CLOEXEC, 0)));
  ASSERT_TRUE(table.ok());
  ASSERT_EQ(*host->slabs().add(2 * kSlab), 3u);
  EXPECT_EQ(table->wanted() >> 16, 3u);
  EXPECT_EQ(slabs().wanted_bytes(), 3 * kSlab);
  ASSERT_EQ(*host->slabs().drain(kSlab), 2u);
  EXPECT_EQ(table->wanted() >> 16, 2u);
}

// Whoever keeps descriptors may be stopped: it has the bytes, and holds up nothing.
TEST_F(SlabsTest, AStoreThatDoesNotLetGoHoldsTheBytesAndNothingElse) {
  testing::Shelves shelves;
  start(keep_in(shelves));
  shelves.slow = true;
  die_in_save(2);
  pass(milliseconds(250));
  pass(milliseconds(1001));
  pass(milliseconds(250));
  EXPECT_EQ(stats().quarantined, ByteCount(0));
  EXPECT_EQ(stats().capacity, kSlab) << "the headroom is one slab";
  EXPECT_EQ(slabs().retired_bytes(), kSlab);
  ASSERT_EQ(slabs().abandoned().size(), 1u);
  EXPECT_TRUE(slabs().abandoned()[0].processes.empty());
  die_in_save(3);
  pass(milliseconds(250));
  pass(milliseconds(1001));
  pass(seconds(11));
  EXPECT_EQ(stats().quarantined, ByteCount(0)) << "the next one does not wait";
  EXPECT_EQ(slabs().retired_bytes(), 2 * kSlab);
  shelves.remove_all();
  pass(milliseconds(250));
  EXPECT_EQ(slabs().retired_bytes(), ByteCount(0));
}

TEST_F(SlabsTest, WhatProcessesOfAnEarlierLifeMappedCountsUntilTheyAnswerOrEnd) {
  host->slabs().inherit({{{ProcessId(50), 50}, {ProcessId(51), 51}, {ProcessId(52), 52, SlabId(0)}},
                         {SlabId(0)},
                         {{SlabId(900), kSlab}}});
  pass(milliseconds(250));
  EXPECT_EQ(slabs().retired_bytes(), kSlab);
  ASSERT_EQ(slabs().abandoned().size(), 1u);
  EXPECT_EQ(slabs().abandoned()[0].processes, (std::vector{50, 51}));
  die_in_save(2);
  pass(milliseconds(250));
  pass(milliseconds(1001));
  pass(seconds(11));
  EXPECT_EQ(slabs().retired_bytes(), 2 * kSlab) << "neither has a session, and both may map it";
  EXPECT_EQ(stats().capacity, ByteCount(0));
  Client back = attach(50, 5);
  pass(milliseconds(250));
  EXPECT_EQ(retired(back), (std::vector{SlabId(900), SlabId(0)}));
  closed.clear();  // ids of sessions are given again
  frame(back, wire::SlabReleased{SlabId(900)});
  frame(back, wire::SlabReleased{SlabId(0)});
  EXPECT_FALSE(closed.contains(back.id));
  pass(milliseconds(250));
  EXPECT_EQ(slabs().retired_bytes(), 2 * kSlab);
  host->on_process_ended(ProcessId(51));
  for (int i = 0; i < 3; ++i) pass(seconds(6));
  EXPECT_EQ(slabs().retired_bytes(), ByteCount(0));
  EXPECT_EQ(stats().capacity, kSlab);
}

// What lies there could go to the SSD, were it known how it looks.
TEST_F(SlabsTest, SlabsOfAnEarlierLifeWaitAWhileForTheirNamespaces) {
  const std::string path = ::testing::TempDir() + "slabs_test." + std::to_string(::getpid());
  SsdTier::Options options;
  options.io = ssd::IoKind::kThreads;
  options.store.segment = limits::kSegmentBytesLeast;
  options.store.paths.push_back({path, 4 * kMiB});
  for (const bool registers : {true, false}) {
    host.reset();
    tier.reset();
    tier = std::move(*SsdTier::open(options));
    start({});
    host->slabs().inherit({{}, {SlabId(0)}, {}});
    // No segment holds one of its blocks.
    Client other = attach(1, 1, limits::kSegmentBytesLeast);
    ASSERT_TRUE(host->core().lacks_spaces());
    die_in_save(2);
    pass(milliseconds(250));
    pass(milliseconds(1001));
    pass(seconds(5));
    EXPECT_GT(stats().quarantined, ByteCount(0));
    if (registers) frame(other, wire::Bye{});
    pass(seconds(registers ? 1 : 23));
    EXPECT_EQ(stats().quarantined.value > 0, !registers);
    for (int i = 0; i < 3; ++i) pass(seconds(3));
    EXPECT_EQ(stats().quarantined, ByteCount(0)) << registers;
  }
  host.reset();
  tier.reset();
  ::unlink(path.c_str());
}

// What the core may lend from, the device and the clients must know.
TEST_F(SlabsTest, ASparseSlabIsKnownAsSoonAsItIsLentFrom) {
  const Client client = attach(1);
  ASSERT_TRUE(host->slabs().add(kSlab).ok());
  host->tick(now);
  EXPECT_EQ(stats().capacity, 2 * kSlab);
  EXPECT_EQ(slabs().offered(), 2u);
  EXPECT_EQ(offered(client), (std::vector{SlabId(0), SlabId(1)}));
}

TEST_F(SlabsTest, PressureTakesOneSlabAtATimeAndNotTheLastOnes) {
  Slabs::Config config;
  config.least = 2 * kSlab;
  start(config);
  ASSERT_TRUE(host->slabs().add(3 * kSlab).ok());
  for (int i = 0; i < 8; ++i) pass(seconds(6));
  ASSERT_EQ(stats().capacity, 4 * kSlab);
  host->slabs().on_pressure(now);
  host->slabs().on_pressure(now);
  EXPECT_EQ(slabs().wanted(), 3u) << "the first has not gone yet";
  pass(milliseconds(250));
  pass(milliseconds(250));
  EXPECT_EQ(stats().capacity, 3 * kSlab);
  host->slabs().on_pressure(now);
  EXPECT_EQ(slabs().wanted(), 3u) << "too soon";
  for (int i = 0; i < 5; ++i) {
    pass(seconds(11));
    host->slabs().on_pressure(now);
  }
  EXPECT_EQ(slabs().wanted(), 2u);
  start({});
  ASSERT_TRUE(host->slabs().add(3 * kSlab).ok());
  host->slabs().on_pressure(now);
  EXPECT_EQ(slabs().wanted(), 4u) << "nobody asked for it";
}

}  // namespace
}  // namespace orbitkv::daemon
