// The parts that Admission is made of.
#include <gtest/gtest.h>

#include "ssd/block_history.h"
#include "ssd/return_rates.h"
#include "ssd/save_history.h"
#include "ssd/write_budget.h"

namespace orbitkv::ssd {
namespace {

TEST(BlockHistory, ForgetsTheLongestUntouchedOfASet) {
  BlockHistory history(16, 0);  // two sets of eight
  for (std::uint64_t n = 1; n <= 1000; ++n) {
    history.remember(AdmissionKey(n)).lot = static_cast<std::uint8_t>(n);
    history.remember(AdmissionKey(1));  // stays: it is touched all the time
  }
  ASSERT_NE(history.find(AdmissionKey(1)), nullptr);
  EXPECT_EQ(history.find(AdmissionKey(1))->lot, 1);
  std::uint32_t remembered = 0;
  for (std::uint64_t n = 1; n <= 1000; ++n) remembered += history.find(AdmissionKey(n)) != nullptr;
  EXPECT_EQ(remembered, 16u);
  for (std::uint64_t n = 998; n <= 1000; ++n) EXPECT_NE(history.find(AdmissionKey(n)), nullptr);
}

TEST(BlockHistory, TheSeedSpreadsKeys) {
  constexpr std::uint32_t kBlocks = 1024;
  for (const std::uint64_t seed : {0u, 1u, 99u}) {
    BlockHistory history(kBlocks, seed);
    for (std::uint64_t n = 0; n < kBlocks / 2; ++n) history.remember(AdmissionKey(n * 0xD6E8FEB86659FD93u));
    std::uint32_t kept = 0;
    for (std::uint64_t n = 0; n < kBlocks / 2; ++n)
      kept += history.find(AdmissionKey(n * 0xD6E8FEB86659FD93u)) != nullptr;
    EXPECT_GT(kept, kBlocks / 2 * 9 / 10) << seed;
  }
}

TEST(SaveHistory, CountsSavesAndNotKeys) {
  SaveHistory history(3);
  const auto save = [&](std::uint64_t n) { return history.save(AdmissionKey(n)); };
  EXPECT_FALSE(save(1));
  EXPECT_FALSE(save(2));
  EXPECT_TRUE(save(1));   // 1 2 1
  EXPECT_FALSE(save(3));  // 2 1 3
  EXPECT_TRUE(save(1));   // 1 3 1
  EXPECT_FALSE(save(2));  // 3 1 2: its first save is forgotten
  EXPECT_TRUE(save(3));
  EXPECT_LE(history.size(), 3u);
}

TEST(WriteBudget, NoDaySeesMoreThanItsBytes) {
  WriteBudget budget(ByteCount(86'400'000));
  std::vector<std::uint64_t> taken;  // each second
  const std::int64_t day = 24 * 3600;
  for (std::int64_t second = 0; second < 3 * day; ++second) {
    std::uint64_t bytes = 0;
    if (second > day)
      while (budget.take(ByteCount(500), TimePoint{second * 1'000'000'000})) bytes += 500;
    taken.push_back(bytes);
  }
  std::uint64_t window = 0, most = 0;
  for (std::int64_t second = 0; second < 3 * day; ++second) {
    window += taken[second];
    if (second >= day) window -= taken[second - day];
    most = std::max(most, window);
  }
  EXPECT_LE(most, 86'400'000u);
  EXPECT_GT(most, 86'400'000u * 98 / 100);
}

TEST(WriteBudget, TimeThatGoesBackAddsNothing) {
  WriteBudget budget(ByteCount(8 * 86'400));  // seven bytes a second
  const auto second = [](std::int64_t n) { return TimePoint{n * 1'000'000'000}; };
  EXPECT_TRUE(budget.take(ByteCount(86'400), second(1000)));
  EXPECT_FALSE(budget.take(ByteCount(1), second(1000)));
  EXPECT_FALSE(budget.take(ByteCount(1), second(10)));
  EXPECT_FALSE(budget.take(ByteCount(1), second(1000)));
  EXPECT_TRUE(budget.take(ByteCount(7), second(1001)));
  EXPECT_FALSE(budget.take(ByteCount(7), second(1001)));
  budget.give_back(ByteCount(7));
  EXPECT_TRUE(budget.take(ByteCount(7), second(1001)));
}

TEST(WriteBudget, WithoutOneEverythingFits) {
  WriteBudget budget{ByteCount()};
  EXPECT_FALSE(budget.limited());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(budget.take(ByteCount(~0ull), TimePoint{}));
}

NewBlock added(std::uint32_t blocks) {
  return {.position = 0, .known_run = 0, .length = blocks};
}

TEST(ReturnRates, AKindIsAPlaceInARequest) {
  EXPECT_EQ(ReturnRates::of(added(100)), ReturnRates::of(added(101)));
  EXPECT_NE(ReturnRates::of(added(100)), ReturnRates::of(added(200)));
  const NewBlock fresh{9, 1, 10, kMostHits}, further{9, 1, 10, 0};
  EXPECT_NE(ReturnRates::of(fresh), ReturnRates::of(further));
  EXPECT_NE(ReturnRates::of(fresh), ReturnRates::of({8, 1, 10, kMostHits}));
  // Behind the chain that was asked for, and any length there may be: still a kind.
  EXPECT_EQ(ReturnRates::of({10, 1, 10, 0}), ReturnRates::of({500, 1, 10, 0}));
  EXPECT_NE(ReturnRates::of_unasked(), ReturnRates::of_returned(1));
  EXPECT_NE(ReturnRates::of_returned(1), ReturnRates::of_returned(2));
  EXPECT_EQ(ReturnRates::of_returned(3), ReturnRates::of_returned(kMostHits));
  ReturnRates rates;
  rates.left(ReturnRates::of({0, 0, ~0u, kMostHits}));
  rates.left(ReturnRates::of({~0u, ~0u, ~0u, kMostHits}));
  rates.left(ReturnRates::of_returned(kMostHits));
}

TEST(ReturnRates, LeavesOutWhatReturnsLeastUpToTheLimit) {
  ReturnRates rates;
  const BlockClass often = ReturnRates::of(added(4)), seldom = ReturnRates::of(added(64));
  for (int i = 0; i < 10'000; ++i) {
    rates.left(often);
    rates.left(seldom);
    if (i % 2 == 0) rates.came_back(often);
    if (i % 10 == 0) rates.came_back(seldom);
  }
  EXPECT_NEAR(rates.rate(often), 0.5, 0.02);
  EXPECT_NEAR(rates.rate(seldom), 0.1, 0.02);
  const auto written = [&](BlockClass kind) {
    int lots = 0;
    for (int lot = 0; lot < 256; ++lot) lots += rates.writes(kind, static_cast<std::uint8_t>(lot));
    return lots / 256.0;
  };
  rates.plan({});
  EXPECT_EQ(written(seldom), 1);
  rates.plan({.returns_lost = 0.025});  // half of what the seldom ones return
  EXPECT_NEAR(written(seldom), 0.5, 0.1);
  EXPECT_EQ(written(often), 1);
  rates.plan({.returns_lost = 0.1});
  EXPECT_EQ(written(seldom), 0);
  EXPECT_NEAR(written(often), 0.8, 0.1);
  rates.plan({.affordable = 0.25});
  EXPECT_EQ(written(seldom), 0);
  EXPECT_NEAR(written(often), 0.5, 0.1);
  rates.plan({.affordable = 0});
  EXPECT_EQ(written(often), 0);
}

TEST(ReturnRates, HalvingKeepsRatesAndLetsNewOnesIn) {
  ReturnRates rates;
  const BlockClass kind = ReturnRates::of(added(4));
  for (int i = 0; i < 4'000; ++i) rates.left(kind);
  const double before = rates.rate(kind);
  for (int i = 0; i < 12; ++i) rates.halve();
  for (int i = 0; i < 1'000; ++i) {
    rates.left(kind);
    rates.came_back(kind);
  }
  EXPECT_LT(before, 0.1);
  EXPECT_GT(rates.rate(kind), 0.9);
}

}  // namespace
}  // namespace orbitkv::ssd
