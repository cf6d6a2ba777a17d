// Restores through the whole core.
#include "base/limits.h"
#include "cache/core_world_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

struct Leased {
  World w;
  Engine e{w};
  LeaseId lease;
  std::map<std::uint32_t, model::PlanEntry> saved;  // by position in the prefix
  explicit Leased(std::uint64_t count = 6) {
    const OperationKey op = w.next_op(e.worker);
    EXPECT_TRUE(w.publish(op, e.registration, hashes(0, count)).ok());
    for (const auto& entry : w.ports.granted.at(op).entries) saved[entry.block] = entry;
    w.commit(op);
    lease = w.read(e.scheduler, hashes(0, count), "r").lease;
  }
  Result<std::uint32_t> restore(const OperationKey& op, std::vector<std::uint32_t> targets,
                                std::uint32_t first = 0) {
    return w.restore(op, e.registration, lease, targets, first);
  }
  OperationKey op() { return w.next_op(e.worker); }
  CoreStats stats() { return w.core->stats(); }
};

TEST(CoreRestore, GrantNamesTheSavedExtentsAndDigests) {
  Leased l;
  const OperationKey op = l.op();
  const auto blocks_granted = l.restore(op, {100, 101, kHole, 103, 104, 105});
  ASSERT_TRUE(blocks_granted.ok());
  EXPECT_EQ(*blocks_granted, 5u);
  const model::Plan& plan = l.w.ports.granted.at(op);
  EXPECT_EQ(plan.kind, model::PlanKind::kRestore);
  ASSERT_EQ(plan.entries.size(), 5u);
  for (const model::PlanEntry& entry : plan.entries) {
    const model::PlanEntry& from = l.saved.at(entry.block - 100);
    EXPECT_EQ(entry.slab, from.slab);
    EXPECT_EQ(entry.offset, from.offset);
    EXPECT_EQ(entry.revision, from.revision);
    EXPECT_EQ(entry.seed, from.seed);
    EXPECT_EQ(entry.digest, digest_of(from));
  }
  EXPECT_EQ(l.stats().leases, 0u) << "the only rank has consumed it";
  EXPECT_EQ(l.stats().leased, 5 * slot_bytes()) << "its pins are the operation's now, without the hole";
  l.w.verified(op);
  EXPECT_TRUE(l.w.ports.reaped.contains(op));
  EXPECT_EQ(l.stats().leased, ByteCount(0));
  EXPECT_EQ(l.stats().restored, 5u);
  EXPECT_EQ(l.stats().restored_bytes, 5 * slot_bytes().value);
}

TEST(CoreRestore, ConsecutiveRangesConsumeInOrder) {
  Leased l;
  EXPECT_EQ(code_of(l.restore(l.op(), {3}, 1)), Code::kReject) << "not from the start";
  ASSERT_TRUE(l.restore(l.op(), {0, 1}, 0).ok());
  EXPECT_EQ(code_of(l.restore(l.op(), {0, 1}, 0)), Code::kReject) << "consumed";
  EXPECT_EQ(code_of(l.restore(l.op(), {2, 3, 4, 5, 6}, 2)), Code::kReject) << "beyond the lease";
  ASSERT_TRUE(l.restore(l.op(), {2, 3, 4, 5}, 2).ok());
  EXPECT_EQ(code_of(l.restore(l.op(), {6}, 6)), Code::kRecompute) << "all consumed: the lease is gone";
}

TEST(CoreRestore, AskingAgainAfterAConsumptionIsANewLease) {
  Leased l;
  ASSERT_TRUE(l.restore(l.op(), {0, 1}, 0).ok());
  const QueryAnswer again = l.w.read(l.e.scheduler, hashes(0, 6), "r");
  EXPECT_NE(again.lease, l.lease);
  EXPECT_EQ(again.hit_blocks, 6u);
  EXPECT_EQ(code_of(l.restore(l.op(), {2}, 2)), Code::kRecompute)
      << "the remainder of the old one is released";
  l.lease = again.lease;
  EXPECT_TRUE(l.restore(l.op(), {0, 1, 2, 3, 4, 5}).ok());
}

