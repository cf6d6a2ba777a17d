// Long lists, which are looked up over turns: how much a turn does, and what may come in between.
#include <algorithm>

#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

constexpr std::uint32_t kTurn = 4, kBlocks = 18;

// A list of which the first block is stored and the others are in memory, so that what is known of it
// is kept until its last part. Its recovery is of the same pages.
struct LongList {
  TierWorld t;
  Engine e;
  Revision revision;
  static WorldOptions options(std::uint64_t budget) {
    WorldOptions o;
    o.core.turn_hashes = kTurn;
    o.core.query_budget = o.core.query_instance_budget = budget * slot_bytes();
    return o;
  }
  explicit LongList(std::uint64_t budget = 1000) : t(options(budget)), e(*t) {
    t->store(e.worker, e.registration, hashes(1, kBlocks - 1));
    t.tier.put(0);
  }
  QueryAnswer read(std::string_view id = "r", std::uint64_t from = 0) {
    const auto list = hashes(from, kBlocks);
    QueryAnswer answer;
    for (std::uint32_t first = 0; first < kBlocks; first += 3) {
      QueryPart part = t->part(list, id);
      part.first = first;
      part.hashes = part.hashes.subspan(first, 3);
      auto asked = t->core->query(e.scheduler, part, t->now);
      EXPECT_TRUE(asked.ok()) << asked.error().to_string();
      if (asked.ok()) answer = *asked;
    }
    revision = answer.revision;
    return answer;
  }
  TicketAnswer recover(std::string_view id = "r") {
    const auto list = hashes(0, kBlocks);
    auto asked = t->core->read_recovery(e.scheduler,
                                        {instance_id(1), id, {0, kBlocks * 16}, 0, kBlocks, list}, t->now);
    EXPECT_TRUE(asked.ok()) << asked.error().to_string();
    revision = asked->revision;
    return *asked;
  }
  TicketName name(TicketKind kind = TicketKind::kPrefix) const { return {instance_id(1), {}, "r", kind}; }
  TicketAnswer poll(TicketKind kind = TicketKind::kPrefix) {
    auto answer = t->core->poll(e.scheduler, name(kind), revision, t->now);
    EXPECT_TRUE(answer.ok()) << answer.error().to_string();
    return *answer;
  }
  template <class State>
  std::uint32_t in(State state) {
    const Census census = t->core->census();
    EXPECT_EQ(census.pins, census.pinned);
    EXPECT_EQ(census.charged, t.stats().budgets.used);
    const auto i = static_cast<std::size_t>(state);
    if constexpr (std::is_same_v<State, LeaseState>) return census.leases[i];
    if constexpr (std::is_same_v<State, RecoveryState>) return census.recoveries[i];
  }
  // Each looks at a bounded part of the list, and the line at its next one. Returns how many were needed
  // until `over`.
  template <class Over>
  int turns(Over over) {
    int count = 0;
    for (; !over() && count < 100; ++count) {
      const std::uint64_t before = t.stats().looked_up;
      t->core->turn(t->now);
      EXPECT_LE(t.stats().looked_up - before, t.stats().recovery_waits > 0 ? 2 * kTurn : kTurn);
    }
    EXPECT_TRUE(over());
    return count;
  }
  void holds_nothing() {
    while (t->core->turn(t->now)) continue;
    EXPECT_EQ(t->core->census().pins, 0u);
    EXPECT_EQ(t->core->census().pinned, 0u);
    EXPECT_EQ(t.stats().budgets.used, ByteCount());
    EXPECT_EQ(t.stats().tickets, 0u);
    EXPECT_EQ(t.stats().loading, 0u);
  }
};

