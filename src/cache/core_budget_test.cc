// Query budgets through the whole core: what is charged when, who waits for how long and in
// which order, and that every byte comes back.
#include <array>

#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

WorldOptions with_budget(std::uint64_t all, std::uint64_t one) {
  WorldOptions options;
  options.core.query_budget = all * slot_bytes();
  options.core.query_instance_budget = one * slot_bytes();
  return options;
}

// Two engines. Blocks 0..7 are resident, 8..15 stored.
struct TwoEngines {
  TierWorld t;
  Engine a, b;
  explicit TwoEngines(std::uint64_t all = 8, std::uint64_t one = 6)
      : t(with_budget(all, one)), a(*t), b(*t, {.instance = 2}) {
    t->store(a.worker, a.registration, hashes(0, 8));
    for (std::uint64_t n = 8; n < 16; ++n) t.tier.put(n);
  }
  QueryAnswer read(std::uint64_t first, std::uint64_t count, std::string_view id, int instance = 1) {
    return t->read(instance == 1 ? a.scheduler : b.scheduler, hashes(first, count), id, instance);
  }
  TicketAnswer poll(const QueryAnswer& asked, std::string_view id, int instance = 1) {
    auto answer = t->core->poll(instance == 1 ? a.scheduler : b.scheduler,
                                {instance_id(instance), GroupId(0), id}, asked.revision, t->now);
    EXPECT_TRUE(answer.ok()) << answer.error().to_string();
    return answer.ok() ? *answer : TicketAnswer{};
  }
  void release(LeaseId lease, int instance = 1) {
    EXPECT_TRUE(t->core->release(instance == 1 ? a.scheduler : b.scheduler, lease).ok());
  }
  Result<QueryAnswer> ask_part(const std::vector<BlockHash>& list, std::uint32_t first, std::uint32_t count,
                               std::string_view id = "r") {
    QueryPart part = t->part(list, id);
    part.first = first;
    part.hashes = part.hashes.subspan(first, count);
    return t->core->query(a.scheduler, part, t->now);
  }
  // In slots, and equal to a recount.
  std::uint64_t used() {
    const BudgetStats s = t.stats().budgets;
    EXPECT_EQ(s.used, t->core->census().charged);
    return s.used.value / slot_bytes().value;
  }
  BudgetStats stats() { return t.stats().budgets; }
};

TEST(CoreBudget, each_owner_is_charged_until_its_last_restore_is_reaped) {
  TwoEngines s;
  const QueryAnswer one = s.read(0, 3, "one"), two = s.read(0, 3, "two");
  EXPECT_EQ(s.used(), 6u) << "shared blocks count once an owner";
  s.release(two.lease);
  EXPECT_EQ(s.used(), 3u);
  const OperationKey first = s.t->next_op(s.a.worker), second = s.t->next_op(s.a.worker);
  ASSERT_TRUE(s.t->restore(first, s.a.registration, one.lease, blocks(0, 2)).ok());
  ASSERT_TRUE(s.t->restore(second, s.a.registration, one.lease, blocks(5, 1), 2).ok());
  EXPECT_EQ(s.t.stats().leases, 0u);
  s.t->verified(first);
  EXPECT_EQ(s.used(), 3u);
  s.t->drain_failed(second);
  EXPECT_EQ(s.used(), 0u);
}

// A read that goes on without its query is charged in the place of the query, not beside it.
TEST(CoreBudget, what_is_cancelled_counts_once_in_the_peak) {
  for (const bool times_out : {false, true}) {
    SCOPED_TRACE(times_out);
    TwoEngines s;
    EXPECT_TRUE(s.read(8, 5, "r").loading);
    if (times_out) s.t.wait(seconds(6));
    if (!times_out) {
      EXPECT_TRUE(s.t->core->cancel(s.a.scheduler, {instance_id(1), GroupId(0), "r"}).ok());
    }
    EXPECT_EQ(s.stats().draining, 5 * slot_bytes());
    EXPECT_EQ(s.used(), 5u);
    EXPECT_EQ(s.stats().peak, 5 * slot_bytes());
    s.t.all_loaded();
    EXPECT_EQ(s.used(), 0u);
  }
}

