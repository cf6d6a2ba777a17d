#include "ssd/segments.h"

#include <algorithm>

namespace orbitkv::ssd {

void Segments::add_path(std::uint32_t count) {
  const PathIndex path(static_cast<std::uint32_t>(paths_.size()));
  OnePath& added = paths_.emplace_back();
  added.first = static_cast<std::uint32_t>(segments_.size());
  added.count = count;
  for (std::uint32_t i = 0; i < count; ++i) {
    Segment& segment = segments_.emplace_back();
    segment.path = path;
    segment.number = SegmentNumber(i);
    list(SegmentIndex(added.first + i));
  }
}

SegmentIndex Segments::of(PathIndex path, SegmentNumber number) const {
  return SegmentIndex(paths_[path.value].first + number.value);
}

void Segments::list(SegmentIndex index) {
  const Segment& segment = at(index);
  OnePath& path = paths_[segment.path.value];
  ++path.counts[static_cast<std::size_t>(segment.state)];
  if (segment.state == SegmentState::kFree) path.free.emplace(segment.life, index);
  if (segment.state == SegmentState::kSealed) path.sealed.emplace(segment.life, index);
}

void Segments::unlist(SegmentIndex index) {
  const Segment& segment = at(index);
  OnePath& path = paths_[segment.path.value];
  --path.counts[static_cast<std::size_t>(segment.state)];
  path.free.erase({segment.life, index});
  path.sealed.erase({segment.life, index});
}

void Segments::step(SegmentIndex index, SegmentEvent event) {
  unlist(index);
  ssd::step(at(index).state, event);
  list(index);
}

void Segments::set_content(SegmentIndex index, SegmentSequence life) {
  unlist(index);
  at(index).life = life;
  at(index).min_record = RecordSequence(std::numeric_limits<std::uint64_t>::max());
  list(index);
}

std::uint32_t Segments::count(PathIndex path, SegmentState state) const {
  return paths_[path.value].counts[static_cast<std::size_t>(state)];
}

std::optional<SegmentIndex> Segments::oldest_free(PathIndex path) const {
  const auto& free = paths_[path.value].free;
  if (free.empty()) return std::nullopt;
  return free.begin()->second;
}

bool Segments::may_hold(const Ended& ended, std::optional<SegmentIndex> but) const {
  if (incomplete_) return true;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    if (segment.life == SegmentSequence{} || segment.life > ended.newest) continue;
    if (segment.min_record > ended.sequence) continue;
    if (!but || but->value != i) return true;
  }
  return false;
}

}  // namespace orbitkv::ssd
