// Preparations: reads ahead of need, claimed by the read that they foresaw, or gone.
#include <array>

#include "base/limits.h"
#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

// Blocks 0..3 are resident, 4..11 stored. The share of speculation is eight blocks.
struct PrepareBed : TierBed {
  explicit PrepareBed(std::uint64_t budget = 32) : TierBed(options_of(budget)) {
    t->store(e.worker, e.registration, hashes(0, 4));
    for (std::uint64_t n = 4; n < 12; ++n) t.tier.put(n);
  }
  Result<QueryAnswer> try_prepare(std::uint64_t first, std::uint64_t count, std::string_view id = "r") {
    const auto list = hashes(first, count);
    QueryPart part = t->part(list, id);
    part.prepare = true;
    return t->core->query(e.scheduler, part, t->now);
  }
  bool prepare(std::uint64_t first, std::uint64_t count, std::string_view id = "r") {
    const auto answer = try_prepare(first, count, id);
    EXPECT_TRUE(answer.ok()) << answer.error().to_string();
    if (!answer.ok()) return false;
    EXPECT_FALSE(answer->lease) << "nothing is leased before it is asked for";
    return answer->loading;
  }
  TicketAnswer poll(Revision revision, std::string_view id = "r") {
    auto answer = t->core->poll(e.scheduler, {instance_id(1), GroupId(0), id}, revision, t->now);
    EXPECT_TRUE(answer.ok());
    return answer.ok() ? *answer : TicketAnswer{};
  }
};

TEST(CorePrepare, the_read_that_was_foreseen_finds_it_done) {
  PrepareBed p;
  EXPECT_TRUE(p.prepare(2, 6));
  EXPECT_EQ(p.t.tier.loads.size(), 4u);
  EXPECT_EQ(p.stats().speculative, 6 * slot_bytes());
  EXPECT_EQ(p.t.stats().hits, 0u);
  p.t.all_loaded();
  EXPECT_EQ(p.stats().prepared, 1u);
  const QueryAnswer claimed = p.read(2, 6);
  EXPECT_TRUE(claimed.lease);
  EXPECT_FALSE(claimed.again);
  EXPECT_EQ(claimed.hit_blocks, 6u);
  EXPECT_EQ(p.t.tier.loads.size(), 4u) << "nothing is read twice";
  EXPECT_EQ(p.t.stats().hits, 6u);
  const BudgetStats s = p.stats();
  EXPECT_EQ(s.speculative, ByteCount(0));
  EXPECT_EQ(s.used, 6 * slot_bytes()) << "no second charge";
  EXPECT_EQ(s.claimed, 1u);
  EXPECT_EQ(s.prepared, 0u);
  EXPECT_TRUE(p.t->restore(p.t->next_op(p.e.worker), p.e.registration, claimed.lease, blocks(0, 6)).ok());
}

TEST(CorePrepare, a_read_that_would_wait_for_others_takes_over_what_is_whole) {
  PrepareBed p;
  EXPECT_TRUE(p.prepare(4, 4));
  p.t.all_loaded();
  const auto list = hashes(4, 4);
  QueryPart part = p.t->part(list, "r");
  part.full_prefix = true;
  const auto ask = [&] { return p.t->core->query(p.e.scheduler, part, p.t->now); };
  const auto claimed = ask();
  ASSERT_TRUE(claimed.ok() && claimed->lease);
  EXPECT_EQ(p.stats().claimed, 1u);
  const auto again = ask();
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->again);
  EXPECT_EQ(again->lease, claimed->lease);
  part.prepare = true;
  EXPECT_EQ(code_of(ask()), Code::kReject) << "nobody prepares for others' saves";
}

TEST(CorePrepare, a_claim_while_it_loads_waits_as_any_read) {
  PrepareBed p;
  EXPECT_TRUE(p.prepare(4, 4));
  p.t.wait(seconds(3));
  const QueryAnswer claimed = p.read(4, 4);
  EXPECT_TRUE(claimed.loading);
  p.t.wait(seconds(4));
  EXPECT_EQ(p.poll(claimed.revision).state, TicketState::kLoading) << "with a wait of its own";
  p.t.all_loaded();
  EXPECT_EQ(p.poll(claimed.revision).state, TicketState::kReady);
}

