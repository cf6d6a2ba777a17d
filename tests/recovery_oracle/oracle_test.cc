// The oracle by itself: what it says, what its cases reach, and that a fault planted in
// it is noticed and printed small.
#include "tests/recovery_oracle/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/recovery_oracle/generator.h"
#include "tests/recovery_oracle/shrink.h"

namespace orbitkv::recovery_oracle {
namespace {

constexpr std::uint64_t kSeed = 1;
constexpr std::uint64_t kCases = 8000;

Case small_case(std::uint64_t number) {
  return generate(kSmall, {kSeed, number});
}

std::string planted_difference(const Case& c, Planted planted) {
  return difference(oracle(c), oracle(c, planted));
}

// The first case that the fault changes, made small.
Case smallest(Planted planted) {
  const auto fails = [&](const Case& c) { return !planted_difference(c, planted).empty(); };
  for (std::uint64_t number = 0; number < kCases; ++number) {
    const Case c = small_case(number);
    if (fails(c)) return shrink(c, fails);
  }
  return {};
}

TEST(RecoveryOracle, KnowsTheExampleOfTheRules) {
  Case c;
  c.page = 64;
  c.tail = {128, 512};
  c.limit = 511;
  c.groups = {{0, Rule::kPrefix, 0}, {1, Rule::kWindow, 100}, {2, Rule::kCheckpoint, 0}};
  c.shards = {{{0, {{128, 512}}}, {1, {{128, 192}, {320, 512}}}, {2, {{128, 256}, {384, 512}}}},
              {{0, {{128, 256}, {256, 512}}}, {1, {{128, 512}}}, {2, {{128, 192}, {384, 448}}}}};
  const Answers answers = oracle(c);
  EXPECT_EQ(answers.required.value, (Required{{0, {128, 512}}, {1, {384, 512}}, {2, {448, 512}}}));
  EXPECT_EQ(answers.restorable[0].value, (Boundaries{192, 448, 512}));
  EXPECT_EQ(answers.restorable[1].value, (Boundaries{192, 448}));
  EXPECT_EQ(answers.common.value, (Boundaries{192, 448}));
  EXPECT_EQ(answers.selected.value, std::optional<std::uint64_t>(448));
}

TEST(RecoveryOracle, EveryPlantedFaultIsFound) {
  std::map<std::string, int> found;
  for (std::uint64_t number = 0; number < kCases; ++number) {
    const Case c = small_case(number);
    const Answers truth = oracle(c);
    for (int fault = 1; fault < static_cast<int>(Fault::kRefusalsForgotten); ++fault) {
      const Planted planted{static_cast<Fault>(fault)};
      found["fault " + std::to_string(fault)] += !difference(truth, oracle(c, planted)).empty();
    }
    for (int wrong = 0; wrong < static_cast<int>(Wrong::kCount); ++wrong) {
      const Planted planted{Fault::kRefusalsForgotten, static_cast<Wrong>(wrong)};
      found[name_of(planted.forgotten)] += !difference(truth, oracle(c, planted)).empty();
    }
  }
  for (const auto& [fault, cases] : found) EXPECT_GE(cases, 5) << fault;
}

TEST(RecoveryOracle, AFailingCaseIsPrintedSmall) {
  EXPECT_EQ(print(smallest({Fault::kMinimumOfMaxima})),
            "contract of \"a\", asked for \"a\"; page 1, tail [0, 2), limit 2\n"
            "group 0: prefix\n"
            "group 1: window, window 1\n"
            "shard 0: group 0 {[0, 2)} group 1 {[1, 2)}\n"
            "shard 1: group 0 {[0, 1)} group 1 {[0, 1)}\n");
  EXPECT_EQ(print(smallest({Fault::kWindowFloor})),
            "contract of \"a\", asked for \"a\"; page 2, tail [0, 2), limit 2\n"
            "group 0: prefix\n"
            "group 1: window, window 1\n"
            "no shards\n");
  EXPECT_EQ(print(smallest({Fault::kCheckpointAnyPage})),
            "contract of \"a\", asked for \"a\"; page 1, tail [0, 2), limit 2\n"
            "group 0: prefix\n"
            "group 1: checkpoint\n"
            "shard 0: group 0 {[0, 2)} group 1 {[0, 1)}\n");
}

// A refusal that says too little is a difference too.
TEST(RecoveryOracle, ARefusalNamesTheGroupAndTheRange) {
  Case c;
  c.page = 16;
  c.tail = {0, 32};
  c.groups = {{0, Rule::kPrefix, 0}, {7, Rule::kPrefix, 0}};
  c.shards = {{{0, {}}, {7, {{16, 24}}}}};
  const Answers truth = oracle(c);
  const auto with = [&](const std::string& refusal) {
    Answers other = truth;
    other.restorable[0].refusal = refusal;
    return difference(truth, other);
  };
  EXPECT_EQ(with("rejected: group 7 covers 16..24, which ends in a page"), "");
  EXPECT_NE(with("rejected: group 7 covers 160..24, which ends in a page").find("does not name the range"),
            std::string::npos);
  EXPECT_NE(with("rejected: group 17 covers 16..24").find("does not name the group"), std::string::npos);
  EXPECT_NE(with("bug: group 7 covers 16..24").find("does not reject"), std::string::npos);
}

// ---- what the cases reach ----

struct Reached {
  int accepted, empty_tails, no_shards, far, touching, some_common, none_common, nothing_restorable, limited;
};

bool touches(const Case& c) {
  for (const Shard& shard : c.shards) {
    for (const Covered& list : shard) {
      const auto touch = [](const Range& a, const Range& b) { return a.end == b.begin; };
      if (std::ranges::adjacent_find(list.ranges, touch) != list.ranges.end()) return true;
    }
  }
  return false;
}

void count(const Case& c, const Answers& answers, Reached& to) {
  to.no_shards += answers.contract.value && c.shards.empty();
  if (!answers.common.value) return;
  to.accepted++;
  to.empty_tails += c.tail.begin == c.tail.end;
  to.far += c.tail.end > (std::uint64_t{1} << 63) - c.page;
  to.touching += touches(c);
  to.some_common += !answers.common.value->empty();
  const auto none = [](const Answer<Boundaries>& shard) { return shard.value->empty(); };
  const bool any_none = std::ranges::any_of(answers.restorable, none);
  to.nothing_restorable += any_none;
  to.none_common += !any_none && answers.common.value->empty();
  to.limited += !answers.common.value->empty() && *answers.selected.value != answers.common.value->back();
}

TEST(RecoveryOracle, CasesReachWhatTheyShould) {
  Reached reached{};
  for (std::uint64_t number = 0; number < kCases; ++number) {
    const Case c = small_case(number);
    count(c, oracle(c), reached);
  }
  const int cases = kCases;
  EXPECT_GT(reached.accepted, cases / 2);
  EXPECT_GT(reached.some_common, cases / 4);
  EXPECT_GT(reached.limited, cases / 20);
  EXPECT_GT(reached.nothing_restorable, cases / 20);
  EXPECT_GT(reached.none_common, cases / 200);
  EXPECT_GT(reached.touching, cases / 20);
  EXPECT_GT(reached.far, cases / 20);
  EXPECT_GT(reached.empty_tails, cases / 200);
  EXPECT_GT(reached.no_shards, cases / 200);
}

}  // namespace
}  // namespace orbitkv::recovery_oracle
