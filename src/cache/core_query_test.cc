// Queries and leases through the whole core.
#include "base/limits.h"
#include "cache/core_world_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

QueryPart slice(const std::vector<BlockHash>& list, std::uint32_t first, std::uint32_t count,
                std::string_view id, QueryMode mode = QueryMode::kRead) {
  return {instance_id(1),
          GroupId(0),
          mode,
          id,
          first,
          static_cast<std::uint32_t>(list.size()),
          std::span(list).subspan(first, count)};
}

// Blocks 0..7 and 10..11 are resident.
struct Filled {
  World w;
  Engine e{w};
  explicit Filled(const WorldOptions& options = {}) : w(options) {
    w.store(e.worker, e.registration, hashes(0, 8));
    w.store(e.worker, e.registration, hashes(10, 2));
  }
  Result<QueryAnswer> ask(const QueryPart& part) { return w.core->query(e.scheduler, part, w.now); }
  std::uint32_t leases() { return w.core->stats().leases; }
};

TEST(CoreQuery, DiscoveryTellsPositionsAndPinsNothing) {
  Filled f;
  const auto list = hashes(0, 12);
  const auto answer = f.ask(slice(list, 0, 12, "", QueryMode::kDiscover));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->hit_blocks, 8u);
  EXPECT_EQ(answer->resident, std::vector<std::uint64_t>{0xCFF});
  EXPECT_FALSE(answer->lease);
  const CoreStats s = f.w.core->stats();
  EXPECT_EQ(s.hits + s.misses, 0u);
  EXPECT_EQ(s.leased, ByteCount(0));
}

TEST(CoreQuery, ReadLeasesTheLeadingRun) {
  Filled f;
  const QueryAnswer a = f.w.read(f.e.scheduler, hashes(0, 12), "r");
  EXPECT_EQ(a.hit_blocks, 8u);
  EXPECT_TRUE(a.lease);
  const CoreStats s = f.w.core->stats();
  EXPECT_EQ(s.leased, 8 * slot_bytes());
  EXPECT_EQ(s.hits, 8u);
  EXPECT_EQ(s.misses, 4u);
  EXPECT_EQ(f.w.core->instances()[0].leases, 1u);
}

TEST(CoreQuery, NothingToLeaseHoldsNothing) {
  Filled f;
  const QueryAnswer a = f.w.read(f.e.scheduler, hashes(100, 3), "r");
  EXPECT_EQ(a.hit_blocks, 0u);
  EXPECT_FALSE(a.lease);
  EXPECT_EQ(f.w.read(f.e.scheduler, {}, "empty").hit_blocks, 0u);
  EXPECT_EQ(f.leases(), 0u);
}

TEST(CoreQuery, TheSameListAnswersTheSameLeaseAndLivesOn) {
  Filled f;
  const QueryAnswer a = f.w.read(f.e.scheduler, hashes(0, 12), "r");
  f.w.now = f.w.now + seconds(599);
  const QueryAnswer b = f.w.read(f.e.scheduler, hashes(0, 12), "r");
  EXPECT_EQ(b.lease, a.lease);
  EXPECT_EQ(b.revision, a.revision);
  EXPECT_EQ(b.hit_blocks, 8u);
  f.w.now = f.w.now + seconds(599);
  f.w.core->tick(f.w.now);
  EXPECT_EQ(f.leases(), 1u) << "asking again renewed it";
  EXPECT_EQ(f.w.core->stats().hits, 8u) << "counted once";
  f.w.now = f.w.now + seconds(1);
  f.w.core->tick(f.w.now);
  EXPECT_EQ(f.leases(), 0u);
  EXPECT_EQ(f.w.core->stats().expired_leases, 1u);
  EXPECT_EQ(f.w.core->stats().leased, ByteCount(0));
}

TEST(CoreQuery, AnotherListUnderTheSameIdIsANewRevision) {
  Filled f;
  const QueryAnswer a = f.w.read(f.e.scheduler, hashes(0, 8), "r");
  auto changed = hashes(0, 8);
  changed[7] = hash_of(55);
  const QueryAnswer b = f.w.read(f.e.scheduler, changed, "r");
  EXPECT_NE(b.lease, a.lease);
  EXPECT_GT(b.revision, a.revision);
  EXPECT_EQ(b.hit_blocks, 7u);
  EXPECT_EQ(f.leases(), 1u);
  EXPECT_EQ(f.w.core->stats().leased, 7 * slot_bytes());
  // Behind the leading run it counts as well.
  changed.push_back(hash_of(56));
  const QueryAnswer c = f.w.read(f.e.scheduler, changed, "r");
  EXPECT_NE(c.lease, b.lease);
  changed.back() = hash_of(57);
  EXPECT_NE(f.w.read(f.e.scheduler, changed, "r").lease, c.lease);
  const auto stale = f.w.restore(f.w.next_op(f.e.worker), f.e.registration, a.lease, blocks(0, 1));
  EXPECT_EQ(code_of(stale), Code::kRecompute);
}