TEST(CorePrepare, nobody_is_told_of_it_before) {
  PrepareBed p;
  const auto begun = p.try_prepare(4, 4);
  ASSERT_TRUE(begun.ok());
  p.t.all_loaded();
  EXPECT_EQ(p.poll(begun->revision).state, TicketState::kLoading);
  EXPECT_TRUE(p.prepare(4, 4)) << "prepared already";
  EXPECT_EQ(p.stats().prepares, 1u);
  EXPECT_EQ(p.stats().prepared, 1u);
}

TEST(CorePrepare, unclaimed_it_ends_a_second_after_it_is_ready) {
  PrepareBed p;
  EXPECT_TRUE(p.prepare(4, 4));
  p.t.wait(seconds(4));
  p.t.all_loaded();
  p.t.wait(milliseconds(900));
  EXPECT_EQ(p.stats().prepared, 1u);
  p.t.wait(milliseconds(100));
  EXPECT_EQ(p.stats().prepared, 0u);
  EXPECT_EQ(p.stats().unclaimed, 1u);
  EXPECT_EQ(p.stats().used, ByteCount(0));
  EXPECT_EQ(p.t.stats().leased, ByteCount(0));
  EXPECT_EQ(p.read(4, 4).hit_blocks, 4u) << "its blocks are still there";
  EXPECT_EQ(p.t.tier.loads.size(), 4u);
}

TEST(CorePrepare, a_longer_list_finds_the_common_prefix) {
  PrepareBed p;
  EXPECT_TRUE(p.prepare(4, 4));
  const QueryAnswer longer = p.read(4, 6);
  EXPECT_TRUE(longer.loading);
  EXPECT_EQ(p.t.tier.loads.size(), 6u) << "what was under way is joined";
  EXPECT_EQ(p.stats().used, 6 * slot_bytes());
  EXPECT_EQ(p.stats().draining, ByteCount(0));
  EXPECT_EQ(p.stats().prepared, 0u);
  p.t.all_loaded();
  EXPECT_EQ(p.poll(longer.revision).leases.at(0).blocks, 6u);
}

TEST(CorePrepare, its_share_is_a_quarter) {
  PrepareBed p(24);
  EXPECT_TRUE(p.prepare(2, 10));
  EXPECT_EQ(p.stats().speculative, 6 * slot_bytes()) << "cut at the share";
  EXPECT_FALSE(p.prepare(0, 1, "more"));
  EXPECT_EQ(p.stats().gave_way, 1u);
  EXPECT_EQ(p.t.stats().tickets, 1u);
}

TEST(CorePrepare, four_of_a_session) {
  PrepareBed p(128);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(p.prepare(0, 2, std::to_string(i)));
  EXPECT_EQ(code_of(p.try_prepare(0, 2, "more")), Code::kBusy);
  EXPECT_EQ(p.t.stats().tickets, 0u);
  EXPECT_TRUE(p.read(0, 2, "0").lease);
  EXPECT_TRUE(p.prepare(0, 2, "more"));
}

TEST(CorePrepare, who_would_wait_ends_it_first) {
  PrepareBed p(8);
  EXPECT_TRUE(p.prepare(4, 2));
  const QueryAnswer read = p.read(0, 4, "a");
  EXPECT_TRUE(read.lease);
  EXPECT_EQ(p.stats().prepared, 1u) << "it was not in the way";
  EXPECT_TRUE(p.read(0, 2, "b").lease);
  const QueryAnswer waits = p.read(2, 2, "c");
  EXPECT_FALSE(waits.admitted) << "its reads go on, and are charged";
  EXPECT_EQ(p.stats().prepared, 0u);
  EXPECT_EQ(p.stats().gave_way, 1u);
  EXPECT_EQ(p.stats().draining, 2 * slot_bytes());
  EXPECT_FALSE(p.prepare(0, 1, "d")) << "not while somebody waits";
  p.t.all_loaded();
  EXPECT_EQ(p.poll(waits.revision, "c").state, TicketState::kReady);
}

