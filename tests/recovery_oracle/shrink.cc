#include "tests/recovery_oracle/shrink.h"

#include <algorithm>

namespace orbitkv::recovery_oracle {
namespace {

using Cases = std::vector<Case>;

template <class T>
void drop(std::vector<T>& from, std::size_t at) {
  from.erase(from.begin() + static_cast<std::ptrdiff_t>(at));
}

template <class F>
void for_each_range(Case& c, F change) {
  for (Shard& shard : c.shards) {
    for (Covered& list : shard) {
      for (Range& range : list.ranges) change(range);
    }
  }
}

void without_a_shard_or_group(const Case& c, Cases& out) {
  for (std::size_t i = 0; i < c.shards.size(); ++i) {
    drop(out.emplace_back(c).shards, i);
  }
  for (std::size_t i = 0; i < c.groups.size(); ++i) {
    Case& smaller = out.emplace_back(c);
    drop(smaller.groups, i);
    for (Shard& shard : smaller.shards) {
      std::erase_if(shard, [&](const Covered& list) { return list.group == c.groups[i].id; });
    }
  }
}

// Parts of what the shards hold, and a page of a range at either end.
void with_less_held(const Case& c, Cases& out) {
  for (std::size_t s = 0; s < c.shards.size(); ++s) {
    for (std::size_t l = 0; l < c.shards[s].size(); ++l) {
      drop(out.emplace_back(c).shards[s], l);
      for (std::size_t r = 0; r < c.shards[s][l].ranges.size(); ++r) {
        drop(out.emplace_back(c).shards[s][l].ranges, r);
        if (c.shards[s][l].ranges[r].end < c.page) continue;
        out.emplace_back(c).shards[s][l].ranges[r].end -= c.page;
        out.emplace_back(c).shards[s][l].ranges[r].begin += c.page;
      }
    }
  }
}

// The span is taken out of the tail, and what lies behind it moves up.
void take_out(Case& c, const Range& span) {
  const auto moved = [&](std::uint64_t at) {
    if (at <= span.begin) return at;
    return at < span.end ? span.begin : at - (span.end - span.begin);
  };
  for (Shard& shard : c.shards) {
    for (Covered& list : shard) {
      std::erase_if(list.ranges, [&](Range& r) {
        const bool empty = r.begin >= r.end;
        r = {moved(r.begin), moved(r.end)};
        return !empty && r.begin >= r.end;
      });
    }
  }
  c.tail.end -= span.end - span.begin;
  c.limit = moved(c.limit);
}

// Without half of its pages, a quarter, and so on down to one.
void with_a_shorter_tail(const Case& c, Cases& out) {
  if (c.page == 0 || c.tail.end < c.tail.begin) return;
  const std::uint64_t pages = (c.tail.end - c.tail.begin) / c.page;
  for (std::uint64_t part = (pages + 1) / 2; part > 0; part /= 2) {
    for (std::uint64_t first = 0; first + part <= pages; first += part) {
      const std::uint64_t begin = c.tail.begin + first * c.page;
      take_out(out.emplace_back(c), {begin, begin + part * c.page});
    }
  }
}

// The origin at 0.
void with_smaller_positions(const Case& c, Cases& out) {
  const std::uint64_t origin = c.tail.begin;
  if (origin == 0 || origin > c.tail.end) return;
  Case& smaller = out.emplace_back(c);
  for_each_range(smaller, [&](Range& r) {
    r.begin -= std::min(r.begin, origin);
    r.end -= std::min(r.end, origin);
  });
  smaller.tail = {0, c.tail.end - origin};
  smaller.limit -= std::min(c.limit, origin);
}

// Pages of `to` tokens; a part of a page stays a part of one.
void scale(Case& c, std::uint32_t to) {
  const auto scaled = [&](std::uint64_t tokens) {
    return tokens / c.page * to + std::min<std::uint64_t>(tokens % c.page, to - 1);
  };
  for_each_range(c, [&](Range& r) { r = {scaled(r.begin), scaled(r.end)}; });
  c.tail = {scaled(c.tail.begin), scaled(c.tail.end)};
  c.limit = scaled(c.limit);
  for (Group& group : c.groups) {
    if (group.window != 0) group.window = std::max(1u, static_cast<std::uint32_t>(scaled(group.window)));
  }
  c.page = to;
}

void with_a_smaller_page(const Case& c, Cases& out) {
  for (const std::uint32_t to : {1u, 2u, 16u}) {
    if (to < c.page) scale(out.emplace_back(c), to);
  }
}

void with_smaller_numbers(const Case& c, Cases& out) {
  for (std::size_t i = 0; i < c.groups.size(); ++i) {
    const Group& group = c.groups[i];
    for (const std::uint32_t window : {0u, 1u, group.window / 2, group.window - 1}) {
      if (window < group.window) out.emplace_back(c).groups[i].window = window;
    }
    if (group.rule != Rule::kPrefix) {
      out.emplace_back(c).groups[i].rule = Rule::kPrefix;
      out.back().groups[i].window = 0;
    }
  }
  if (c.limit != c.tail.end) out.emplace_back(c).limit = c.tail.end;
  if (c.asked != c.name_space) out.emplace_back(c).asked = c.name_space;
}

// Ascending ids, then the next free one for each.
void with_smaller_ids(const Case& c, Cases& out) {
  if (!std::ranges::is_sorted(c.groups, {}, &Group::id))
    std::ranges::sort(out.emplace_back(c).groups, {}, &Group::id);
  for (std::size_t i = 1; i < c.groups.size(); ++i) {
    const std::uint16_t from = c.groups[i].id;
    const auto to = static_cast<std::uint16_t>(c.groups[i - 1].id + 1);
    if (to >= from) continue;
    Case& smaller = out.emplace_back(c);
    smaller.groups[i].id = to;
    for (Shard& shard : smaller.shards) {
      for (Covered& list : shard) {
        if (list.group == from) list.group = to;
      }
    }
  }
}

// Ranges that touch, as one.
void with_merged_ranges(const Case& c, Cases& out) {
  for (std::size_t s = 0; s < c.shards.size(); ++s) {
    for (std::size_t l = 0; l < c.shards[s].size(); ++l) {
      const auto& ranges = c.shards[s][l].ranges;
      for (std::size_t r = 0; r + 1 < ranges.size(); ++r) {
        if (ranges[r].end != ranges[r + 1].begin) continue;
        auto& fewer = out.emplace_back(c).shards[s][l].ranges;
        fewer[r].end = fewer[r + 1].end;
        drop(fewer, r + 1);
      }
    }
  }
}

Cases smaller_than(const Case& c) {
  Cases out;
  without_a_shard_or_group(c, out);
  with_a_shorter_tail(c, out);
  with_smaller_positions(c, out);
  with_a_smaller_page(c, out);
  with_smaller_numbers(c, out);
  with_smaller_ids(c, out);
  with_merged_ranges(c, out);
  with_less_held(c, out);
  return out;
}

}  // namespace

Case shrink(Case c, const std::function<bool(const Case&)>& fails) {
  // Every step drops or shortens something; the bound is for a step that does not.
  for (int step = 0; step < 10'000; ++step) {
    const Cases smaller = smaller_than(c);
    const auto next = std::ranges::find_if(smaller, [&](const Case& s) { return s != c && fails(s); });
    if (next == smaller.end()) break;
    c = *next;
  }
  return c;
}

}  // namespace orbitkv::recovery_oracle
