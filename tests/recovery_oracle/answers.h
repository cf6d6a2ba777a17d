// What is answered to a case, by whomever, and the first difference between the oracle's
// answers and another's. A refusal has to name the group and the range at fault when the
// case has one fault only. Pure values, any thread.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/recovery_oracle/case.h"

namespace orbitkv::recovery_oracle {

// What makes an input wrong.
enum class Wrong : std::uint8_t {
  kPageZero,
  kNoGroups,
  kTooManyGroups,
  kGroupTwice,
  kNoGroupZero,
  kGroupZeroRule,
  kRuleUnknown,
  kWindowZero,
  kWindowForeign,  // on a group of another rule
  kNamespace,
  kTailMisaligned,
  kTailBackwards,
  kTailEmpty,  // where a boundary is taken for granted
  kNoShards,
  kTooManyShards,
  kListMissing,
  kListUnknown,
  kListTwice,
  kRangeEmpty,
  kRangeMisaligned,
  kRangeOutside,
  kRangeOrder,  // begins before the one before it ends
  kCount,
};

const char* name_of(Wrong wrong);

struct Violation {
  Wrong wrong{};
  std::optional<std::uint16_t> group;  // to be named
  std::vector<Range> ranges;           // one of these is to be named
};

template <class T>
struct Answer {
  std::optional<T> value;
  std::string refusal;                // "rejected: ..."
  std::vector<Violation> violations;  // the oracle's reasons
};

using Boundaries = std::vector<std::uint64_t>;
using Required = std::vector<std::pair<std::uint16_t, Range>>;

struct Answers {
  Answer<bool> contract;  // the rest is unanswered if this is refused
  Answer<Required> required;
  std::vector<Answer<Boundaries>> restorable;  // shard by shard
  Answer<Boundaries> common;
  Answer<std::optional<std::uint64_t>> selected;
};

// Empty if the answers agree; otherwise which one differs and what both say.
std::string difference(const Answers& oracle, const Answers& other);

}  // namespace orbitkv::recovery_oracle