TEST(CorePrepare, its_loads_stand_behind_all_others_until_somebody_needs_them) {
  PrepareBed p;
  p.t.tier.most_loads = 0;
  EXPECT_TRUE(p.prepare(4, 4));
  p.read(8, 2, "now");
  p.t.tier.most_loads = 2;
  p.t->core->tier_ready(p.t->now);
  EXPECT_TRUE(p.t.tier.of_block(8) && p.t.tier.of_block(9));
  p.read(4, 4);
  p.read(10, 2, "late");
  p.t.tier.most_loads = 4;
  p.t->core->tier_ready(p.t->now);
  EXPECT_TRUE(p.t.tier.of_block(4)) << "claimed, it has its turn";
}

TEST(CorePrepare, an_id_that_has_asked_is_left_alone) {
  PrepareBed p;
  const QueryAnswer read = p.read(0, 4);
  EXPECT_EQ(code_of(p.try_prepare(4, 4)), Code::kBusy);
  EXPECT_EQ(p.poll(read.revision).state, TicketState::kReady);
}

TEST(CorePrepare, what_is_nowhere_is_not_prepared) {
  PrepareBed p;
  EXPECT_FALSE(p.prepare(50, 4));
  p.t.tier.gone = {4, 5};
  EXPECT_FALSE(p.prepare(4, 2));
  EXPECT_TRUE(p.prepare(6, 2, "fails"));
  p.t.all_loaded(false);
  const BudgetStats s = p.stats();
  EXPECT_EQ(s.prepared, 0u);
  EXPECT_EQ(s.used, ByteCount(0));
  EXPECT_EQ(p.t.stats().tickets, 0u);
  EXPECT_EQ(p.t.stats().misses, 0u);
}

TEST(CorePrepare, the_tier_hears_of_the_read_and_not_of_the_preparation) {
  PrepareBed p;
  EXPECT_TRUE(p.prepare(2, 4));
  p.t.all_loaded();
  EXPECT_TRUE(p.t.tier.told.empty());
  p.read(2, 4);
  ASSERT_EQ(p.t.tier.told.size(), 1u);
  EXPECT_EQ(p.t.tier.told[0].blocks.size(), 4u);
}

TEST(CorePrepare, session_instance_and_cancel_end_it) {
  for (const bool ready : {false, true}) {
    for (const int how : {0, 1, 2}) {
      SCOPED_TRACE(how);
      PrepareBed p;
      EXPECT_TRUE(p.prepare(2, 6));
      if (ready) p.t.all_loaded();
      if (how == 0) p.t->core->process_ended(p.e.scheduler, p.t->now);
      if (how == 1) p.t->core->process_ended(p.e.worker, p.t->now);
      if (how == 2) {
        EXPECT_TRUE(p.t->core->cancel(p.e.scheduler, {instance_id(1), GroupId(0), "r"}).ok());
      }
      p.t.all_loaded();
      const BudgetStats s = p.stats();
      EXPECT_EQ(s.prepared, 0u);
      EXPECT_EQ(s.used, ByteCount(0));
      EXPECT_EQ(p.t.stats().leased, ByteCount(0));
    }
  }
}

TEST(CorePrepare, long_lists_go_in_parts) {
  PrepareBed p;
  const auto list = hashes(2, 8);
  const auto part = [&](std::uint32_t first, std::uint32_t count, bool prepare) {
    QueryPart q = p.t->part(list, "r");
    q.first = first;
    q.hashes = q.hashes.subspan(first, count);
    q.prepare = prepare;
    auto answer = p.t->core->query(p.e.scheduler, q, p.t->now);
    EXPECT_TRUE(answer.ok());
    return answer.ok() ? *answer : QueryAnswer{};
  };
  part(0, 5, true);
  EXPECT_TRUE(part(5, 3, true).loading);
  p.t.all_loaded();
  part(0, 5, false);
  EXPECT_EQ(p.stats().claimed, 1u) << "with the first part that is the same";
  EXPECT_TRUE(part(5, 3, false).lease);
}