TEST(CoreBudget, a_long_lease_ends_over_turns_and_is_charged_meanwhile) {
  constexpr std::uint32_t kLong = 2 * limits::kUnpinsPerTurn + 10;
  WorldOptions options = with_budget(kLong, kLong);
  options.pool = 512 * kMiB;
  TierWorld t(options);
  Engine e(*t), other(*t, {.instance = 2});
  for (std::uint32_t at = 0; at < kLong; at += 8000)
    t->store(e.worker, e.registration, hashes(at, std::min<std::uint32_t>(8000, kLong - at)));
  const QueryAnswer lease = t->read(e.scheduler, hashes(0, kLong), "long");
  ASSERT_EQ(lease.hit_blocks, kLong);
  const QueryAnswer waits = t->read(other.scheduler, hashes(0, 4), "next", 2);
  ASSERT_TRUE(waits.loading && !waits.admitted);
  ASSERT_TRUE(t->core->release(e.scheduler, lease.lease).ok());
  for (const bool more : {true, true, false}) {
    EXPECT_EQ(t.stats().budgets.used, kLong * slot_bytes());
    EXPECT_EQ(t.stats().budgets.used, t->core->census().charged);
    EXPECT_EQ(t->core->census().pins, t->core->census().pinned);
    EXPECT_EQ(t->core->turn(t->now), more);
  }
  EXPECT_EQ(t.stats().budgets.used, 4 * slot_bytes()) << "of who stood behind it";
  EXPECT_EQ(t.stats().leased, 4 * slot_bytes());
}

TEST(CoreBudget, a_long_tail_that_is_cut_off_goes_over_turns_and_is_charged_meanwhile) {
  constexpr std::uint32_t kLong = limits::kUnpinsPerTurn + 10;
  TierBed s(TierBed::options_of(kLong, 512 * kMiB));
  s.t->store(s.e.worker, s.e.registration, hashes(0, 1));
  s.t.tier.put(1);
  for (std::uint32_t at = 2; at < kLong; at += 8000)
    s.t->store(s.e.worker, s.e.registration, hashes(at, std::min<std::uint32_t>(8000, kLong - at)));
  const QueryAnswer asked = s.read(0, kLong);
  ASSERT_TRUE(asked.loading && asked.admitted && asked.hit_blocks == kLong);
  s.t.wait(seconds(6));
  const auto ready =
      s.t->core->poll(s.e.scheduler, {instance_id(1), GroupId(0), "r"}, asked.revision, s.t->now);
  ASSERT_TRUE(ready.ok() && ready->state == TicketState::kReady);
  EXPECT_EQ(ready->hit_blocks, 1u);
  const ByteCount read = slot_bytes();  // goes on
  for (const bool more : {true, false}) {
    EXPECT_EQ(s.stats().used, kLong * slot_bytes() + read);
    EXPECT_GT(s.t.stats().leased, slot_bytes());
    EXPECT_EQ(s.t->core->census().pins, s.t->core->census().pinned);
    EXPECT_EQ(s.t->core->turn(s.t->now), more);
  }
  EXPECT_EQ(s.stats().used, slot_bytes() + read);
  s.t.all_loaded();
  EXPECT_EQ(s.stats().used, slot_bytes());
  EXPECT_EQ(s.t.stats().leased, slot_bytes());
}