TEST(CoreRestore, EveryRankConsumesOnce) {
  World w;
  const SessionId s0 = w.open(), s1 = w.open(), scheduler = w.open();
  const RegistrationId r0 = w.join(s0, {.rank = 0, .world = 2, .shards = 2});
  const RegistrationId r1 = w.join(s1, {.rank = 1, .world = 2, .shards = 2});
  w.store(s0, r0, hashes(0, 2));
  w.store(s1, r1, hashes(0, 2));
  const LeaseId lease = w.read(scheduler, hashes(0, 2), "r").lease;
  const OperationKey a = w.next_op(s0), b = w.next_op(s1);
  ASSERT_TRUE(w.restore(a, r0, lease, {5, 6}).ok());
  w.verified(a);
  w.core->evict(kGiB, w.now);
  EXPECT_EQ(w.core->stats().blocks, 2u) << "still leased for the other rank";
  EXPECT_EQ(code_of(w.restore(w.next_op(s0), r0, lease, {7}, 2)), Code::kReject);
  const auto second = w.restore(b, r1, lease, {5, 6});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(w.ports.granted.at(b).shard, ShardId(1));
  EXPECT_EQ(w.core->stats().leases, 0u);
  w.verified(b);
  EXPECT_EQ(w.core->stats().leased, ByteCount(0));
}

TEST(CoreRestore, ReplicatedRanksAllReadTheOneShard) {
  World w;
  const SessionId s0 = w.open(), s1 = w.open();
  const RegistrationId r0 = w.join(s0, {.rank = 0, .world = 2});
  const RegistrationId r1 = w.join(s1, {.rank = 1, .world = 2});
  w.store(s0, r0, hashes(0, 1));
  const LeaseId lease = w.read(s0, hashes(0, 1), "r").lease;
  const OperationKey a = w.next_op(s0), b = w.next_op(s1);
  ASSERT_TRUE(w.restore(a, r0, lease, {1}).ok());
  ASSERT_TRUE(w.restore(b, r1, lease, {1}).ok());
  EXPECT_EQ(w.ports.granted.at(a).entries[0].offset, w.ports.granted.at(b).entries[0].offset);
}

TEST(CoreRestore, ReleaseAndExpiryLeaveOpenRestoresAlone) {
  Leased l;
  const OperationKey op = l.op();
  ASSERT_TRUE(l.restore(op, {0, 1}, 0).ok());
  ASSERT_TRUE(l.w.core->release(l.e.scheduler, l.lease).ok());
  l.w.core->close_session(l.e.scheduler, l.w.now);
  EXPECT_EQ(l.stats().leased, 2 * slot_bytes());
  l.w.core->evict(kGiB, l.w.now);
  EXPECT_EQ(l.stats().blocks, 2u);
  l.w.verified(op);
  EXPECT_EQ(l.stats().leased, ByteCount(0));
}

TEST(CoreRestore, AllHolesIsReapedAtOnce) {
  Leased l;
  const OperationKey op = l.op();
  const auto r = l.restore(op, std::vector<std::uint32_t>(6, kHole));
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(*r, 0u);
  EXPECT_TRUE(l.w.ports.reaped.contains(op));
  EXPECT_EQ(l.stats().operations, 0u);
  EXPECT_EQ(l.stats().leased, ByteCount(0));
}

TEST(CoreRestore, RefusalsConsumeNothing) {
  Leased l;
  Engine other(l.w, {.instance = 2});
  EXPECT_EQ(code_of(l.restore(l.op(), {0, 1, 1})), Code::kReject) << "one target twice";
  EXPECT_EQ(code_of(l.restore(l.op(), {0, 10000})), Code::kReject);
  EXPECT_EQ(code_of(l.restore(l.op(), {})), Code::kReject);
  EXPECT_EQ(code_of(l.w.restore(l.w.next_op(other.worker), other.registration, l.lease, {0})), Code::kReject);
  EXPECT_EQ(code_of(l.w.restore(l.op(), RegistrationId(99), l.lease, {0})), Code::kReject);
  LeaseId guess = l.lease;
  guess.bytes[15] ^= std::byte{1};
  EXPECT_EQ(code_of(l.w.restore(l.op(), l.e.registration, guess, {0})), Code::kRecompute);
  EXPECT_EQ(l.stats().leased, 6 * slot_bytes());
  EXPECT_TRUE(l.restore(l.op(), {0, kHole, kHole, 3, 4, 5}).ok()) << "holes may repeat";
}

TEST(CoreRestore, ExpiredLeaseIsRefusedEvenBeforeTheTick) {
  Leased l;
  l.w.now = l.w.now + seconds(600);
  EXPECT_EQ(code_of(l.restore(l.op(), {0})), Code::kRecompute);
  EXPECT_EQ(l.stats().leased, ByteCount(0));
}

