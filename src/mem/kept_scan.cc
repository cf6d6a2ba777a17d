#include "mem/kept_scan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/limits.h"
#include "base/text.h"
#include "mem/extent_allocator.h"

namespace orbitkv::mem {
namespace {

constexpr std::uint64_t kUnit = kExtentUnit;
constexpr std::uint64_t kStepsPerSign = 1 << 20;  // records that are read, or compared

class Scan {
 public:
  Scan(const KeptTable& table, std::vector<KeptMemory>& memories, const std::function<void()>& goes_on,
       TimePoint now)
      : table_(table), memories_(memories), goes_on_(goes_on), minutes_(now.ns / seconds(60).ns) {}
  Result<KeptPool> run(std::uint32_t unit);

 private:
  // What an extent takes of its slab.
  struct Span {
    std::uint64_t begin = 0;  // slab << 32 | unit
    std::uint32_t units = 0;
    std::uint32_t record = 0;  // of pool_.images or pool_.lent
    bool lent = false, bad = false;
    std::uint64_t end() const { return begin + units; }
  };
  void step() {
    if (++steps_ % kStepsPerSign == 0 && goes_on_) goes_on_();
  }
  void take_slabs();
  void retire(const KeptSlab& slab);
  void read_records();
  void read(KeptAt at);
  bool place(const KeptPlace& place, SlabSlot& slab) const;
  void taint_all();
  void find_overlaps();
  void drop_bad();
  void keep_complete();
  void keep_named();
  std::uint16_t minutes_since(std::uint16_t minute) const {
    return static_cast<std::uint16_t>(minutes_ - minute);
  }
  void settle_use(KeptUse& use) const;
  struct Rank {
    std::uint32_t when = 0;
    std::uint32_t first = 0;  // of pool_.images
    std::uint64_t revision = 0;
  };
  Rank rank_of(const KeptImage& image) const;
  void order();
  void set_used();
  static std::uint32_t footprint(const KeptPlace& place) {
    return static_cast<std::uint32_t>(ExtentAllocator::footprint(place.bytes).value / kUnit);
  }

  const KeptTable& table_;
  std::vector<KeptMemory>& memories_;
  const std::function<void()>& goes_on_;
  const std::int64_t minutes_;  // whole ones of the clock
  std::uint64_t steps_ = 0;
  KeptPool pool_;
  std::vector<std::pair<SlabId, SlabSlot>> by_name_;  // ascending
  std::vector<Span> spans_;
  std::vector<bool> bad_image_, bad_lent_;
};

// Retiring slabs are absent: whoever copies there may go on, in memory that nobody names. So is one
// whose memory is not there. Processes may map it: its bytes count.
void Scan::take_slabs() {
  for (std::uint32_t i = 0; i < limits::kSlabs; ++i) {
    const KeptSlab slab = table_.slab(SlabSlot(i));
    if (slab.state == KeptSlabState::kRetiring) retire(slab);
    if (slab.state != KeptSlabState::kLive && slab.state != KeptSlabState::kTainted) continue;
    const auto memory = std::find_if(memories_.begin(), memories_.end(),
                                     [&](const KeptMemory& each) { return each.name == slab.name; });
    const bool sized =
        slab.bytes.value > 0 && slab.bytes <= limits::kSlabBytes && slab.bytes.value % kUnit == 0;
    if (memory == memories_.end() || !sized || !check_slab_memory(memory->fd, slab.name, slab.bytes).ok()) {
      if (sized) retire(slab);
      continue;
    }
    KeptPool::Slab& made = pool_.slabs.emplace_back();
    made.name = slab.name;
    made.bytes = slab.bytes;
    made.huge = std::min(slab.huge, slab.bytes);
    made.node = slab.node;
    made.tainted = slab.state == KeptSlabState::kTainted;
    made.memory = std::move(memory->fd);
    memories_.erase(memory);
    pool_.next_name = std::max(pool_.next_name, slab.name.value + 1);
  }
  for (std::size_t i = 0; i < pool_.slabs.size(); ++i)
    by_name_.emplace_back(pool_.slabs[i].name, SlabSlot(static_cast<std::uint32_t>(i)));
  std::sort(by_name_.begin(), by_name_.end());
}

// It may be among those that are gone already.
void Scan::retire(const KeptSlab& slab) {
  const auto same = [&](const KeptRetired& each) { return each.name == slab.name; };
  if (std::none_of(pool_.retired.begin(), pool_.retired.end(), same))
    pool_.retired.push_back({slab.name, slab.bytes});
}

bool Scan::place(const KeptPlace& at, SlabSlot& slab) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), at.slab,
                                   [](const auto& each, SlabId name) { return each.first < name; });
  if (it == by_name_.end() || it->first != at.slab || at.bytes.value == 0) return false;
  slab = it->second;
  return at.bytes <= limits::kSlabBytes &&
         at.offset / kUnit + footprint(at) <= pool_.slabs[slab.value].bytes.value / kUnit;
}