// Its parts were pinned before it was known how much of it the budget ever holds.
TEST(CoreBudget, what_is_beyond_the_limit_goes_over_turns) {
  constexpr std::uint32_t kLong = limits::kUnpinsPerTurn + 10;
  TierBed s(TierBed::options_of(4, 512 * kMiB));
  for (std::uint32_t at = 0; at < kLong; at += 8000)
    s.t->store(s.e.worker, s.e.registration, hashes(at, std::min<std::uint32_t>(8000, kLong - at)));
  const std::vector<BlockHash> list = hashes(0, kLong);
  QueryPart part = s.t->part(list, "r");
  part.hashes = std::span(list).first(kLong - 1);
  ASSERT_TRUE(s.t->core->query(s.e.scheduler, part, s.t->now).ok());
  part.first = kLong - 1;
  part.hashes = std::span(list).last(1);
  const auto answer = s.t->core->query(s.e.scheduler, part, s.t->now);
  ASSERT_TRUE(answer.ok() && answer->lease);
  EXPECT_EQ(answer->hit_blocks, 4u);
  EXPECT_EQ(s.t.stats().leased, (kLong - 1) * slot_bytes());
  for (const bool more : {true, false}) EXPECT_EQ(s.t->core->turn(s.t->now), more);
  EXPECT_EQ(s.t.stats().leased, 4 * slot_bytes());
  EXPECT_EQ(s.stats().used, 4 * slot_bytes());
}

TEST(CoreBudget, the_core_may_end_before_a_long_lease) {
  constexpr std::uint32_t kLong = limits::kUnpinsPerTurn + 1;
  WorldOptions options;
  options.pool = 256 * kMiB;
  World w(options);
  Engine e(w);
  for (std::uint32_t at = 0; at < kLong; at += 8000)
    w.store(e.worker, e.registration, hashes(at, std::min<std::uint32_t>(8000, kLong - at)));
  ASSERT_EQ(w.read(e.scheduler, hashes(0, kLong), "long").hit_blocks, kLong);
  w.core->process_ended(e.scheduler, w.now);
  EXPECT_GT(w.core->stats().leased, ByteCount(0));
}

TEST(CoreBudget, a_restore_of_holes_holds_nothing) {
  TwoEngines s;
  const QueryAnswer one = s.read(0, 2, "one");
  ASSERT_TRUE(s.t->restore(s.t->next_op(s.a.worker), s.a.registration, one.lease, {kHole, kHole}).ok());
  EXPECT_EQ(s.used(), 0u);
}

TEST(CoreBudget, without_budget_a_query_waits_and_holds_nothing) {
  TwoEngines s;
  const QueryAnswer one = s.read(0, 4, "one"), two = s.read(4, 4, "two");
  EXPECT_TRUE(two.loading);
  EXPECT_FALSE(two.admitted);
  EXPECT_FALSE(two.lease);
  EXPECT_EQ(two.hit_blocks, 4u);
  EXPECT_EQ(s.used(), 4u);
  EXPECT_EQ(s.t.stats().leased, 4 * slot_bytes());
  EXPECT_EQ(s.stats().waiting, 1u);
  EXPECT_FALSE(s.poll(two, "two").admitted);
  EXPECT_FALSE(s.read(4, 4, "two").admitted) << "the same list again";
  s.release(one.lease);
  const TicketAnswer ready = s.poll(two, "two");
  EXPECT_EQ(ready.state, TicketState::kReady);
  EXPECT_EQ(ready.leases.at(0).blocks, 4u);
  EXPECT_EQ(s.used(), 4u);
  EXPECT_EQ(s.t.stats().hits, 8u);
  EXPECT_EQ(s.stats().waits, 1u);
}

