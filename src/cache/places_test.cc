#include "cache/places.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/limits.h"

namespace orbitkv::cache {
namespace {

class PlacesTest : public ::testing::Test {
 protected:
  static constexpr ByteCount kList{1000};
  PlacesTest() : sessions(2) {
    for (Session& s : sessions) s.metadata = std::make_unique<mem::Budget>("lists", 10 * kList);
  }
  // Everything that a query may hold is held so often.
  void expect(std::uint32_t leases, std::uint64_t lists, std::uint32_t tickets, std::uint32_t prepared) {
    const Session& s = sessions[0];
    EXPECT_EQ(s.queries, leases);
    EXPECT_EQ(s.metadata->used(), lists * kList);
    EXPECT_EQ(s.tickets, tickets);
    EXPECT_EQ(counts.unfinished(), tickets);
    EXPECT_EQ(s.prepared, prepared);
    EXPECT_EQ(counts.prepared().all(), prepared);
  }

  std::vector<Session> sessions;
  PlaceCounts counts;
};

TEST_F(PlacesTest, AreTakenTogetherAndGoBackTogether) {
  auto places = counts.take(sessions[0], {3, kList, true});
  ASSERT_TRUE(places.ok());
  expect(3, 1, 1, 1);
  EXPECT_TRUE(places->unfinished() && places->prepared());
  counts.end_preparation(*places);
  expect(3, 1, 1, 0);
  counts.finish(*places);
  counts.finish(*places);
  expect(3, 1, 0, 0);
  counts.shrink_list(*places, ByteCount(0));
  expect(3, 0, 0, 0);
  counts.give_back(std::move(*places));
  expect(0, 0, 0, 0);
}

// Whichever bound is reached, nothing is left behind.
TEST_F(PlacesTest, AreTakenAllOrNone) {
  std::vector<Places> held;
  const auto take = [&](const PlaceCounts::Want& want) {
    auto places = counts.take(sessions[0], want);
    if (places.ok()) held.push_back(std::move(*places));
    return places.ok() ? Code::kOk : places.error().code();
  };
  EXPECT_EQ(take({limits::kQueriesPerSession + 1, kList, false}), Code::kBusy);
  EXPECT_EQ(take({1, 11 * kList, false}), Code::kBusy);
  expect(0, 0, 0, 0);
  for (std::uint32_t i = 0; i < limits::kPreparesPerSession; ++i)
    ASSERT_EQ(take({1, ByteCount(0), true}), Code::kOk);
  EXPECT_EQ(take({1, kList, true}), Code::kBusy);
  expect(limits::kPreparesPerSession, 0, limits::kPreparesPerSession, limits::kPreparesPerSession);
  while (held.size() < limits::kTicketsPerSession) ASSERT_EQ(take({1, ByteCount(0), false}), Code::kOk);
  EXPECT_EQ(take({1, kList, false}), Code::kBusy);
  expect(limits::kTicketsPerSession, 0, limits::kTicketsPerSession, limits::kPreparesPerSession);
  for (Places& each : held) counts.give_back(std::move(each));
  expect(0, 0, 0, 0);
}

TEST_F(PlacesTest, AMissIsUnfinishedAndWaitedForByNobody) {
  Places places = *counts.take(sessions[0], {1, kList, false});
  EXPECT_EQ(counts.waiting(), 1u);
  counts.miss(places);
  EXPECT_EQ(counts.waiting(), 0u);
  EXPECT_EQ(counts.unfinished(), 1u);
  ASSERT_TRUE(counts.reopen(places).ok());
  EXPECT_EQ(counts.waiting(), 1u) << "another list in its place";
  counts.miss(places);
  counts.give_back(std::move(places));
  EXPECT_EQ(counts.waiting(), 0u);
  EXPECT_EQ(counts.unfinished(), 0u);
}

TEST_F(PlacesTest, AListThatFindsNoBytesLeavesTheRestToBeGivenBack) {
  Places places = *counts.take(sessions[0], {1, kList, false});
  EXPECT_FALSE(counts.replace_list(places, 11 * kList).ok());
  expect(1, 0, 1, 0);
  counts.give_back(std::move(places));
  expect(0, 0, 0, 0);
}

TEST(PlacesDeath, LostOnesStopTheProcess) {
  Session session;
  session.metadata = std::make_unique<mem::Budget>("lists", ByteCount(1));
  PlaceCounts counts;
  EXPECT_DEATH((void)counts.take(session, {1, ByteCount(0), false}), "lost");
}

}  // namespace
}  // namespace orbitkv::cache