void Scan::taint_all() {
  for (KeptPool::Slab& slab : pool_.slabs) slab.tainted = true;
}

void Scan::read(KeptAt at) {
  KeptLent lent;
  KeptImage image;
  SlabSlot slab;
  switch (table_.read(at, lent, image)) {
    case KeptTable::Found::kFree: return;
    case KeptTable::Found::kWrong: taint_all(); [[fallthrough]];
    case KeptTable::Found::kWrongSealed: ++pool_.counts.wrong; return;
    case KeptTable::Found::kLent:
      ++pool_.counts.lent;
      // On a slab that is not there nobody is lent anything any more.
      if (!place(lent.place, slab)) {
        ++pool_.counts.misplaced;
        return;
      }
      spans_.push_back({std::uint64_t{slab.value} << 32 | lent.place.offset / kUnit, footprint(lent.place),
                        static_cast<std::uint32_t>(pool_.lent.size()), true, false});
      pool_.lent.push_back({lent, slab});
      return;
    case KeptTable::Found::kSealed: break;
  }
  ++pool_.counts.sealed;
  const bool shaped = image.shards > 0 && image.shards <= limits::kShards && image.shard.value < image.shards;
  if (!shaped || !place(image.place, slab)) {
    ++pool_.counts.misplaced;
    return;
  }
  spans_.push_back({std::uint64_t{slab.value} << 32 | image.place.offset / kUnit, footprint(image.place),
                    static_cast<std::uint32_t>(pool_.images.size()), false, false});
  pool_.images.push_back({image, slab});
}

void Scan::read_records() {
  const std::size_t most =
      std::size_t{table_.high_water(KeptRegion::kFirst)} + table_.high_water(KeptRegion::kFurther);
  pool_.images.reserve(most);
  spans_.reserve(most);
  for (const KeptRegion region : {KeptRegion::kFirst, KeptRegion::kFurther, KeptRegion::kPending}) {
    const std::uint32_t end = table_.high_water(region);
    for (std::uint32_t i = 0; i < end; ++i, step()) read({region, i});
  }
}

// Two extents that overlap cannot both be true, and which one is, nobody knows.
void Scan::find_overlaps() {
  std::sort(spans_.begin(), spans_.end(), [this](const Span& a, const Span& b) {
    step();
    return a.begin < b.begin;
  });
  std::size_t reach = 0;  // the span that ends last so far
  for (std::size_t i = 1; i < spans_.size(); ++i) {
    if (spans_[i].begin < spans_[reach].end()) spans_[i].bad = spans_[reach].bad = true;
    if (spans_[i].end() > spans_[reach].end()) reach = i;
  }
  bad_image_.assign(pool_.images.size(), false);
  bad_lent_.assign(pool_.lent.size(), false);
  for (const Span& span : spans_) {
    if (!span.bad) continue;
    ++pool_.counts.overlapping;
    if (!span.lent) {
      bad_image_[span.record] = true;
      continue;
    }
    bad_lent_[span.record] = true;
    pool_.slabs[pool_.lent[span.record].slab.value].tainted = true;
  }
}

void Scan::drop_bad() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < pool_.images.size(); ++i)
    if (!bad_image_[i]) pool_.images[kept++] = pool_.images[i];
  pool_.images.resize(kept);
  kept = 0;
  for (std::size_t i = 0; i < pool_.lent.size(); ++i)
    if (!bad_lent_[i]) pool_.lent[kept++] = pool_.lent[i];
  pool_.lent.resize(kept);
}

// All shards of an image, or nothing of it.
void Scan::keep_complete() {
  const auto many = std::stable_partition(pool_.images.begin(), pool_.images.end(),
                                          [](const KeptPool::Image& each) { return each.slot.shards == 1; });
  const auto key = [](const KeptPool::Image& each) {
    return std::tie(each.slot.name_space, each.slot.group, each.slot.shards, each.slot.hash);
  };
  std::sort(many, pool_.images.end(), [&](const KeptPool::Image& a, const KeptPool::Image& b) {
    step();
    return std::tuple_cat(key(a), std::tie(a.slot.shard)) < std::tuple_cat(key(b), std::tie(b.slot.shard));
  });
  auto out = many;
  for (auto first = many; first != pool_.images.end();) {
    auto last = first;
    while (last != pool_.images.end() && key(*last) == key(*first)) ++last;
    bool complete = last - first == first->slot.shards;
    for (auto it = first; complete && it != last; ++it) complete = it->slot.shard.value == it - first;
    if (complete) {
      out = std::move(first, last, out);
    } else {
      pool_.counts.incomplete += static_cast<std::uint64_t>(last - first);
    }
    first = last;
  }
  pool_.images.erase(out, pool_.images.end());
}