// The parts of a list that waits are told from those of another one under its name.
TEST(CoreBudget, another_list_in_parts_takes_nothing_over_from_the_one_that_waits) {
  TwoEngines s;
  const QueryAnswer one = s.read(0, 4, "one");
  const std::vector<BlockHash> list = {hash_of(4), hash_of(5), hash_of(6)};
  const std::vector<BlockHash> other = {hash_of(4), hash_of(7), hash_of(6)};
  ASSERT_TRUE(s.ask_part(list, 0, 2).ok());
  const QueryAnswer waits = *s.ask_part(list, 2, 1);
  EXPECT_FALSE(waits.admitted);
  const QueryAnswer begun = *s.ask_part(other, 0, 2);
  EXPECT_NE(begun.revision, waits.revision);
  const QueryAnswer asked = *s.ask_part(other, 2, 1);
  EXPECT_EQ(asked.revision, begun.revision);
  EXPECT_FALSE(asked.admitted);
  s.release(one.lease);
  EXPECT_EQ(s.poll(asked, "r").leases.at(0).blocks, 3u);
}

TEST(CoreBudget, what_was_admitted_late_loads_what_is_stored) {
  TwoEngines s;
  const QueryAnswer one = s.read(0, 4, "one"), two = s.read(6, 6, "two");
  EXPECT_FALSE(two.admitted);
  EXPECT_TRUE(s.t.tier.loads.empty());
  s.release(one.lease);
  EXPECT_EQ(s.t.tier.loads.size(), 4u);
  EXPECT_TRUE(s.poll(two, "two").admitted);
  s.t.all_loaded();
  EXPECT_EQ(s.poll(two, "two").leases.at(0).blocks, 6u);
}

TEST(CoreBudget, what_went_meanwhile_shortens_the_run) {
  for (const bool all : {false, true}) {
    TwoEngines s;
    const QueryAnswer one = s.read(0, 4, "one");
    const QueryAnswer two = s.read(8, 4, "two");
    EXPECT_FALSE(two.admitted);
    for (std::uint64_t n = all ? 8 : 10; n < 12; ++n) s.t.tier.records.erase({1, n});
    s.release(one.lease);
    EXPECT_EQ(s.used(), all ? 0u : 2u);
    s.t.all_loaded();
    const TicketAnswer answer = s.poll(two, "two");
    if (all) {
      EXPECT_EQ(answer.state, TicketState::kMissing);
      EXPECT_EQ(answer.why, Missing::kGone);
    } else {
      EXPECT_EQ(answer.leases.at(0).blocks, 2u);
    }
    EXPECT_EQ(s.t.stats().hits, all ? 4u : 6u);
  }
}

TEST(CoreBudget, the_wait_has_one_end_and_a_result) {
  TwoEngines s;
  s.read(0, 4, "one");
  const QueryAnswer two = s.read(4, 4, "two");
  s.t.wait(seconds(4));
  EXPECT_FALSE(s.read(4, 3, "two").admitted) << "another list wins no time";
  const QueryAnswer other = s.read(4, 4, "two");
  EXPECT_GT(other.revision, two.revision);
  s.t.wait(seconds(1));
  EXPECT_EQ(s.stats().waiting, 0u);
  const TicketAnswer answer = s.poll(other, "two");
  EXPECT_EQ(answer.state, TicketState::kMissing);
  EXPECT_EQ(answer.why, Missing::kNoMemory);
  EXPECT_EQ(s.poll(other, "two").state, TicketState::kUnknown) << "told once";
  EXPECT_EQ(s.stats().ended, 1u);
  EXPECT_EQ(s.t.stats().tickets, 0u);
}

TEST(CoreBudget, later_queries_of_an_instance_wait_behind_earlier_ones_that_fit) {
  TwoEngines s(8, 4);
  const QueryAnswer held = s.read(0, 4, "held");
  const QueryAnswer one = s.read(4, 2, "one"), two = s.read(6, 2, "two");
  const QueryAnswer other = s.read(0, 4, "other", 2);
  EXPECT_TRUE(other.lease) << "an instance does not wait for another's limit";
  EXPECT_FALSE(one.admitted);
  s.release(held.lease);
  EXPECT_EQ(s.poll(one, "one").state, TicketState::kReady);
  EXPECT_EQ(s.poll(two, "two").state, TicketState::kReady);
  EXPECT_EQ(s.used(), 8u);
}