// ---- recoveries ----

constexpr TokenTail kTail{0, 64};

Result<TicketAnswer> ask(PrepareBed& p, bool prepare, std::uint64_t first = 2, std::string_view id = "s") {
  const auto list = hashes(first, 4);
  return p.t->core->read_recovery(p.e.scheduler, {instance_id(1), id, kTail, 0, 4, list, {}, prepare},
                                  p.t->now);
}

TEST(CorePrepare, a_recovery_is_prepared_and_claimed) {
  for (const bool ready : {false, true}) {
    PrepareBed p;
    const auto begun = ask(p, true);
    ASSERT_TRUE(begun.ok());
    EXPECT_EQ(begun->state, TicketState::kLoading);
    EXPECT_EQ(p.stats().speculative, 4 * slot_bytes());
    if (ready) p.t.all_loaded();
    EXPECT_EQ(ask(p, true)->state, TicketState::kLoading) << "prepared already";
    auto claimed = ask(p, false);
    ASSERT_TRUE(claimed.ok());
    EXPECT_EQ(claimed->revision, begun->revision);
    p.t.all_loaded();
    if (!ready) claimed = ask(p, false);
    EXPECT_EQ(claimed->state, TicketState::kReady);
    EXPECT_EQ(p.t.tier.loads.size(), 2u);
    EXPECT_EQ(p.stats().speculative, ByteCount(0));
    EXPECT_EQ(p.stats().claimed, 1u);
    EXPECT_EQ(p.t.stats().hits, 4u);
    EXPECT_EQ(p.t.stats().recoveries, 1u);
  }
}

TEST(CorePrepare, a_recovery_that_nobody_claims_or_that_fails_leaves_nothing) {
  for (const int how : {0, 1, 2, 3}) {
    SCOPED_TRACE(how);
    PrepareBed p(16);
    ASSERT_TRUE(ask(p, true).ok());
    if (how == 0) {
      p.t.all_loaded();
      p.t.wait(seconds(1));
      EXPECT_EQ(p.stats().unclaimed, 1u);
    } else if (how == 1) {
      p.t.all_loaded(false);
    } else if (how == 2) {
      EXPECT_EQ(ask(p, false, 3)->state, TicketState::kLoading) << "another set";
      EXPECT_TRUE(p.t->core->cancel(p.e.scheduler, {instance_id(1), {}, "s", TicketKind::kRecovery}).ok());
    } else {
      p.read(0, 4, "a");
      EXPECT_EQ(p.stats().prepared, 1u);
      for (const char* id : {"b", "c"}) p.read(0, 4, id);
      p.read(0, 4, "d");
      EXPECT_EQ(p.stats().gave_way, 1u);
    }
    p.t.all_loaded();
    for (const char* id : {"a", "b", "c", "d"})
      EXPECT_TRUE(p.t->core->cancel(p.e.scheduler, {instance_id(1), GroupId(0), id}).ok());
    EXPECT_EQ(p.stats().prepared, 0u);
    EXPECT_EQ(p.stats().used, ByteCount(0));
    EXPECT_EQ(p.t.stats().leased, ByteCount(0));
    EXPECT_EQ(p.t.stats().tickets, 0u);
  }
}

TEST(CorePrepare, a_recovery_beyond_the_share_is_not_prepared) {
  PrepareBed p(12);
  const auto begun = ask(p, true);
  ASSERT_TRUE(begun.ok());
  EXPECT_EQ(begun->state, TicketState::kUnknown);
  EXPECT_EQ(p.stats().bypassed, 0u);
  EXPECT_EQ(ask(p, false)->state, TicketState::kLoading);
  EXPECT_EQ(code_of(ask(p, true)), Code::kBusy) << "it has been asked for";
}

}  // namespace
}  // namespace orbitkv::cache
