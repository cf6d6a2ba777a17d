#include "model/recovery.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"

namespace orbitkv::model {
namespace {

std::string text_of(TokenRange range) {
  return "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")";
}

std::string text_of(GroupId group) {
  return "group " + std::to_string(group.value);
}

// Pages before a boundary that a group needs, where the tail has so many.
std::uint64_t pages_needed(const GroupRule& rule, std::uint32_t page_tokens) {
  switch (rule.rule) {
    case RecoveryRule::kPrefix: return limits::kTailPages;
    case RecoveryRule::kWindow: return (std::uint64_t{rule.window_tokens} + page_tokens - 1) / page_tokens;
    case RecoveryRule::kCheckpoint: return 1;
  }
  return limits::kTailPages;
}

// Counts for every page of a tail how many (shard, group) could go on at its end. A whole
// run of pages is counted by two marks, so the cost is that of the ranges and the pages.
class BoundaryCount {
 public:
  BoundaryCount(TokenRange tail, std::uint32_t page_tokens)
      : tail_(tail), page_tokens_(page_tokens), marks_((tail.end - tail.begin) / page_tokens + 1) {}

  Status add(const GroupRule& rule, std::span<const TokenRange> ranges) {
    const std::uint64_t needed = pages_needed(rule, page_tokens_);
    TokenRange run{tail_.begin, tail_.begin};
    for (const TokenRange& range : ranges) {
      const std::string wrong = problem(range, run);
      if (!wrong.empty()) return reject(text_of(rule.group) + " has " + text_of(range) + ", " + wrong);
      if (range.begin > run.end) {
        mark(run, needed);
        run.begin = range.begin;
      }
      run.end = range.end;
    }
    mark(run, needed);
    ++sets_;
    return ok_status();
  }

  // Where all that were added could go on.
  std::vector<std::uint64_t> boundaries() const {
    std::vector<std::uint64_t> out;
    std::uint32_t count = 0;
    for (std::size_t page = 0; page + 1 < marks_.size(); ++page) {
      count += marks_[page];
      if (count == sets_) out.push_back(tail_.begin + (page + 1) * page_tokens_);
    }
    return out;
  }

 private:
  std::uint64_t page_of(std::uint64_t token) const { return (token - tail_.begin) / page_tokens_; }

  // Why a range may not stand behind the run `before`; empty: it may.
  std::string problem(TokenRange range, TokenRange before) const {
    if (range.begin >= range.end) return "which is empty; leave such ranges out";
    if (range.begin < tail_.begin || range.end > tail_.end)
      return "which is not inside the tail " + text_of(tail_);
    if ((range.begin - tail_.begin) % page_tokens_ != 0 || (range.end - tail_.begin) % page_tokens_ != 0)
      return "which is not of whole pages of " + std::to_string(page_tokens_) + " tokens";
    if (range.begin < before.end)
      return "but stands behind " + text_of(before) + "; ranges must ascend and not overlap";
    return {};
  }

  // A run of touching ranges. Its first pages lack what a group needs before them, unless
  // the tail begins there.
  void mark(TokenRange run, std::uint64_t needed) {
    const std::uint64_t first = page_of(run.begin);
    const std::uint64_t end = page_of(run.end);
    const std::uint64_t from = first == 0 ? 0 : first + needed - 1;
    if (from >= end) return;
    ++marks_[from];
    --marks_[end];
  }