TEST(CoreBudget, a_prefix_longer_than_a_limit_is_cut_there) {
  TwoEngines s;
  const QueryAnswer one = s.read(0, 8, "one");
  EXPECT_EQ(one.hit_blocks, 6u);
  EXPECT_TRUE(one.lease);
  EXPECT_EQ(s.used(), 6u);
  EXPECT_EQ(s.stats().cut, 1u);
  EXPECT_EQ(s.t.stats().hits, 6u);
  EXPECT_EQ(s.t.stats().misses, 2u);
  s.release(one.lease);
  const QueryAnswer mixed = s.read(4, 12, "mixed");
  EXPECT_EQ(mixed.hit_blocks, 6u);
  EXPECT_EQ(s.t.tier.loads.size(), 2u) << "nothing beyond it is read";
}

TEST(CoreBudget, parts_hold_no_charge_and_load_nothing_before_the_last) {
  TwoEngines s(12, 12);
  const auto list = hashes(4, 10);  // 4 resident, 6 stored
  ASSERT_TRUE(s.ask_part(list, 0, 2).ok());
  const auto middle = s.ask_part(list, 2, 4);
  ASSERT_TRUE(middle.ok());
  EXPECT_EQ(middle->hit_blocks, 6u);
  EXPECT_EQ(s.used(), 0u);
  EXPECT_TRUE(s.t.tier.loads.empty());
  EXPECT_EQ(s.t.stats().leased, 4 * slot_bytes()) << "what is there cannot go";
  const auto last = s.ask_part(list, 6, 4);
  ASSERT_TRUE(last.ok());
  EXPECT_TRUE(last->loading);
  EXPECT_EQ(s.t.tier.loads.size(), 6u);
  EXPECT_EQ(s.used(), 10u);
  s.t.all_loaded();
  EXPECT_EQ(s.poll(*last, "r").leases.at(0).blocks, 10u);
}

TEST(CoreBudget, parts_that_find_no_budget_let_go_and_are_taken_whole_later) {
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{4}}) {
    TwoEngines s(12, 12);
    const QueryAnswer held = s.read(0, 5, "held");
    const auto list = hashes(first, 8);
    ASSERT_TRUE(s.ask_part(list, 0, 5).ok());
    const auto last = s.ask_part(list, 5, 3);
    ASSERT_TRUE(last.ok());
    EXPECT_FALSE(last->admitted);
    EXPECT_EQ(s.t.stats().leased, 5 * slot_bytes());
    s.release(held.lease);
    s.t.all_loaded();
    EXPECT_EQ(s.poll(*last, "r").leases.at(0).blocks, 8u);
    const auto again = s.ask_part(list, 0, 5);
    ASSERT_TRUE(again.ok());
    EXPECT_TRUE(s.ask_part(list, 5, 3)->lease) << "recognised";
    auto other = list;
    other[6] = hash_of(900);
    ASSERT_TRUE(s.ask_part(other, 0, 5).ok());
    const auto changed = s.ask_part(other, 5, 3);
    ASSERT_TRUE(changed.ok());
    EXPECT_EQ(changed->hit_blocks, 6u) << "the parts before were the same";
    EXPECT_EQ(s.used(), 6u);
  }
}

TEST(CoreBudget, a_submitted_read_is_charged_until_it_ends) {
  TwoEngines s(8, 8);
  for (int i = 0; i < 3; ++i) {
    const QueryAnswer one = s.read(8, 4, "one");
    EXPECT_TRUE(one.loading);
    EXPECT_TRUE(s.t->core->cancel(s.a.scheduler, {instance_id(1), GroupId(0), "one"}).ok());
    EXPECT_EQ(s.used(), 4u) << "the reads go on";
    EXPECT_EQ(s.stats().draining, 4 * slot_bytes());
  }
  EXPECT_EQ(s.read(8, 8, "two").admitted, false) << "cancelling wins no budget";
  s.t.all_loaded();
  EXPECT_EQ(s.used(), 8u);
  EXPECT_EQ(s.stats().draining, ByteCount(0));
}

