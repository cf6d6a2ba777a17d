// Leases that are handed out while their last blocks are on their way, and the restores
// that wait for those.
#include "base/limits.h"
#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

// Blocks 0..7 come from the tier; 0..5 have landed and the lease is out.
struct Early {
  TierWorld t;
  Engine e{*t};
  LeaseId lease;
  explicit Early() {
    for (std::uint64_t n = 0; n < 8; ++n) t.tier.put(n);
    EXPECT_TRUE(ask().loading);
    for (std::uint64_t n = 0; n < 5; ++n) t.loaded(n);
    EXPECT_TRUE(ask().loading) << "not yet three quarters";
    t.loaded(5);
    const QueryAnswer a = ask();
    EXPECT_FALSE(a.loading);
    EXPECT_EQ(a.hit_blocks, 8u);
    lease = a.lease;
    EXPECT_TRUE(lease);
  }
  QueryAnswer ask(bool early = true) {
    const auto list = hashes(0, 8);
    QueryPart part = t->part(list, "r");
    part.early_lease = early;
    const auto a = t->core->query(e.scheduler, part, t->now);
    EXPECT_TRUE(a.ok());
    return a.ok() ? *a : QueryAnswer{};
  }
  OperationKey restore(std::uint32_t first, std::size_t count) {
    const OperationKey op = t->next_op(e.worker);
    const auto r = t->restore(op, e.registration, lease, blocks(100, count), first);
    EXPECT_TRUE(r.ok()) << r.error().to_string();
    if (r.ok()) {
      EXPECT_EQ(*r, count);
    }
    return op;
  }
  bool granted(const OperationKey& op) const { return t.world->ports.granted.contains(op); }
  Code failed(const OperationKey& op) const {
    const auto it = t.world->ports.failed.find(op);
    return it == t.world->ports.failed.end() ? Code::kOk : it->second;
  }
};

TEST(CoreEarly, restore_awaits_then_granted) {
  Early x;
  EXPECT_EQ(x.t.stats().early_leases, 1u);
  const OperationKey op = x.restore(0, 8);
  EXPECT_FALSE(x.granted(op));
  EXPECT_EQ(x.t.stats().awaited_restores, 1u);
  x.t.loaded(7);
  EXPECT_FALSE(x.granted(op));
  x.t.loaded(6);
  ASSERT_TRUE(x.granted(op));
  const model::Plan& plan = x.t->ports.granted.at(op);
  for (std::uint64_t n = 0; n < 8; ++n) {
    EXPECT_EQ(plan.entries[n].digest, x.t.tier.records.at({1, n}).marks[0].digest);
  }
  x.t->verified(op);
  EXPECT_EQ(x.t.stats().leased, ByteCount(0));
  EXPECT_EQ(x.t.stats().restored, 8u);
}

TEST(CoreEarly, awaiting_restore_not_head_of_line) {
  Early x;
  const OperationKey first = x.restore(0, 4);
  EXPECT_TRUE(x.granted(first)) << "its range has landed";
  const OperationKey waiting = x.restore(4, 4);
  EXPECT_FALSE(x.granted(waiting));
  x.t->store(x.e.worker, x.e.registration, hashes(50, 2));
  const LeaseId other = x.t->read(x.e.scheduler, hashes(50, 2), "s").lease;
  const OperationKey behind = x.t->next_op(x.e.worker);
  ASSERT_TRUE(x.t->restore(behind, x.e.registration, other, blocks(200, 2)).ok());
  EXPECT_TRUE(x.granted(behind));
  EXPECT_FALSE(x.granted(waiting));
  x.t.all_loaded();
  EXPECT_TRUE(x.granted(waiting));
}

TEST(CoreEarly, only_who_asks_for_it_gets_it) {
  Early x;
  const auto list = hashes(0, 8);
  EXPECT_TRUE(x.t->read(x.e.scheduler, list, "plain").loading);
  x.t.loaded(6);
  EXPECT_TRUE(x.t->read(x.e.scheduler, list, "plain").loading);
  x.t.loaded(7);
  EXPECT_TRUE(x.t->read(x.e.scheduler, list, "plain").lease);
}

