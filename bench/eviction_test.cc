#include "bench/eviction.h"

#include <gtest/gtest.h>

namespace orbitkv::bench {
namespace {

ReplayCounts replayed(const std::vector<Request>& trace, EvictionReplay::Room room) {
  auto replay = EvictionReplay::make(room);
  EXPECT_TRUE(replay.ok());
  for (const Request& request : trace) (*replay)->request(request);
  EXPECT_LE((*replay)->images().stats().sealed, room.blocks);
  return (*replay)->counts();
}
Request of(BlockNumber first, std::uint32_t count) {
  Request request;
  for (std::uint32_t i = 0; i < count; ++i) request.blocks.push_back(first + i);
  return request;
}

// 20 blocks that come back every time, between 100 that never do: room for 90 of all.
std::vector<Request> scanned() {
  std::vector<Request> trace{of(0, 20), of(0, 20)};
  for (BlockNumber i = 0; i < 10; ++i) {
    trace.push_back(of(1000 + 100 * i, 100));
    trace.push_back(of(0, 20));
  }
  return trace;
}

TEST(EvictionReplay, AProtectedShareOutlivesAScanAndPlainRecencyDoesNot) {
  EXPECT_EQ(replayed(scanned(), {90, 0}).found, 20u);
  EXPECT_EQ(replayed(scanned(), {90, 30}).found, 11u * 20);
  EXPECT_LT(replayed(scanned(), {90, 10}).found, 11u * 20) << "more than the share came back";
}

// Plain recency is what bench endurance assumes of memory.
TEST(EvictionReplay, WithoutAShareItAgreesWithTheListOfNumbers) {
  std::vector<Request> trace;
  for (BlockNumber i = 0; i < 300; ++i) trace.push_back(of(i * i % 97 * 10, 5 + i % 30));
  ChosenWriter none({});
  EnduranceReplay expected(200, none);
  for (const Request& request : trace) expected.request(request);
  const ReplayCounts found = replayed(trace, {200, 0});
  EXPECT_EQ(found.asked, expected.counts().asked);
  EXPECT_NEAR(found.hit_rate(), expected.counts().hit_rate(), 0.05);
  EXPECT_GT(found.hit_rate(), 0.15);
}

}  // namespace
}  // namespace orbitkv::bench
