#include "cache/budgets.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

namespace orbitkv::cache {
namespace {

constexpr Use kNow = Use::kForeground, kAhead = Use::kSpeculative;

TEST(Budgets, a_limit_of_one_and_a_limit_of_all) {
  Budgets b({ByteCount(100), ByteCount(60)});
  const AccountIndex one = b.open(), other = b.open();
  EXPECT_EQ(b.most(kNow), ByteCount(60));
  const ChargeIndex first = b.take(one, ByteCount(60), kNow);
  EXPECT_EQ(b.full(one, ByteCount(1), kNow), Full::kInstance);
  EXPECT_EQ(b.full(other, ByteCount(41), kNow), Full::kTotal);
  EXPECT_EQ(b.full(other, ByteCount(61), kNow), Full::kInstance);
  const ChargeIndex second = b.take(other, ByteCount(40), kNow);
  EXPECT_EQ(b.used(), ByteCount(100));
  b.drop(first);
  EXPECT_EQ(b.full(one, ByteCount(60), kNow), Full::kNothing);
  b.drop(second);
  EXPECT_EQ(b.used(), ByteCount(0));
  EXPECT_EQ(b.peak(), ByteCount(100));
}

TEST(Budgets, the_last_holder_returns_a_charge) {
  Budgets b({ByteCount(100), ByteCount(100)});
  const AccountIndex account = b.open();
  const ChargeIndex charge = b.take(account, ByteCount(50), kNow);
  b.hold(charge);
  b.drop(charge);
  EXPECT_EQ(b.used(account), ByteCount(50));
  const std::uint64_t before = b.returns();
  b.shrink(charge, ByteCount(20));
  EXPECT_EQ(b.used(account), ByteCount(20));
  b.drop(charge);
  EXPECT_EQ(b.used(account), ByteCount(0));
  EXPECT_EQ(b.returns(), before + 2);
}

TEST(Budgets, a_part_of_a_charge_comes_back_for_itself) {
  Budgets b({ByteCount(100), ByteCount(80)});
  const AccountIndex account = b.open();
  const ChargeIndex charge = b.take(account, ByteCount(20), kAhead);
  const std::uint64_t before = b.returns();
  const ChargeIndex part = b.split(charge, ByteCount(15));
  EXPECT_EQ(b.used(account), ByteCount(20));
  EXPECT_EQ(b.returns(), before) << "nothing came free";
  EXPECT_EQ(b.bytes(charge), ByteCount(15));
  EXPECT_EQ(b.bytes(part), ByteCount(5));
  b.promote(charge);
  EXPECT_EQ(b.speculative(), ByteCount(5));
  b.close(account);
  b.drop(charge);
  EXPECT_EQ(b.used(), ByteCount(5));
  EXPECT_NE(b.open(), account) << "a part is charged to it still";
  b.drop(part);
  EXPECT_EQ(b.used(), ByteCount(0));
  EXPECT_EQ(b.speculative(), ByteCount(0));
  EXPECT_EQ(b.open(), account);
}

TEST(Budgets, speculation_has_a_quarter_within_the_limits) {
  Budgets b({ByteCount(100), ByteCount(80)});
  const AccountIndex one = b.open(), other = b.open();
  EXPECT_EQ(b.most(kAhead), ByteCount(20));
  const ChargeIndex ahead = b.take(one, ByteCount(20), kAhead);
  EXPECT_EQ(b.full(one, ByteCount(1), kAhead), Full::kInstance);
  EXPECT_EQ(b.full(other, ByteCount(6), kAhead), Full::kTotal) << "a quarter of all";
  EXPECT_EQ(b.full(one, ByteCount(61), kNow), Full::kInstance) << "it lies within the limit";
  const ChargeIndex rest = b.take(one, ByteCount(60), kNow);
  b.promote(ahead);
  b.promote(ahead);
  EXPECT_EQ(b.speculative(), ByteCount(0));
  EXPECT_EQ(b.used(), ByteCount(80)) << "a promotion always fits";
  b.drop(ahead);
  b.drop(rest);
  EXPECT_EQ(b.used(), ByteCount(0));
}

TEST(Budgets, an_account_whose_instance_ended_lives_until_nothing_is_charged) {
  Budgets b({ByteCount(100), ByteCount(100)});
  const AccountIndex account = b.open();
  const ChargeIndex charge = b.take(account, ByteCount(10), kNow);
  b.drain(account, ByteCount(5));
  b.close(account);
  EXPECT_NE(b.open(), account);
  b.drop(charge);
  EXPECT_NE(b.open(), account);
  EXPECT_EQ(b.draining(), ByteCount(5));
  b.drained(account, ByteCount(5));
  EXPECT_EQ(b.open(), account);
  EXPECT_EQ(b.used(), ByteCount(0));
}

// Any schedule against a recount of what was taken and not returned.
TEST(Budgets, random_schedules_are_conserved_to_the_byte) {
  struct Model {
    AccountIndex account;
    ByteCount bytes;
    std::uint32_t holds = 1;
    Use use = kNow;
  };
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](std::uint64_t n) { return random() % n; };
    Budgets b({ByteCount(1000), ByteCount(600)});
    std::vector<AccountIndex> open;
    for (int i = 0; i < 4; ++i) open.push_back(b.open());
    std::map<ChargeIndex, Model> charges;
    std::vector<std::pair<AccountIndex, ByteCount>> drains;
    std::uint64_t refused = 0;
    for (int i = 0; i < 20000; ++i) {
      const std::uint64_t what = pick(10);
      auto it = charges.begin();
      if (!charges.empty()) std::advance(it, static_cast<std::ptrdiff_t>(pick(charges.size())));
      if (what < 4) {
        const AccountIndex account = open[pick(open.size())];
        const ByteCount bytes(pick(150));
        const Use use = pick(3) == 0 ? kAhead : kNow;
        if (b.full(account, bytes, use) != Full::kNothing) {
          ++refused;
        } else {
          const ChargeIndex charge = b.take(account, bytes, use);
          ASSERT_TRUE(charges.emplace(charge, Model{account, bytes, 1, use}).second) << "given twice";
        }
      } else if (what == 4 && !charges.empty()) {
        b.hold(it->first);
        ++it->second.holds;
      } else if (what < 7 && !charges.empty()) {
        b.drop(it->first);
        if (--it->second.holds == 0) charges.erase(it);
      } else if (what == 7 && !charges.empty()) {
        it->second.bytes = ByteCount(pick(it->second.bytes.value + 1));
        b.shrink(it->first, it->second.bytes);
        if (pick(2) == 0) {
          b.promote(it->first);
          it->second.use = kNow;
        }
      } else if (what == 8) {
        if (pick(2) == 0 && !drains.empty()) {
          b.drained(drains.back().first, drains.back().second);
          drains.pop_back();
        } else if (drains.size() < 5) {
          drains.emplace_back(open[pick(open.size())], ByteCount(pick(20)));
          b.drain(drains.back().first, drains.back().second);
        }
      } else if (pick(20) == 0) {
        AccountIndex& account = open[pick(open.size())];
        b.close(account);
        account = b.open();
      }
      ByteCount used, ahead;
      for (const auto& [index, c] : charges) {
        used += c.bytes;
        if (c.use == kAhead) ahead += c.bytes;
      }
      for (const auto& [account, bytes] : drains) used += bytes;
      ASSERT_EQ(b.used(), used);
      ASSERT_EQ(b.speculative(), ahead);
      ASSERT_LE(ahead, ByteCount(250));
    }
    EXPECT_GT(refused, 100u);
  }
}

}  // namespace
}  // namespace orbitkv::cache
