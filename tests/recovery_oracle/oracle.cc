#include "tests/recovery_oracle/oracle.h"

#include <algorithm>
#include <set>

namespace orbitkv::recovery_oracle {
namespace {

using Violations = std::vector<Violation>;
using PageSet = std::vector<bool>;  // of the tail, from its first page on

template <class T>
Answer<T> refuse(const Violations& violations) {
  Answer<T> answer;
  answer.refusal = "rejected: ";
  for (const Violation& v : violations) {
    answer.refusal += name_of(v.wrong);
    if (v.group) answer.refusal += " in group " + std::to_string(*v.group);
    for (const Range& range : v.ranges) answer.refusal += " " + print(range);
    answer.refusal += "; ";
  }
  answer.violations = violations;
  return answer;
}

template <class T>
Answer<T> accept(T value) {
  Answer<T> answer;
  answer.value = std::move(value);
  return answer;
}

class Oracle {
 public:
  Oracle(const Case& c, Planted planted) : c_(c), planted_(planted) {}

  Answers answers() const {
    Answers out;
    const Violations contract = contract_violations();
    out.contract = contract.empty() ? accept(true) : refuse<bool>(contract);
    // Nothing can be asked of a page of no tokens, whatever is forgotten.
    if (!contract.empty() || c_.page == 0) return out;
    const Violations question = question_violations();
    Violations ranges = question;
    if (c_.tail.begin == c_.tail.end) note(ranges, {Wrong::kTailEmpty, {}, {c_.tail}});
    out.required = ranges.empty() ? accept(required()) : refuse<Required>(ranges);
    Violations all = question;
    if (c_.shards.empty()) note(all, {Wrong::kNoShards, {}, {}});
    if (c_.shards.size() > kMostShards) note(all, {Wrong::kTooManyShards, {}, {}});
    for (const Shard& shard : c_.shards) {
      Violations here = question;
      add_shard_violations(shard, here);
      out.restorable.push_back(here.empty() ? accept(restorable(shard)) : refuse<Boundaries>(here));
      all.insert(all.end(), here.begin() + static_cast<std::ptrdiff_t>(question.size()), here.end());
    }
    if (all.empty()) {
      out.common = accept(common(out.restorable));
      out.selected = accept(select(*out.common.value));
    } else {
      out.common = refuse<Boundaries>(all);
      out.selected = refuse<std::optional<std::uint64_t>>(all);
    }
    return out;
  }

 private:
  bool planted(Fault fault) const { return planted_.fault == fault; }

  void note(Violations& to, Violation violation) const {
    if (planted(Fault::kRefusalsForgotten) && planted_.forgotten == violation.wrong) return;
    to.push_back(std::move(violation));
  }

  // ---- what is wrong ----

  Violations contract_violations() const {
    Violations out;
    if (c_.page == 0) note(out, {Wrong::kPageZero, {}, {}});
    if (c_.groups.empty()) {
      note(out, {Wrong::kNoGroups, {}, {}});
      return out;
    }
    if (c_.groups.size() > kMostGroups) note(out, {Wrong::kTooManyGroups, {}, {}});
    bool zero = false;
    for (std::size_t i = 0; i < c_.groups.size(); ++i) {
      const Group& group = c_.groups[i];
      zero = zero || group.id == 0;
      for (std::size_t j = 0; j < i; ++j) {
        if (c_.groups[j].id == group.id) note(out, {Wrong::kGroupTwice, group.id, {}});
      }
      add_group_violations(group, out);
    }
    if (!zero) note(out, {Wrong::kNoGroupZero, {}, {}});
    return out;
  }

  void add_group_violations(const Group& group, Violations& out) const {
    const bool window = group.rule == Rule::kWindow;
    if (group.rule == Rule::kUnknown) note(out, {Wrong::kRuleUnknown, group.id, {}});
    if (group.id == 0 && group.rule != Rule::kPrefix) note(out, {Wrong::kGroupZeroRule, group.id, {}});
    if (window && group.window == 0) note(out, {Wrong::kWindowZero, group.id, {}});
    if (!window && group.window != 0) note(out, {Wrong::kWindowForeign, group.id, {}});
  }

  Violations question_violations() const {
    Violations out;
    if (c_.asked != c_.name_space) note(out, {Wrong::kNamespace, {}, {}});
    if (c_.tail.end < c_.tail.begin) note(out, {Wrong::kTailBackwards, {}, {c_.tail}});
    if (misaligned(c_.tail)) note(out, {Wrong::kTailMisaligned, {}, {c_.tail}});
    return out;
  }

  bool misaligned(const Range& range) const { return range.begin % c_.page != 0 || range.end % c_.page != 0; }

  void add_shard_violations(const Shard& shard, Violations& out) const {
    for (const Group& group : c_.groups) {
      const auto lists = std::ranges::count(shard, group.id, &Covered::group);
      if (lists == 0) note(out, {Wrong::kListMissing, group.id, {}});
      if (lists > 1) note(out, {Wrong::kListTwice, group.id, {}});
    }
    for (const Covered& list : shard) {
      if (std::ranges::count(c_.groups, list.group, &Group::id) == 0)
        note(out, {Wrong::kListUnknown, list.group, {}});
      add_list_violations(list, out);
    }
  }

