#include "mem/budget.h"

#include <gtest/gtest.h>

#include <utility>

namespace orbitkv::mem {
namespace {

TEST(Budget, ReservesUpToItsLimitAndSaysWhatCameBack) {
  Budget budget("metadata", ByteCount(100));
  auto first = budget.reserve(ByteCount(60));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->bytes(), ByteCount(60));
  EXPECT_FALSE(budget.reserve(ByteCount(41)));
  EXPECT_FALSE(budget.reserve(ByteCount(~std::uint64_t{0})));
  auto second = budget.reserve(ByteCount(40));
  ASSERT_TRUE(second);
  EXPECT_EQ(budget.used(), budget.limit());
  const Budget::Receipt receipt = budget.release(std::move(*first));
  EXPECT_EQ(receipt.returned, ByteCount(60));
  EXPECT_EQ(receipt.left, ByteCount(60));
  EXPECT_FALSE(first->open());
  budget.release(std::move(*second));
  EXPECT_EQ(budget.used(), ByteCount(0));
}

TEST(Budget, ShrinkGivesBackTheDifference) {
  Budget budget("metadata", ByteCount(100));
  auto token = budget.reserve(ByteCount(100));
  const Budget::Receipt receipt = budget.shrink(*token, ByteCount(30));
  EXPECT_EQ(receipt.returned, ByteCount(70));
  EXPECT_EQ(receipt.left, ByteCount(70));
  EXPECT_EQ(token->bytes(), ByteCount(30));
  EXPECT_DEATH(budget.shrink(*token, ByteCount(31)), "grows by shrink in: metadata");
  EXPECT_EQ(budget.release(std::move(*token)).returned, ByteCount(30));
}

TEST(Budget, TokensMoveWithTheirDuty) {
  Budget budget("metadata", ByteCount(100));
  Reservation here;
  {
    Reservation there = *budget.reserve(ByteCount(10));
    here = std::move(there);
    EXPECT_FALSE(there.open());
  }
  EXPECT_TRUE(here.open());
  budget.release(std::move(here));
}

TEST(BudgetDeathTest, OpenTokensStopTheProcessWithTheBudgetsName) {
  Budget budget("plan bank", ByteCount(100));
  EXPECT_DEATH({ auto token = budget.reserve(ByteCount(0)); }, "died unreleased, budget: plan bank");
  EXPECT_DEATH(
      {
        Reservation first = *budget.reserve(ByteCount(1));
        first = *budget.reserve(ByteCount(1));
      },
      "overwritten unreleased, budget: plan bank");
  EXPECT_DEATH(
      {
        Reservation token;
        Budget dies("short", ByteCount(1));
        token = *dies.reserve(ByteCount(1));
      },
      "budget died before its reservations: short");
  Budget other("other", ByteCount(100));
  EXPECT_DEATH(budget.release(*other.reserve(ByteCount(1))), "another budget released to: plan bank");
}

}  // namespace
}  // namespace orbitkv::mem
