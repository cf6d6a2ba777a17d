// Sessions, registrations and what their ends do to open work.
#include "base/limits.h"
#include "cache/core_world_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

TEST(CoreSession, ClosedSessionIsRefusedWithReconnect) {
  World w;
  Engine e(w);
  w.core->close_session(e.worker, w.now);
  EXPECT_TRUE(w.core->session_gone(e.worker));
  EXPECT_EQ(code_of(w.core->register_rank(e.worker, rank_of({}), w.now)), Code::kReconnect);
  EXPECT_EQ(code_of(w.publish(w.next_op(e.worker), e.registration, hashes(0, 1))), Code::kReconnect);
  const auto list = hashes(0, 1);
  EXPECT_EQ(code_of(w.core->query(e.worker, w.part(list, "r"), w.now)), Code::kReconnect);
  EXPECT_EQ(code_of(w.core->release(e.worker, LeaseId{})), Code::kReconnect);
  EXPECT_EQ(code_of(w.core->unregister(e.worker, e.registration)), Code::kReconnect);
  EXPECT_EQ(w.core->stats().sessions, 1u);
  w.core->close_session(e.worker, w.now);  // once more changes nothing
  w.core->open_session(e.worker, w.now);
  EXPECT_EQ(code_of(w.publish(w.next_op(e.worker), e.registration, hashes(0, 1))), Code::kReject)
      << "the old registration is not the new session's";
  EXPECT_TRUE(w.core->register_rank(e.worker, rank_of({}), w.now).ok());
}

TEST(CoreSession, CloseReturnsUnclaimedWorkAtOnce) {
  World w;
  w.ports.bank_plans = 2;
  Engine e(w), other(w, {.instance = 2});
  w.store(e.worker, e.registration, hashes(0, 2));
  const LeaseId lease = w.read(e.scheduler, hashes(0, 2), "r").lease;
  const OperationKey save = w.next_op(e.worker), load = w.next_op(e.worker), queued = w.next_op(e.worker),
                     waiting = w.next_op(e.worker), others = w.next_op(other.worker);
  ASSERT_TRUE(w.publish(others, other.registration, hashes(50, 1)).ok());
  ASSERT_TRUE(w.publish(save, e.registration, hashes(10, 3)).ok());
  ASSERT_TRUE(w.restore(load, e.registration, lease, {0, 1}).ok());
  ASSERT_TRUE(w.publish(queued, e.registration, hashes(20, 1)).ok());   // bank full
  ASSERT_TRUE(w.publish(waiting, e.registration, hashes(50, 2)).ok());  // another publisher
  w.core->close_session(e.worker, w.now);
  EXPECT_EQ(w.ports.revoked,
            (std::map<OperationKey, Code>{{save, Code::kReconnect}, {load, Code::kReconnect}}));
  EXPECT_EQ(w.ports.failed,
            (std::map<OperationKey, Code>{{queued, Code::kReconnect}, {waiting, Code::kReconnect}}));
  EXPECT_TRUE(w.core->session_gone(e.worker));
  EXPECT_EQ(w.used(), 3 * slot_bytes()) << "two sealed, one of the other engine";
  EXPECT_EQ(w.core->stats().leased, ByteCount(0));
  w.commit(others);  // wakes nobody
  EXPECT_EQ(w.core->stats().operations, 0u);
}

TEST(CoreSession, CloseGrantsNothingToWhatWaitedForTheSameSession) {
  World w;
  Engine e(w);
  const OperationKey first = w.next_op(e.worker), waiting = w.next_op(e.worker);
  ASSERT_TRUE(w.publish(first, e.registration, hashes(0, 1)).ok());
  ASSERT_TRUE(w.publish(waiting, e.registration, hashes(0, 1)).ok());
  w.core->close_session(e.worker, w.now);
  EXPECT_EQ(w.ports.failed, (std::map<OperationKey, Code>{{waiting, Code::kReconnect}}));
  EXPECT_EQ(w.ports.revoked, (std::map<OperationKey, Code>{{first, Code::kReconnect}}));
}

TEST(CoreSession, CloseKeepsClaimedWorkUntilItsReceipt) {
  World w;
  Engine e(w), other(w, {.instance = 2});
  const OperationKey save = w.next_op(e.worker);
  ASSERT_TRUE(w.publish(save, e.registration, hashes(0, 3)).ok());
  w.ports.claimed.insert(save);
  w.core->close_session(e.worker, w.now);
  EXPECT_FALSE(w.core->session_gone(e.worker));
  w.now = w.now + seconds(100000);  // no timer returns claimed bytes
  w.core->tick(w.now);
  EXPECT_EQ(w.used(), 3 * slot_bytes());
  w.commit(save);
  EXPECT_TRUE(w.core->session_gone(e.worker));
  EXPECT_EQ(w.discover(other.scheduler, hashes(0, 3), 2), 3u) << "a receipt after the close counts";
}

