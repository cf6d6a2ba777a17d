#include "cache/lanes.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace orbitkv::cache {
namespace {

constexpr Lanes::Owner of(std::uint32_t account, Use use = Use::kForeground) {
  return {AccountIndex(account), use};
}

std::vector<std::uint32_t> serve(Lanes& lanes, std::size_t most = 1000) {
  std::vector<std::uint32_t> out;
  for (LoadIndex i = lanes.front(); i != kNoLoad && out.size() < most; i = lanes.front()) {
    out.push_back(i.value);
    lanes.served(i);
  }
  return out;
}

TEST(Lanes, instances_have_turns_then_their_leases) {
  Lanes lanes;
  lanes.open(LeaseIndex(0), of(7));
  lanes.open(LeaseIndex(1), of(7));
  lanes.open(LeaseIndex(2), of(3));
  for (std::uint32_t i : {1, 2, 3}) lanes.push(LoadIndex(i), LeaseIndex(0));
  for (std::uint32_t i : {11, 12}) lanes.push(LoadIndex(i), LeaseIndex(1));
  for (std::uint32_t i : {21, 22, 23}) lanes.push(LoadIndex(i), LeaseIndex(2));
  EXPECT_EQ(serve(lanes), (std::vector<std::uint32_t>{1, 21, 11, 22, 2, 23, 12, 3}));
  EXPECT_TRUE(lanes.empty());
}

TEST(Lanes, what_is_done_ahead_of_need_waits_for_all_others) {
  Lanes lanes;
  lanes.open(LeaseIndex(0), of(0, Use::kSpeculative));
  lanes.open(LeaseIndex(1), of(1));
  for (std::uint32_t i : {1, 2, 3}) lanes.push(LoadIndex(i), LeaseIndex(0));
  for (std::uint32_t i : {11, 12}) lanes.push(LoadIndex(i), LeaseIndex(1));
  EXPECT_EQ(serve(lanes, 3), (std::vector<std::uint32_t>{11, 12, 1}));
  lanes.push(LoadIndex(13), LeaseIndex(1));
  EXPECT_EQ(serve(lanes), (std::vector<std::uint32_t>{13, 2, 3}));
}

TEST(Lanes, a_promoted_lane_has_its_turn_with_the_others) {
  Lanes lanes;
  lanes.open(LeaseIndex(0), of(0, Use::kSpeculative));
  lanes.open(LeaseIndex(1), of(1));
  for (std::uint32_t i : {1, 2}) lanes.push(LoadIndex(i), LeaseIndex(0));
  for (std::uint32_t i : {11, 12, 13}) lanes.push(LoadIndex(i), LeaseIndex(1));
  lanes.promote(LeaseIndex(0));
  EXPECT_EQ(serve(lanes), (std::vector<std::uint32_t>{11, 1, 12, 2, 13}));
  lanes.promote(LeaseIndex(0));
  lanes.push(LoadIndex(3), LeaseIndex(0));
  EXPECT_EQ(serve(lanes), (std::vector<std::uint32_t>{3}));
}

TEST(Lanes, sooner_is_the_more_urgent_or_the_shorter_lane) {
  Lanes lanes;
  lanes.open(LeaseIndex(0), of(0, Use::kSpeculative));
  lanes.open(LeaseIndex(1), of(1));
  lanes.open(LeaseIndex(2), of(2));
  lanes.push(LoadIndex(1), LeaseIndex(0));
  for (std::uint32_t i : {11, 12, 13}) lanes.push(LoadIndex(i), LeaseIndex(1));
  EXPECT_TRUE(lanes.sooner(LoadIndex(1), LeaseIndex(1)));
  EXPECT_FALSE(lanes.sooner(LoadIndex(13), LeaseIndex(0)));
  EXPECT_TRUE(lanes.sooner(LoadIndex(13), LeaseIndex(2)));
  EXPECT_FALSE(lanes.sooner(LoadIndex(13), LeaseIndex(1)));
}

TEST(Lanes, a_lane_that_is_empty_may_have_another_owner) {
  Lanes lanes;
  lanes.open(LeaseIndex(0), of(5));
  lanes.push(LoadIndex(1), LeaseIndex(0));
  lanes.remove(LoadIndex(1));
  lanes.open(LeaseIndex(0), of(6, Use::kSpeculative));
  lanes.push(LoadIndex(2), LeaseIndex(0));
  lanes.open(LeaseIndex(1), of(5));
  lanes.push(LoadIndex(3), LeaseIndex(1));
  EXPECT_EQ(serve(lanes), (std::vector<std::uint32_t>{3, 2}));
}

// However many leases an instance has, it is served as often as each other one that has loads.
TEST(Lanes, random_schedules_lose_nothing_and_are_fair_between_instances) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](std::uint64_t n) { return static_cast<std::uint32_t>(random() % n); };
    Lanes lanes;
    std::vector<std::uint32_t> account_of;
    for (std::uint32_t l = 0; l < 30; ++l) {
      account_of.push_back(pick(2) == 0 ? 0 : 1 + pick(4));
      lanes.open(LeaseIndex(l), of(account_of[l]));
    }
    std::map<std::uint32_t, std::uint32_t> queued;  // load -> lease
    std::map<std::uint32_t, std::uint32_t> in_account, since;
    std::uint32_t next = 0;
    for (int i = 0; i < 20000; ++i) {
      if (pick(10) < 5) {
        const std::uint32_t lane = pick(30);
        queued[next] = lane;
        if (in_account[account_of[lane]]++ == 0) since[account_of[lane]] = 0;
        lanes.push(LoadIndex(next++), LeaseIndex(lane));
      } else if (pick(10) == 0 && !queued.empty()) {
        const auto it = queued.begin();
        --in_account[account_of[it->second]];
        lanes.remove(LoadIndex(it->first));
        queued.erase(it);
      } else {
        const LoadIndex load = lanes.front();
        ASSERT_EQ(load == kNoLoad, queued.empty());
        if (load == kNoLoad) continue;
        const std::uint32_t account = account_of[queued.at(load.value)];
        lanes.served(load);
        queued.erase(load.value);
        --in_account[account];
        since[account] = 0;
        for (auto& [other, n] : in_account)
          if (n > 0 && other != account) ASSERT_LE(++since[other], 5u) << "account " << other;
      }
    }
    EXPECT_EQ(serve(lanes, 1u << 20).size(), queued.size());
  }
}

}  // namespace
}  // namespace orbitkv::cache