// Of a table that was mapped just now only what images name is read.
void Scan::keep_named() {
  enum class Name : std::uint8_t { kUnread, kNone, kKnown };
  std::vector<Name> read(limits::kNamespaces, Name::kUnread);
  pool_.names.resize(limits::kNamespaces);
  const auto known = [&](NamespaceIndex index) {
    if (index.value >= limits::kNamespaces) return false;
    Name& found = read[index.value];
    if (found == Name::kUnread) {
      auto name = table_.name_space(index);
      found = name ? Name::kKnown : Name::kNone;
      if (name) pool_.names[index.value] = std::move(*name);
    }
    return found == Name::kKnown;
  };
  pool_.counts.nameless +=
      std::erase_if(pool_.images, [&](const KeptPool::Image& each) { return !known(each.slot.name_space); });
}

// What cannot be, or is not known, is as if it were used just now: no image is dropped before its age.
void Scan::settle_use(KeptUse& use) const {
  const bool known = use.eviction != KeptClass::kUnknown && minutes_since(use.minute) <= minutes_;
  if (!known) use.minute = static_cast<std::uint16_t>(minutes_);
}

// Where it stands among the others, from the first to go: class, age, and of a minute what is new before
// what was read. Revisions rise with time, so the oldest of these goes first; but a read ends at the head
// of its prefix, which was saved first and outlives the rest.
Scan::Rank Scan::rank_of(const KeptImage& image) const {
  const bool retained = image.use.eviction == KeptClass::kRetained;
  const bool read = retained || image.use.eviction == KeptClass::kDemoted;
  const std::uint32_t in = retained ? 2 : image.use.eviction == KeptClass::kReclaimable ? 0 : 1;
  const std::uint32_t minutes_left = 0xFFFFu - minutes_since(image.use.minute);  // until the clock wraps
  const std::uint64_t revision = image.revision.value;
  return {in << 17 | minutes_left << 1 | (read ? 1 : 0), 0, read ? ~revision : revision};
}

void Scan::order() {
  std::vector<Rank> ranks;
  ranks.reserve(pool_.images.size());
  for (std::size_t i = 0; i < pool_.images.size(); i += pool_.images[i].slot.shards) {
    settle_use(pool_.images[i].slot.use);
    ranks.push_back(rank_of(pool_.images[i].slot));
    ranks.back().first = static_cast<std::uint32_t>(i);
  }
  std::sort(ranks.begin(), ranks.end(), [this](const Rank& x, const Rank& y) {
    step();
    return std::tie(x.when, x.revision) < std::tie(y.when, y.revision);
  });
  pool_.oldest_first.reserve(ranks.size());
  for (const Rank& rank : ranks) pool_.oldest_first.push_back(rank.first);
}

void Scan::set_used() {
  const auto take = [&](SlabSlot slab, const KeptPlace& at) {
    pool_.slabs[slab.value].used.push_back({static_cast<std::uint32_t>(at.offset / kUnit), footprint(at)});
  };
  for (const KeptPool::Image& each : pool_.images) take(each.slab, each.slot.place);
  for (const KeptPool::Lent& each : pool_.lent) take(each.slab, each.lent.place);
  for (KeptPool::Slab& slab : pool_.slabs)
    std::sort(slab.used.begin(), slab.used.end(),
              [](const UsedRun& a, const UsedRun& b) { return a.begin < b.begin; });
}

Result<KeptPool> Scan::run(std::uint32_t unit) {
  if (table_.shape().unit < unit)
    return reject(format_text("the kept memory has extents in units of %u bytes, now they are %u",
                              table_.shape().unit, unit));
  pool_.id = table_.shape().pool;
  pool_.next_name = table_.next_name();
  pool_.allocations = table_.allocations();
  pool_.wanted = table_.wanted();
  pool_.device_files = table_.device_files();
  pool_.retired = table_.retired();
  take_slabs();
  // Without any the accounts go on: who may map what is gone, and which names were given.
  if (pool_.slabs.empty() && pool_.retired.empty()) return reject("of the kept memory no slab is there");
  read_records();
  find_overlaps();
  drop_bad();
  keep_named();
  keep_complete();
  order();
  set_used();
  return std::move(pool_);
}

}  // namespace

Result<KeptPool> scan_kept(const KeptTable& table, std::vector<KeptMemory>& memories, std::uint32_t unit,
                           const std::function<void()>& goes_on, TimePoint now) {
  return Scan(table, memories, goes_on, now).run(unit);
}

}  // namespace orbitkv::mem
