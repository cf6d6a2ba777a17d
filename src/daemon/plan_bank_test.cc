#include "daemon/plan_bank.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace orbitkv::daemon {
namespace {

TEST(PlanBank, FullIsAnAnswerAndSpaceComesBack) {
  PlanBank bank;
  auto all = bank.allocate(limits::kPlanBankBytes);
  ASSERT_TRUE(all.has_value());
  EXPECT_FALSE(bank.allocate(1).has_value());
  bank.release(*all);
  EXPECT_EQ(bank.used(), 0u);
  EXPECT_TRUE(bank.allocate(limits::kPlanBankBytes).has_value());
}

TEST(PlanBank, RefusesNothingAndTooMuch) {
  PlanBank bank;
  EXPECT_FALSE(bank.allocate(0).has_value());
  EXPECT_FALSE(bank.allocate(limits::kPlanBankBytes + 1).has_value());
}

TEST(PlanBank, RandomRangesNeverOverlapAndCoalesce) {
  PlanBank bank;
  std::mt19937 random(7);
  std::vector<PlanBank::Range> live;
  std::vector<bool> taken(limits::kPlanBankBytes / 64);
  for (int step = 0; step < 20000; ++step) {
    if (live.empty() || random() % 2) {
      auto range = bank.allocate(1 + random() % 20000);
      if (!range) continue;
      for (std::uint32_t u = range->offset / 64; u < (range->offset + range->bytes) / 64; ++u) {
        ASSERT_FALSE(taken[u]);
        taken[u] = true;
      }
      live.push_back(*range);
    } else {
      std::swap(live[random() % live.size()], live.back());
      for (std::uint32_t u = live.back().offset / 64; u < (live.back().offset + live.back().bytes) / 64; ++u)
        taken[u] = false;
      bank.release(live.back());
      live.pop_back();
    }
  }
  for (auto range : live) bank.release(range);
  EXPECT_TRUE(bank.allocate(limits::kPlanBankBytes).has_value());
}

}  // namespace
}  // namespace orbitkv::daemon
