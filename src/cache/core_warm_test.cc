// Hints: what is loaded for nobody, when, and that it stands in nobody's way. And queries that
// wait for what others are saving.
#include "base/limits.h"
#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

// Blocks 0..3 are resident, 10..29 stored.
struct WarmBed : TierBed {
  explicit WarmBed(std::uint64_t budget = 400, ByteCount pool = 16 * kMiB)
      : TierBed(options_of(budget, pool)) {
    t->store(e.worker, e.registration, hashes(0, 4));
    for (std::uint64_t n = 10; n < 30; ++n) t.tier.put(n);
  }
  Status warm(std::uint64_t first, std::uint64_t count, std::string_view id = "w",
              const WarmHint& hint = {}) {
    const auto list = hashes(first, count);
    return t->core->warm(e.scheduler, {instance_id(1), GroupId(0), id, list, hint}, t->now);
  }
};

TEST(CoreWarm, what_is_stored_of_a_list_is_loaded_for_nobody) {
  WarmBed w;
  ASSERT_TRUE(w.warm(10, 4).ok());
  EXPECT_EQ(w.t.tier.loads.size(), 4u);
  EXPECT_EQ(w.stats().speculative, 4 * slot_bytes());
  EXPECT_EQ(w.t.stats().leases, 0u);
  EXPECT_EQ(w.t.stats().tickets, 0u);
  w.t.all_loaded();
  const BudgetStats s = w.stats();
  EXPECT_EQ(s.warms, 0u) << "a hint that is done";
  EXPECT_EQ(s.warmed, 4u);
  EXPECT_EQ(s.used, ByteCount(0));
  EXPECT_EQ(w.t.stats().leased, ByteCount(0));
  EXPECT_TRUE(w.t.tier.told.empty()) << "the tier hears of reads alone";
  EXPECT_TRUE(w.read(10, 4).lease);
}

TEST(CoreWarm, what_was_only_warmed_goes_first) {
  WarmBed w(400, ByteCount(8 * slot_bytes().value + 8192));
  ASSERT_TRUE(w.warm(10, 2).ok());
  w.t.all_loaded();
  ASSERT_EQ(w.t.stats().blocks, 6u);
  w.t->core->evict(2 * slot_bytes(), w.t->now);
  EXPECT_EQ(w.t->discover(w.e.scheduler, hashes(0, 4)), 4u);
  EXPECT_EQ(w.t.stats().blocks, 4u);
}

TEST(CoreWarm, not_while_anybody_waits) {
  WarmBed w;
  w.read(10, 2);
  ASSERT_TRUE(w.warm(20, 2).ok());
  EXPECT_EQ(w.t.tier.loads.size(), 2u);
  w.t.all_loaded();
  EXPECT_EQ(w.t.tier.loads.size(), 4u) << "and then at once";
  EXPECT_TRUE(w.read(10, 2).lease);
  EXPECT_EQ(w.stats().warms, 0u);
}

// One lost answer of one engine is nobody's wait.
TEST(CoreWarm, a_miss_that_is_not_told_holds_up_no_hint) {
  WarmBed w;
  const QueryAnswer loads = w.read(10, 2);
  ASSERT_TRUE(loads.loading);
  w.t.all_loaded(false);
  ASSERT_EQ(w.t.stats().tickets, 1u) << "it waits to be told";
  ASSERT_TRUE(w.warm(20, 2).ok());
  EXPECT_EQ(w.t.tier.loads.size(), 4u) << "two that failed, and those of the hint";
}

TEST(CoreWarm, the_earliest_first_use_then_the_surest) {
  WarmBed w(16);  // a share of four blocks
  w.read(10, 1);
  ASSERT_TRUE(w.warm(12, 4, "late", {milliseconds(80), {}, 1000, 100}).ok());
  ASSERT_TRUE(w.warm(16, 4, "unsure", {milliseconds(20), {}, 10, 10}).ok());
  ASSERT_TRUE(w.warm(20, 4, "sure", {milliseconds(20), {}, 10, 90}).ok());
  EXPECT_EQ(w.t.tier.loads.size(), 1u);
  w.t.loaded(10);
  for (const std::uint64_t first : {20, 16, 12}) {
    for (std::uint64_t n = first; n < first + 4; ++n) w.t.loaded(n);
  }
  EXPECT_EQ(w.t.tier.loads.size(), 13u);
  EXPECT_EQ(w.stats().warms, 0u);
}

