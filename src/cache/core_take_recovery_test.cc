// Recoveries of long lists, which are looked up over turns before anything of them is read.
#include "cache/core_take_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

TEST(CoreTakeRecovery, a_long_recovery_is_looked_up_over_turns_and_reads_nothing_before_its_end) {
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

TEST(CoreTakeRecovery, a_long_recovery_of_which_a_page_is_nowhere_reads_nothing) {
  for (const std::uint64_t missing : {0u, 6u, 17u}) {
    SCOPED_TRACE(missing);
    LongList l;
    if (missing == 0) l.t.tier.records.clear();
    if (missing > 0) l.lose(missing);
    l.recover();
    l.turns([&] { return l.in(RecoveryState::kTaking) == 0; });
    const TicketAnswer told = l.poll(TicketKind::kRecovery);
    EXPECT_EQ(told.state, TicketState::kMissing);
    EXPECT_EQ(told.why, Missing::kGone);
    EXPECT_EQ(l.t.stats().loads, 0u);
    l.holds_nothing();
  }
}

TEST(CoreTakeRecovery, a_long_recovery_may_end_at_any_turn) {
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
TEST(CoreTakeRecovery, a_long_recovery_is_tried_again_if_something_went_out_of_sight) {
  for (const bool stored : {true, false}) {
    SCOPED_TRACE(stored);
    LongList l;
    l.recover();
    l.t->core->turn(l.t->now);
    l.lose(2);
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
TEST(CoreTakeRecovery, a_long_recovery_from_the_line_keeps_its_place) {
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

// However often it is tried anew: one wait for all of it.
TEST(CoreTakeRecovery, one_that_is_refused_again_and_again_ends_with_its_wait) {
  LongList l;
  l.t->store(l.e.worker, l.e.registration, hashes(500, 60));
  std::vector<LeaseId> others;
  for (std::uint64_t n = 500; n < 560; ++n)
    others.push_back(l.t->read(l.e.scheduler, hashes(n, 1), std::to_string(n)).lease);
  l.recover();
  std::uint32_t steps = 0;
  for (; l.in(RecoveryState::kMissed) == 0 && steps < 60; ++steps) {
    l.t->core->turn(l.t->now);
    l.lose(others[steps]);
    l.t.wait(milliseconds(200));
  }
  EXPECT_LE(steps, 31u) << "five seconds, and one for the last attempt";
  EXPECT_GE(l.t.stats().recovery_waits, 4u);
  const TicketAnswer told = l.poll(TicketKind::kRecovery);
  EXPECT_EQ(told.state, TicketState::kMissing);
  EXPECT_EQ(told.why, Missing::kTimeout);
}

TEST(CoreTakeRecovery, a_stored_page_that_another_query_loads_meanwhile_is_there) {
  LongList l;
  l.recover();
  l.t->core->turn(l.t->now);
  ASSERT_EQ(l.in(RecoveryState::kTaking), 1u);
  EXPECT_TRUE(l.t->read(l.e.scheduler, hashes(0, 1), "other").loading);
  l.t.loaded(0);
  l.turns([&] { return l.in(RecoveryState::kTaking) == 0; });
  EXPECT_EQ(l.poll(TicketKind::kRecovery).state, TicketState::kReady);
  EXPECT_EQ(l.t.stats().recovery_waits, 0u);
  EXPECT_EQ(l.t.stats().loads, 1u);
}

// The tier hears of all of its pages; nobody waits for what it would have held.
TEST(CoreTakeRecovery, one_that_will_be_missed_holds_nothing_and_nobody_up) {
  for (const bool waits : {false, true}) {
    SCOPED_TRACE(waits);
    LongList l(kBlocks);
    l.t.tier.records.clear();
    LeaseId first{};
    if (waits) first = l.t->read(l.e.scheduler, hashes(1, 5), "first").lease;
    EXPECT_EQ(l.recover().admitted, !waits);
    if (waits) {
      ASSERT_TRUE(l.t->core->release(l.e.scheduler, first).ok());
    }
    ASSERT_EQ(l.in(RecoveryState::kTaking), 1u);
    EXPECT_EQ(l.t.stats().budgets.waiting, 0u);
    EXPECT_EQ(l.t.stats().budgets.used, ByteCount());
    EXPECT_EQ(l.t->core->census().pins, 0u);
    EXPECT_TRUE(l.t->read(l.e.scheduler, hashes(1, kBlocks - 1), "other").lease);
    l.turns([&] { return l.in(RecoveryState::kTaking) == 0; });
    EXPECT_EQ(l.poll(TicketKind::kRecovery).why, Missing::kGone);
    std::size_t told = 0;
    for (const auto& pages : l.t.tier.told)
      if (pages.length == kBlocks) told += pages.blocks.size();
    EXPECT_EQ(told, kBlocks);
  }
}

// It is known to be missed, so that is what it is told when there was no time for the rest.
TEST(CoreTakeRecovery, one_that_will_be_missed_says_so_at_the_end_of_its_wait_too) {
  LongList l;
  l.t.tier.records.clear();
  l.recover();
  l.t.wait(seconds(6));
  EXPECT_EQ(l.poll(TicketKind::kRecovery).why, Missing::kGone);
  l.holds_nothing();
}

}  // namespace
}  // namespace orbitkv::cache