TEST(CoreTake, a_long_run_is_taken_over_turns) {
  LongList l;
  const QueryAnswer answer = l.read();
  EXPECT_TRUE(answer.loading);
  EXPECT_TRUE(answer.admitted);
  EXPECT_EQ(answer.hit_blocks, kBlocks);
  EXPECT_EQ(l.in(LeaseState::kTaking), 1u);
  EXPECT_EQ(l.poll().state, TicketState::kLoading);
  EXPECT_TRUE(l.read().loading) << "the same list is not begun again";
  EXPECT_EQ(l.in(LeaseState::kTaking), 1u);
  EXPECT_EQ(l.turns([&] { return l.in(LeaseState::kTaking) == 0; }), 4);
  EXPECT_EQ(l.in(LeaseState::kLoading), 1u);
  EXPECT_FALSE(l.t->core->turn(l.t->now)) << "there is no more to do";
  l.t.all_loaded();
  const TicketAnswer ready = l.poll();
  ASSERT_EQ(ready.state, TicketState::kReady);
  EXPECT_EQ(ready.hit_blocks, kBlocks);
  EXPECT_TRUE(
      l.t->restore(l.t->next_op(l.e.worker), l.e.registration, ready.leases[0].lease, blocks(0, kBlocks))
          .ok());
}

TEST(CoreTake, a_long_run_that_waited_for_its_budget_is_taken_over_turns) {
  LongList l(kBlocks);
  const QueryAnswer first = l.t->read(l.e.scheduler, hashes(1, 5), "first");
  ASSERT_TRUE(first.lease);
  EXPECT_FALSE(l.read().admitted);
  EXPECT_EQ(l.in(LeaseState::kWaiting), 1u);
  ASSERT_TRUE(l.t->core->release(l.e.scheduler, first.lease).ok());
  EXPECT_EQ(l.in(LeaseState::kTaking), 1u);
  EXPECT_TRUE(l.poll().admitted);
  EXPECT_EQ(l.turns([&] { return l.in(LeaseState::kTaking) == 0; }), 4);
  l.t.all_loaded();
  EXPECT_EQ(l.poll().hit_blocks, kBlocks);
}

// After so many turns of five.
TEST(CoreTake, a_long_run_may_end_at_any_turn) {
  enum class How { kCancel, kNewList, kClosed, kUnregistered, kCoreEnds };
  for (const How how : {How::kCancel, How::kNewList, How::kClosed, How::kUnregistered, How::kCoreEnds}) {
    for (int after = 0; after < 4; ++after) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(how) << " after " << after);
      LongList l;
      l.read();
      for (int i = 0; i < after; ++i) l.t->core->turn(l.t->now);
      ASSERT_EQ(l.in(LeaseState::kTaking), 1u);
      if (how == How::kCoreEnds) continue;
      if (how == How::kCancel) {
        ASSERT_TRUE(l.t->core->cancel(l.e.scheduler, l.name(), l.revision).ok());
      } else if (how == How::kClosed) {
        l.t->core->close_session(l.e.scheduler, l.t->now);
      } else if (how == How::kUnregistered) {
        ASSERT_TRUE(l.t->core->unregister(l.e.worker, l.e.registration).ok());
      } else {
        const Revision old = l.revision;
        l.read("r", 1);
        EXPECT_GT(l.revision, old);
        EXPECT_EQ(l.t->core->poll(l.e.scheduler, l.name(), old, l.t->now)->state, TicketState::kUnknown);
        l.turns([&] { return l.in(LeaseState::kTaking) == 0; });
        const TicketAnswer ready = l.poll();
        ASSERT_EQ(ready.state, TicketState::kReady);
        EXPECT_EQ(ready.hit_blocks, kBlocks - 1);
        ASSERT_TRUE(l.t->core->release(l.e.scheduler, ready.leases[0].lease).ok());
      }
      l.t.all_loaded();
      l.holds_nothing();
    }
  }
}

// The parts before the one that differs are the same: what was taken of them and what was not.
TEST(CoreTake, a_list_that_differs_at_its_end_goes_on_from_there) {
  LongList l;
  l.read();
  l.t->core->turn(l.t->now);
  const auto list = hashes(0, kBlocks);
  auto other = list;
  for (std::uint32_t i = 15; i < kBlocks; ++i) other[i] = hash_of(900 + i);
  QueryAnswer answer;
  for (std::uint32_t first = 0; first < kBlocks; first += 3) {
    QueryPart part = l.t->part(other, "r");
    part.first = first;
    part.hashes = part.hashes.subspan(first, 3);
    answer = *l.t->core->query(l.e.scheduler, part, l.t->now);
  }
  EXPECT_EQ(answer.hit_blocks, 15u);
  l.revision = answer.revision;
  l.turns([&] { return l.in(LeaseState::kTaking) == 0; });
  l.t.all_loaded();
  EXPECT_EQ(l.poll().hit_blocks, 15u);
}