TEST(CoreWarm, an_instance_without_room_holds_up_nobody_else) {
  WorldOptions o = TierBed::options_of(400);
  o.core.query_instance_budget = 4 * slot_bytes();  // a share of one block
  TierWorld t(o);
  Engine e(*t), other(*t, {.instance = 2});
  for (std::uint64_t n = 10; n < 30; ++n) t.tier.put(n);
  const auto warm = [&](SessionId session, int instance, std::uint64_t block, const WarmHint& hint) {
    const auto list = hashes(block, 1);
    const std::string id = "w" + std::to_string(block);
    return t->core->warm(session, {instance_id(instance), GroupId(0), id, list, hint}, t->now).ok();
  };
  ASSERT_TRUE(warm(e.scheduler, 1, 10, {}));
  ASSERT_TRUE(warm(e.scheduler, 1, 11, {milliseconds(20), {}, 10, 50}));
  EXPECT_EQ(t.tier.loads.size(), 1u);
  ASSERT_TRUE(warm(other.scheduler, 2, 20, {milliseconds(80), {}, 10, 50}));
  EXPECT_EQ(t.tier.loads.size(), 2u);
}

TEST(CoreWarm, a_piece_at_a_time_within_the_share) {
  WarmBed w(16);
  ASSERT_TRUE(w.warm(10, 10).ok());
  EXPECT_EQ(w.t.tier.loads.size(), 4u);
  ASSERT_TRUE(w.warm(20, 2, "other").ok());
  EXPECT_EQ(w.t.tier.loads.size(), 4u);
  w.t.all_loaded();
  EXPECT_EQ(w.t.tier.loads.size(), 12u);
  EXPECT_EQ(w.stats().warmed, 12u);
  EXPECT_LE(w.stats().peak, 4 * slot_bytes());
}

TEST(CoreWarm, a_query_takes_over_what_it_needs_and_the_rest_makes_way) {
  WarmBed w(16);
  w.t.tier.most_loads = 0;
  ASSERT_TRUE(w.warm(10, 4).ok());
  EXPECT_EQ(w.t.stats().loading, 4u);
  const QueryAnswer read = w.read(10, 2);
  EXPECT_TRUE(read.loading);
  EXPECT_TRUE(read.admitted);
  w.t.tier.most_loads = 2;
  w.t->core->tier_ready(w.t->now);
  EXPECT_TRUE(w.t.tier.of_block(10) && w.t.tier.of_block(11)) << "its turn has come";
  for (const char* id : {"a", "b", "c"}) w.read(0, 4, id);
  EXPECT_TRUE(w.read(0, 2, "d").lease) << "16 - 2 - 12";
  EXPECT_EQ(w.stats().warms, 0u);
  EXPECT_EQ(w.t.stats().loading, 2u) << "what the tier had not been told of is given up";
}

TEST(CoreWarm, a_hint_ends_by_itself) {
  WarmBed w;
  w.t.tier.most_loads = 0;
  ASSERT_TRUE(w.warm(10, 4, "long").ok());
  ASSERT_TRUE(w.warm(14, 4, "short", {{}, seconds(2), 0, 0}).ok());
  ASSERT_TRUE(w.warm(18, 4, "bounded", {{}, seconds(60), 0, 0}).ok());
  w.t.wait(seconds(2));
  EXPECT_EQ(w.stats().warms, 2u);
  w.t.wait(seconds(3));
  EXPECT_EQ(w.stats().warms, 0u);
  EXPECT_EQ(w.stats().warms_expired, 3u);
  EXPECT_EQ(w.t.stats().loading, 0u);
  EXPECT_EQ(w.stats().used, ByteCount(0));
}

TEST(CoreWarm, behind_a_block_that_is_nowhere_nothing_is_of_use) {
  WarmBed w;
  ASSERT_TRUE(w.warm(28, 6).ok());
  EXPECT_EQ(w.t.tier.loads.size(), 2u);
  ASSERT_TRUE(w.warm(50, 4, "nowhere").ok());
  ASSERT_TRUE(w.warm(0, 4, "resident").ok());
  EXPECT_EQ(w.stats().warms, 1u);
}

