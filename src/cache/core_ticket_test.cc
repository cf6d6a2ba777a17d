// Tickets through the whole core: polls, cancels by revision, results that wait to be told,
// deadlines and bounds.
#include <array>

#include "base/limits.h"
#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

// Blocks 0..3 are resident, 4..7 stored; 8 and 9 are nowhere.
struct Asked {
  TierWorld t;
  Engine e;
  explicit Asked(const WorldOptions& options = {}) : t(options), e(*t) {
    t->store(e.worker, e.registration, hashes(0, 4));
    for (std::uint64_t n = 4; n < 8; ++n) t.tier.put(n);
  }
  QueryAnswer read(std::uint64_t first, std::uint64_t count, std::string_view id = "r") {
    return t->read(e.scheduler, hashes(first, count), id);
  }
  Result<QueryAnswer> ask_part(const std::vector<BlockHash>& list, std::uint32_t first, std::uint32_t count,
                               Revision revision = {}) {
    QueryPart part = t->part(list, "r");
    part.revision = revision;
    part.first = first;
    part.hashes = part.hashes.subspan(first, count);
    return t->core->query(e.scheduler, part, t->now);
  }
  TicketName name(std::string_view id = "r") const { return {instance_id(1), GroupId(0), id}; }
  TicketAnswer poll(Revision revision, std::string_view id = "r") {
    auto answer = t->core->poll(e.scheduler, name(id), revision, t->now);
    EXPECT_TRUE(answer.ok()) << answer.error().to_string();
    return answer.ok() ? *answer : TicketAnswer{};
  }
  CoreStats stats() { return t.stats(); }
};

TEST(CoreTicket, a_poll_answers_as_the_query_would) {
  Asked a;
  const QueryAnswer first = a.read(0, 10);
  EXPECT_TRUE(first.loading);
  const TicketAnswer waits = a.poll(first.revision);
  EXPECT_EQ(waits.state, TicketState::kLoading);
  EXPECT_EQ(waits.hit_blocks, 8u);
  a.t.all_loaded();
  const TicketAnswer ready = a.poll(first.revision);
  EXPECT_EQ(ready.state, TicketState::kReady);
  EXPECT_EQ(ready.hit_blocks, 8u);
  EXPECT_EQ(ready.revision, first.revision);
  const QueryAnswer again = a.read(0, 10);
  EXPECT_EQ(again.lease, ready.leases.at(0).lease);
  EXPECT_EQ(again.revision, first.revision);
  EXPECT_EQ(a.stats().hits, 8u) << "counted once";
  ASSERT_TRUE(a.t->core->release(a.e.scheduler, ready.leases.at(0).lease).ok());
  EXPECT_EQ(a.poll(first.revision).state, TicketState::kUnknown);
}

TEST(CoreTicket, an_unknown_poll_submits_nothing) {
  Asked a;
  EXPECT_EQ(a.poll(Revision(1)).state, TicketState::kUnknown);
  const QueryAnswer answer = a.read(0, 4);
  EXPECT_EQ(a.poll(Revision(answer.revision.value + 1)).state, TicketState::kUnknown);
  EXPECT_EQ(a.poll(Revision{}).state, TicketState::kUnknown);
  EXPECT_EQ(a.poll(answer.revision, "other").state, TicketState::kUnknown);
  EXPECT_TRUE(a.t.tier.loads.empty());
  EXPECT_EQ(a.stats().leases, 1u);
  EXPECT_EQ(a.stats().tickets, 0u);
  EXPECT_EQ(a.poll(answer.revision).leases.at(0).lease, answer.lease);
}

TEST(CoreTicket, what_others_asked_is_refused) {
  Asked a;
  const QueryAnswer answer = a.read(0, 10);
  const SessionId other = a.t->open();
  EXPECT_EQ(code_of(a.t->core->poll(other, a.name(), answer.revision, a.t->now)), Code::kReject);
  EXPECT_EQ(code_of(a.t->core->cancel(other, a.name(), answer.revision)), Code::kReject);
  EXPECT_EQ(a.poll(answer.revision).state, TicketState::kLoading);
}

// The states of a list that has replaced another under its id.
enum class Stage { kCollecting, kLoading, kReady, kConsuming, kMissed };
constexpr std::array kStages = {Stage::kCollecting, Stage::kLoading, Stage::kReady, Stage::kConsuming,
                                Stage::kMissed};

