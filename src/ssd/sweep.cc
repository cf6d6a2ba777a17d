#include "ssd/sweep.h"

namespace orbitkv::ssd {
namespace {

constexpr std::uint32_t kRecordsAStep = 4096;
constexpr std::uint32_t kSegmentsAStep = 256;

}  // namespace

std::uint64_t Sweep::kill(SpaceIndex index, RecordSequence sequence) {
  Space& space = state_.spaces.at(index);
  const std::uint64_t visible = space.visible_records();
  state_.stats.lost[static_cast<std::size_t>(Loss::kNamespace)] += visible;
  state_.killed_records += visible;
  space.killed_records = space.records;
  space.killed = sequence;
  return visible;
}

void Sweep::step() {
  std::vector<StoredRef> killed;
  std::uint32_t looked_at = 0;
  for (std::uint32_t i = 0; i < kSegmentsAStep && looked_at < kRecordsAStep && !idle(); ++i) {
    const SegmentIndex segment(next_segment_);
    next_segment_ = (next_segment_ + 1) % state_.segments.size();
    killed.clear();
    for (StoredId id = state_.index.first_in(segment); id != kNotStored; id = state_.index.next_in(id)) {
      const StoredRef ref = state_.index.ref(id);
      if (!state_.visible(ref)) killed.push_back(ref);
      ++looked_at;
    }
    for (const StoredRef ref : killed) state_.forget(ref.id, Loss::kNamespace);
  }
}

}  // namespace orbitkv::ssd
