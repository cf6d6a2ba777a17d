// Long lists, which are looked up over turns: how much a turn does, and what may come in between.
#include "cache/core_take_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

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
  for (std::uint32_t i = 3; i < kBlocks; ++i) other[i] = hash_of(900 + i);
  QueryAnswer answer;
  for (std::uint32_t first = 0; first < kBlocks; first += 3) {
    QueryPart part = l.t->part(other, "r");
    part.first = first;
    part.hashes = part.hashes.subspan(first, 3);
    answer = *l.t->core->query(l.e.scheduler, part, l.t->now);
  }
  EXPECT_EQ(answer.hit_blocks, 3u);
  l.revision = answer.revision;
  l.turns([&] { return l.in(LeaseState::kTaking) == 0; });
  l.t.all_loaded();
  EXPECT_EQ(l.poll().hit_blocks, 3u);
}

// Behind more than one turn looks up: it is asked for anew, from its front.
TEST(CoreTake, a_list_that_differs_behind_a_long_front_is_asked_for_anew) {
  for (const bool leased : {false, true}) {
    SCOPED_TRACE(leased);
    LongList l;
    l.read();
    if (leased) {
      l.turns([&] { return l.in(LeaseState::kTaking) == 0; });
      l.t.all_loaded();
      ASSERT_EQ(l.poll().state, TicketState::kReady);
    }
    auto other = hashes(0, kBlocks);
    for (std::uint32_t i = 15; i < kBlocks; ++i) other[i] = hash_of(900 + i);
    for (const bool anew : {false, true}) {
      Result<QueryAnswer> answer = QueryAnswer{};
      for (std::uint32_t first = 0; answer.ok() && first < kBlocks; first += 3) {
        QueryPart part = l.t->part(other, "r");
        part.first = first;
        part.hashes = part.hashes.subspan(first, 3);
        answer = l.t->core->query(l.e.scheduler, part, l.t->now);
      }
      ASSERT_EQ(code_of(answer), anew ? Code::kOk : Code::kBusy);
      if (!anew) {
        l.t.all_loaded();
        l.holds_nothing();
        continue;
      }
      EXPECT_EQ(answer->hit_blocks, 15u);
      l.revision = answer->revision;
    }
    l.turns([&] { return l.in(LeaseState::kTaking) == 0; });
    l.t.all_loaded();
    EXPECT_EQ(l.poll().hit_blocks, 15u);
  }
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
    l.lose(dropped == 0 ? 500 : dropped);
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

// What was looked at anew is looked at once more if more goes meanwhile, also behind a cut.
TEST(CoreTake, a_run_that_is_cut_is_looked_at_anew_as_far_as_it_goes) {
  LongList l;
  l.t->store(l.e.worker, l.e.registration, hashes(500, 1));
  l.read();
  l.lose(500);
  for (int i = 0; i < 5; ++i) l.t->core->turn(l.t->now);  // all is taken, and its front looked at
  ASSERT_EQ(l.in(LeaseState::kTaking), 1u);
  l.lose(1);
  l.lose(13);
  l.turns([&] { return l.in(LeaseState::kTaking) == 0; });
  l.t.all_loaded();
  EXPECT_EQ(l.poll().hit_blocks, 1u);
}

TEST(CoreTake, what_goes_between_two_parts_of_a_list_ends_its_run) {
  for (const std::uint32_t count : {4u, 12u}) {
    SCOPED_TRACE(count);
    LongList l;
    const std::uint32_t lost = count / 2;
    const auto list = hashes(1, count);
    QueryAnswer answer;
    for (std::uint32_t first = 0; first < count; first += 2) {
      QueryPart part = l.t->part(list, "r");
      part.first = first;
      part.hashes = part.hashes.subspan(first, 2);
      answer = *l.t->core->query(l.e.scheduler, part, l.t->now);
      if (first + 2 == lost) l.lose(lost);
    }
    l.revision = answer.revision;
    EXPECT_EQ(answer.loading, count > kTurn) << "a long one is looked at over turns";
    l.turns([&] { return l.in(LeaseState::kTaking) == 0; });
    const TicketAnswer ready = l.poll();
    ASSERT_EQ(ready.state, TicketState::kReady);
    EXPECT_EQ(ready.hit_blocks, lost - 1);
    EXPECT_EQ(l.t.stats().budgets.used, (lost - 1) * slot_bytes());
  }
}

// A load that fails before the first hash that was kept, and then another list with the same front.
TEST(CoreTake, a_run_that_was_cut_while_it_was_taken_makes_way_for_another_list) {
  LongList l;
  l.read();
  l.t.loaded(0, false);
  ASSERT_EQ(l.in(LeaseState::kTaking), 1u);
  const QueryAnswer other = l.read("r", 1);
  EXPECT_EQ(other.hit_blocks, kBlocks - 1);
  l.turns([&] { return l.in(LeaseState::kTaking) == 0; });
  EXPECT_EQ(l.poll().hit_blocks, kBlocks - 1);
}

TEST(CoreTake, a_core_whose_turns_look_nothing_up_is_not_made) {
  WorldOptions options;
  options.core.turn_hashes = 0;
  EXPECT_DEATH(World{options}, "turns that look nothing up");
}

}  // namespace
}  // namespace orbitkv::cache
