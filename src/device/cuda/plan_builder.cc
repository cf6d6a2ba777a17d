#include "device/cuda/plan_builder.h"

#include <algorithm>

#include "base/check.h"

namespace orbitkv::device::cuda {
namespace {

constexpr std::uint32_t kSmallestBulkRow = 64;

// One fragment of one group, in consuming order.
struct Item {
  std::uint32_t group = 0;
  std::uint32_t fragment = 0;
  std::uint16_t turn = 0;
  Width width = Width::kBulk;
};

bool one_run(const FragmentGeometry& g) {
  return g.rows == 1 || g.row_stride == g.row_bytes;
}

std::vector<Item> ordered_items(std::span<const PlanGroup> groups, const PlanRules& rules) {
  std::vector<Item> items;
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    const PlanGroup& group = groups[g];
    if (group.images.empty()) continue;
    for (std::uint32_t f = 0; f < group.geometry->fragments.size(); ++f) {
      const FragmentGeometry& fragment = group.geometry->fragments[f];
      Width width = width_of(fragment, group.layout->fragment_offsets[f]);
      if (width == Width::kBulk && !rules.has_bulk) width = Width::k16;
      items.push_back({g, f, fragment.turn, width});
    }
  }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.turn < b.turn; });
  return items;
}

class Builder {
 public:
  Builder(std::span<const PlanGroup> groups, const PlanRules& rules) : groups_(groups), rules_(rules) {}

  std::vector<LaunchPlan> run() {
    const std::vector<Item> items = ordered_items(groups_, rules_);
    for (std::size_t first = 0; first < items.size();) {
      std::size_t end = first;
      while (end < items.size() && items[end].turn == items[first].turn) ++end;
      add_turn(std::span(items).subspan(first, end - first));
      first = end;
    }
    close(false);
    return std::move(launches_);
  }

 private:
  // Windows of slots outside, fragments inside: the fragments of a window share its slots.
  void add_turn(std::span<const Item> items) {
    if (rules_.one_turn_a_launch) close(false);
    for (std::size_t first = 0; first < items.size();) {
      std::size_t end = first;
      while (end < items.size() && items[end].group == items[first].group) ++end;
      const auto slots = static_cast<std::uint32_t>(groups_[items[first].group].images.size());
      for (std::uint32_t at = 0; at < slots;) {
        const std::uint32_t n = window(items.subspan(first, end - first), slots - at);
        for (const Item& item : items.subspan(first, end - first)) add(item, {item.group, at, n});
        at += n;
      }
      first = end;
    }
  }

  // As many slots as a launch of its own could take for each of the fragments.
  std::uint32_t window(std::span<const Item> items, std::uint32_t left) const {
    std::uint32_t n = std::min(left, rules_.max_slots);
    for (const Item& item : items) {
      n = std::min(n, std::max(1u, rules_.max_sums / chunks_of(item)));
      n = static_cast<std::uint32_t>(
          std::min<std::uint64_t>(n, std::max<std::uint64_t>(1, rules_.max_runs / runs_of(item))));
    }
    return n;
  }

  const FragmentGeometry& geometry_of(const Item& item) const {
    return groups_[item.group].geometry->fragments[item.fragment];
  }
  // Of a slot.
  std::uint32_t runs_of(const Item& item) const {
    const FragmentGeometry& g = geometry_of(item);
    return one_run(g) ? 1 : g.rows;
  }
  std::uint32_t chunks_of(const Item& item) const {
    const auto bytes = static_cast<std::uint32_t>(geometry_of(item).bytes());
    return (bytes + rules_.stage_bytes - 1) / rules_.stage_bytes;
  }

