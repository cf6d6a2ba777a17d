// The recovery contract: at which tokens of a request an engine may go on computing with
// what is cached. Each group of a registration has a rule that says which tokens must be
// there; a boundary is one at which every group has all of its own, on every shard.
// Pure values, no engine types, no I/O. Any thread.
//
// Tokens are counted from the start of the request. A page is block_tokens of them. A tail
// is what an engine asks about: [origin, end), where origin is the end of what it holds
// itself. Boundaries are the ends of the tail's pages: origin < boundary <= end.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "orbitkv/types.h"

namespace orbitkv::model {

// For boundary b a prefix group needs [origin, b), a window group the last
// ceil(window / page) pages before b but none before origin, and a checkpoint group exactly
// the page that ends at b.
using orbitkv::RecoveryRule;
// "prefix", "window", "checkpoint"; "unknown" for a number that is none.
std::string_view rule_name(RecoveryRule rule);

// Half-open. Of pages, so both ends are multiples of the page.
struct TokenRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

struct GroupRule {
  GroupId group;
  RecoveryRule rule = RecoveryRule::kPrefix;
  std::uint32_t window_tokens = 0;  // kWindow: > 0; else 0
  friend bool operator==(const GroupRule&, const GroupRule&) = default;
};
// The rule is known and one that the group may have (group 0: prefix), and a window is there
// exactly if the rule asks for one. `field` begins the text.
Status validate_rule(const std::string& field, const GroupRule& rule);

// What one group needs.
struct GroupRange {
  GroupId group;
  TokenRange tokens;
  friend bool operator==(const GroupRange&, const GroupRange&) = default;
};

// What one shard has of one group: ranges of whole pages inside the tail, none of them empty,
// ascending and disjoint. They may touch.
struct GroupCoverage {
  GroupId group;
  std::vector<TokenRange> ranges;
};

// The rules of a registration, checked once. Every call below says with `name_space` which
// bytes it talks about; another one than the contract's is rejected. So are, by group and
// range: a tail that is not of whole pages or has more than limits::kTailPages, and coverage
// that lacks a group, names one twice or one that is not declared, or breaks the form above.
// All calls are linear in the pages of the tail and the ranges given.
class RecoveryContract {
 public:
  // Groups in any order, without duplicates. Group 0 must be there, with the prefix rule.
  static Result<RecoveryContract> make(std::string_view name_space, std::uint32_t page_tokens,
                                       std::vector<GroupRule> groups);

  // What every group needs for the boundary tail.end, ascending by group. An empty tail has
  // no boundary: rejected.
  Result<std::vector<GroupRange>> required_ranges(std::string_view name_space, TokenRange tail) const;

  // Every boundary of one shard, ascending. An empty tail has none. `coverage` has each
  // declared group once, in any order.
  Result<std::vector<std::uint64_t>> restorable_boundaries(std::string_view name_space, TokenRange tail,
                                                           std::span<const GroupCoverage> coverage) const;

  // The boundaries that all shards have. No shards: rejected.
  Result<std::vector<std::uint64_t>> common_boundaries(
      std::string_view name_space, TokenRange tail, std::span<const std::vector<GroupCoverage>> shards) const;

  // The greatest of them that is <= limit (any token), if there is one.
  Result<std::optional<std::uint64_t>> select_boundary(std::string_view name_space, TokenRange tail,
                                                       std::span<const std::vector<GroupCoverage>> shards,
                                                       std::uint64_t limit) const;

  // Coverage of a group from what a query answers: bit i of `pages` (bit i % 64 of word i / 64)
  // says that page i of the tail is there. One word for each 64 pages begun; touching pages
  // become one range.
  Result<std::vector<TokenRange>> covered_ranges(TokenRange tail, std::span<const std::uint64_t> pages) const;

  const std::string& name_space() const { return name_space_; }
  std::uint32_t page_tokens() const { return page_tokens_; }
  std::span<const GroupRule> groups() const { return groups_; }  // ascending

 private:
  RecoveryContract(std::string_view name_space, std::uint32_t page_tokens, std::vector<GroupRule> groups);
  Status check(std::string_view name_space, TokenRange tail) const;
  Status check_tail(TokenRange tail) const;

  std::string name_space_;
  std::uint32_t page_tokens_ = 0;
  std::vector<GroupRule> groups_;
};

}  // namespace orbitkv::model