TEST(CoreWarm, bounds_are_answers) {
  WarmBed w;
  w.read(10, 1);  // nothing begins
  for (std::uint32_t i = 0; i < limits::kWarmsPerSession; ++i)
    ASSERT_TRUE(w.warm(12, 2, std::to_string(i)).ok());
  EXPECT_EQ(w.warm(12, 2, "more").error().code(), Code::kBusy);
  EXPECT_TRUE(w.warm(14, 2, "3").ok()) << "in the place of the one with its id";
  EXPECT_EQ(w.warm(14, 2, std::string(257, 'x')).error().code(), Code::kReject);
  std::uint32_t more = 0;
  for (int s = 0; s < 20; ++s) {
    const SessionId session = w.t->open();
    const auto list = hashes(12, 2);
    for (int i = 0; i < 10; ++i) {
      const std::string id = std::to_string(i);
      more += w.t->core->warm(session, {instance_id(1), GroupId(0), id, list, {}}, w.t->now).ok() ? 1 : 0;
    }
  }
  EXPECT_EQ(more + limits::kWarmsPerSession, limits::kWarms);
}

TEST(CoreWarm, session_instance_and_cancel_end_hints) {
  for (const bool begun : {false, true}) {
    for (const int how : {0, 1, 2}) {
      SCOPED_TRACE(how);
      WarmBed w;
      if (!begun) w.read(28, 1);
      ASSERT_TRUE(w.warm(10, 4).ok());
      if (how == 0) w.t->core->process_ended(w.e.scheduler, w.t->now);
      if (how == 1) w.t->core->process_ended(w.e.worker, w.t->now);
      if (how == 2) {
        EXPECT_TRUE(
            w.t->core->cancel(w.e.scheduler, {instance_id(1), GroupId(0), "w", TicketKind::kWarm}).ok());
      }
      EXPECT_EQ(w.stats().warms, 0u);
      w.t.all_loaded();
      w.t.wait(seconds(70));
      EXPECT_EQ(w.stats().used, ByteCount(0));
      EXPECT_EQ(w.t.stats().leased, ByteCount(0));
    }
  }
}

TEST(CoreWarm, failing_reads_end_a_piece_as_well) {
  WarmBed w;
  ASSERT_TRUE(w.warm(10, 4).ok());
  w.t.all_loaded(false);
  EXPECT_EQ(w.stats().warms, 0u);
  EXPECT_EQ(w.stats().used, ByteCount(0));
  EXPECT_EQ(w.t->used(), 4 * slot_bytes());
}

// ---- other publishers ----

// Two engines of one namespace; blocks 0..3 are resident.
struct TwoEngines {
  TierWorld t;
  Engine a, b;
  explicit TwoEngines(const WorldOptions& options = {}) : t(options), a(*t), b(*t, {.instance = 2}) {
    t->store(a.worker, a.registration, hashes(0, 4));
  }
  OperationKey begin_save(Engine& e, std::uint64_t first, std::uint64_t count) {
    const OperationKey op = t->next_op(e.worker);
    EXPECT_TRUE(t->publish(op, e.registration, hashes(first, count)).ok());
    EXPECT_TRUE(t->ports.granted.contains(op));
    return op;
  }
  QueryAnswer ask(std::uint64_t first, std::uint64_t count, bool full = true, std::string_view id = "r") {
    const auto list = hashes(first, count);
    QueryPart part = t->part(list, id);
    part.full_prefix = full;
    auto answer = t->core->query(a.scheduler, part, t->now);
    EXPECT_TRUE(answer.ok());
    return answer.ok() ? *answer : QueryAnswer{};
  }
  TicketAnswer poll(Revision revision) {
    auto answer = t->core->poll(a.scheduler, {instance_id(1), GroupId(0), "r"}, revision, t->now);
    EXPECT_TRUE(answer.ok());
    return answer.ok() ? *answer : TicketAnswer{};
  }
  BudgetStats stats() {
    EXPECT_EQ(t.stats().budgets.used, t->core->census().charged);
    return t.stats().budgets;
  }
};