  TokenRange tail_;
  std::uint32_t page_tokens_;
  std::vector<std::uint32_t> marks_;  // differences between neighbours, modulo 2^32
  std::uint32_t sets_ = 0;
};

Status add_shard(std::span<const GroupRule> groups, std::span<const GroupCoverage> coverage,
                 BoundaryCount& count) {
  std::vector<bool> seen(groups.size());
  for (const GroupCoverage& part : coverage) {
    const auto rule = std::ranges::find(groups, part.group, &GroupRule::group);
    if (rule == groups.end()) return reject(text_of(part.group) + " is not declared in the contract");
    const auto index = static_cast<std::size_t>(rule - groups.begin());
    if (seen[index]) return reject(text_of(part.group) + " is there twice; give all its ranges at once");
    seen[index] = true;
    ORBITKV_RETURN_IF_ERROR(count.add(*rule, part.ranges));
  }
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (!seen[i])
      return reject(text_of(groups[i].group) + " is missing; give it without ranges if nothing is there");
  return ok_status();
}

Status validate_groups(std::span<const GroupRule> groups) {
  if (groups.empty() || groups.size() > limits::kGroups)
    return reject("count of groups is " + std::to_string(groups.size()) + "; it must be 1.." +
                  std::to_string(limits::kGroups));
  for (std::size_t i = 0; i < groups.size(); ++i) {
    ORBITKV_RETURN_IF_ERROR(validate_rule(text_of(groups[i].group), groups[i]));
    if (i > 0 && groups[i].group == groups[i - 1].group)
      return reject(text_of(groups[i].group) + " is declared twice; a group has one rule");
  }
  if (groups.front().group != GroupId(0))
    return reject("group 0 is missing; it must be there and be a prefix group (attention)");
  return ok_status();
}

}  // namespace

std::string_view rule_name(RecoveryRule rule) {
  switch (rule) {
    case RecoveryRule::kPrefix: return "prefix";
    case RecoveryRule::kWindow: return "window";
    case RecoveryRule::kCheckpoint: return "checkpoint";
  }
  return "unknown";
}

Status validate_rule(const std::string& field, const GroupRule& rule) {
  const std::string number = std::to_string(static_cast<unsigned>(rule.rule));
  if (rule_name(rule.rule) == "unknown")
    return reject(field + ".rule is " + number + "; it must be 1 (prefix), 2 (window) or 3 (checkpoint)");
  if (rule.group == GroupId(0) && rule.rule != RecoveryRule::kPrefix)
    return reject(field + ".rule is " + std::string(rule_name(rule.rule)) +
                  "; group 0 must be a prefix group (attention)");
  if (rule.rule == RecoveryRule::kWindow && rule.window_tokens == 0)
    return reject(field + ".window_tokens is 0; a window has at least one token");
  if (rule.rule != RecoveryRule::kWindow && rule.window_tokens != 0)
    return reject(field + ".window_tokens is " + std::to_string(rule.window_tokens) +
                  "; only a window group has one, this is a " + std::string(rule_name(rule.rule)) + " group");
  return ok_status();
}

RecoveryContract::RecoveryContract(std::string_view name_space, std::uint32_t page_tokens,
                                   std::vector<GroupRule> groups)
    : name_space_(name_space), page_tokens_(page_tokens), groups_(std::move(groups)) {}

Result<RecoveryContract> RecoveryContract::make(std::string_view name_space, std::uint32_t page_tokens,
                                                std::vector<GroupRule> groups) {
  if (name_space.empty() || name_space.size() > limits::kNamespaceBytes)
    return reject("length of name_space is " + std::to_string(name_space.size()) + "; it must be 1.." +
                  std::to_string(limits::kNamespaceBytes));
  if (page_tokens == 0) return reject("page_tokens is 0; a page has at least one token");
  std::ranges::stable_sort(groups, {}, &GroupRule::group);
  ORBITKV_RETURN_IF_ERROR(validate_groups(groups));
  return RecoveryContract(name_space, page_tokens, std::move(groups));
}

Status RecoveryContract::check(std::string_view name_space, TokenRange tail) const {
  if (name_space != name_space_)
    return reject(
        "the namespace is another one than the contract's; use the contract of the registration "
        "that the blocks belong to");
  return check_tail(tail);
}