Revision bring_to(Asked& a, Stage stage) {
  Revision revision;
  if (stage == Stage::kCollecting) {
    const auto part = a.ask_part(hashes(0, 8), 0, 6);
    return part.ok() ? part->revision : revision;
  }
  if (stage == Stage::kMissed) {
    revision = a.read(4, 3).revision;
    a.t.all_loaded(false);
    return revision;
  }
  revision = a.read(0, 8).revision;
  if (stage == Stage::kLoading) return revision;
  a.t.all_loaded();
  const LeaseId lease = a.poll(revision).leases.at(0).lease;
  if (stage == Stage::kConsuming) {
    EXPECT_TRUE(a.t->restore(a.t->next_op(a.e.worker), a.e.registration, lease, blocks(0, 2)).ok());
  }
  return revision;
}

TEST(CoreTicket, an_old_revision_touches_no_replacement) {
  for (const Stage stage : kStages) {
    SCOPED_TRACE(static_cast<int>(stage));
    Asked a;
    const Revision old = a.read(0, 3).revision;
    const Revision revision = bring_to(a, stage);
    ASSERT_GT(revision, old);
    const CoreStats before = a.stats();
    EXPECT_EQ(a.poll(old).state, TicketState::kUnknown);
    EXPECT_TRUE(a.t->core->cancel(a.e.scheduler, a.name(), old).ok());
    const CoreStats after = a.stats();
    EXPECT_EQ(after.leased, before.leased);
    EXPECT_EQ(after.leases, before.leases);
    EXPECT_EQ(after.tickets, before.tickets);
    EXPECT_EQ(after.loading, before.loading);
    EXPECT_NE(a.poll(revision).state, TicketState::kUnknown);
    EXPECT_TRUE(a.t->core->cancel(a.e.scheduler, a.name(), revision).ok());
    EXPECT_EQ(a.poll(revision).state, TicketState::kUnknown);
  }
}

TEST(CoreTicket, a_session_or_instance_that_ends_takes_along_every_state) {
  for (const Stage stage : kStages) {
    for (const bool scheduler : {true, false}) {
      for (const bool dies : {true, false}) {
        SCOPED_TRACE(static_cast<int>(stage));
        Asked a;
        bring_to(a, stage);
        const SessionId session = scheduler ? a.e.scheduler : a.e.worker;
        dies ? a.t->core->process_ended(session, a.t->now) : a.t->core->close_session(session, a.t->now);
        a.t.all_loaded();
        EXPECT_EQ(a.stats().tickets, 0u);
        EXPECT_EQ(a.stats().leases, 0u);
        a.t->core->process_ended(a.e.worker, a.t->now);
        EXPECT_EQ(a.stats().leased, ByteCount(0));
      }
    }
  }
}

TEST(CoreTicket, a_miss_is_told_once) {
  Asked a;
  for (const bool poll : {true, false}) {
    for (std::uint64_t n = 4; n < 8; ++n) a.t.tier.put(n);
    const Revision revision = a.read(4, 4).revision;
    a.t.all_loaded(false);
    EXPECT_EQ(a.stats().tickets, 1u);
    EXPECT_EQ(a.stats().leased, ByteCount(0));
    const std::size_t loads = a.t.tier.loads.size();
    if (poll) {
      const TicketAnswer answer = a.poll(revision);
      EXPECT_EQ(answer.state, TicketState::kMissing);
      EXPECT_EQ(answer.why, Missing::kGone);
    } else {
      EXPECT_EQ(a.read(4, 4).hit_blocks, 0u);
    }
    EXPECT_EQ(a.t.tier.loads.size(), loads) << "the same list is not read again";
    EXPECT_EQ(a.stats().tickets, 0u);
    EXPECT_EQ(a.poll(revision).state, TicketState::kUnknown);
  }
}

TEST(CoreTicket, another_list_under_a_missed_ticket_begins_anew) {
  Asked a;
  const Revision revision = a.read(4, 2).revision;
  a.t.all_loaded(false);
  a.t.wait(seconds(4));
  const QueryAnswer other = a.read(6, 2);
  EXPECT_TRUE(other.loading);
  EXPECT_GT(other.revision, revision);
  a.t.wait(seconds(4));
  EXPECT_EQ(a.poll(other.revision).state, TicketState::kLoading) << "with a wait of its own";
}