// A save and a restore that are claimed, one of each that is not, one that waits for the bank
// and one for another publisher.
struct Stalled {
  World w;
  Engine e{w}, other{w, {.instance = 2}};
  LeaseId lease;
  OperationKey save, load, claimed_save, claimed_load, queued, waiting, others;
  Stalled() {
    w.ports.bank_plans = 4;
    w.store(e.worker, e.registration, hashes(0, 2));
    lease = w.read(e.scheduler, hashes(0, 2), "r").lease;
    const LeaseId second = w.read(e.scheduler, hashes(0, 2), "s").lease;
    const auto next = [&] { return w.next_op(e.worker); };
    save = next(), load = next(), claimed_save = next(), claimed_load = next(), queued = next(),
    waiting = next();
    others = w.next_op(other.worker);
    EXPECT_TRUE(w.publish(others, other.registration, hashes(50, 1)).ok());
    EXPECT_TRUE(w.publish(save, e.registration, hashes(10, 3)).ok());
    EXPECT_TRUE(w.restore(load, e.registration, lease, {0, 1}).ok());
    EXPECT_TRUE(w.publish(claimed_save, e.registration, hashes(20, 2)).ok());
    EXPECT_TRUE(w.restore(claimed_load, e.registration, second, {0, 1}).ok());
    EXPECT_TRUE(w.publish(queued, e.registration, hashes(30, 1)).ok());
    EXPECT_TRUE(w.publish(waiting, e.registration, hashes(50, 2)).ok());
    w.ports.claimed = {claimed_save, claimed_load};
    w.core->stall_session(e.worker, w.now);
  }
};

TEST(CoreSession, StallRevokesWhatIsUnclaimedAndKeepsWhatIsClaimed) {
  Stalled s;
  EXPECT_EQ(s.w.ports.revoked, (std::map<OperationKey, Code>{{s.save, Code::kBusy}, {s.load, Code::kBusy}}));
  EXPECT_EQ(s.w.ports.failed,
            (std::map<OperationKey, Code>{{s.queued, Code::kBusy}, {s.waiting, Code::kBusy}}));
  EXPECT_EQ(s.w.used(), 5 * slot_bytes()) << "two sealed, two claimed, one of the other engine";
  s.w.core->stall_session(s.e.worker, s.w.now);  // once more changes nothing
  s.w.commit(s.claimed_save);
  s.w.verified(s.claimed_load);
  EXPECT_EQ(s.w.core->stats().restored, 2u);
  EXPECT_EQ(s.w.discover(s.e.scheduler, hashes(20, 2)), 2u) << "its receipt counts";
  s.w.commit(s.others);
}

TEST(CoreSession, AStalledSessionIsAnsweredBusyUntilItRevives) {
  Stalled s;
  const auto list = hashes(0, 1);
  for (const Code expected : {Code::kBusy, Code::kOk}) {
    const OperationKey op = s.w.next_op(s.e.worker);
    EXPECT_EQ(code_of(s.w.publish(op, s.e.registration, hashes(80, 1))), expected);
    EXPECT_EQ(code_of(s.w.core->query(s.e.worker, s.w.part(list, "q"), s.w.now)), expected);
    EXPECT_EQ(code_of(s.w.core->release(s.e.worker, LeaseId{})), expected);
    s.w.core->bank_freed(s.e.worker, s.w.now);  // grants nothing
    s.w.core->revive_session(s.e.worker);
  }
  EXPECT_FALSE(s.w.core->session_gone(s.e.worker));
  s.w.core->revive_session(s.e.worker);  // once more changes nothing
}

TEST(CoreSession, AStalledSessionEndsLikeAnyOther) {
  Stalled closed, dead;
  closed.w.core->close_session(closed.e.worker, closed.w.now);
  EXPECT_FALSE(closed.w.core->session_gone(closed.e.worker)) << "claimed work is outstanding";
  closed.w.core->revive_session(closed.e.worker);  // too late
  closed.w.commit(closed.claimed_save);
  closed.w.verified(closed.claimed_load);
  EXPECT_TRUE(closed.w.core->session_gone(closed.e.worker));
  dead.w.core->process_ended(dead.e.worker, dead.w.now);
  EXPECT_TRUE(dead.w.core->session_gone(dead.e.worker));
  EXPECT_EQ(dead.w.core->stats().quarantined_extents, 2u);
  // What is claimed and was seen to be claims no second time.
  Stalled again;
  again.w.core->revive_session(again.e.worker);
  again.w.core->stall_session(again.e.worker, again.w.now);
  again.w.core->close_session(again.e.worker, again.w.now);
  EXPECT_EQ(again.w.core->stats().operations, 3u) << "two claimed, one of the other engine";
}