TEST(CoreEarly, not_before_the_tier_reads_all_of_it) {
  TierWorld t;
  Engine e(*t);
  for (std::uint64_t n = 0; n < 8; ++n) t.tier.put(n);
  t.tier.most_loads = 1;
  const auto list = hashes(0, 8);
  QueryPart part = t->part(list, "r");
  part.early_lease = true;
  for (std::uint64_t n = 0; n < 7; ++n) {
    EXPECT_TRUE(t->core->query(e.scheduler, part, t->now)->loading) << n;
    t.loaded(n);
  }
  EXPECT_TRUE(t->core->query(e.scheduler, part, t->now)->loading) << "the last one was submitted after";
  t.loaded(7);
  EXPECT_TRUE(t->core->query(e.scheduler, part, t->now)->lease);
}

TEST(CoreEarly, a_block_that_fails_ends_its_restore_alone) {
  Early x;
  const OperationKey landed = x.restore(0, 6);
  const OperationKey waiting = x.restore(6, 1);
  x.t.loaded(6, false);
  EXPECT_TRUE(x.granted(landed));
  EXPECT_EQ(x.failed(waiting), Code::kRecompute);
  const OperationKey rest = x.restore(7, 1);
  EXPECT_FALSE(x.granted(rest));
  x.t.loaded(7);
  EXPECT_TRUE(x.granted(rest));
  x.t->verified(landed);
  x.t->verified(rest);
  EXPECT_EQ(x.t.stats().leased, ByteCount(0));
  x.t->core->evict(kGiB, x.t->now);
  EXPECT_EQ(x.t->used(), ByteCount(0));
}

TEST(CoreEarly, a_restore_after_the_failure_is_refused) {
  Early x;
  x.t.loaded(6, false);
  EXPECT_EQ(code_of(x.t->restore(x.t->next_op(x.e.worker), x.e.registration, x.lease, blocks(100, 8))),
            Code::kRecompute);
  EXPECT_TRUE(x.granted(x.restore(0, 6))) << "nothing was consumed";
  EXPECT_NE(x.ask().lease, x.lease) << "asked again it is another lease";
}

TEST(CoreEarly, the_wait_has_an_end) {
  Early x;
  const OperationKey waiting = x.restore(0, 7);
  x.t.wait(seconds(5));
  EXPECT_EQ(x.failed(waiting), Code::kRecompute);
  EXPECT_EQ(code_of(x.t->restore(x.t->next_op(x.e.worker), x.e.registration, x.lease, blocks(100, 1), 7)),
            Code::kRecompute)
      << "and later ones do not begin to wait";
  x.t.all_loaded();
  EXPECT_TRUE(x.granted(x.restore(7, 1)));
}

TEST(CoreEarly, lease_goes_while_its_restore_awaits) {
  Early x;
  const OperationKey waiting = x.restore(0, 8);  // the only rank: the lease is consumed
  EXPECT_EQ(x.t.stats().leases, 0u);
  EXPECT_FALSE(x.granted(waiting));
  x.t.all_loaded();
  EXPECT_TRUE(x.granted(waiting));
}

TEST(CoreEarly, session_ends_while_its_restore_awaits) {
  Early x;
  const OperationKey waiting = x.restore(0, 8);
  x.t->core->process_ended(x.e.worker, x.t->now);
  EXPECT_NE(x.failed(waiting), Code::kOk);
  EXPECT_TRUE(x.t->core->session_gone(x.e.worker));
  x.t.all_loaded();
  EXPECT_FALSE(x.granted(waiting));
  EXPECT_EQ(x.t.stats().leased, ByteCount(0));
  EXPECT_EQ(x.t.stats().blocks, 8u);
}

TEST(CoreEarly, awaiting_restores_take_no_share_of_the_device) {
  Early x;
  const OperationKey waiting = x.restore(0, 8);
  x.t->store(x.e.worker, x.e.registration, hashes(50, 1));
  std::vector<OperationKey> running;
  for (std::uint32_t i = 0; i < limits::kRestoresPerDevice; ++i) {
    const LeaseId lease = x.t->read(x.e.scheduler, hashes(50, 1), "s" + std::to_string(i)).lease;
    running.push_back(x.t->next_op(x.e.worker));
    ASSERT_TRUE(x.t->restore(running.back(), x.e.registration, lease, {300 + i}).ok()) << i;
  }
  x.t.all_loaded();
  EXPECT_FALSE(x.granted(waiting)) << "the device is full";
  x.t->verified(running[0]);
  EXPECT_TRUE(x.granted(waiting));
}

}  // namespace
}  // namespace orbitkv::cache