  // Slots [first, first + count) of a group.
  struct SlotRange {
    std::uint32_t group = 0, first = 0, count = 0;
    friend bool operator==(const SlotRange&, const SlotRange&) = default;
  };
  void add(const Item& item, const SlotRange& range) {
    const std::uint32_t chunks = chunks_of(item);
    ORBITKV_CHECK(chunks <= rules_.max_sums, "a fragment has more chunks than a launch has sums");
    const bool here = known_window(range) != nullptr;
    const bool fits = open_.width == item.width && open_.fragments.size() < rules_.max_fragments &&
                      open_.sums + range.count * chunks <= rules_.max_sums &&
                      open_.bytes < rules_.max_bytes &&
                      open_.runs + std::uint64_t{range.count} * runs_of(item) <= rules_.max_runs &&
                      (here || open_.slots.size() + range.count <= rules_.max_slots);
    if (!open_.fragments.empty() && !fits) close(open_.turns.back() == item.turn);
    if (open_.fragments.empty()) open_.width = item.width;
    append(item, slots_of(range), {item.group, item.fragment, range.first});
  }

  struct Window {
    SlotRange range;
    std::uint32_t at = 0;  // of the range's first slot in the launch
  };
  const Window* known_window(const SlotRange& range) const {
    auto it =
        std::find_if(windows_.begin(), windows_.end(), [&](const Window& w) { return w.range == range; });
    return it == windows_.end() ? nullptr : &*it;
  }
  Window slots_of(const SlotRange& range) {
    if (const Window* known = known_window(range)) return *known;
    const Window made{range, static_cast<std::uint32_t>(open_.slots.size())};
    const PlanGroup& group = groups_[range.group];
    for (std::uint32_t i = range.first; i < range.first + range.count; ++i)
      open_.slots.push_back({group.images[i], group.blocks[i], 0});
    windows_.push_back(made);
    return made;
  }

  void append(const Item& item, const Window& window, const FragmentRef& ref) {
    const FragmentGeometry& g = geometry_of(item);
    const auto bytes = static_cast<std::uint32_t>(g.bytes());
    const std::uint32_t chunks = chunks_of(item);
    const std::uint32_t pack = chunks > 1 ? 1 : std::clamp(rules_.stage_bytes / bytes, 1u, kMaxPack);
    if (open_.turns.empty() || open_.turns.back() != item.turn) open_.turns.push_back(item.turn);
    open_.fragments.push_back(
        {reinterpret_cast<std::uint64_t>(g.base), g.block_stride, one_run(g) ? g.row_bytes : g.row_stride,
         static_cast<std::uint32_t>(groups_[item.group].layout->fragment_offsets[item.fragment]),
         one_run(g) ? bytes : static_cast<std::uint32_t>(g.row_bytes), bytes, window.at, window.range.count,
         pack, chunks, open_.units, open_.sums, static_cast<std::uint32_t>(open_.turns.size() - 1)});
    open_.refs.push_back(ref);
    const std::uint32_t slots = window.range.count;
    open_.units += chunks > 1 ? slots * chunks : (slots + pack - 1) / pack;
    open_.sums += slots * chunks;
    open_.bytes += std::uint64_t{bytes} * slots;
    open_.runs += std::uint64_t{runs_of(item)} * slots;
  }

  void close(bool goes_on) {
    if (open_.fragments.empty()) return;
    open_.stage_bytes = rules_.stage_bytes;
    open_.skip_sums = rules_.skip_sums;
    open_.last_turn_goes_on = goes_on;
    launches_.push_back(std::move(open_));
    open_ = {};
    windows_.clear();
  }

  std::span<const PlanGroup> groups_;
  const PlanRules& rules_;
  LaunchPlan open_;
  std::vector<Window> windows_;  // whose slots are in the open launch
  std::vector<LaunchPlan> launches_;
};

}  // namespace

Width width_of(const FragmentGeometry& fragment, std::uint64_t image_offset) {
  std::uint64_t all = reinterpret_cast<std::uint64_t>(fragment.base) | fragment.block_stride | image_offset;
  const bool whole = one_run(fragment);
  all |= whole ? fragment.bytes() : fragment.row_bytes | fragment.row_stride;
  if (all % 16 == 0) return whole || fragment.row_bytes >= kSmallestBulkRow ? Width::kBulk : Width::k16;
  return all % 8 == 0 ? Width::k8 : Width::k1;
}

std::vector<LaunchPlan> build_launches(std::span<const PlanGroup> groups, const PlanRules& rules) {
  return Builder(groups, rules).run();
}

}  // namespace orbitkv::device::cuda
