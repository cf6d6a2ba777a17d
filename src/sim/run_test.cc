// Runs are functions of their seeds, subsets of programs are programs, and every checker
// catches the bug that was planted for it.
#include "sim/run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/log.h"
#include "sim/batch.h"
#include "sim/cells.h"
#include "sim/program.h"

namespace orbitkv::sim {
namespace {

class RunTest : public testing::Test {
 protected:
  RunTest() { set_log_level(LogLevel::kOff); }
  ~RunTest() override { set_log_level(LogLevel::kInfo); }
};

TEST_F(RunTest, SeedsRunWithoutAFinding) {
  std::uint64_t operations = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Outcome outcome = run_seed(seed, {600, Plant::kNone});
    operations += outcome.operations;
    ASSERT_FALSE(outcome.finding) << "seed " << seed << ": " << outcome.finding->checker << ": "
                                  << outcome.finding->text;
  }
  EXPECT_GT(operations, 10'000u);
  std::vector<std::uint8_t> reached(all_cells().size());
  add_reached(reached.data());
  EXPECT_EQ(coverage_of(reached.data()).impossible, std::vector<std::string>{});
}

TEST_F(RunTest, ASeedRunsTheSameTwice) {
  for (const std::uint64_t seed : {3, 4, 5, 17}) {
    const Outcome first = run_seed(seed, {500, Plant::kNone});
    const Outcome second = run_seed(seed, {500, Plant::kNone});
    EXPECT_EQ(first.digest, second.digest) << seed;
    EXPECT_EQ(first.operations, second.operations) << seed;
    EXPECT_EQ(first.events, second.events) << seed;
  }
  EXPECT_NE(run_seed(3, {500, Plant::kNone}).digest, run_seed(4, {500, Plant::kNone}).digest);
}

// Its tables have ids that no other run draws again.
TEST_F(RunTest, ARunWithDamagedTablesIsTheSameTwice) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Config config = draw_config(seed);
    config.keep.on = true;
    config.restart = {milliseconds(1), milliseconds(2)};
    config.weights[static_cast<std::size_t>(ActionKind::kKillManager)] = 20;
    config.weights[static_cast<std::size_t>(ActionKind::kDamageKept)] = 60;
    const Program program = draw_program(config, 400);
    EXPECT_EQ(run_program(config, program, {}).digest, run_program(config, program, {}).digest) << seed;
  }
}

TEST_F(RunTest, ASubsetOfAProgramIsAProgram) {
  const Config config = draw_config(11);
  Program program = draw_program(config, 400);
  std::erase_if(program, [](const Action& action) { return action.number % 3 == 1; });
  const Outcome outcome = run_program(config, program, {});
  EXPECT_FALSE(outcome.finding) << outcome.finding->text;
}

struct Planted {
  Plant plant;
  const char* checker;
  const char* also = "";  // what else it does, in other seeds
};
class PlantedBug : public RunTest, public testing::WithParamInterface<Planted> {};
INSTANTIATE_TEST_SUITE_P(
    Plants, PlantedBug,
    testing::Values(Planted{Plant::kWrongBytes, "bytes"}, Planted{Plant::kEarlyPages, "visible"},
                    Planted{Plant::kStrayCopy, "pages"}, Planted{Plant::kSharedExtent, "extents"},
                    Planted{Plant::kLeakedExtent, "conservation"}, Planted{Plant::kUnwrittenShard, "visible"},
                    Planted{Plant::kUnheardDeath, "quiet: sessions"}, Planted{Plant::kLostReply, "waits"},
                    Planted{Plant::kLostOperation, "waits"}, Planted{Plant::kLongWait, "waits"},
                    Planted{Plant::kShortClaim, "claims"}, Planted{Plant::kSwallowedClose, "claims"},
                    Planted{Plant::kTimelessClaim, "waits"}, Planted{Plant::kHastyUnmap, "slabs"},
                    Planted{Plant::kCutReply, "protocol"}, Planted{Plant::kDeafDisk, "restart"},
                    Planted{Plant::kForgottenLent, "kept: lent"},
                    Planted{Plant::kEarlySeal, "kept: sealed", "kept: bytes"},
                    Planted{Plant::kForgottenBlock, "kept: blocks"},
                    Planted{Plant::kStaleBlock, "kept: bytes"},
                    Planted{Plant::kUnheardEnd, "quiet: grants of earlier lives",
                            "quiet: names in the store"},
                    Planted{Plant::kHeldName, "quiet: names in the store"}),
    [](const auto& row) { return std::string(name_of(row.param.plant)); });

TEST_P(PlantedBug, IsCaught) {
  std::string found;
  for (std::uint64_t seed = 1; seed <= 200 && found.empty(); ++seed) {
    const Outcome outcome = run_seed(seed, {800, GetParam().plant});
    if (outcome.finding && outcome.finding->checker != GetParam().also) found = outcome.finding->checker;
  }
  EXPECT_EQ(found, GetParam().checker);
}