TEST(CoreRestore, DeviceLimitIsBusyAndConsumesNothing) {
  Leased l(limits::kRestoresPerDevice + 1);
  OperationKey first;
  for (std::uint32_t i = 0; i < limits::kRestoresPerDevice; ++i) {
    const OperationKey op = l.op();
    if (i == 0) first = op;
    ASSERT_TRUE(l.restore(op, {i}, i).ok());
  }
  const std::uint32_t next = limits::kRestoresPerDevice;
  EXPECT_EQ(code_of(l.restore(l.op(), {next}, next)), Code::kBusy);
  l.w.verified(first);
  EXPECT_TRUE(l.restore(l.op(), {next}, next).ok());
}

TEST(CoreRestore, FailedImagesAreDroppedAtOnceAndFreedWithTheLastPin) {
  Leased l;
  const LeaseId second = l.w.read(l.e.scheduler, hashes(0, 6), "other").lease;
  const OperationKey op = l.op();
  ASSERT_TRUE(l.restore(op, {0, kHole, 2, 3, 4, 5}).ok());
  l.w.drain_failed(op, {0b00010});  // plan entry 1 is block 2: the hole is not in the plan
  EXPECT_EQ(l.stats().failed_verifications, 1u);
  EXPECT_EQ(l.stats().failed_restores, 1u);
  EXPECT_EQ(l.stats().restored, 0u);
  EXPECT_EQ(l.w.discover(l.e.scheduler, hashes(0, 6)), 2u);
  EXPECT_EQ(l.w.used(), 6 * slot_bytes()) << "the other lease pins it";
  // The other lease cannot use it, nor is it answered again.
  EXPECT_EQ(code_of(l.w.restore(l.op(), l.e.registration, second, {0, 1, 2})), Code::kRecompute);
  const QueryAnswer again = l.w.read(l.e.scheduler, hashes(0, 6), "other");
  EXPECT_NE(again.lease, second);
  EXPECT_EQ(again.hit_blocks, 2u);
  EXPECT_EQ(l.w.used(), 5 * slot_bytes());
  // The key can be published anew.
  l.w.store(l.e.worker, l.e.registration, hashes(2, 1));
  EXPECT_EQ(l.w.discover(l.e.scheduler, hashes(0, 6)), 6u);
}

TEST(CoreRestore, RepublishedKeyIsIndependentOfItsDroppedImage) {
  Leased l(1);
  const LeaseId second = l.w.read(l.e.scheduler, hashes(0, 1), "other").lease;
  const OperationKey op = l.op();
  ASSERT_TRUE(l.restore(op, {0}).ok());
  l.w.drain_failed(op, {1});
  l.w.store(l.e.worker, l.e.registration, hashes(0, 1));
  EXPECT_EQ(l.w.used(), 2 * slot_bytes());
  ASSERT_TRUE(l.w.core->release(l.e.scheduler, second).ok());
  EXPECT_EQ(l.w.used(), slot_bytes());
  EXPECT_EQ(l.w.discover(l.e.scheduler, hashes(0, 1)), 1u);
}

TEST(CoreRestore, CopyFailureWithoutABitmapKeepsTheImages) {
  Leased l;
  const OperationKey op = l.op();
  ASSERT_TRUE(l.restore(op, {0, 1, 2, 3, 4, 5}).ok());
  l.w.drain_failed(op);
  EXPECT_EQ(l.stats().failed_restores, 1u);
  EXPECT_EQ(l.stats().failed_verifications, 0u);
  EXPECT_EQ(l.w.discover(l.e.scheduler, hashes(0, 6)), 6u);
}

TEST(CoreRestore, BankFullKeepsItsPins) {
  Leased l;
  l.w.ports.bank_plans = 0;
  const OperationKey op = l.op();
  ASSERT_TRUE(l.restore(op, {0, 1, 2, 3, 4, 5}).ok());
  EXPECT_FALSE(l.w.ports.granted.contains(op));
  l.w.core->evict(kGiB, l.w.now);
  EXPECT_EQ(l.stats().blocks, 6u);
  l.w.ports.bank_plans = 1;
  l.w.core->bank_freed(l.e.worker, l.w.now);
  EXPECT_EQ(l.w.ports.granted.at(op).entries.size(), 6u);
}

}  // namespace
}  // namespace orbitkv::cache