TEST(CoreTake, a_run_that_is_not_taken_in_time_is_what_has_been_taken) {
  LongList l;
  l.read();
  l.t->core->turn(l.t->now);
  l.t.all_loaded();
  l.t.wait(seconds(4));
  EXPECT_EQ(l.in(LeaseState::kTaking), 1u);
  l.t.wait(seconds(2));
  EXPECT_EQ(l.in(LeaseState::kTaking), 0u);
  const TicketAnswer ready = l.poll();
  ASSERT_EQ(ready.state, TicketState::kReady);
  EXPECT_EQ(ready.hit_blocks, 2 * kTurn);
  EXPECT_EQ(l.t.stats().load_timeouts, 1u);
  // Of which something is on its way yet, and then nothing.
  LongList m;
  m.read();
  m.t.wait(seconds(6));
  EXPECT_EQ(m.poll().why, Missing::kTimeout);
  m.t.all_loaded();
  m.holds_nothing();
}

// Blocks that were taken and are dropped before the last is: the run ends there.
TEST(CoreTake, a_run_ends_at_what_went_out_of_sight_while_it_was_taken) {
  for (const std::uint64_t dropped : {0u, 2u, 7u}) {
    SCOPED_TRACE(dropped);
    LongList l;
    l.t->store(l.e.worker, l.e.registration, hashes(500, 1));
    l.read();
    l.t->core->turn(l.t->now);
    l.t->core->turn(l.t->now);
    const QueryAnswer other = l.t->read(l.e.scheduler, hashes(dropped == 0 ? 500 : dropped, 1), "other");
    const OperationKey op = l.t->next_op(l.e.worker);
    ASSERT_TRUE(l.t->restore(op, l.e.registration, other.lease, blocks(0, 1)).ok());
    l.t->drain_failed(op, {1});  // failed verification
    const int turns = l.turns([&] { return l.in(LeaseState::kTaking) == 0; });
    EXPECT_GE(turns, dropped == 0 ? 6 : 2) << "it is looked at anew over turns, too";
    l.t.all_loaded();
    const TicketAnswer ready = l.poll();
    ASSERT_EQ(ready.state, TicketState::kReady);
    EXPECT_EQ(ready.hit_blocks, dropped == 0 ? kBlocks : dropped);
  }
}

TEST(CoreTake, a_load_that_fails_ends_the_run_while_it_is_taken) {
  LongList l;
  l.read();
  l.t.loaded(0, false);
  EXPECT_EQ(l.in(LeaseState::kTaking), 1u);
  l.turns([&] { return l.in(LeaseState::kTaking) == 0; });
  EXPECT_EQ(l.poll().state, TicketState::kMissing);
  l.holds_nothing();
}

TEST(CoreTake, a_long_recovery_is_looked_up_over_turns_and_reads_nothing_before_its_end) {
  LongList l;
  EXPECT_EQ(l.recover().state, TicketState::kLoading);
  EXPECT_EQ(l.in(RecoveryState::kTaking), 1u);
  EXPECT_EQ(l.recover().state, TicketState::kLoading) << "asked again";
  EXPECT_EQ(l.turns([&] {
    const bool over = l.in(RecoveryState::kTaking) == 0;
    EXPECT_EQ(l.t.stats().loads, over ? 1u : 0u);
    return over;
  }),
            4);
  EXPECT_EQ(l.in(RecoveryState::kLoading), 1u);
  l.t.all_loaded();
  const TicketAnswer ready = l.poll(TicketKind::kRecovery);
  ASSERT_EQ(ready.state, TicketState::kReady);
  EXPECT_EQ(ready.leases[0].blocks, kBlocks);
  EXPECT_TRUE(
      l.t->restore(l.t->next_op(l.e.worker), l.e.registration, ready.leases[0].lease, blocks(0, kBlocks))
          .ok());
  // The tier heard of each page once, in order.
  std::uint32_t next = 0;
  for (const auto& told : l.t.tier.told) {
    EXPECT_EQ(told.position, next);
    EXPECT_EQ(told.length, kBlocks);
    next += static_cast<std::uint32_t>(told.blocks.size());
  }
  EXPECT_EQ(next, kBlocks);
}