TEST(CoreQuery, IdentityIsInstanceAndRequestId) {
  Filled f;
  Engine other(f.w, {.instance = 2});
  const LeaseId a = f.w.read(f.e.scheduler, hashes(0, 3), "r").lease;
  const LeaseId b = f.w.read(f.e.scheduler, hashes(0, 3), "s").lease;
  const LeaseId c = f.w.read(other.scheduler, hashes(0, 3), "r", 2).lease;
  EXPECT_NE(a, b);
  EXPECT_NE(a, c);
  EXPECT_EQ(f.leases(), 3u);
  EXPECT_EQ(f.w.core->stats().leased, 3 * slot_bytes()) << "bytes count once";
}

TEST(CoreQuery, PartsGiveWhatOneQueryWouldGive) {
  for (const QueryMode mode : {QueryMode::kDiscover, QueryMode::kRead}) {
    Filled f;
    const auto list = hashes(0, 12);
    const auto p0 = f.ask(slice(list, 0, 5, "r", mode));
    ASSERT_TRUE(p0.ok());
    EXPECT_EQ(p0->hit_blocks, 5u);
    EXPECT_FALSE(p0->lease);
    const auto p1 = f.ask(slice(list, 5, 6, "r", mode));
    ASSERT_TRUE(p1.ok());
    EXPECT_EQ(p1->hit_blocks, 8u);
    EXPECT_EQ(p1->resident, std::vector<std::uint64_t>{0b100111});
    const auto p2 = f.ask(slice(list, 11, 1, "r", mode));
    ASSERT_TRUE(p2.ok());
    EXPECT_EQ(p2->hit_blocks, 8u) << "no run behind a gap";
    EXPECT_EQ(static_cast<bool>(p2->lease), mode == QueryMode::kRead);
    EXPECT_EQ(f.w.core->stats().leased, mode == QueryMode::kRead ? 8 * slot_bytes() : ByteCount(0));
  }
}

TEST(CoreQuery, PartsOutOfOrderAreRefusedAndZeroStartsAgain) {
  Filled f;
  const auto list = hashes(0, 12);
  EXPECT_EQ(code_of(f.ask(slice(list, 5, 2, "r"))), Code::kReject);
  ASSERT_TRUE(f.ask(slice(list, 0, 4, "r")).ok());
  EXPECT_EQ(code_of(f.ask(slice(list, 5, 2, "r"))), Code::kReject);
  const auto longer = hashes(0, 13);
  EXPECT_EQ(code_of(f.ask(slice(longer, 4, 2, "r"))), Code::kReject) << "another total";
  ASSERT_TRUE(f.ask(slice(list, 0, 6, "r")).ok());
  EXPECT_EQ(f.w.core->stats().leased, 6 * slot_bytes());
  ASSERT_TRUE(f.ask(slice(list, 6, 6, "r")).ok());
  EXPECT_EQ(f.leases(), 1u);
  EXPECT_EQ(code_of(f.ask(slice(list, 6, 6, "r"))), Code::kReject) << "a repeat starts at 0";
}

TEST(CoreQuery, TheSameListInOtherPartsIsTheSameLease) {
  Filled f;
  const auto list = hashes(0, 12);
  const LeaseId lease = f.w.read(f.e.scheduler, list, "r").lease;
  ASSERT_TRUE(f.ask(slice(list, 0, 3, "r")).ok());
  ASSERT_TRUE(f.ask(slice(list, 3, 7, "r")).ok());
  const auto last = f.ask(slice(list, 10, 2, "r"));
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(last->lease, lease);
  EXPECT_EQ(last->hit_blocks, 8u);
}

