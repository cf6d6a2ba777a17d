// The random walk (cache/core_walk_test.h) through pools that are roomy and tight, with one
// shard and two, without a tier and with one.
#include "cache/core_walk_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

// Runs the seeds and adds up what happened, so that a walk that does nothing is noticed.
CoreStats walk(std::uint64_t first_seed, int seeds, WalkOptions options) {
  CoreStats sum;
  for (int i = 0; i < seeds && !::testing::Test::HasFailure(); ++i) {
    options.seed = first_seed + static_cast<std::uint64_t>(i);
    Walk one(options);
    one.run();
    const CoreStats s = one.stats();
    sum.published += s.published;
    sum.restored += s.restored;
    sum.filtered += s.filtered;
    sum.waits += s.waits;
    sum.failed_verifications += s.failed_verifications;
    sum.quarantined_extents += s.quarantined_extents;
    sum.evicted += s.evicted;
    sum.abandoned += s.abandoned;
    sum.dropped += s.dropped;
    sum.expired_leases += s.expired_leases;
    sum.loaded += s.loaded;
    sum.load_failures += s.load_failures;
    sum.loads_gone += s.loads_gone;
    sum.loads_given_up += s.loads_given_up;
    sum.shared_loads += s.shared_loads;
    sum.load_timeouts += s.load_timeouts;
    sum.loads_refused_memory += s.loads_refused_memory;
    sum.early_leases += s.early_leases;
    sum.awaited_restores += s.awaited_restores;
    sum.spilled += s.spilled;
    sum.spills_refused += s.spills_refused;
    sum.budgets.waits += s.budgets.waits;
    sum.budgets.ended += s.budgets.ended;
  }
  EXPECT_GT(sum.published, 1000u);
  EXPECT_GT(sum.restored, 1000u);
  EXPECT_GT(sum.filtered, 1000u);
  EXPECT_GT(sum.waits, 100u);
  EXPECT_GT(sum.failed_verifications, 50u);
  EXPECT_GT(sum.quarantined_extents, 50u);
  EXPECT_GT(sum.expired_leases, 10u);
  return sum;
}

TEST(CoreWalk, RoomyOneShard) {
  walk(1, 4, {.roomy = true});
}

TEST(CoreWalk, RoomyTwoShards) {
  walk(11, 4, {.shards = 2, .roomy = true});
}

TEST(CoreWalk, TightOneShard) {
  const CoreStats sum = walk(21, 6, {});
  EXPECT_GT(sum.evicted, 1000u);
  EXPECT_GT(sum.dropped, 50u);
}

TEST(CoreWalk, TightTwoShards) {
  const CoreStats sum = walk(31, 8, {.shards = 2, .steps = 4000});
  EXPECT_GT(sum.evicted, 500u);
  EXPECT_GT(sum.abandoned, 50u);
}

void expect_a_busy_tier(const CoreStats& sum) {
  EXPECT_GT(sum.loaded, 500u);
  EXPECT_GT(sum.load_failures, 100u);
  EXPECT_GT(sum.loads_gone, 50u);
  EXPECT_GT(sum.loads_given_up, 20u);
  EXPECT_GT(sum.shared_loads, 50u);
  EXPECT_GT(sum.load_timeouts, 10u);
  EXPECT_GT(sum.loads_refused_memory, 20u);
  EXPECT_GT(sum.early_leases, 20u);
  EXPECT_GT(sum.awaited_restores, 20u);
  EXPECT_GT(sum.spilled, 500u);
  EXPECT_GT(sum.spills_refused, 50u);
}

TEST(CoreWalk, TierOneShard) {
  expect_a_busy_tier(walk(51, 6, {.tier = true, .steps = 6000}));
}

TEST(CoreWalk, TierTwoShards) {
  expect_a_busy_tier(walk(61, 6, {.shards = 2, .tier = true, .steps = 8000}));
}

TEST(CoreWalk, TierLittleBudget) {
  const CoreStats sum = walk(71, 6, {.tier = true, .budget = true, .steps = 6000});
  EXPECT_GT(sum.budgets.waits, 200u);
  EXPECT_GT(sum.budgets.ended, 10u);
}

}  // namespace
}  // namespace orbitkv::cache
