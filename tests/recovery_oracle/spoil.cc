#include <algorithm>
#include <limits>

#include "tests/recovery_oracle/generator.h"

namespace orbitkv::recovery_oracle {
namespace {

// Far away, and as far as a page can be.
constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

void spoil_group(Draw& draw, Group& group) {
  switch (draw.below(4)) {
    case 0: group = {group.id, Rule::kWindow, 0}; break;
    case 1: group.window = 1 + static_cast<std::uint32_t>(draw.below(100)); break;
    case 2: group.rule = Rule::kUnknown; break;
    default: group.rule = static_cast<Rule>(draw.below(3)); break;
  }
}

void spoil_list(Draw& draw, Case& c, Shard& shard) {
  const std::size_t at = draw.below(shard.size());
  const Covered list = shard[at];
  const auto other = static_cast<std::uint16_t>(draw.one_in(2) ? 40 : list.group + 1);
  switch (draw.below(4)) {
    case 0: shard.erase(shard.begin() + static_cast<std::ptrdiff_t>(at)); break;
    case 1: shard[at].group = other; break;
    case 2: shard.push_back({other, list.ranges}); break;
    default: shard.push_back(draw.one_in(2) ? list : Covered{c.groups.front().id, {}}); break;
  }
}

void spoil_order(Draw& draw, std::vector<Range>& ranges) {
  const std::size_t at = draw.below(ranges.size());
  const std::size_t next = std::min(at + 1, ranges.size() - 1);
  switch (draw.below(4)) {
    case 0: std::swap(ranges[at], ranges[next]); break;
    case 1: ranges.insert(ranges.begin() + static_cast<std::ptrdiff_t>(at), Range(ranges[at])); break;
    case 2: ranges[at].end = ranges[next].end; break;
    default: ranges[next].begin = ranges[at].begin; break;
  }
}

void spoil_range(Draw& draw, const Case& c, Range& range) {
  const std::uint64_t page = std::max<std::uint64_t>(c.page, 1);
  switch (draw.below(10)) {
    case 0: range.end = range.begin; break;
    case 1: std::swap(range.begin, range.end); break;
    case 2: range.begin += 1 + draw.below(page); break;
    case 3: range.end -= 1 + draw.below(page); break;
    case 4: range.begin = c.tail.begin - page; break;  // of an origin of 0: beyond everything
    case 5: range.end = c.tail.end + page; break;
    case 6: range.end = kMax / page * page; break;
    case 7: range = {kMax / page * page - page, kMax / page * page}; break;
    case 8: range.end += page; break;
    default: range.begin -= page; break;
  }
}

}  // namespace

void spoil_contract(Draw& draw, Case& c) {
  if (c.groups.empty()) return;
  const std::size_t at = draw.below(c.groups.size());
  switch (draw.below(12)) {
    case 0: c.page = 0; break;
    case 1: c.groups.clear(); break;
    case 2:
      while (c.groups.size() <= kMostGroups) c.groups.push_back({c.groups.back().id, Rule::kPrefix, 0});
      for (std::size_t i = 0; i < c.groups.size(); ++i) c.groups[i].id = static_cast<std::uint16_t>(i);
      break;
    case 3: c.groups[at].id = c.groups[c.groups.size() / 2].id; break;
    case 4: c.groups.push_back(c.groups[at]); break;
    case 5: c.groups.erase(c.groups.begin()); break;
    case 6: c.groups.front().rule = static_cast<Rule>(1 + draw.below(3)); break;
    case 7: c.groups.front() = {0, Rule::kWindow, 1 + static_cast<std::uint32_t>(draw.below(64))}; break;
    default: spoil_group(draw, c.groups[at]); break;
  }
  if (c.groups.empty()) c.shards.clear();
}

void spoil_question(Draw& draw, Case& c) {
  const std::uint64_t part = c.page < 2 ? 0 : 1 + draw.below(c.page - 1);
  switch (draw.below(6)) {
    case 0: c.asked = draw.one_in(2) ? "b" : "ab"; break;
    case 1: c.tail.begin += part; break;
    case 2: c.tail.end -= std::min(part, c.tail.end); break;
    case 3: c.tail.end += part; break;
    case 4:
      c.shards.resize(kMostShards + draw.below(2), c.shards.empty() ? Shard() : Shard(c.shards.front()));
      break;
    default: std::swap(c.tail.begin, c.tail.end); break;
  }
}

void spoil_shard(Draw& draw, Case& c) {
  if (c.shards.empty() || c.groups.empty()) return;
  Shard& shard = c.shards[draw.below(c.shards.size())];
  if (shard.empty()) return;
  if (draw.one_in(3)) return spoil_list(draw, c, shard);
  std::vector<Range>& ranges = shard[draw.below(shard.size())].ranges;
  if (ranges.empty()) return ranges.push_back({c.tail.begin, c.tail.end});
  if (draw.one_in(3)) return spoil_order(draw, ranges);
  spoil_range(draw, c, ranges[draw.below(ranges.size())]);
}

}  // namespace orbitkv::recovery_oracle