TEST(CoreQuery, AListThatChangesInALaterPartIsANewLease) {
  for (const std::uint32_t changed_at : {4u, 6u, 11u}) {
    Filled f;
    auto list = hashes(0, 12);
    const QueryAnswer old = f.w.read(f.e.scheduler, list, "r");
    list[changed_at] = hash_of(99);
    ASSERT_TRUE(f.ask(slice(list, 0, 4, "r")).ok());
    ASSERT_TRUE(f.ask(slice(list, 4, 4, "r")).ok());
    const auto last = f.ask(slice(list, 8, 4, "r"));
    ASSERT_TRUE(last.ok());
    EXPECT_NE(last->lease, old.lease);
    EXPECT_GT(last->revision, old.revision);
    EXPECT_EQ(last->hit_blocks, std::min(changed_at, 8u));
    EXPECT_EQ(f.w.core->stats().leased, last->hit_blocks * slot_bytes());
    EXPECT_EQ(f.leases(), 1u);
    EXPECT_EQ(f.w.read(f.e.scheduler, list, "r").lease, last->lease) << "and is recognised in turn";
  }
}

TEST(CoreQuery, AChangeBehindTheGapDoesNotJoinWhatLiesBehindIt) {
  Filled f;
  auto list = hashes(0, 12);
  f.w.read(f.e.scheduler, list, "r");
  list[11] = hash_of(99);
  ASSERT_TRUE(f.ask(slice(list, 0, 10, "r")).ok());
  const auto last = f.ask(slice(list, 10, 2, "r"));  // 10 is resident, 8 and 9 are not
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(last->hit_blocks, 8u);
}

TEST(CoreQuery, AnUnfinishedQueryPinsNoLongerThanTheTtl) {
  Filled f;
  const auto list = hashes(0, 12);
  ASSERT_TRUE(f.ask(slice(list, 0, 6, "r")).ok());
  EXPECT_EQ(f.w.core->stats().leased, 6 * slot_bytes());
  f.w.now = f.w.now + seconds(600);
  f.w.core->tick(f.w.now);
  EXPECT_EQ(f.w.core->stats().leased, ByteCount(0));
  EXPECT_EQ(code_of(f.ask(slice(list, 6, 6, "r"))), Code::kReject);
}

TEST(CoreQuery, NotReadyUntilAllRanksAreThere) {
  World w;
  const SessionId scheduler = w.open(), s0 = w.open(), s1 = w.open();
  const auto list = hashes(0, 1);
  const auto unknown = w.core->query(scheduler, w.part(list, "r"), w.now);
  EXPECT_EQ(code_of(unknown), Code::kBusy);
  EXPECT_NE(unknown.error().message().find("not ready"), std::string::npos);
  w.join(s0, {.rank = 0, .world = 2});
  EXPECT_EQ(code_of(w.core->query(scheduler, w.part(list, "r"), w.now)), Code::kBusy);
  const RegistrationId r1 = w.join(s1, {.rank = 1, .world = 2});
  EXPECT_TRUE(w.core->query(scheduler, w.part(list, "r"), w.now).ok());
  ASSERT_TRUE(w.core->unregister(s1, r1).ok());
  EXPECT_EQ(code_of(w.core->query(scheduler, w.part(list, "r"), w.now)), Code::kBusy) << "incomplete again";
}

TEST(CoreQuery, ReleaseAndCancelEndALease) {
  Filled f;
  Engine stranger(f.w, {.instance = 2});
  const LeaseId a = f.w.read(f.e.scheduler, hashes(0, 3), "a").lease;
  const LeaseId b = f.w.read(f.e.scheduler, hashes(0, 3), "b").lease;
  EXPECT_EQ(code_of(f.w.core->release(stranger.worker, a)), Code::kReject);
  EXPECT_EQ(code_of(f.w.core->cancel(stranger.scheduler, {instance_id(1), GroupId(0), "b"})), Code::kReject);
  EXPECT_EQ(f.leases(), 2u);
  EXPECT_TRUE(f.w.core->release(f.e.worker, a).ok()) << "any session of the instance";
  EXPECT_TRUE(f.w.core->release(f.e.worker, a).ok()) << "gone already: nothing to do";
  EXPECT_TRUE(f.w.core->cancel(f.e.scheduler, {instance_id(1), GroupId(0), "b"}).ok());
  EXPECT_TRUE(f.w.core->cancel(f.e.scheduler, {instance_id(1), GroupId(0), "b"}).ok());
  EXPECT_EQ(f.leases(), 0u);
  EXPECT_EQ(f.w.core->stats().leased, ByteCount(0));
  EXPECT_EQ(code_of(f.w.restore(f.w.next_op(f.e.worker), f.e.registration, b, blocks(0, 1))),
            Code::kRecompute);
}

