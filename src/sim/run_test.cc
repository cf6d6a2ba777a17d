// Runs are functions of their seeds, subsets of programs are programs, and every checker
// catches the bug that was planted for it.
#include "sim/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/log.h"
#include "sim/batch.h"
#include "sim/cells.h"
#include "sim/favourites.h"
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
  std::vector<std::uint32_t> reached(all_cells().size());
  count_reached(reached.data());
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
  std::array<std::string_view, 2> also = {};  // what else it does, in other seeds
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
                    Planted{Plant::kEarlySeal, "kept: sealed", {"kept: bytes"}},
                    Planted{Plant::kForgottenBlock, "kept: blocks"},
                    Planted{Plant::kStaleBlock, "kept: bytes"},
                    Planted{Plant::kUnheardEnd,
                            "quiet: grants of earlier lives",
                            {"quiet: names in the store", "quiet: slabs"}},
                    Planted{Plant::kHeldName, "quiet: names in the store"}),
    [](const auto& row) { return std::string(name_of(row.param.plant)); });

TEST_P(PlantedBug, IsCaught) {
  std::string found;
  for (std::uint64_t seed = 1; seed <= 1000 && found.empty(); ++seed) {
    const Outcome outcome = run_seed(seed, {800, GetParam().plant});
    if (!outcome.finding) continue;
    const auto& also = GetParam().also;
    const auto other = std::find(also.begin(), also.end(), outcome.finding->checker);
    if (other == also.end()) found = outcome.finding->checker;
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

Config one_engine() {
  Config config = draw_config(1);
  config.favourite.reset();
  config.spaces.resize(1);
  config.spaces[0].world = 1;
  config.spaces[0].groups.assign(1, {.layers = 2, .components = 2, .rows = 2});
  config.engines.assign(1, {.pages = 32});
  config.ssd.on = config.keep.on = false;
  config.stalls.after = {};
  config.pool = config.slab = ByteCount(1 << 20);
  return config;
}

// One engine asks one list again and again under one name, while a lease takes all that it may hold.
std::string finding_of_many_who_ask(Plant plant) {
  Config config = one_engine();
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

// A copy that fails, aimed at a state, and a while later a save. Where the fault struck, and when.
struct Struck {
  bool met = false;
  std::string line;  // of the trace
};
Struck struck_at(const std::string& state) {
  const auto& cells = all_cells();
  const auto in_row = [](const Cell& cell) { return cell.table == "fault" && cell.row == "fail_copy"; };
  const auto first = std::find_if(cells.begin(), cells.end(), in_row);
  const auto cell = std::find_if(first, cells.end(), [&](const Cell& each) { return each.column == state; });
  std::uint64_t word = 0;
  while (state_to_meet(word) != static_cast<std::size_t>(cell - first)) ++word;
  const Program program = {{ActionKind::kFailCopy, TimePoint{1'100'000'000}, 0, {0, 0, 0, word << 8 | 1}},
                           {ActionKind::kPublish, TimePoint{1'200'000'000}, 1, {0, 0, 7, 1}},
                           {ActionKind::kPass, TimePoint{3'000'000'000}, 2, {}}};
  std::vector<std::uint32_t> others(cells.size()), reached(cells.size());
  count_reached(others.data());
  const Outcome outcome = run_program(one_engine(), program, {true, Plant::kNone});
  count_reached(reached.data());
  Struck struck{reached[static_cast<std::size_t>(cell - cells.begin())] > 0, {}};
  for (const std::string& line : outcome.trace)
    if (line.find("fail_copy (action 0) strikes") != std::string::npos) struck.line += line;
  return struck;
}

TEST_F(RunTest, AFaultWaitsForTheStateThatItIsAimedAtButNotForLong) {
  EXPECT_TRUE(struck_at("record.active").met);
  const Struck never = struck_at("restore.orphaned");
  EXPECT_FALSE(never.met);
  EXPECT_LT(std::stod(never.line), 1000) << never.line;
}

std::vector<std::uint32_t> cells_of(const Config& config, std::uint32_t actions) {
  std::vector<std::uint32_t> others(all_cells().size()), reached(all_cells().size());
  count_reached(others.data());
  const Outcome outcome = run_program(config, draw_program(config, actions), {});
  EXPECT_FALSE(outcome.finding) << "seed " << config.seed << ": " << outcome.finding->text;
  count_reached(reached.data());
  return reached;
}

Config leaning(std::uint64_t seed, std::string_view state) {
  Config config = draw_config(seed);
  std::size_t place = 0;
  while (name_of_state(place) != state) ++place;
  lean_towards(config, place);
  return config;
}

// Every one of them can be run.
TEST_F(RunTest, ASeedLeansTowardsAnyState) {
  for (std::size_t state = 0; !name_of_state(state).empty(); ++state)
    (void)cells_of(leaning(100 + state, name_of_state(state)), 150);
}

TEST_F(RunTest, MostFaultsMeetTheFavourite) {
  for (const std::string_view state : {"image.load_failed", "restore.pinned", "retire.grants"}) {
    std::size_t kinds = 0;
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      const auto reached = cells_of(leaning(seed, state), 800);
      for (std::size_t i = 0; i < reached.size(); ++i)
        kinds += reached[i] > 0 && all_cells()[i].table == "fault" && all_cells()[i].column == state ? 1 : 0;
    }
    EXPECT_GT(kinds, 5u) << state;
  }
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

std::vector<std::string> findings_of_a_batch(Plant plant, std::uint32_t jobs) {
  std::vector<std::string> found;
  std::vector<std::uint32_t> reached;
  run_batch({1, 3, {300, plant}, jobs}, reached, [&](const SeedResult& result) {
    found.push_back(std::to_string(result.seed) + result.checker);
    if (result.checker == "stopped") EXPECT_NE(result.text.find("SIGABRT"), std::string::npos) << result.text;
    return true;
  });
  return found;
}

// A check of the production code ends the process, and the seeds go on in another. Nothing else ends
// one, also where its parent has run seeds itself.
TEST_F(RunTest, AStoppedProcessIsAFindingOfItsSeed) {
  (void)run_seed(1, {300, Plant::kNone});
  using Found = std::vector<std::string>;
  EXPECT_EQ(findings_of_a_batch(Plant::kNone, 1), (Found{"1", "2", "3"}));
  for (const std::uint32_t jobs : {1, 2, 8})
    EXPECT_EQ(findings_of_a_batch(Plant::kDroppedExtent, jobs), (Found{"1stopped", "2stopped", "3stopped"}));
}

struct Batched {
  std::vector<std::uint64_t> digests;  // in the order in which they were told
  std::vector<std::uint32_t> reached;
  bool operator==(const Batched&) const = default;
};
Batched batched(std::uint32_t jobs, std::size_t most) {
  Batched out;
  run_batch({5, 7, {200, Plant::kNone}, jobs}, out.reached, [&](const SeedResult& result) {
    EXPECT_EQ(result.seed, 5 + out.digests.size());
    out.digests.push_back(result.digest);
    return out.digests.size() < most;
  });
  return out;
}

TEST_F(RunTest, ABatchIsTheSameInAnyNumberOfProcesses) {
  const Batched one = batched(1, 7);
  EXPECT_EQ(one.digests.size(), 7u);
  EXPECT_EQ(one, batched(3, 7));
  EXPECT_EQ(one, batched(16, 7));
  EXPECT_EQ(batched(3, 2).digests, (std::vector(one.digests.begin(), one.digests.begin() + 2)));
}

}  // namespace
}  // namespace orbitkv::sim