TEST(CoreFullPrefix, a_run_waits_for_what_another_instance_saves) {
  TwoEngines two;
  const OperationKey save = two.begin_save(two.b, 4, 2);
  EXPECT_EQ(two.ask(0, 6, false, "short").hit_blocks, 4u);
  const QueryAnswer waits = two.ask(0, 6);
  EXPECT_TRUE(waits.loading);
  EXPECT_FALSE(waits.admitted);
  EXPECT_EQ(two.stats().used, 4 * slot_bytes()) << "of the other one: it holds nothing";
  two.t.wait(seconds(20));
  EXPECT_EQ(two.poll(waits.revision).state, TicketState::kLoading);
  two.t->commit(save);
  const TicketAnswer ready = two.poll(waits.revision);
  EXPECT_EQ(ready.state, TicketState::kReady);
  EXPECT_EQ(ready.hit_blocks, 6u);
  EXPECT_EQ(two.stats().publisher_waits, 1u);
  EXPECT_EQ(two.t.stats().hits, 10u);
  EXPECT_EQ(two.t.stats().misses, 2u);
}

TEST(CoreFullPrefix, any_end_of_the_save_wakes_it) {
  for (const int how : {0, 1, 2, 3}) {
    SCOPED_TRACE(how);
    TwoEngines two;
    const OperationKey save = two.begin_save(two.b, 4, 2);
    const QueryAnswer waits = two.ask(0, 6);
    EXPECT_FALSE(waits.admitted);
    if (how == 0) two.t->drain_failed(save);
    if (how == 1) two.t->core->close_session(two.b.worker, two.t->now);
    if (how >= 2) two.t->ports.claimed.insert(save);
    if (how == 2) two.t->core->process_ended(two.b.worker, two.t->now);
    if (how == 3) two.t.wait(seconds(30));
    const TicketAnswer ready = two.poll(waits.revision);
    EXPECT_EQ(ready.state, TicketState::kReady);
    EXPECT_EQ(ready.hit_blocks, 4u);
  }
}

TEST(CoreFullPrefix, it_goes_on_from_one_publisher_to_the_next) {
  TwoEngines two;
  const OperationKey first = two.begin_save(two.b, 4, 2), second = two.begin_save(two.b, 6, 2);
  for (std::uint64_t n = 8; n < 10; ++n) two.t.tier.put(n);
  const QueryAnswer waits = two.ask(0, 12);
  two.t->commit(first);
  EXPECT_FALSE(two.poll(waits.revision).admitted);
  two.t->commit(second);
  EXPECT_TRUE(two.poll(waits.revision).admitted);
  two.t.all_loaded();
  EXPECT_EQ(two.poll(waits.revision).hit_blocks, 10u);
}

TEST(CoreFullPrefix, not_for_its_own_engine_nor_for_what_nobody_copies) {
  TwoEngines two;
  two.begin_save(two.a, 4, 2);
  EXPECT_TRUE(two.ask(0, 6).lease);
  EXPECT_EQ(two.ask(20, 4).hit_blocks, 0u);
  EXPECT_EQ(two.stats().waiting, 0u);
}

// Between the saves of two ranks nobody copies, and the block is still on its way.
TEST(CoreFullPrefix, the_ranks_of_the_other_engine_save_one_after_the_other) {
  for (const bool comes : {true, false}) {
    SCOPED_TRACE(comes);
    TwoEngines two;
    const RankOptions rank0{.instance = 3, .rank = 0, .world = 2, .shards = 2, .name_space = "two"};
    RankOptions rank1 = rank0;
    rank1.rank = 1;
    Engine first(*two.t, rank0), second(*two.t, rank1);
    RankOptions mine0 = rank0, mine1 = rank1;
    mine0.instance = mine1.instance = 4;
    Engine asks(*two.t, mine0), too(*two.t, mine1);
    two.t->store(first.worker, first.registration, hashes(0, 2));
    const auto list = hashes(0, 2);
    QueryPart part = two.t->part(list, "r", QueryMode::kRead, 4);
    part.full_prefix = true;
    const auto waits = two.t->core->query(asks.scheduler, part, two.t->now);
    ASSERT_TRUE(waits.ok() && waits->loading && !waits->admitted);
    two.t.wait(seconds(1));
    if (comes) two.t->store(second.worker, second.registration, hashes(0, 2));
    if (!comes) two.t.wait(seconds(2));
    const auto ready =
        two.t->core->poll(asks.scheduler, {instance_id(4), GroupId(0), "r"}, waits->revision, two.t->now);
    ASSERT_TRUE(ready.ok());
    EXPECT_EQ(ready->state, comes ? TicketState::kReady : TicketState::kMissing);
    EXPECT_EQ(ready->hit_blocks, comes ? 2u : 0u);
  }
}