TEST(CoreTicket, a_timeout_says_so) {
  Asked a;
  const Revision revision = a.read(4, 4).revision;
  a.t.wait(seconds(5));
  const TicketAnswer answer = a.poll(revision);
  EXPECT_EQ(answer.state, TicketState::kMissing);
  EXPECT_EQ(answer.why, Missing::kTimeout);
  EXPECT_EQ(a.stats().load_timeouts, 1u);
}

TEST(CoreTicket, one_deadline_from_the_first_part_on) {
  Asked a;
  const auto list = hashes(0, 8);
  ASSERT_TRUE(a.ask_part(list, 0, 6).ok());
  a.t.wait(seconds(3));
  const auto last = a.ask_part(list, 6, 2);
  ASSERT_TRUE(last.ok());
  EXPECT_TRUE(last->loading);
  a.t.wait(seconds(2));
  EXPECT_EQ(a.poll(last->revision).hit_blocks, 4u) << "what was in memory";
}

TEST(CoreTicket, a_list_that_changes_wins_no_time) {
  Asked a;
  Revision revision;
  for (std::uint64_t i = 0; i < 5; ++i) {
    const QueryAnswer answer = a.read(4, 4 - i % 2);
    EXPECT_TRUE(answer.loading) << i;
    EXPECT_GT(answer.revision, revision);
    revision = answer.revision;
    a.t.wait(seconds(1));
  }
  EXPECT_EQ(a.poll(revision).why, Missing::kTimeout);
}

// Two threads of an engine under one id: a part goes on with its own list or not at all.
TEST(CoreTicket, parts_of_two_lists_never_become_one) {
  Asked a;
  const std::vector<BlockHash> one = hashes(0, 4);
  std::vector<BlockHash> other = hashes(0, 3);
  other.push_back(hashes(100, 1)[0]);
  for (const bool leased : {false, true}) {
    SCOPED_TRACE(leased ? "the list is leased already" : "fresh");
    if (leased) ASSERT_TRUE(a.read(0, 4).lease);
    const auto begun = a.ask_part(one, 0, 2);
    const auto replaced = a.ask_part(other, 0, 2);
    ASSERT_TRUE(begun.ok() && replaced.ok());
    const auto goes_on = a.ask_part(other, 2, 2, replaced->revision);
    ASSERT_TRUE(goes_on.ok());
    EXPECT_EQ(goes_on->hit_blocks, 3u);
    const auto late = a.ask_part(one, 2, 2, begun->revision);
    ASSERT_FALSE(late.ok());
    ASSERT_TRUE(a.t->core->release(a.e.scheduler, goes_on->lease).ok());
  }
  ASSERT_TRUE(a.ask_part(one, 0, 2).ok());
  const auto second = a.ask_part(other, 0, 2);
  EXPECT_EQ(code_of(a.ask_part(one, 2, 2, Revision(second->revision.value - 1))), Code::kBusy);
}

TEST(CoreTicket, parts_that_do_not_come_end_the_ticket) {
  Asked a;
  const auto part = a.ask_part(hashes(0, 8), 0, 6);
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(a.poll(part->revision).state, TicketState::kLoading);
  a.t.wait(seconds(5));
  EXPECT_EQ(a.poll(part->revision).state, TicketState::kUnknown);
  EXPECT_EQ(a.stats().leased, ByteCount(0));
  EXPECT_EQ(a.stats().tickets, 0u);
  EXPECT_EQ(code_of(a.ask_part(hashes(0, 8), 6, 2)), Code::kReject);
}

TEST(CoreTicket, parts_have_time_where_nothing_is_waited_for) {
  WorldOptions options;
  options.core.load_wait = seconds(0);
  Asked a(options);
  ASSERT_TRUE(a.ask_part(hashes(0, 4), 0, 2).ok());
  a.t.wait(seconds(1));
  const auto last = a.ask_part(hashes(0, 4), 2, 2);
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(last->hit_blocks, 4u);
}