TEST(CoreTake, a_long_recovery_of_which_a_page_is_nowhere_reads_nothing) {
  for (const std::uint64_t missing : {0u, 6u, 17u}) {
    SCOPED_TRACE(missing);
    LongList l;
    if (missing == 0) l.t.tier.records.clear();
    if (missing > 0) {
      const QueryAnswer other = l.t->read(l.e.scheduler, hashes(missing, 1), "other");
      const OperationKey op = l.t->next_op(l.e.worker);
      ASSERT_TRUE(l.t->restore(op, l.e.registration, other.lease, blocks(0, 1)).ok());
      l.t->drain_failed(op, {1});
    }
    l.recover();
    l.turns([&] { return l.in(RecoveryState::kTaking) == 0; });
    const TicketAnswer told = l.poll(TicketKind::kRecovery);
    EXPECT_EQ(told.state, TicketState::kMissing);
    EXPECT_EQ(told.why, Missing::kGone);
    EXPECT_EQ(l.t.stats().loads, 0u);
    l.holds_nothing();
  }
}

TEST(CoreTake, a_long_recovery_may_end_at_any_turn) {
  enum class How { kCancel, kNewList, kClosed, kTimeout, kCoreEnds };
  for (const How how : {How::kCancel, How::kNewList, How::kClosed, How::kTimeout, How::kCoreEnds}) {
    for (int after = 0; after < 4; ++after) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(how) << " after " << after);
      LongList l;
      l.recover();
      for (int i = 0; i < after; ++i) l.t->core->turn(l.t->now);
      ASSERT_EQ(l.in(RecoveryState::kTaking), 1u);
      if (how == How::kCoreEnds) continue;
      if (how == How::kCancel) {
        ASSERT_TRUE(l.t->core->cancel(l.e.scheduler, l.name(TicketKind::kRecovery), l.revision).ok());
      } else if (how == How::kClosed) {
        l.t->core->close_session(l.e.scheduler, l.t->now);
      } else if (how == How::kTimeout) {
        l.t.wait(seconds(6));
        const TicketAnswer told = l.poll(TicketKind::kRecovery);
        EXPECT_EQ(told.state, TicketState::kMissing);
        EXPECT_EQ(told.why, Missing::kTimeout);
      } else {
        const auto list = hashes(1, 2);
        const auto asked =
            l.t->core->read_recovery(l.e.scheduler, {instance_id(1), "r", {0, 32}, 0, 2, list}, l.t->now);
        ASSERT_EQ(asked->state, TicketState::kReady);
        ASSERT_TRUE(l.t->core->cancel(l.e.scheduler, l.name(TicketKind::kRecovery)).ok());
      }
      l.holds_nothing();
    }
  }
}

// What was pinned first is dropped before the last page is looked up: no answer is of two views.
TEST(CoreTake, a_long_recovery_is_tried_again_if_something_went_out_of_sight) {
  for (const bool stored : {true, false}) {
    SCOPED_TRACE(stored);
    LongList l;
    l.recover();
    l.t->core->turn(l.t->now);
    const QueryAnswer other = l.t->read(l.e.scheduler, hashes(2, 1), "other");
    const OperationKey op = l.t->next_op(l.e.worker);
    ASSERT_TRUE(l.t->restore(op, l.e.registration, other.lease, blocks(0, 1)).ok());
    l.t->drain_failed(op, {1});
    if (stored) l.t.tier.put(2);
    l.turns([&] { return l.in(RecoveryState::kTaking) == 0; });
    l.t.all_loaded();
    const TicketAnswer told = l.poll(TicketKind::kRecovery);
    EXPECT_EQ(told.state, stored ? TicketState::kReady : TicketState::kMissing);
    EXPECT_EQ(l.t.stats().recovery_waits, 1u);
    if (!stored) l.holds_nothing();
  }
}