TEST(CoreFullPrefix, a_list_of_which_nothing_is_there_yet_waits_too) {
  TwoEngines two;
  const OperationKey save = two.begin_save(two.b, 10, 3);
  const QueryAnswer waits = two.ask(10, 3);
  EXPECT_TRUE(waits.loading);
  two.t->commit(save);
  EXPECT_EQ(two.poll(waits.revision).hit_blocks, 3u);
  const OperationKey other = two.begin_save(two.b, 20, 3);
  const QueryAnswer in_vain = two.ask(20, 3);
  two.t->drain_failed(other);
  EXPECT_EQ(two.poll(in_vain.revision).state, TicketState::kMissing);
}

TEST(CoreFullPrefix, the_policy_is_part_of_what_is_asked) {
  TwoEngines two;
  two.begin_save(two.b, 4, 2);
  const QueryAnswer waits = two.ask(0, 6);
  const QueryAnswer short_run = two.ask(0, 6, false);
  EXPECT_GT(short_run.revision, waits.revision);
  EXPECT_EQ(short_run.hit_blocks, 4u);
  EXPECT_TRUE(short_run.lease);
  EXPECT_FALSE(two.ask(0, 6).admitted);
  EXPECT_FALSE(two.ask(0, 6).admitted) << "the same again";
  EXPECT_TRUE(two.t->core->cancel(two.a.scheduler, {instance_id(1), GroupId(0), "r"}).ok());
  EXPECT_EQ(two.t.stats().tickets, 0u);
}

TEST(CoreFullPrefix, parts_give_what_one_list_would_give) {
  TwoEngines two;
  const OperationKey save = two.begin_save(two.b, 4, 4);
  const auto list = hashes(0, 10);
  QueryPart part = two.t->part(list, "r");
  part.full_prefix = true;
  QueryAnswer last;
  for (std::uint32_t first = 0; first < 10; first += 5) {
    part.first = first;
    part.hashes = std::span(list).subspan(first, 5);
    auto answer = two.t->core->query(two.a.scheduler, part, two.t->now);
    ASSERT_TRUE(answer.ok());
    last = *answer;
  }
  EXPECT_FALSE(last.admitted);
  two.t->commit(save);
  EXPECT_EQ(two.poll(last.revision).hit_blocks, 8u);
  EXPECT_EQ(two.stats().used, 8 * slot_bytes());
}

TEST(CoreFullPrefix, at_the_end_of_the_wait_what_is_stored_only_is_not_begun) {
  WorldOptions options;
  options.core.full_prefix_wait = seconds(3);
  TwoEngines two(options);
  two.begin_save(two.b, 4, 2);
  const QueryAnswer waits = two.ask(0, 6);
  two.t.wait(milliseconds(2900));
  EXPECT_FALSE(two.poll(waits.revision).admitted);
  two.t.wait(milliseconds(100));
  EXPECT_EQ(two.poll(waits.revision).leases.at(0).blocks, 4u);
}

// What is there is taken over turns then, for which there is no end of a wait any more.
TEST(CoreFullPrefix, a_wait_that_ends_is_counted_once) {
  for (const bool taken : {true, false}) {
    SCOPED_TRACE(taken);
    WorldOptions options;
    options.core.full_prefix_wait = seconds(3);
    options.core.turn_hashes = 2;
    TwoEngines two(options);
    two.begin_save(two.b, 4, 2);
    const QueryAnswer waits = two.ask(0, 6);
    two.t.wait(seconds(3));
    EXPECT_EQ(two.poll(waits.revision).state, TicketState::kLoading);
    EXPECT_EQ(two.t.stats().load_timeouts, 1u);
    while (taken && two.t->core->turn(two.t->now)) continue;
    two.t.wait(seconds(1));
    EXPECT_EQ(two.poll(waits.revision).leases.at(0).blocks, taken ? 4u : 2u);
    EXPECT_EQ(two.t.stats().load_timeouts, 1u);
  }
}

}  // namespace
}  // namespace orbitkv::cache
