#include "model/recovery.h"

#include <gtest/gtest.h>

#include "base/limits.h"

namespace orbitkv::model {
namespace {

using Boundaries = std::vector<std::uint64_t>;
using Coverage = std::vector<GroupCoverage>;
using Ranges = std::vector<TokenRange>;

constexpr GroupRule kAttention{GroupId(0), RecoveryRule::kPrefix, 0};
constexpr GroupRule kSliding{GroupId(1), RecoveryRule::kWindow, 100};
constexpr GroupRule kRecurrent{GroupId(7), RecoveryRule::kCheckpoint, 0};
constexpr TokenRange kTail{128, 512};

RecoveryContract contract_of(std::vector<GroupRule> groups, std::uint32_t page_tokens = 64) {
  auto made = RecoveryContract::make("ns", page_tokens, std::move(groups));
  EXPECT_TRUE(made.ok()) << made.error().message();
  return std::move(made).value();
}

RecoveryContract hybrid() {
  return contract_of({kAttention, kSliding, kRecurrent});
}

// Everything of `tail` in every group.
Coverage all_of(const RecoveryContract& contract, TokenRange tail) {
  Coverage out;
  for (const GroupRule& rule : contract.groups()) out.push_back({rule.group, {tail}});
  return out;
}

Boundaries restorable(const RecoveryContract& contract, TokenRange tail, const Coverage& coverage) {
  const auto out = contract.restorable_boundaries("ns", tail, coverage);
  EXPECT_TRUE(out.ok()) << out.error().message();
  return *out;
}

// Of one group beside a complete group 0.
Boundaries restorable_of(GroupRule rule, const Ranges& ranges) {
  return restorable(contract_of({kAttention, rule}), kTail, {{GroupId(0), {kTail}}, {rule.group, ranges}});
}

template <class T>
std::string refusal(const Result<T>& result) {
  if (result.ok()) return "accepted";
  EXPECT_EQ(result.error().code(), Code::kReject);
  return result.error().message();
}

// ---- the rules ----

TEST(Recovery, RequiredRangesOfEachRule) {
  const auto ranges = hybrid().required_ranges("ns", kTail);
  ASSERT_TRUE(ranges.ok()) << ranges.error().message();
  EXPECT_EQ(*ranges, (std::vector<GroupRange>{
                         {GroupId(0), {128, 512}}, {GroupId(1), {384, 512}}, {GroupId(7), {448, 512}}}));
}

TEST(Recovery, AWindowIsWholePagesAndEndsAtTheOrigin) {
  const auto begin_of = [](std::uint32_t window, TokenRange tail) {
    const auto contract = contract_of({kAttention, {GroupId(1), RecoveryRule::kWindow, window}});
    return (*contract.required_ranges("ns", tail))[1].tokens.begin;
  };
  EXPECT_EQ(begin_of(1, kTail), 448u);
  EXPECT_EQ(begin_of(64, kTail), 448u);
  EXPECT_EQ(begin_of(65, kTail), 384u);
  EXPECT_EQ(begin_of(384, kTail), 128u);
  EXPECT_EQ(begin_of(385, kTail), 128u) << "what the engine holds itself";
  EXPECT_EQ(begin_of(UINT32_MAX, kTail), 128u);
  EXPECT_EQ(begin_of(UINT32_MAX, {0, 64}), 0u);
}

TEST(Recovery, APrefixGoesOnToItsFirstHole) {
  const auto contract = contract_of({kAttention});
  EXPECT_EQ(restorable(contract, kTail, {{GroupId(0), {}}}), Boundaries());
  EXPECT_EQ(restorable(contract, kTail, {{GroupId(0), {{192, 512}}}}), Boundaries());
  EXPECT_EQ(restorable(contract, kTail, {{GroupId(0), {{128, 192}, {256, 512}}}}), (Boundaries{192}));
  EXPECT_EQ(restorable(contract, kTail, {{GroupId(0), {{128, 192}, {192, 320}}}}),
            (Boundaries{192, 256, 320}))
      << "touching ranges are one";
}

TEST(Recovery, AWindowNeedsItsLastPagesOrAllSinceTheOrigin) {
  EXPECT_EQ(restorable_of(kSliding, {}), Boundaries());
  EXPECT_EQ(restorable_of(kSliding, {kTail}), (Boundaries{192, 256, 320, 384, 448, 512}));
  EXPECT_EQ(restorable_of(kSliding, {{128, 192}}), (Boundaries{192})) << "the engine holds the rest";
  EXPECT_EQ(restorable_of(kSliding, {{192, 256}}), Boundaries());
  EXPECT_EQ(restorable_of(kSliding, {{192, 320}, {384, 512}}), (Boundaries{320, 512}));
  EXPECT_EQ(restorable_of(kSliding, {{192, 256}, {256, 320}}), (Boundaries{320}))
      << "touching ranges are one";
  EXPECT_EQ(restorable_of({GroupId(1), RecoveryRule::kWindow, 64}, {{192, 256}}), (Boundaries{256}));
  EXPECT_EQ(restorable_of({GroupId(1), RecoveryRule::kWindow, 5 * 64}, {{192, 512}}), (Boundaries{512}));
  EXPECT_EQ(restorable_of({GroupId(1), RecoveryRule::kWindow, 5 * 64 + 1}, {{192, 512}}), Boundaries());
}

TEST(Recovery, ACheckpointNeedsThePageThatEndsThere) {
  EXPECT_EQ(restorable_of(kRecurrent, {}), Boundaries());
  EXPECT_EQ(restorable_of(kRecurrent, {{128, 192}, {320, 448}}), (Boundaries{192, 384, 448}));
}

TEST(Recovery, ALongerPrefixWithAShorterCheckpointIsNotALongerBoundary) {
  const auto contract = hybrid();
  const Coverage coverage = {{GroupId(0), {{128, 448}}}, {GroupId(1), {kTail}}, {GroupId(7), {{192, 256}}}};
  EXPECT_EQ(restorable(contract, kTail, coverage), (Boundaries{256}));
}

TEST(Recovery, CoverageMayNameItsGroupsInAnyOrder) {
  const Coverage coverage = {{GroupId(7), {{448, 512}}}, {GroupId(0), {kTail}}, {GroupId(1), {{384, 512}}}};
  EXPECT_EQ(restorable(hybrid(), kTail, coverage), (Boundaries{512}));
}

// ---- over shards ----

TEST(Recovery, ShardsIntersectSetsNotMaxima) {
  const auto contract = contract_of({kAttention, kRecurrent});
  const auto with = [](Ranges checkpoints) {
    return Coverage{{GroupId(0), {kTail}}, {GroupId(7), std::move(checkpoints)}};
  };
  const std::vector<Coverage> shards = {with({{128, 192}, {448, 512}}), with({{128, 192}, {320, 384}})};
  EXPECT_EQ(*contract.common_boundaries("ns", kTail, shards), (Boundaries{192}))
      << "the lesser of the greatest, 384, is on one shard only";
  EXPECT_EQ(*contract.common_boundaries("ns", kTail, std::vector<Coverage>{shards[0]}),
            (Boundaries{192, 512}));
  EXPECT_EQ(*contract.common_boundaries("ns", kTail, std::vector<Coverage>{shards[0], with({{256, 320}})}),
            Boundaries());
}

TEST(Recovery, SelectTakesTheGreatestUpToTheLimit) {
  const auto contract = contract_of({kAttention, kRecurrent});
  const std::vector<Coverage> shards = {
      {{GroupId(0), {kTail}}, {GroupId(7), {{128, 192}, {320, 384}, {448, 512}}}}};
  const auto select = [&](std::uint64_t limit) {
    return *contract.select_boundary("ns", kTail, shards, limit);
  };
  EXPECT_EQ(select(0), std::nullopt);
  EXPECT_EQ(select(191), std::nullopt);
  EXPECT_EQ(select(192), 192u);
  EXPECT_EQ(select(383), 192u);
  EXPECT_EQ(select(384), 384u);
  EXPECT_EQ(select(511), 384u) << "a checkpoint of a prompt's last token is of use only behind it";
  EXPECT_EQ(select(512), 512u);
  EXPECT_EQ(select(UINT64_MAX), 512u);
}

TEST(Recovery, AnEmptyTailHasNoBoundary) {
  const auto contract = contract_of({kAttention});
  EXPECT_EQ(restorable(contract, {128, 128}, {{GroupId(0), {}}}), Boundaries());
  EXPECT_EQ(*contract.select_boundary("ns", {0, 0}, std::vector<Coverage>{{{GroupId(0), {}}}}, 1000),
            std::nullopt);
  EXPECT_EQ(refusal(contract.required_ranges("ns", {128, 128})),
            "the tail [128, 128) is empty: a boundary lies behind its origin");
}

// ---- limits ----

TEST(Recovery, TheFarEndOfTokensDoesNotOverflow) {
  const std::uint64_t end = std::uint64_t{1} << 63;
  const TokenRange tail{end - 128, end};
  const auto contract = contract_of({kAttention, {GroupId(1), RecoveryRule::kWindow, UINT32_MAX}});
  EXPECT_EQ(restorable(contract, tail, all_of(contract, tail)), (Boundaries{end - 64, end}));
  EXPECT_EQ((*contract.required_ranges("ns", tail))[1].tokens, tail);
  const std::uint32_t page = UINT32_MAX;
  const TokenRange wide{0, std::uint64_t{page} * limits::kTailPages};
  const auto coarse = contract_of({kAttention, {GroupId(1), RecoveryRule::kWindow, UINT32_MAX}}, page);
  EXPECT_EQ((*coarse.required_ranges("ns", wide))[1].tokens.begin, wide.end - page);
  EXPECT_EQ(restorable(coarse, wide, all_of(coarse, wide)).size(), limits::kTailPages);
}

TEST(Recovery, TheLargestTailWithAHoleInEverySecondPage) {
  const auto contract = contract_of({kAttention, kRecurrent}, 1);
  const TokenRange tail{0, limits::kTailPages};
  Ranges holes;
  for (std::uint64_t at = 0; at < tail.end; at += 2) holes.push_back({at, at + 1});
  const std::vector<Coverage> shards(4, {{GroupId(0), {tail}}, {GroupId(7), holes}});
  const auto common = contract.common_boundaries("ns", tail, shards);
  ASSERT_TRUE(common.ok()) << common.error().message();
  ASSERT_EQ(common->size(), holes.size());
  EXPECT_EQ(common->front(), 1u);
  EXPECT_EQ(common->back(), limits::kTailPages - 1);
}

TEST(Recovery, MoreThanTheLimitsIsRejected) {
  const auto contract = contract_of({kAttention}, 1);
  const TokenRange tail{0, limits::kTailPages + std::uint64_t{1}};
  EXPECT_EQ(refusal(contract.required_ranges("ns", tail)),
            "the tail [0, 1048577) has more than 1048576 pages of 1 tokens");
  EXPECT_EQ(refusal(contract.required_ranges("ns", {0, UINT64_MAX})).substr(0, 9), "the tail ");
  const std::vector<Coverage> shards(limits::kShards + 1, all_of(contract, {0, 1}));
  EXPECT_EQ(refusal(contract.common_boundaries("ns", {0, 1}, shards)),
            "count of shards is 65; it must be 1..64");
}

// ---- contracts that are refused ----

std::string make_refusal(std::vector<GroupRule> groups) {
  return refusal(RecoveryContract::make("ns", 64, std::move(groups)));
}

TEST(Recovery, GroupsAreSortedAndKept) {
  const auto contract = contract_of({kRecurrent, kAttention, kSliding});
  EXPECT_TRUE(std::ranges::equal(contract.groups(), std::vector{kAttention, kSliding, kRecurrent}));
  EXPECT_EQ(contract.name_space(), "ns");
  EXPECT_EQ(contract.page_tokens(), 64u);
}

TEST(Recovery, ContractsAreRefusedByName) {
  EXPECT_EQ(make_refusal({}), "count of groups is 0; it must be 1..16");
  EXPECT_EQ(make_refusal(std::vector(17, kAttention)), "count of groups is 17; it must be 1..16");
  EXPECT_EQ(make_refusal({kAttention, kSliding, kSliding}),
            "group 1 is declared twice; a group has one rule");
  EXPECT_EQ(make_refusal({kSliding, kRecurrent}),
            "group 0 is missing; it must be there and be a prefix group (attention)");
  EXPECT_EQ(make_refusal({{GroupId(0), RecoveryRule::kCheckpoint, 0}}),
            "group 0.rule is checkpoint; group 0 must be a prefix group (attention)");
  EXPECT_EQ(make_refusal({{GroupId(0), RecoveryRule::kWindow, 64}}),
            "group 0.rule is window; group 0 must be a prefix group (attention)");
  EXPECT_EQ(make_refusal({kAttention, {GroupId(1), RecoveryRule::kWindow, 0}}),
            "group 1.window_tokens is 0; a window has at least one token");
  EXPECT_EQ(make_refusal({kAttention, {GroupId(1), RecoveryRule::kPrefix, 5}}),
            "group 1.window_tokens is 5; only a window group has one, this is a prefix group");
  EXPECT_EQ(make_refusal({kAttention, {GroupId(1), RecoveryRule::kCheckpoint, 5}}),
            "group 1.window_tokens is 5; only a window group has one, this is a checkpoint group");
  for (const unsigned number : {0u, 4u, 255u})
    EXPECT_EQ(make_refusal({{GroupId(0), static_cast<RecoveryRule>(number), 0}}),
              "group 0.rule is " + std::to_string(number) +
                  "; it must be 1 (prefix), 2 (window) or 3 (checkpoint)");
  EXPECT_EQ(refusal(RecoveryContract::make("ns", 0, {kAttention})),
            "page_tokens is 0; a page has at least one token");
  EXPECT_EQ(refusal(RecoveryContract::make("", 64, {kAttention})),
            "length of name_space is 0; it must be 1..512");
  EXPECT_EQ(refusal(RecoveryContract::make(std::string(513, 'n'), 64, {kAttention})),
            "length of name_space is 513; it must be 1..512");
}

TEST(Recovery, TheLimitsOfAContractAreAccepted) {
  std::vector<GroupRule> groups = {kAttention};
  for (std::uint16_t g = 1; g < limits::kGroups; ++g)
    groups.push_back({GroupId(static_cast<std::uint16_t>(UINT16_MAX - g)), RecoveryRule::kWindow, 1});
  EXPECT_TRUE(RecoveryContract::make(std::string(512, 'n'), UINT32_MAX, groups).ok());
}

// ---- questions that are refused ----

TEST(Recovery, AnotherNamespaceIsRefusedByEveryCall) {
  const auto contract = hybrid();
  const std::vector<Coverage> shards = {all_of(contract, kTail)};
  for (const std::string name : {"", "n", "nsx", "NS"}) {
    EXPECT_EQ(refusal(contract.required_ranges(name, kTail)).substr(0, 31),
              "the namespace is another one th");
    EXPECT_FALSE(contract.restorable_boundaries(name, kTail, shards[0]).ok());
    EXPECT_FALSE(contract.common_boundaries(name, kTail, shards).ok());
    EXPECT_FALSE(contract.select_boundary(name, kTail, shards, 512).ok());
  }
}

TEST(Recovery, ATailIsOfWholePages) {
  const auto contract = contract_of({kAttention});
  for (const TokenRange tail : {TokenRange{127, 512}, {129, 512}, {128, 511}, {128, 513}})
    EXPECT_NE(refusal(contract.required_ranges("ns", tail)).find("is not of whole pages of 64 tokens"),
              std::string::npos);
  EXPECT_EQ(refusal(contract.restorable_boundaries("ns", {192, 128}, Coverage{{GroupId(0), {}}})),
            "the tail [192, 128) ends before it begins");
}

// Coverage of group 1 that is refused, beside a complete group 0.
std::string coverage_refusal(const Ranges& ranges) {
  const Coverage coverage = {{GroupId(0), {kTail}}, {GroupId(1), ranges}};
  return refusal(contract_of({kAttention, kSliding}).restorable_boundaries("ns", kTail, coverage));
}

TEST(Recovery, CoverageIsRefusedByGroupAndRange) {
  EXPECT_EQ(coverage_refusal({{192, 192}}),
            "coverage: group 1 has [192, 192), which is empty; leave such ranges out");
  EXPECT_EQ(coverage_refusal({{256, 192}}),
            "coverage: group 1 has [256, 192), which is empty; leave such ranges out");
  EXPECT_EQ(coverage_refusal({{64, 192}}),
            "coverage: group 1 has [64, 192), which is not inside the tail [128, 512)");
  EXPECT_EQ(coverage_refusal({{448, 576}}),
            "coverage: group 1 has [448, 576), which is not inside the tail [128, 512)");
  EXPECT_EQ(coverage_refusal({{512, 576}}),
            "coverage: group 1 has [512, 576), which is not inside the tail [128, 512)");
  for (const TokenRange odd : {TokenRange{191, 256}, {193, 256}, {192, 255}, {192, 257}})
    EXPECT_NE(coverage_refusal({odd}).find("not of whole pages"), std::string::npos)
        << odd.begin << " " << odd.end;
  EXPECT_EQ(
      coverage_refusal({{192, 256}, {128, 192}}),
      "coverage: group 1 has [128, 192), but stands behind [192, 256); ranges must ascend and not overlap");
  EXPECT_EQ(
      coverage_refusal({{128, 256}, {192, 320}}),
      "coverage: group 1 has [192, 320), but stands behind [128, 256); ranges must ascend and not overlap");
  EXPECT_EQ(
      coverage_refusal({{128, 256}, {128, 256}}),
      "coverage: group 1 has [128, 256), but stands behind [128, 256); ranges must ascend and not overlap");
}

TEST(Recovery, CoverageHasEveryGroupOnceAndNoOther) {
  const auto contract = contract_of({kAttention, kSliding});
  const auto refused = [&](const Coverage& coverage) {
    return refusal(contract.restorable_boundaries("ns", kTail, coverage));
  };
  EXPECT_EQ(refused({}), "coverage: group 0 is missing; give it without ranges if nothing is there");
  EXPECT_EQ(refused({{GroupId(0), {kTail}}}),
            "coverage: group 1 is missing; give it without ranges if nothing is there");
  EXPECT_EQ(refused({{GroupId(0), {}}, {GroupId(1), {}}, {GroupId(2), {}}}),
            "coverage: group 2 is not declared in the contract");
  EXPECT_EQ(refused({{GroupId(0), {}}, {GroupId(1), {}}, {GroupId(0), {}}}),
            "coverage: group 0 is there twice; give all its ranges at once");
}

TEST(Recovery, ShardsAreRefusedByNumber) {
  const auto contract = contract_of({kAttention});
  EXPECT_EQ(refusal(contract.common_boundaries("ns", kTail, {})), "count of shards is 0; it must be 1..64");
  EXPECT_EQ(refusal(contract.select_boundary("ns", kTail, {}, 512)),
            "count of shards is 0; it must be 1..64");
  const std::vector<Coverage> shards = {{{GroupId(0), {kTail}}}, {{GroupId(0), {{100, 192}}}}};
  EXPECT_EQ(refusal(contract.common_boundaries("ns", kTail, shards)),
            "coverage of shard 1: group 0 has [100, 192), which is not inside the tail [128, 512)");
}

// ---- coverage from bits ----

TEST(Recovery, BitsBecomeRanges) {
  const auto contract = contract_of({kAttention});
  const auto ranges = [&](TokenRange tail, std::vector<std::uint64_t> pages) {
    return *contract.covered_ranges(tail, pages);
  };
  EXPECT_EQ(ranges(kTail, {0}), Ranges());
  EXPECT_EQ(ranges(kTail, {0b111111}), (Ranges{kTail}));
  EXPECT_EQ(ranges(kTail, {0b101101}), (Ranges{{128, 192}, {256, 384}, {448, 512}}));
  EXPECT_EQ(ranges(kTail, {~std::uint64_t{0}}), (Ranges{kTail})) << "bits behind the tail say nothing";
  EXPECT_EQ(ranges({64, 64}, {}), Ranges());
  const TokenRange two_words{0, 65 * 64};
  EXPECT_EQ(ranges(two_words, {std::uint64_t{1} << 63, 1}), (Ranges{{63 * 64, 65 * 64}}));
  const auto word_short = contract.covered_ranges(two_words, std::vector<std::uint64_t>{1});
  EXPECT_EQ(refusal(word_short), "the pages of the tail [0, 4160) fill 2 words, but 1 are given");
  EXPECT_FALSE(contract.covered_ranges({1, 64}, std::vector<std::uint64_t>{1}).ok());
}

TEST(Recovery, RulesHaveNames) {
  EXPECT_EQ(rule_name(RecoveryRule::kPrefix), "prefix");
  EXPECT_EQ(rule_name(RecoveryRule::kWindow), "window");
  EXPECT_EQ(rule_name(RecoveryRule::kCheckpoint), "checkpoint");
  EXPECT_EQ(rule_name(static_cast<RecoveryRule>(4)), "unknown");
}

}  // namespace
}  // namespace orbitkv::model
