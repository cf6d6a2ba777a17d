#include "tests/recovery_oracle/generator.h"

#include <algorithm>
#include <limits>

namespace orbitkv::recovery_oracle {
namespace {

constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 63;
using Pages = std::vector<bool>;

std::uint32_t page_tokens(Draw& draw) {
  static constexpr std::uint32_t kSizes[] = {1, 2, 3, 7, 16, 16, 64, 64, 100, 256, 1u << 31, 0xffffffffu};
  return kSizes[draw.below(std::size(kSizes))];
}

// Whole pages and a token around them, longer than the tail too.
std::uint32_t window_tokens(Draw& draw, std::uint32_t page, std::uint64_t pages) {
  if (draw.one_in(32)) return std::numeric_limits<std::uint32_t>::max();
  const std::uint64_t whole = draw.below(pages + 2) * page;
  const std::uint64_t past = draw.one_in(2) ? draw.below(3) : draw.below(page) + 1;
  const std::uint64_t window = whole + past - (past == 2 && whole > 1 ? 3 : 0);
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(window, 1, 0xffffffffu));
}

std::vector<Group> groups_of(Draw& draw, const Universe& universe, const Case& c) {
  std::vector<Group> out = {Group{}};
  const std::uint64_t count = 1 + draw.below(universe.groups);
  while (out.size() < count) {
    Group group;
    const bool far = draw.one_in(64) && out.back().id < 60000;
    group.id = static_cast<std::uint16_t>(far ? 65535 - kMostGroups : out.back().id + 1 + draw.below(3) / 2);
    group.rule = static_cast<Rule>(draw.below(3));
    if (group.rule == Rule::kWindow)
      group.window = window_tokens(draw, c.page, (c.tail.end - c.tail.begin) / c.page);
    out.push_back(group);
  }
  return out;
}

Range tail_of(Draw& draw, const Universe& universe, std::uint32_t page) {
  const std::uint64_t pages = draw.one_in(64) ? 0 : 1 + draw.below(universe.pages);
  const std::uint64_t last = kMostTokens / page - pages;  // the page at which the last such tail begins
  const std::uint64_t firsts[] = {0, draw.below(4), draw.below(last + 1), last - draw.below(2)};
  const std::uint64_t first = firsts[draw.below(std::size(firsts))];
  return {first * page, (first + pages) * page};
}

// Which pages a shard may hold of a group.
Pages pattern(Draw& draw, std::size_t pages) {
  enum Shape : std::uint8_t { kAll, kPrefix, kAllButOne, kSuffix, kDense, kHalf, kSparse, kNone, kShapes };
  const auto shape = static_cast<Shape>(draw.below(draw.one_in(4) ? kShapes : kNone));
  const std::size_t at = pages == 0 ? 0 : draw.below(pages);
  Pages out(pages);
  for (std::size_t i = 0; i < pages; ++i) {
    switch (shape) {
      case kAll: out[i] = true; break;
      case kPrefix: out[i] = i <= at; break;
      case kAllButOne: out[i] = i != at; break;
      case kSuffix: out[i] = i >= at; break;
      case kDense: out[i] = !draw.one_in(8); break;
      case kHalf: out[i] = draw.one_in(2); break;
      case kSparse: out[i] = draw.one_in(8); break;
      default: break;
    }
  }
  return out;
}

// Group 0 stops everything behind its first hole, so it has few.
Pages first_pattern(Draw& draw, std::size_t pages) {
  if (draw.one_in(4)) return pattern(draw, pages);
  return Pages(pages, true);
}

// Runs of pages, some of them in ranges that touch.
std::vector<Range> ranges_of(Draw& draw, const Case& c, const Pages& pages) {
  std::vector<Range> out;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const Range page{c.tail.begin + i * c.page, c.tail.begin + (i + 1) * c.page};
    if (!pages[i]) continue;
    if (!out.empty() && out.back().end == page.begin && !draw.one_in(6)) {
      out.back().end = page.end;
    } else {
      out.push_back(page);
    }
  }
  return out;
}

// Shards differ by nothing, by a page, or in everything.
void add_shards(Draw& draw, const Universe& universe, Case& c) {
  const std::size_t pages = (c.tail.end - c.tail.begin) / c.page;
  c.shards.resize(draw.one_in(64) ? 0 : 1 + draw.below(universe.shards));
  for (const Group& group : c.groups) {
    const auto fresh = [&] { return group.id == 0 ? first_pattern(draw, pages) : pattern(draw, pages); };
    const Pages base = fresh();
    for (Shard& shard : c.shards) {
      Pages held = draw.one_in(4) ? fresh() : base;
      if (pages > 0 && draw.one_in(6)) held[draw.below(pages)].flip();
      shard.push_back({group.id, ranges_of(draw, c, held)});
    }
  }
  for (Shard& shard : c.shards) {
    if (draw.one_in(4)) std::swap(shard[draw.below(shard.size())], shard[draw.below(shard.size())]);
  }
}

std::uint64_t limit_of(Draw& draw, const Case& c) {
  const std::uint64_t inside = c.tail.begin + draw.below(c.tail.end - c.tail.begin + 1);
  const std::uint64_t limits[] = {inside,       inside - (inside - c.tail.begin) % c.page,
                                  c.tail.end,   c.tail.end - (c.tail.end > 0 ? 1 : 0),
                                  c.tail.begin, std::numeric_limits<std::uint64_t>::max(),
                                  c.tail.end,   0};
  return limits[draw.below(std::size(limits))];
}

}  // namespace

Case generate(const Universe& universe, CaseId id) {
  Draw draw(id);
  Case c;
  c.page = page_tokens(draw);
  c.tail = tail_of(draw, universe, c.page);
  c.groups = groups_of(draw, universe, c);
  add_shards(draw, universe, c);
  c.limit = limit_of(draw, c);
  while (draw.one_in(6)) {
    const std::uint64_t what = draw.below(8);
    if (what < 2) spoil_contract(draw, c);
    if (what == 2) spoil_question(draw, c);
    if (what > 2) spoil_shard(draw, c);
  }
  if (c.groups.size() > 1 && draw.one_in(8)) std::swap(c.groups.front(), c.groups.back());
  return c;
}

}  // namespace orbitkv::recovery_oracle