// Slow restores, a pool that is too small, and Managers that die: what they read is wanted at once.
std::string finding_of_slow_restores(std::uint64_t seed, Plant plant) {
  Config config = draw_config(seed);
  config.keep.on = true;
  config.restart = {milliseconds(1), milliseconds(2)};
  config.pool = ByteCount(32 * 1024);
  config.slab = config.pool;
  config.weights.fill(0);
  const auto weigh = [&](ActionKind kind, std::uint32_t weight) {
    config.weights[static_cast<std::size_t>(kind)] = weight;
  };
  weigh(ActionKind::kPublish, 200);
  weigh(ActionKind::kRead, 200);
  weigh(ActionKind::kRestore, 200);
  weigh(ActionKind::kSlowCopy, 100);
  weigh(ActionKind::kKillManager, 4);
  const Outcome outcome = run_program(config, draw_program(config, 800), {false, plant});
  return outcome.finding ? outcome.finding->checker : "";
}

TEST_F(RunTest, WhatARestoreReadsThatADeadManagerGrantedStays) {
  std::string planted;
  for (std::uint64_t seed = 1; seed <= 200 && planted.empty(); ++seed) {
    if (seed <= 20) ASSERT_EQ(finding_of_slow_restores(seed, Plant::kNone), "") << seed;
    planted = finding_of_slow_restores(seed, Plant::kLostPlans);
  }
  EXPECT_EQ(planted, "extents");
}

// One engine asks one list again and again under one name, while a lease takes all that it may hold.
std::string finding_of_many_who_ask(Plant plant) {
  Config config = draw_config(1);
  config.spaces.resize(1);
  config.spaces[0].world = 1;
  config.spaces[0].groups.assign(1, {.layers = 2, .components = 2, .rows = 2});
  config.engines.assign(1, {.pages = 32});
  config.ssd.on = config.keep.on = false;
  config.stalls.after = {};
  config.pool = config.slab = ByteCount(1 << 20);
  config.chains = 1;
  config.chain_blocks = 16;
  config.core.lease_ttl = seconds(30);
  config.core.load_wait = config.core.full_prefix_wait = seconds(5);
  config.core.query_budget = config.core.query_instance_budget = ByteCount(4096);
  Program program;
  const auto at = [&](Duration time, ActionKind kind, std::uint64_t name) {
    const auto number = static_cast<std::uint32_t>(program.size());
    program.push_back({kind, TimePoint{1'100'000'000} + time, number, {0, 0, 14, name}});
  };
  at({}, ActionKind::kPublish, 1);
  at(milliseconds(100), ActionKind::kRead, 1);
  for (int i = 0; i < 12; ++i) at(microseconds(200'000 + 20 * i), ActionKind::kRead, 2);
  at(seconds(20), ActionKind::kPass, 0);
  const Outcome outcome = run_program(config, program, {true, plant});
  return outcome.finding ? outcome.finding->checker : "";
}

// The end of a wait is told once, so whoever asks the list after that waits anew: as long again.
TEST_F(RunTest, WhoAsksAfterTheEndOfAWaitWaitsAnew) {
  EXPECT_EQ(finding_of_many_who_ask(Plant::kNone), "");
  EXPECT_EQ(finding_of_many_who_ask(Plant::kLongWait), "waits");
}

// Slabs that come and go over many lives of the Manager.
std::string finding_of_slabs_that_change(std::uint64_t seed, Plant plant) {
  Config config = draw_config(seed);
  config.keep.on = true;
  config.restart = {milliseconds(1), milliseconds(2)};
  config.pool = ByteCount(128 * 1024);
  config.slab = ByteCount(config.pool.value / 4);
  config.slabs.retire_after = milliseconds(10);
  config.core.retire_claim_wait = config.core.retire_store_wait = milliseconds(5);
  config.pause = {milliseconds(5), milliseconds(50)};
  config.weights.fill(0);
  for (const ActionKind kind :
       {ActionKind::kPublish, ActionKind::kRead, ActionKind::kRestore, ActionKind::kPoolDrain})
    config.weights[static_cast<std::size_t>(kind)] = 100;
  config.weights[static_cast<std::size_t>(ActionKind::kPoolAdd)] = 50;
  config.weights[static_cast<std::size_t>(ActionKind::kKillManager)] = 20;
  const Outcome outcome = run_program(config, draw_program(config, 400), {false, plant});
  return outcome.finding ? outcome.finding->checker : "";
}

TEST_F(RunTest, TheNextManagerGivesNoNameAgain) {
  std::string planted;
  for (std::uint64_t seed = 1; seed <= 100 && planted.empty(); ++seed) {
    if (seed <= 3) ASSERT_EQ(finding_of_slabs_that_change(seed, Plant::kNone), "") << seed;
    planted = finding_of_slabs_that_change(seed, Plant::kNamesAgain);
  }
  EXPECT_EQ(planted, "slabs");
}

std::vector<std::string> findings_of_a_batch(Plant plant) {
  std::vector<std::string> found;
  std::vector<std::uint8_t> reached;
  run_batch({1, 2, {300, plant}}, reached, [&](const SeedResult& result) {
    found.push_back(result.checker);
    if (result.checker == "stopped") EXPECT_NE(result.text.find("SIGABRT"), std::string::npos) << result.text;
    return true;
  });
  return found;
}

// A check of the production code ends the process, and the seeds go on in another. Nothing else ends
// one, also where its parent has run seeds itself.
TEST_F(RunTest, AStoppedProcessIsAFindingOfItsSeed) {
  (void)run_seed(1, {300, Plant::kNone});
  EXPECT_EQ(findings_of_a_batch(Plant::kNone), (std::vector<std::string>{"", ""}));
  EXPECT_EQ(findings_of_a_batch(Plant::kDroppedExtent), (std::vector<std::string>{"stopped", "stopped"}));
}

}  // namespace
}  // namespace orbitkv::sim