// A recovery that waited in line keeps its place while it is looked up, and others are served.
TEST(CoreTake, a_long_recovery_from_the_line_keeps_its_place) {
  LongList l(kBlocks + 1);
  const QueryAnswer first = l.t->read(l.e.scheduler, hashes(1, 5), "first");
  EXPECT_FALSE(l.recover().admitted);
  EXPECT_EQ(l.t.stats().budgets.waiting, 1u);
  ASSERT_TRUE(l.t->core->release(l.e.scheduler, first.lease).ok());
  EXPECT_EQ(l.in(RecoveryState::kTaking), 1u);
  EXPECT_EQ(l.t.stats().budgets.waiting, 1u);
  EXPECT_TRUE(l.t->read(l.e.scheduler, hashes(9, 1), "small").lease) << "it fits beside it";
  EXPECT_EQ(l.turns([&] { return l.in(RecoveryState::kTaking) == 0; }), 4);
  EXPECT_EQ(l.t.stats().budgets.waiting, 0u);
  l.t.all_loaded();
  EXPECT_EQ(l.poll(TicketKind::kRecovery).state, TicketState::kReady);
}

// Prepared, and asked for while it is looked up: it goes on for whoever asks.
TEST(CoreTake, what_is_prepared_may_be_claimed_while_it_is_taken) {
  LongList l;
  const auto list = hashes(0, kBlocks);
  RecoveryPart part{instance_id(1), "r", {0, kBlocks * 16}, 0, kBlocks, list};
  part.prepare = true;
  ASSERT_TRUE(l.t->core->read_recovery(l.e.scheduler, part, l.t->now).ok());
  l.t->core->turn(l.t->now);
  ASSERT_EQ(l.in(RecoveryState::kTaking), 1u);
  EXPECT_EQ(l.recover().state, TicketState::kLoading);
  EXPECT_EQ(l.t.stats().budgets.claimed, 1u);
  EXPECT_EQ(l.t.stats().budgets.speculative, ByteCount());
  l.turns([&] { return l.in(RecoveryState::kTaking) == 0; });
  l.t.all_loaded();
  EXPECT_EQ(l.poll(TicketKind::kRecovery).state, TicketState::kReady);

  LongList m;
  for (std::uint32_t first = 0; first < kBlocks; first += 3) {
    QueryPart piece = m.t->part(list, "r");
    piece.first = first;
    piece.prepare = true;
    piece.hashes = piece.hashes.subspan(first, 3);
    ASSERT_TRUE(m.t->core->query(m.e.scheduler, piece, m.t->now).ok());
  }
  m.t->core->turn(m.t->now);
  ASSERT_EQ(m.in(LeaseState::kTaking), 1u);
  EXPECT_TRUE(m.read().loading);
  EXPECT_EQ(m.t.stats().budgets.claimed, 1u);
  m.turns([&] { return m.in(LeaseState::kTaking) == 0; });
  m.t.all_loaded();
  EXPECT_EQ(m.poll().hit_blocks, kBlocks);
}

// One block a thousand times: one who waits, not a thousand.
TEST(CoreTake, a_list_that_names_a_block_often_waits_for_it_once) {
  for (const bool fails : {false, true}) {
    LongList l;
    const std::vector<BlockHash> same(1000, hash_of(0));
    const QueryAnswer answer = l.t->read(l.e.scheduler, same, "r");
    l.revision = answer.revision;
    EXPECT_EQ(answer.hit_blocks, 1000u);
    EXPECT_EQ(l.t->core->census().load_waiters, 1u);
    EXPECT_EQ(l.t.stats().shared_loads, 999u);
    if (fails) {
      ASSERT_TRUE(l.t->core->cancel(l.e.scheduler, l.name(), l.revision).ok());
      l.t.all_loaded();
      l.holds_nothing();
    } else {
      l.t.all_loaded();
      EXPECT_EQ(l.poll().hit_blocks, 1000u);
    }
  }
}

}  // namespace
}  // namespace orbitkv::cache
