#include "cache/waiting.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

namespace orbitkv::cache {
namespace {

// Waiters with sizes, over real budgets; what is admitted stays until the test ends it.
class Scripted : public Admitting {
 public:
  explicit Scripted(const Budgets::Config& config) : budgets(config) {}

  struct One {
    AccountIndex account;
    ByteCount bytes;
    WaitingPlace place;
    ChargeIndex charge = kNoCharge;
    bool gone = false;     // has its result when it is tried next
    bool no_room = false;  // memory has none for it
    bool takes = false;    // its end is told later
  };
  AccountIndex open() { return budgets.open(); }
  std::uint32_t ask(AccountIndex account, std::uint64_t bytes) {
    const std::uint32_t index = ++last;
    all[index] = {account, ByteCount(bytes), {}, kNoCharge, false, false, false};
    all[index].place = line.join({Waiter::Kind::kPrefix, index}, account);
    line.run({});
    return index;
  }
  void end(std::uint32_t index) {
    One& one = all.at(index);
    if (one.charge != kNoCharge) {
      budgets.drop(one.charge);
    } else {
      line.leave(one.place);
    }
    all.erase(index);
    line.run({});
  }
  // One that takes has all of it now, or found no room.
  void taken(std::uint32_t index, bool room) {
    One& one = all.at(index);
    if (room) {
      one.takes = false;
      line.granted(one.place);
      order.push_back(index);
    } else {
      budgets.drop(one.charge);
      one.charge = kNoCharge;
      line.refused(one.place);
    }
    line.run({});
  }
  bool admitted(std::uint32_t index) const { return all.at(index).charge != kNoCharge; }

  Attempt admit(const Waiter& waiter, TimePoint) override {
    One& one = all.at(waiter.index);
    if (one.gone) {
      line.leave(one.place);
      all.erase(waiter.index);
      return {Attempt::Outcome::kGone, 1};
    }
    const Full full = budgets.full(one.account, one.bytes, Use::kForeground);
    if (full == Full::kInstance) return {Attempt::Outcome::kInstanceFull, 0};
    if (full == Full::kTotal || one.no_room) return {Attempt::Outcome::kTotalFull, 0};
    if (one.takes) {
      one.charge = budgets.take(one.account, one.bytes, Use::kForeground);
      ++tries;
      return {Attempt::Outcome::kTaking, 1};
    }
    line.leave(one.place);
    if (counts) count_passes(waiter.index);
    one.charge = budgets.take(one.account, one.bytes, Use::kForeground);
    order.push_back(waiter.index);
    return {Attempt::Outcome::kAdmitted, pages};
  }
  bool make_way(AccountIndex, Full) override { return false; }
  // Of the first of each instance that the instance's limit does not keep.
  void count_passes(std::uint32_t admitted) {
    std::set<AccountIndex> seen;
    for (const auto& [index, one] : all) {
      if (one.charge != kNoCharge || index == admitted || !seen.insert(one.account).second) continue;
      const bool own = one.account == all.at(admitted).account;
      if (index > admitted ||
          (!own && budgets.full(one.account, one.bytes, Use::kForeground) == Full::kInstance))
        continue;
      most_passed = std::max(most_passed, ++passed[index]);
    }
  }