Status RecoveryContract::check_tail(TokenRange tail) const {
  const std::string what = "the tail " + text_of(tail);
  if (tail.begin > tail.end) return reject(what + " ends before it begins");
  if (tail.begin % page_tokens_ != 0 || tail.end % page_tokens_ != 0)
    return reject(what + " is not of whole pages of " + std::to_string(page_tokens_) + " tokens");
  if ((tail.end - tail.begin) / page_tokens_ > limits::kTailPages)
    return reject(what + " has more than " + std::to_string(limits::kTailPages) + " pages of " +
                  std::to_string(page_tokens_) + " tokens");
  return ok_status();
}

Result<std::vector<GroupRange>> RecoveryContract::required_ranges(std::string_view name_space,
                                                                  TokenRange tail) const {
  ORBITKV_RETURN_IF_ERROR(check(name_space, tail));
  if (tail.begin == tail.end)
    return reject("the tail " + text_of(tail) + " is empty: a boundary lies behind its origin");
  const std::uint64_t pages = (tail.end - tail.begin) / page_tokens_;
  std::vector<GroupRange> out;
  out.reserve(groups_.size());
  for (const GroupRule& rule : groups_) {
    const std::uint64_t needed = std::min(pages, pages_needed(rule, page_tokens_));
    out.push_back({rule.group, {tail.end - needed * page_tokens_, tail.end}});
  }
  return out;
}

Result<std::vector<std::uint64_t>> RecoveryContract::restorable_boundaries(
    std::string_view name_space, TokenRange tail, std::span<const GroupCoverage> coverage) const {
  ORBITKV_RETURN_IF_ERROR(check(name_space, tail));
  BoundaryCount count(tail, page_tokens_);
  const Status added = add_shard(groups_, coverage, count);
  if (!added.ok()) return reject("coverage: " + added.error().message());
  return count.boundaries();
}

Result<std::vector<std::uint64_t>> RecoveryContract::common_boundaries(
    std::string_view name_space, TokenRange tail, std::span<const std::vector<GroupCoverage>> shards) const {
  ORBITKV_RETURN_IF_ERROR(check(name_space, tail));
  if (shards.empty() || shards.size() > limits::kShards)
    return reject("count of shards is " + std::to_string(shards.size()) + "; it must be 1.." +
                  std::to_string(limits::kShards));
  BoundaryCount count(tail, page_tokens_);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const Status added = add_shard(groups_, shards[i], count);
    if (!added.ok()) return reject("coverage of shard " + std::to_string(i) + ": " + added.error().message());
  }
  return count.boundaries();
}

Result<std::optional<std::uint64_t>> RecoveryContract::select_boundary(
    std::string_view name_space, TokenRange tail, std::span<const std::vector<GroupCoverage>> shards,
    std::uint64_t limit) const {
  ORBITKV_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> common,
                           common_boundaries(name_space, tail, shards));
  const auto above = std::ranges::upper_bound(common, limit);
  if (above == common.begin()) return std::optional<std::uint64_t>();
  return std::optional(*(above - 1));
}

Result<std::vector<TokenRange>> RecoveryContract::covered_ranges(TokenRange tail,
                                                                 std::span<const std::uint64_t> pages) const {
  ORBITKV_RETURN_IF_ERROR(check_tail(tail));
  const std::uint64_t count = (tail.end - tail.begin) / page_tokens_;
  if (pages.size() != (count + 63) / 64)
    return reject("the pages of the tail " + text_of(tail) + " fill " + std::to_string((count + 63) / 64) +
                  " words, but " + std::to_string(pages.size()) + " are given");
  std::vector<TokenRange> out;
  for (std::uint64_t page = 0; page < count; ++page) {
    if ((pages[page / 64] >> (page % 64) & 1) == 0) continue;
    const std::uint64_t begin = tail.begin + page * page_tokens_;
    if (!out.empty() && out.back().end == begin)
      out.back().end = begin + page_tokens_;
    else
      out.push_back({begin, begin + page_tokens_});
  }
  return out;
}

}  // namespace orbitkv::model