TEST(CoreSession, DeadProcessQuarantinesClaimedSavesForGood) {
  World w;
  Engine e(w), other(w, {.instance = 2});
  w.store(e.worker, e.registration, hashes(0, 2));
  const LeaseId lease = w.read(e.scheduler, hashes(0, 2), "r").lease;
  const OperationKey save = w.next_op(e.worker), load = w.next_op(e.worker), unclaimed = w.next_op(e.worker);
  ASSERT_TRUE(w.publish(save, e.registration, hashes(10, 3)).ok());
  ASSERT_TRUE(w.restore(load, e.registration, lease, {0, 1}).ok());
  ASSERT_TRUE(w.publish(unclaimed, e.registration, hashes(20, 4)).ok());
  w.ports.claimed = {save, load};
  w.core->process_ended(e.worker, w.now);
  EXPECT_TRUE(w.core->session_gone(e.worker));
  EXPECT_TRUE(w.ports.revoked.contains(unclaimed));
  EXPECT_EQ(w.core->stats().quarantined_extents, 3u);
  EXPECT_EQ(w.core->stats().quarantined, 3 * slot_bytes());
  EXPECT_EQ(w.core->stats().leased, ByteCount(0)) << "sources of a dead engine's restores are free";
  EXPECT_EQ(w.discover(other.scheduler, hashes(10, 3), 2), 0u);
  // The key may be published again, in other memory.
  w.store(other.worker, other.registration, hashes(10, 3));
  EXPECT_EQ(w.discover(other.scheduler, hashes(10, 3), 2), 3u);
  w.core->evict(kGiB, w.now);
  EXPECT_EQ(w.used(), 3 * slot_bytes());
}

TEST(CoreSession, QuarantineOfOneShardLeavesTheOthersCommit) {
  World w;
  const SessionId s0 = w.open(), s1 = w.open(), scheduler = w.open();
  const RegistrationId r0 = w.join(s0, {.rank = 0, .world = 2, .shards = 2});
  const RegistrationId r1 = w.join(s1, {.rank = 1, .world = 2, .shards = 2});
  w.store(s0, r0, hashes(0, 1));
  const OperationKey save = w.next_op(s1);
  ASSERT_TRUE(w.publish(save, r1, hashes(0, 1)).ok());
  w.ports.claimed.insert(save);
  w.core->process_ended(s1, w.now);
  const SessionId again = w.open();
  w.store(again, w.join(again, {.rank = 1, .world = 2, .shards = 2}), hashes(0, 1));
  EXPECT_EQ(w.discover(scheduler, hashes(0, 1)), 1u);
  EXPECT_EQ(w.used(), 3 * slot_bytes());
}

TEST(CoreSession, UnregisterWaitsForOpenOperations) {
  World w;
  Engine e(w);
  const OperationKey op = w.next_op(e.worker);
  ASSERT_TRUE(w.publish(op, e.registration, hashes(0, 1)).ok());
  EXPECT_EQ(code_of(w.core->unregister(e.worker, e.registration)), Code::kBusy);
  EXPECT_EQ(code_of(w.core->unregister(e.scheduler, e.registration)), Code::kReject);
  w.commit(op);
  ASSERT_TRUE(w.core->unregister(e.worker, e.registration).ok());
  EXPECT_EQ(w.core->stats().instances, 0u);
  EXPECT_EQ(code_of(w.publish(w.next_op(e.worker), e.registration, hashes(1, 1))), Code::kReject)
      << "late work of an old registration";
  const RegistrationId second = w.join(e.worker);
  EXPECT_NE(second, e.registration);
  EXPECT_EQ(w.discover(e.scheduler, hashes(0, 1)), 1u) << "blocks outlive their publisher";
}

TEST(CoreSession, NamespacesDoNotMix) {
  World w;
  Engine a(w), b(w, {.instance = 2, .name_space = "model-b"}), c(w, {.instance = 3});
  w.store(a.worker, a.registration, hashes(0, 2));
  EXPECT_EQ(w.discover(b.scheduler, hashes(0, 2), 2), 0u);
  EXPECT_EQ(w.discover(c.scheduler, hashes(0, 2), 3), 2u);
}

TEST(CoreSession, RegistrationLimitIsAnAnswer) {
  World w;
  const SessionId s = w.open();
  for (std::uint32_t i = 0; i < limits::kRegistrationsPerSession; ++i) {
    w.join(s, {.instance = static_cast<int>(i + 1)});
  }
  EXPECT_EQ(code_of(w.core->register_rank(s, rank_of({.instance = 100}), w.now)), Code::kBusy);
}

TEST(CoreSession, ShutdownWithOpenWorkReturnsCommittedAndQuarantinesLent) {
  World w;
  Engine e(w);
  w.store(e.worker, e.registration, hashes(0, 2));
  const LeaseId lease = w.read(e.scheduler, hashes(0, 2), "r").lease;
  ASSERT_TRUE(w.restore(w.next_op(e.worker), e.registration, lease, {0, 1}).ok());
  w.read(e.scheduler, hashes(0, 1), "s");
  ASSERT_TRUE(w.publish(w.next_op(e.worker), e.registration, hashes(10, 3)).ok());
  w.core.reset();
  EXPECT_EQ(w.used(), 3 * slot_bytes());
  EXPECT_EQ(w.pool->stats().quarantined, 3 * slot_bytes());
}

}  // namespace
}  // namespace orbitkv::cache