  Budgets budgets;
  WaitingLine line{*this};
  std::map<std::uint32_t, One> all;
  std::vector<std::uint32_t> order;
  std::uint32_t last = 0;
  bool counts = false;
  std::uint64_t pages = 1;  // that whoever is admitted looks up
  std::uint32_t tries = 0;  // of those that take
  std::map<std::uint32_t, std::uint32_t> passed;
  std::uint32_t most_passed = 0;
};

TEST(WaitingLine, first_come_first_served_within_an_instance) {
  Scripted s({ByteCount(100), ByteCount(100)});
  const AccountIndex a = s.open();
  const auto held = s.ask(a, 100);
  for (int i = 0; i < 5; ++i) s.ask(a, 20);
  EXPECT_EQ(s.line.count(), 5u);
  s.end(held);
  EXPECT_EQ(s.order, (std::vector<std::uint32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(s.line.count(a), 0u);
}

// What they look up is bounded: the others are admitted with the next turn, and nobody before it.
TEST(WaitingLine, those_whose_pages_are_too_many_for_one_turn_wait_for_the_next) {
  Scripted s({ByteCount(100), ByteCount(100)});
  s.pages = limits::kLinePagesPerTurn / 2;
  const AccountIndex a = s.open();
  const auto held = s.ask(a, 100);
  for (int i = 0; i < 5; ++i) s.ask(a, 20);
  s.end(held);
  EXPECT_EQ(s.order.size(), 3u);
  s.line.run({});
  EXPECT_EQ(s.order.size(), 3u);
  for (const std::size_t admitted : {5u, 6u}) {
    EXPECT_TRUE(s.line.more());
    s.line.next_turn();
    s.line.run({});
    EXPECT_EQ(s.order.size(), admitted);
  }
  EXPECT_FALSE(s.line.more());
}

TEST(WaitingLine, instances_have_turns) {
  Scripted s({ByteCount(60), ByteCount(60)});
  const AccountIndex a = s.open(), b = s.open(), c = s.open();
  const auto held = s.ask(a, 60);
  for (int i = 0; i < 3; ++i) s.ask(a, 10);
  for (int i = 0; i < 2; ++i) s.ask(b, 10);
  s.ask(c, 10);
  s.end(held);
  EXPECT_EQ(s.order, (std::vector<std::uint32_t>{1, 2, 5, 7, 3, 6, 4}));
}

TEST(WaitingLine, smaller_ones_pass_sixteen_times_then_the_instance_waits_for_its_first) {
  Scripted s({ByteCount(1000), ByteCount(100)});
  const AccountIndex a = s.open(), b = s.open();
  const auto held = s.ask(a, 60);
  const auto large = s.ask(a, 90);
  for (std::uint32_t i = 0; i < limits::kPasses; ++i) {
    const auto small = s.ask(a, 10);
    EXPECT_TRUE(s.admitted(small)) << i;
    s.end(small);
  }
  const auto late = s.ask(a, 10);
  EXPECT_FALSE(s.admitted(late)) << "it fits, but the first has been passed often enough";
  EXPECT_TRUE(s.admitted(s.ask(b, 100))) << "another instance does not wait for that";
  s.end(held);
  EXPECT_TRUE(s.admitted(large));
  EXPECT_TRUE(s.admitted(late));
}

// It has its charge, and keeps its place: others go on, but not for ever.
TEST(WaitingLine, one_that_takes_is_passed_as_often_as_one_that_waits) {
  Scripted s({ByteCount(100), ByteCount(100)});
  const AccountIndex a = s.open(), b = s.open();
  const auto held = s.ask(a, 100);
  const auto large = s.ask(a, 60);
  s.all.at(large).takes = true;
  s.end(held);
  EXPECT_EQ(s.tries, 1u);
  EXPECT_EQ(s.line.count(), 1u);
  std::uint32_t passed = 0;
  for (int i = 0; i < 100; ++i) {
    const auto small = s.ask(i % 2 == 0 ? a : b, 10);
    if (!s.admitted(small)) break;
    s.end(small);
    ++passed;
  }
  EXPECT_EQ(passed, limits::kPasses);
  EXPECT_EQ(s.tries, 1u) << "it is not tried while it takes";
  s.taken(large, false);
  EXPECT_EQ(s.tries, 2u) << "it is the first to be tried again";
  EXPECT_EQ(s.line.count(), 2u);
  s.taken(large, true);
  EXPECT_EQ(s.line.count(), 0u) << "who waited for it is served";
  EXPECT_EQ(s.order.back(), s.last);
}

TEST(WaitingLine, one_that_takes_may_leave) {
  Scripted s({ByteCount(100), ByteCount(100)});
  const AccountIndex a = s.open();
  const auto held = s.ask(a, 100);
  const auto one = s.ask(a, 60), two = s.ask(a, 90);
  s.all.at(one).takes = true;
  s.end(held);
  EXPECT_EQ(s.line.count(), 2u);
  s.line.leave(s.all.at(one).place);
  s.end(one);
  EXPECT_TRUE(s.admitted(two));
  EXPECT_EQ(s.line.count(), 0u);
}

TEST(WaitingLine, where_all_is_full_one_reserves_and_nobody_passes_any_more) {
  Scripted s({ByteCount(100), ByteCount(80)});
  const AccountIndex a = s.open(), b = s.open();
  const auto one = s.ask(a, 30), two = s.ask(a, 30);
  const auto large = s.ask(b, 80);
  std::uint32_t passed = 0;
  std::vector<std::uint32_t> small;
  for (int i = 0; i < 100; ++i) {
    small.push_back(s.ask(a, 10));
    if (!s.admitted(small.back())) break;
    s.end(small.back());
    ++passed;
  }
  EXPECT_EQ(passed, limits::kPasses);
  s.end(one);
  EXPECT_FALSE(s.admitted(small.back())) << "what comes free is for the reserver";
  EXPECT_FALSE(s.admitted(large));
  s.end(two);
  EXPECT_TRUE(s.admitted(large));
  EXPECT_TRUE(s.admitted(small.back()));
}

TEST(WaitingLine, one_without_room_in_memory_counts_as_passed_too) {
  Scripted s({ByteCount(100), ByteCount(100)});
  const AccountIndex a = s.open(), b = s.open();
  const auto stuck = s.ask(a, 10);
  EXPECT_TRUE(s.admitted(stuck));
  s.end(stuck);
  const std::uint32_t index = ++s.last;
  s.all[index] = {a, ByteCount(10), {}, kNoCharge, false, true};
  s.all[index].place = s.line.join({Waiter::Kind::kRecovery, index}, a);
  s.line.run({});
  std::uint32_t passed = 0;
  while (s.admitted(s.ask(b, 1)) && passed < 100) ++passed;
  EXPECT_EQ(passed, limits::kPasses);
  s.all[index].no_room = false;
  s.line.run({});
  EXPECT_TRUE(s.admitted(index));
  EXPECT_EQ(s.line.count(), 0u);
}

TEST(WaitingLine, a_reserver_that_leaves_lets_the_others_go_on) {
  Scripted s({ByteCount(100), ByteCount(80)});
  const AccountIndex a = s.open(), b = s.open();
  s.ask(a, 50);
  const auto large = s.ask(b, 80);
  std::uint32_t late = 0;
  for (std::uint32_t i = 0; i <= limits::kPasses; ++i) {
    late = s.ask(a, 1);
    if (!s.admitted(late)) break;
  }
  ASSERT_FALSE(s.admitted(late));
  s.end(large);
  EXPECT_TRUE(s.admitted(late));
}

// What its own instance still holds may rise: reads of cancelled leases drain beside restores.
TEST(WaitingLine, a_reserver_at_its_own_limit_holds_back_its_instance_alone) {
  Scripted s({ByteCount(100), ByteCount(80)});
  const AccountIndex a = s.open(), b = s.open();
  const auto held = s.ask(b, 80);
  const auto large = s.ask(a, 60);  // the total is full for it
  for (std::uint32_t i = 0; i <= limits::kPasses; ++i) s.end(s.ask(b, i % 2 == 0 ? 0 : 1));
  const auto behind = s.ask(b, 5);
  EXPECT_FALSE(s.admitted(behind)) << "the first one reserves";
  s.budgets.drain(a, ByteCount(50));
  s.end(held);
  EXPECT_FALSE(s.admitted(large)) << "60 and 50 are more than its instance may have";
  EXPECT_TRUE(s.admitted(behind));
  s.budgets.drained(a, ByteCount(50));
  s.line.run({});
  EXPECT_TRUE(s.admitted(large));
}

TEST(WaitingLine, a_reserver_that_its_limit_had_stopped_reserves_while_it_takes) {
  Scripted s({ByteCount(100), ByteCount(80)});
  const AccountIndex a = s.open(), b = s.open(), c = s.open();
  const auto held = s.ask(b, 80);
  const auto large = s.ask(a, 60);
  for (std::uint32_t i = 0; i < limits::kPasses; ++i) s.end(s.ask(b, 0));
  const auto behind = s.ask(b, 0);
  ASSERT_FALSE(s.admitted(behind)) << "the first one reserves";
  s.budgets.drain(a, ByteCount(50));
  s.end(held);
  ASSERT_TRUE(s.admitted(behind)) << "until its own instance is full";
  s.ask(c, 60);  // has had no turn, so that the round goes on
  s.all.at(large).takes = true;
  s.budgets.drained(a, ByteCount(50));
  s.line.run({});
  ASSERT_EQ(s.tries, 1u);
  const auto small = s.ask(b, 5);
  EXPECT_FALSE(s.admitted(small));
  s.all.at(large).no_room = true;
  s.taken(large, false);
  EXPECT_FALSE(s.admitted(small)) << "it waits for memory, and reserves on";
  s.all.at(large).no_room = s.all.at(large).takes = false;
  s.line.run({});
  EXPECT_TRUE(s.admitted(large));
  EXPECT_TRUE(s.admitted(small));
}

TEST(WaitingLine, an_account_that_is_given_anew_has_had_no_turn) {
  Scripted s({ByteCount(150), ByteCount(100)});
  const AccountIndex a = s.open(), b = s.open(), c = s.open();
  const auto held = s.ask(b, 100);
  const auto pass = [&] { s.end(s.ask(b, 0)); };
  const auto first = s.ask(a, 100);
  for (std::uint32_t i = 0; i < limits::kPasses; ++i) pass();
  const auto behind = s.ask(b, 0);
  EXPECT_FALSE(s.admitted(behind)) << "the first one reserves";
  s.end(first);
  ASSERT_TRUE(s.admitted(behind));
  s.end(behind);
  s.budgets.close(a);
  s.line.forget(a);
  ASSERT_EQ(s.open(), a);
  s.ask(a, 100);
  for (std::uint32_t i = 0; i < limits::kPasses; ++i) pass();
  s.ask(c, 100);  // has had no turn, so that the round goes on
  EXPECT_FALSE(s.admitted(s.ask(b, 0))) << "the new one may reserve in it";
  EXPECT_FALSE(s.admitted(s.ask(b, 0)));
  s.end(held);
}

TEST(WaitingLine, an_instance_reserves_once_a_round) {
  Scripted s({ByteCount(100), ByteCount(100)});
  const AccountIndex a = s.open(), b = s.open();
  auto held = s.ask(a, 100);
  s.ask(b, 30);
  for (int i = 0; i < 4; ++i) s.ask(a, 100);
  for (int i = 0; i < 60; ++i) s.ask(b, 30);
  // Whoever holds ends; nobody has to wait for the other's whole line.
  std::map<std::uint32_t, std::uint32_t> turns;
  std::size_t seen = 1;
  for (int i = 0; i < 200 && s.line.count() > 0; ++i) {
    s.end(held);
    while (seen < s.order.size()) {
      held = s.order[seen++];
      ++turns[s.all.at(held).account.value];
      if (seen < s.order.size()) s.end(held);
    }
  }
  EXPECT_EQ(turns[a.value], 4u);
  EXPECT_EQ(turns[b.value], 61u);
}

TEST(WaitingLine, one_that_is_gone_makes_place) {
  Scripted s({ByteCount(100), ByteCount(100)});
  const AccountIndex a = s.open();
  const auto held = s.ask(a, 100);
  const auto gone = s.ask(a, 50);
  const auto next = s.ask(a, 50);
  s.all.at(gone).gone = true;
  s.end(held);
  EXPECT_TRUE(s.admitted(next));
}

// Any sizes, any lifetimes: while one is the first of its instance, and that one's limit is not
// what it lacks, no more than the stated number of later ones are admitted before it.
TEST(WaitingLine, nobody_is_passed_more_often_than_the_bound) {
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](std::uint64_t n) { return random() % n; };
    const std::uint64_t instances = 2 + pick(8);
    Scripted s({ByteCount(1000), ByteCount(seed % 2 == 0 ? 1000 : 700)});
    s.counts = true;
    std::vector<AccountIndex> accounts;
    for (std::uint64_t i = 0; i < instances; ++i) accounts.push_back(s.open());
    for (int i = 0; i < 6000; ++i) {
      const AccountIndex account = accounts[pick(instances)];
      const std::uint64_t bytes = pick(10) == 0 ? 400 + pick(301) : 1 + pick(60);
      if (s.line.count(account) < 20) s.ask(account, bytes);
      std::vector<std::uint32_t> held;
      for (const auto& [index, one] : s.all)
        if (one.charge != kNoCharge) held.push_back(index);
      if (!held.empty() && pick(10) < 9) s.end(held[pick(held.size())]);
    }
    EXPECT_LE(s.most_passed, 2 * limits::kPasses + 2 * instances) << "seed " << seed;
    EXPECT_GE(s.most_passed, limits::kPasses) << "the schedule is hard enough";
    EXPECT_GT(s.order.size(), 2000u);
  }
}

}  // namespace
}  // namespace orbitkv::cache