  void add_list_violations(const Covered& list, Violations& out) const {
    const Range* before = nullptr;
    for (const Range& range : list.ranges) {
      if (range.begin >= range.end) note(out, {Wrong::kRangeEmpty, list.group, {range}});
      if (misaligned(range)) note(out, {Wrong::kRangeMisaligned, list.group, {range}});
      if (range.begin < c_.tail.begin || range.end > c_.tail.end)
        note(out, {Wrong::kRangeOutside, list.group, {range}});
      if (before != nullptr &&
          (range.begin < before->end || (planted(Fault::kTouchingRefused) && range.begin == before->end)))
        note(out, {Wrong::kRangeOrder, list.group, {range, *before}});
      before = &range;
    }
  }

  // ---- sets of pages ----

  std::size_t pages() const {
    return c_.tail.end < c_.tail.begin ? 0
                                       : static_cast<std::size_t>((c_.tail.end - c_.tail.begin) / c_.page);
  }
  std::uint64_t begin_of(std::size_t page) const { return c_.tail.begin + page * c_.page; }
  std::uint64_t end_of(std::size_t page) const { return begin_of(page) + c_.page; }

  // Whether the group's state at the end of page `last` is made from this page.
  bool needs(const Group& group, std::size_t page, std::size_t last) const {
    if (page > last) return false;
    if (group.rule == Rule::kWindow) return window_reaches(group.window, last - page);
    if (group.rule == Rule::kCheckpoint) return page == last || planted(Fault::kCheckpointAllPages);
    return true;
  }

  // Whether `nearer` pages, which end at the boundary, leave some of the window to the page before.
  bool window_reaches(std::uint32_t window, std::uint64_t nearer) const {
    if (planted(Fault::kWindowFloor)) return nearer < window / c_.page;
    if (planted(Fault::kWindowOneMore)) return nearer < window / c_.page + std::uint64_t{1};
    return nearer * c_.page < window;
  }

  Required required() const {
    Required out;
    if (pages() == 0) return out;
    for (const Group& group : c_.groups) {
      Range range;
      for (std::size_t page = pages(); page-- > 0;) {
        if (!needs(group, page, pages() - 1)) continue;
        range.begin = begin_of(page);
        range.end = std::max(range.end, end_of(page));
      }
      out.emplace_back(group.id, range);
    }
    std::ranges::sort(out, {}, [](const auto& entry) { return entry.first; });
    return out;
  }

  PageSet held(const Shard& shard, const Group& group) const {
    PageSet out(pages(), false);
    for (const Covered& list : shard) {
      if (list.group != group.id) continue;
      for (Range range : list.ranges) {
        if (planted(Fault::kHolesIgnored)) range = {list.ranges.front().begin, list.ranges.back().end};
        for (std::size_t page = 0; page < out.size(); ++page) {
          if (range.begin <= begin_of(page) && end_of(page) <= range.end) out[page] = true;
        }
      }
    }
    return out;
  }

  bool holds(const Group& group, const PageSet& set, std::size_t last) const {
    if (planted(Fault::kGroupZeroIgnored) && group.id == 0) return true;
    if (planted(Fault::kLaterPrefixIgnored) && group.id != 0 && group.rule == Rule::kPrefix) return true;
    if (planted(Fault::kWindowUncut) && group.rule == Rule::kWindow && window_reaches(group.window, last + 1))
      return false;
    const bool any = planted(Fault::kCheckpointAnyPage) && group.rule == Rule::kCheckpoint;
    for (std::size_t page = 0; page < set.size(); ++page) {
      if (any && page <= last && set[page]) return true;
      if (!any && needs(group, page, last) && !set[page]) return false;
    }
    return !any;
  }

  // ---- boundaries ----

  Boundaries restorable(const Shard& shard) const {
    std::vector<PageSet> sets;
    for (const Group& group : c_.groups) sets.push_back(held(shard, group));
    Boundaries out;
    for (std::size_t last = 0; last < pages(); ++last) {
      if (planted(Fault::kFirstPageIgnored) && last == 0) continue;
      if (planted(Fault::kLastPageIgnored) && last + 1 == pages()) continue;
      bool all = true;
      for (std::size_t i = 0; all && i < sets.size(); ++i) all = holds(c_.groups[i], sets[i], last);
      if (all) out.push_back(end_of(last));
    }
    return out;
  }

  Boundaries common(const std::vector<Answer<Boundaries>>& shards) const {
    std::set<std::uint64_t> maxima;
    for (const auto& shard : shards) maxima.insert(shard.value->empty() ? 0 : shard.value->back());
    const std::size_t counted =
        shards.size() - (planted(Fault::kLastShardIgnored) && shards.size() > 1 ? 1 : 0);
    Boundaries out;
    for (std::size_t page = 0; page < pages(); ++page) {
      std::size_t with = 0;
      for (std::size_t i = 0; i < counted; ++i) with += std::ranges::count(*shards[i].value, end_of(page));
      if (with == counted || (with > 0 && planted(Fault::kUnionOfShards)) ||
          (planted(Fault::kMinimumOfMaxima) && !maxima.empty() && *maxima.begin() == end_of(page)))
        out.push_back(end_of(page));
    }
    return out;
  }

  std::optional<std::uint64_t> select(const Boundaries& boundaries) const {
    std::optional<std::uint64_t> out;
    for (const std::uint64_t b : boundaries) {
      if (planted(Fault::kLimitExcluded) ? b < c_.limit : b <= c_.limit) out = b;
    }
    return out;
  }

  const Case& c_;
  const Planted planted_;
};

}  // namespace

Answers oracle(const Case& c, Planted planted) {
  return Oracle(c, planted).answers();
}

}  // namespace orbitkv::recovery_oracle
