// What becomes of images whose slab retires.
#include "base/check.h"
#include "cache/images.h"

namespace orbitkv::cache {

bool Images::on_slab(RecordId record, SlabSlot slab) const {
  const HotRecord& h = table_.hot(record);
  if (h.state == ImageState::kFree) return false;
  const ColdRecord& c = table_.cold(record);
  if (h.slab == slab && c.allocation != 0) return true;
  std::uint32_t i = h.shards > 1 ? c.further : 0;
  while (i != 0 && further_.at(i).slab != slab) i = further_.at(i).next;
  return i != 0;
}

bool Images::on_slab(const ImageSlot& slot, SlabSlot slab) const {
  const SlotWords w = words(slot);
  return w.extent.allocation.value != 0 && w.extent.slab == slab;
}

bool Images::retire(RecordId record, SlabSlot slab, Store store) {
  switch (retire_action(table_.hot(record).state)) {
    case RetireAction::kTakeBack: take_back(record, slab); return true;
    case RetireAction::kDrop: break;
    default: return true;
  }
  const bool asks = store == Store::kFirst && keeper_ != nullptr && !held(record);
  if (asks && leave(record) == Keeper::Leave::kDirty) return false;
  drop(record);
  return true;
}

// Committed slots of an image that is not complete: they are absent again.
void Images::take_back(RecordId record, SlabSlot slab) {
  const std::uint32_t index = table_.cold(record).prev;
  const bool was_idle = inflight_[index].lent == 0;
  for (std::uint16_t s = 0; s < shards(record); ++s) {
    if (!(inflight_[index].committed & bit(ShardId(s)))) continue;
    const ImageSlot slot = slot_of(record, ShardId(s));
    if (!on_slab(slot, slab)) continue;
    inflight_[index].committed &= ~bit(ShardId(s));
    pool_.release(take_out(slot));
  }
  if (!was_idle || inflight_[index].committed != 0) return;
  idle_unlink(index);
  remove_inflight(record);
}

bool Images::strip(RecordId record, SlabSlot slab) {
  if (retire_action(table_.hot(record).state) != RetireAction::kStrip || held(record)) return false;
  ORBITKV_CHECK(table_.cold(record).pins > 0, "an image that nothing holds is gone");
  const auto give = [&](const ImageSlot& slot) {
    mem::Extent extent = take_out(slot);
    stats_.pinned -= extent.bytes();
    pool_.release(std::move(extent));
  };
  if (on_slab(ImageSlot{record, 0}, slab)) give({record, 0});
  for (std::uint32_t i = table_.cold(record).further; i != 0;) {
    const std::uint32_t next = further_.at(i).next;
    if (further_.at(i).slab == slab) give({record, i});
    i = next;
  }
  return true;
}

}  // namespace orbitkv::cache