TEST(CoreBudget, whoever_joins_a_draining_read_carries_it) {
  TwoEngines s;
  s.read(8, 2, "one");
  EXPECT_TRUE(s.t->core->cancel(s.a.scheduler, {instance_id(1), GroupId(0), "one"}).ok());
  EXPECT_EQ(s.used(), 2u);
  s.read(8, 2, "two", 2);
  EXPECT_EQ(s.used(), 2u);
  EXPECT_EQ(s.stats().draining, ByteCount(0));
}

TEST(CoreBudget, a_read_is_charged_past_the_restore_that_waited_for_it) {
  TwoEngines s(12, 12);
  const auto list = hashes(2, 8);  // the last two are stored
  QueryPart part = s.t->part(list, "early");
  part.early_lease = true;
  ASSERT_TRUE(s.t->core->query(s.a.scheduler, part, s.t->now).ok());
  s.t.loaded(8);
  const auto early = s.t->core->query(s.a.scheduler, part, s.t->now);
  ASSERT_TRUE(early.ok() && early->lease);
  const OperationKey op = s.t->next_op(s.a.worker);
  ASSERT_TRUE(s.t->restore(op, s.a.registration, early->lease, blocks(0, 8)).ok());
  EXPECT_EQ(s.used(), 9u) << "of the restore, and the read for itself";
  s.t.wait(seconds(5));
  EXPECT_TRUE(s.t->ports.failed.contains(op));
  EXPECT_EQ(s.used(), 1u);
  s.t.all_loaded();
  EXPECT_EQ(s.used(), 0u);
}

TEST(CoreBudget, a_timeout_shrinks_the_charge_to_what_had_landed) {
  TwoEngines s;
  const QueryAnswer one = s.read(6, 4, "one");
  s.t.loaded(8);
  s.t.wait(seconds(5));
  EXPECT_EQ(s.poll(one, "one").leases.at(0).blocks, 3u);
  EXPECT_EQ(s.used(), 4u) << "and the read that drains";
  s.t.all_loaded();
  EXPECT_EQ(s.used(), 3u);
}

// A queued read that somebody joins does not stay behind the long line of who asked first.
TEST(CoreBudget, loads_have_turns_between_instances_and_move_to_whose_turn_is_sooner) {
  TwoEngines s(40, 20);
  for (std::uint64_t n = 16; n < 24; ++n) s.t.tier.put(n);
  s.t.tier.most_loads = 0;
  s.read(8, 8, "long");
  const QueryAnswer joins = s.read(14, 2, "joins", 2);
  s.read(16, 2, "own", 2);
  s.t.tier.most_loads = 4;
  s.t->core->tier_ready(s.t->now);
  std::vector<std::uint64_t> order;
  for (const auto& [id, t] : s.t.tier.under_way) order.push_back(t.name.second);
  EXPECT_EQ(order, (std::vector<std::uint64_t>{8, 14, 9, 16}));
  s.t.tier.most_loads = 20;
  s.t->core->tier_ready(s.t->now);
  s.t.all_loaded();
  EXPECT_EQ(s.poll(joins, "joins", 2).state, TicketState::kReady);
}

TEST(CoreBudget, a_queued_read_outlives_the_one_who_asked_first) {
  TwoEngines s(40, 20);
  s.t.tier.most_loads = 0;
  s.read(8, 4, "first");
  const QueryAnswer second = s.read(8, 4, "second");
  EXPECT_TRUE(s.t->core->cancel(s.a.scheduler, {instance_id(1), GroupId(0), "first"}).ok());
  s.read(12, 4, "third", 2);  // has the first one's place
  s.t.tier.most_loads = 20;
  s.t->core->tier_ready(s.t->now);
  s.t.all_loaded();
  EXPECT_EQ(s.poll(second, "second").state, TicketState::kReady);
}