TEST(CoreQuery, ClosingTheSchedulerOrTheLastRankEndsTheLeases) {
  for (const bool scheduler : {false, true}) {
    Filled f;
    f.w.read(f.e.scheduler, hashes(0, 3), "a");
    f.w.core->close_session(scheduler ? f.e.scheduler : f.e.worker, f.w.now);
    EXPECT_EQ(f.leases(), 0u);
    EXPECT_EQ(f.w.core->stats().leased, ByteCount(0));
  }
}

TEST(CoreQuery, LeasedImagesSurviveEviction) {
  Filled f;
  f.w.read(f.e.scheduler, hashes(0, 3), "a");
  f.w.core->evict(kGiB, f.w.now);
  EXPECT_EQ(f.w.core->stats().blocks, 3u);
  EXPECT_EQ(f.w.discover(f.e.scheduler, hashes(0, 8)), 3u);
}

TEST(CoreQuery, ReleasedPrefixLosesItsTailFirst) {
  Filled f;
  const LeaseId a = f.w.read(f.e.scheduler, hashes(0, 8), "a").lease;
  ASSERT_TRUE(f.w.core->release(f.e.scheduler, a).ok());
  f.w.core->evict(5 * slot_bytes(), f.w.now);  // 10, 11 are older, then 7, 6, 5
  EXPECT_EQ(f.w.discover(f.e.scheduler, hashes(0, 8)), 5u);
  EXPECT_EQ(f.w.discover(f.e.scheduler, hashes(10, 2)), 0u);
}

TEST(CoreQuery, LeaseIdsDependOnTheSeedAndNeverRepeat) {
  WorldOptions o;
  World a(o), b(o);
  o.core.seed = {3, 4};
  World c(o);
  std::vector<LeaseId> first;
  for (World* w : {&a, &b, &c}) {
    Engine e(*w);
    w->store(e.worker, e.registration, hashes(0, 1));
    first.push_back(w->read(e.scheduler, hashes(0, 1), "x").lease);
    EXPECT_NE(w->read(e.scheduler, hashes(0, 1), "y").lease, first.back());
  }
  EXPECT_EQ(first[0], first[1]) << "deterministic under one seed";
  EXPECT_NE(first[0], first[2]);
}

TEST(CoreQuery, LimitsAreAnswers) {
  Filled f;
  const auto one = hashes(0, 1);
  EXPECT_EQ(code_of(f.ask(f.w.part(one, std::string(257, 'x')))), Code::kReject);
  QueryPart huge = f.w.part(one, "r");
  huge.total = 1024 * 1024 + 1;
  EXPECT_EQ(code_of(f.ask(huge)), Code::kReject);
  huge.total = 1024 * 1024;  // 32 MiB of hashes: two fit a session
  ASSERT_TRUE(f.ask(huge).ok());
  huge.request_id = "s";
  ASSERT_TRUE(f.ask(huge).ok());
  huge.request_id = "t";
  EXPECT_EQ(code_of(f.ask(huge)), Code::kBusy);
  for (const char* id : {"r", "s"}) {
    ASSERT_TRUE(f.w.core->cancel(f.e.scheduler, {instance_id(1), GroupId(0), id}).ok());
  }
  for (std::uint32_t i = 0; i < limits::kQueriesPerSession; ++i) {
    ASSERT_TRUE(f.ask(f.w.part(one, std::to_string(i))).ok());
  }
  EXPECT_EQ(code_of(f.ask(f.w.part(one, "one more"))), Code::kBusy);
  EXPECT_TRUE(f.ask(f.w.part(one, "7")).ok()) << "a known id is served";
}

TEST(CoreQuery, HostLimitOfLeases) {
  WorldOptions options;
  options.core.query_budget = kGiB;
  Filled f(options);
  const auto one = hashes(0, 1);
  std::uint32_t held = 0;
  for (int s = 0; s < 17; ++s) {
    const SessionId session = f.w.open();
    for (std::uint32_t i = 0; i < limits::kQueriesPerSession; ++i) {
      const std::string id = std::to_string(s) + "-" + std::to_string(i);
      if (f.w.core->query(session, f.w.part(one, id), f.w.now).ok()) ++held;
    }
  }
  EXPECT_EQ(held, limits::kLeases);
}

}  // namespace
}  // namespace orbitkv::cache
