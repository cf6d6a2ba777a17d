// The code under test against the oracle, case by case. A case that fails is printed
// with its number and, made small, in full; so is one on which the code stops.
#include "model/recovery.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>

#include "tests/recovery_oracle/generator.h"
#include "tests/recovery_oracle/oracle.h"
#include "tests/recovery_oracle/shrink.h"

namespace orbitkv::recovery_oracle {
namespace {

// ---- the code's answers ----

model::RecoveryRule rule_of(Rule rule) {
  switch (rule) {
    case Rule::kPrefix: return model::RecoveryRule::kPrefix;
    case Rule::kWindow: return model::RecoveryRule::kWindow;
    case Rule::kCheckpoint: return model::RecoveryRule::kCheckpoint;
    default: return static_cast<model::RecoveryRule>(9);
  }
}

std::vector<model::GroupRule> groups_of(const Case& c) {
  std::vector<model::GroupRule> out;
  for (const Group& group : c.groups) out.push_back({GroupId(group.id), rule_of(group.rule), group.window});
  return out;
}

std::vector<model::GroupCoverage> coverage_of(const Shard& shard) {
  std::vector<model::GroupCoverage> out;
  for (const Covered& list : shard) {
    model::GroupCoverage& coverage = out.emplace_back();
    coverage.group = GroupId(list.group);
    for (const Range& range : list.ranges) coverage.ranges.push_back({range.begin, range.end});
  }
  return out;
}

template <class T, class U>
Answer<T> answer_of(const Result<U>& result, T (*convert)(const U&)) {
  Answer<T> out;
  if (result.ok()) {
    out.value = convert(*result);
  } else {
    out.refusal = result.error().to_string();
  }
  return out;
}

template <class T>
Answer<T> answer_of(const Result<T>& result) {
  return answer_of<T, T>(result, [](const T& value) { return value; });
}

Required required_of(const std::vector<model::GroupRange>& ranges) {
  Required out;
  for (const model::GroupRange& r : ranges)
    out.emplace_back(r.group.value, Range{r.tokens.begin, r.tokens.end});
  return out;
}

Answers code(const Case& c) {
  Answers out;
  const auto contract = model::RecoveryContract::make(c.name_space, c.page, groups_of(c));
  out.contract = answer_of<bool, model::RecoveryContract>(contract, [](const auto&) { return true; });
  if (!contract.ok()) return out;
  const model::TokenRange tail{c.tail.begin, c.tail.end};
  std::vector<std::vector<model::GroupCoverage>> shards;
  out.required = answer_of(contract->required_ranges(c.asked, tail), &required_of);
  for (const Shard& shard : c.shards) {
    shards.push_back(coverage_of(shard));
    out.restorable.push_back(answer_of(contract->restorable_boundaries(c.asked, tail, shards.back())));
  }
  out.common = answer_of(contract->common_boundaries(c.asked, tail, shards));
  out.selected = answer_of(contract->select_boundary(c.asked, tail, shards, c.limit));
  return out;
}

// ---- case by case ----

struct Running {
  Universe universe;
  CaseId id;
};
Running running;

// The case on which the code stops the program.
void print_running(int signal) {
  std::signal(signal, SIG_DFL);
  std::fprintf(stderr, "stopped on case %llu of seed %llu:\n%s",
               static_cast<unsigned long long>(running.id.number),
               static_cast<unsigned long long>(running.id.seed),
               print(generate(running.universe, running.id)).c_str());
  std::raise(signal);
}

std::string difference(const Case& c) {
  return difference(oracle(c), code(c));
}

// The small case differs in the same answer.
std::string failure(const Case& c) {
  const auto what = [](const std::string& text) { return text.substr(0, text.find(' ')); };
  const std::string first = what(difference(c));
  const Case small = shrink(c, [&](const Case& s) { return what(difference(s)) == first; });
  return print(small) + difference(small) + "\n\nfrom:\n" + print(c) + difference(c);
}

void compare(const Universe& universe, std::uint64_t cases) {
  std::signal(SIGABRT, print_running);
  std::signal(SIGSEGV, print_running);
  running = {universe, {20, 0}};
  bool same = true;
  for (; same && running.id.number < cases; ++running.id.number) {
    const Case c = generate(universe, running.id);
    same = difference(c).empty();
    EXPECT_TRUE(same) << "case " << running.id.number << " of seed " << running.id.seed << ":\n"
                      << failure(c);
  }
  std::signal(SIGABRT, SIG_DFL);
  std::signal(SIGSEGV, SIG_DFL);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kFewer = 20;
#else
constexpr std::uint64_t kFewer = 1;
#endif

TEST(RecoveryAgainstOracle, AMillionSmallCases) {
  compare(kSmall, 1'000'000 / kFewer);
}

TEST(RecoveryAgainstOracle, LargeCases) {
  compare(kLarge, 400 / kFewer);
}

// The form in which a query is answered: the same pages, in as few ranges as there are runs.
TEST(RecoveryAgainstOracle, RangesOfABitmapAreItsRuns) {
  for (std::uint64_t number = 0; number < 50'000 / kFewer; ++number) {
    Draw draw({30, number});
    const std::uint64_t page = 1 + draw.below(100), origin = draw.below(1000) * page, pages = draw.below(200);
    std::vector<std::uint64_t> words((pages + 63) / 64);
    for (std::uint64_t& word : words) word = draw.next() | (draw.one_in(2) ? draw.next() : 0);
    std::vector<model::TokenRange> runs;
    for (std::uint64_t i = 0; i < pages; ++i) {
      if ((words[i / 64] >> i % 64 & 1) == 0) continue;
      if (runs.empty() || runs.back().end != origin + i * page) runs.push_back({origin + i * page, 0});
      runs.back().end = origin + (i + 1) * page;
    }
    const auto contract =
        model::RecoveryContract::make("a", static_cast<std::uint32_t>(page), {{GroupId(0)}});
    ASSERT_EQ(*contract->covered_ranges({origin, origin + pages * page}, words), runs) << "case " << number;
  }
}

}  // namespace
}  // namespace orbitkv::recovery_oracle