enum class Stage { kCollecting, kWaiting, kLoading, kReady, kConsuming, kConsumed, kMissed };
constexpr std::array kStages = {Stage::kCollecting, Stage::kWaiting,  Stage::kLoading, Stage::kReady,
                                Stage::kConsuming,  Stage::kConsumed, Stage::kMissed};

void bring_to(TwoEngines& s, Stage stage) {
  switch (stage) {
    case Stage::kCollecting: ASSERT_TRUE(s.ask_part(hashes(0, 6), 0, 3).ok()); break;
    case Stage::kWaiting:
      s.read(0, 5, "held", 2);
      EXPECT_FALSE(s.read(0, 5, "r").admitted);
      break;
    case Stage::kLoading: EXPECT_TRUE(s.read(8, 4, "r").loading); break;
    case Stage::kReady: EXPECT_TRUE(s.read(0, 5, "r").lease); break;
    case Stage::kConsuming:
    case Stage::kConsumed: {
      const LeaseId lease = s.read(0, 5, "r").lease;
      const std::size_t n = stage == Stage::kConsuming ? 2 : 5;
      ASSERT_TRUE(s.t->restore(s.t->next_op(s.a.worker), s.a.registration, lease, blocks(0, n)).ok());
      break;
    }
    case Stage::kMissed:
      EXPECT_TRUE(s.read(8, 4, "r").loading);
      s.t.all_loaded(false);
      break;
  }
}

TEST(CoreBudget, whoever_ends_in_whichever_state_returns_every_byte) {
  for (const Stage stage : kStages) {
    for (const int how : {0, 1, 2, 3, 4}) {
      SCOPED_TRACE(static_cast<int>(stage) * 10 + how);
      TwoEngines s;
      bring_to(s, stage);
      s.used();
      if (how == 0) s.t->core->process_ended(s.a.scheduler, s.t->now);
      if (how == 1) s.t->core->process_ended(s.a.worker, s.t->now);
      if (how == 2) s.t->core->close_session(s.a.worker, s.t->now);
      if (how == 3) {
        EXPECT_TRUE(s.t->core->cancel(s.a.scheduler, {instance_id(1), GroupId(0), "r"}).ok());
      }
      if (how == 4) s.t.wait(seconds(700));
      s.used();
      for (const auto& [op, plan] : std::map(s.t->ports.granted)) s.t->verified(op);
      s.t->core->process_ended(s.b.worker, s.t->now);
      s.t.all_loaded();
      EXPECT_EQ(s.used(), 0u);
      EXPECT_EQ(s.stats().waiting, 0u);
      EXPECT_EQ(s.t.stats().leased, ByteCount(0));
    }
  }
}

TEST(CoreBudget, a_claimed_restore_keeps_its_charge_past_the_end_of_its_session) {
  TwoEngines s;
  const LeaseId lease = s.read(0, 5, "r").lease;
  const OperationKey op = s.t->next_op(s.a.worker);
  ASSERT_TRUE(s.t->restore(op, s.a.registration, lease, blocks(0, 5)).ok());
  s.t->ports.claimed.insert(op);
  s.t->core->close_session(s.a.worker, s.t->now);
  EXPECT_EQ(s.used(), 5u);
  EXPECT_FALSE(s.read(0, 4, "other", 2).admitted);
  s.t->verified(op);
  EXPECT_EQ(s.used(), 4u);
}

TEST(CoreBudget, limits_come_from_the_pool_unless_they_are_given) {
  World w;
  const BudgetStats s = w.core->stats().budgets;
  EXPECT_EQ(s.limit, 64 * kMiB);
  EXPECT_EQ(s.instance_limit, 32 * kMiB);
}

}  // namespace
}  // namespace orbitkv::cache
