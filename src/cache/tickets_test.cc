#include "cache/tickets.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/limits.h"

namespace orbitkv::cache {
namespace {

constexpr std::uint32_t kShared = limits::kTickets - limits::kReservedTickets * limits::kSessions;

TEST(TicketCounts, a_session_has_its_own_whatever_others_take) {
  TicketCounts counts;
  std::vector<Session> sessions(limits::kSessions);
  std::uint32_t open = 0;
  for (Session& s : sessions) {
    while (open < 5 * limits::kTicketsPerSession && counts.open(s).ok()) ++open;
    EXPECT_LE(s.tickets, limits::kTicketsPerSession);
  }
  std::uint32_t refused = 0;
  for (Session& s : sessions) {
    while (counts.open(s).ok()) continue;
    EXPECT_GE(s.tickets, limits::kReservedTickets);
    ++refused;
  }
  EXPECT_EQ(refused, limits::kSessions);
  EXPECT_EQ(counts.all(), limits::kTickets);
  const Status full = counts.open(sessions[0]);
  EXPECT_EQ(full.error().code(), Code::kBusy);
  EXPECT_NE(full.error().message().find("poll"), std::string::npos) << "names the remedy";
}

TEST(TicketCounts, random_schedules_keep_the_sum) {
  std::mt19937_64 random(5);
  TicketCounts counts;
  std::vector<Session> sessions(limits::kSessions);
  for (int i = 0; i < 200000; ++i) {
    Session& s = sessions[random() % (i % 3000 < 1500 ? 8 : limits::kSessions)];
    std::uint32_t all = 0, shared = 0;
    if (i % 97 == 0) {
      for (const Session& one : sessions) {
        all += one.tickets;
        shared += one.tickets - std::min(one.tickets, limits::kReservedTickets);
      }
      ASSERT_EQ(counts.all(), all);
      ASSERT_LE(shared, kShared);
    }
    if (s.tickets > 0 && random() % 100 < 45) {
      counts.close(s);
    } else {
      const bool fits = s.tickets < limits::kTicketsPerSession;
      const bool reserved = s.tickets < limits::kReservedTickets;
      const bool opened = counts.open(s).ok();
      ASSERT_TRUE(fits || !opened);
      ASSERT_TRUE(opened || !reserved) << "its own was refused";
    }
  }
  for (Session& s : sessions) {
    while (s.tickets > 0) counts.close(s);
  }
  EXPECT_EQ(counts.all(), 0u);
}

TEST(Deadlines, a_long_term_does_not_hold_up_a_short_one) {
  Deadlines d;
  d.set(0, Term::kLease, {600});
  d.set(1, Term::kUndelivered, {60});
  d.set(2, Term::kWait, {5});
  EXPECT_EQ(d.due({4}), kNoLink);
  EXPECT_EQ(d.due({5}), 2u);
  d.clear(2);
  EXPECT_EQ(d.due({60}), 1u);
  d.set(1, Term::kLease, {660});
  EXPECT_EQ(d.due({600}), 0u);
}

TEST(Deadlines, random_schedules_equal_a_sorted_map) {
  std::mt19937_64 random(9);
  Deadlines d;
  std::map<std::uint32_t, TimePoint> model;
  std::int64_t now = 0;
  for (int i = 0; i < 100000; ++i) {
    const auto index = static_cast<std::uint32_t>(random() % 50);
    const auto what = random() % 10;
    if (what < 6) {
      const auto term = static_cast<Term>(random() % static_cast<unsigned>(Term::kCount));
      const std::int64_t begins = now - static_cast<std::int64_t>(random() % 4);
      const TimePoint at{begins + 10 * (1 + static_cast<int>(term))};
      d.set(index, term, at);
      model[index] = at;
    } else if (what < 8) {
      d.clear(index);
      model.erase(index);
    } else {
      ++now;
    }
    for (std::uint32_t due = d.due({now}); due != kNoLink; due = d.due({now})) {
      ASSERT_TRUE(model.contains(due));
      ASSERT_LE(model[due].ns, now);
      d.clear(due);
      model.erase(due);
    }
    for (const auto& [one, at] : model) ASSERT_GT(at.ns, now) << "forgotten";
  }
}

}  // namespace
}  // namespace orbitkv::cache