TEST(CoreTicket, results_that_nobody_fetches_release_themselves) {
  for (const bool miss : {false, true}) {
    Asked a;
    const Revision revision = a.read(4, 4).revision;
    a.t.all_loaded(!miss);
    a.t.wait(seconds(59));
    EXPECT_EQ(a.stats().undelivered, 0u);
    a.t.wait(seconds(1));
    EXPECT_EQ(a.stats().undelivered, 1u);
    EXPECT_EQ(a.stats().expired_leases, 0u);
    EXPECT_EQ(a.stats().leases, 0u);
    EXPECT_EQ(a.stats().tickets, 0u);
    EXPECT_EQ(a.stats().leased, ByteCount(0));
    EXPECT_EQ(a.poll(revision).state, TicketState::kUnknown);
  }
}

TEST(CoreTicket, what_was_fetched_lives_for_its_term_and_polls_do_not_prolong_it) {
  Asked a;
  const Revision revision = a.read(4, 4).revision;
  a.t.all_loaded();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(a.poll(revision).state, TicketState::kReady);
    a.t.wait(seconds(59));
  }
  EXPECT_EQ(a.stats().expired_leases, 0u);
  a.t.wait(seconds(10));
  EXPECT_EQ(a.poll(revision).state, TicketState::kUnknown);
  EXPECT_EQ(a.stats().expired_leases, 1u);
}

TEST(CoreTicket, a_long_lease_does_not_hold_up_a_short_wait) {
  Asked a;
  a.read(0, 3, "long");
  a.read(4, 2, "waits");
  a.read(6, 2, "ready");
  a.t.loaded(6);
  a.t.loaded(7);
  a.t.wait(seconds(5));
  EXPECT_EQ(a.stats().load_timeouts, 1u);
  a.t.wait(seconds(60));
  EXPECT_EQ(a.stats().undelivered, 2u);
  EXPECT_EQ(a.stats().leases, 1u);
}

TEST(CoreTicket, unfinished_ones_are_bounded) {
  Asked a;
  a.t.tier.most_loads = 0;
  const auto one = hashes(4, 1);
  const auto ask = [&](SessionId session, std::uint32_t i) {
    const std::string id = std::to_string(session.value) + "-" + std::to_string(i);
    return a.t->core->query(session, a.t->part(one, id), a.t->now);
  };
  for (std::uint32_t i = 0; i < limits::kTicketsPerSession; ++i) ASSERT_TRUE(ask(a.e.scheduler, i).ok());
  EXPECT_EQ(code_of(ask(a.e.scheduler, 500)), Code::kBusy);
  EXPECT_TRUE(ask(a.e.scheduler, 5)->loading) << "a known one is served";
  std::uint32_t open = limits::kTicketsPerSession;
  std::vector<SessionId> sessions;
  while (sessions.size() < 40) sessions.push_back(a.t->open());
  for (const SessionId session : sessions) {
    for (std::uint32_t i = 0; i < 50; ++i) open += ask(session, i).ok() ? 1 : 0;
  }
  const auto shared = limits::kTickets - limits::kReservedTickets * limits::kSessions;
  EXPECT_EQ(open, shared + 41 * limits::kReservedTickets);
  EXPECT_EQ(a.stats().tickets, open);
  a.t.tier.most_loads = 1;
  a.t->core->tier_ready(a.t->now);
  a.t.all_loaded();
  EXPECT_EQ(a.stats().tickets, 0u) << "those with a result count as leases";
  EXPECT_EQ(a.stats().leases, open);
  EXPECT_TRUE(ask(a.e.scheduler, 500).ok());
}

TEST(CoreTicket, no_ticket_is_left_where_the_answer_came_at_once) {
  Asked a;
  a.read(0, 4, "hit");
  a.read(8, 2, "miss");
  a.t.tier.gone = {4};
  a.read(4, 1, "gone");
  EXPECT_EQ(a.stats().tickets, 0u);
  EXPECT_EQ(a.stats().leases, 1u);
}

TEST(CoreTicket, revisions_begin_anywhere_and_rise) {
  WorldOptions options;
  Asked a(options), same(options);
  options.core.seed = {3, 4};
  Asked other(options);
  const Revision first = a.read(0, 2).revision;
  EXPECT_GT(first.value, 1u << 20) << "by chance not in one of 2^43 runs";
  EXPECT_EQ(same.read(0, 2).revision, first);
  EXPECT_NE(other.read(0, 2).revision, first);
  EXPECT_GT(a.read(0, 3).revision, first);
}

}  // namespace
}  // namespace orbitkv::cache
