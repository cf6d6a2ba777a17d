// What of the images is written to kept memory, and what an earlier life left there.
#include "base/check.h"
#include "base/fault.h"
#include "cache/images.h"
#include "mem/kept_scan.h"
#include "mem/kept_table.h"

namespace orbitkv::cache {

mem::KeptAt Images::kept_at(const ImageSlot& slot) const {
  if (slot.further != 0) return {mem::KeptRegion::kFurther, slot.further - 1};
  return {mem::KeptRegion::kFirst, slot.record.value};
}

void Images::keep_lent(const ImageSlot& slot, const mem::KeptWriter& writer) {
  const mem::Extent::Words w = words(slot).extent;
  kept_->lend(kept_at(slot), {{pool_.slab(w.slab).id, w.offset, w.bytes}, writer});
}

void Images::keep_sealed(const ImageSlot& slot) {
  const HotRecord& h = table_.hot(slot.record);
  const SlotWords w = words(slot);
  mem::KeptImage image;
  image.hash = h.hash.bytes;
  image.name_space = h.name_space;
  image.group = h.group;
  image.shard = shard_of(slot);
  image.shards = h.shards;
  image.place = {pool_.slab(w.extent.slab).id, w.extent.offset, w.extent.bytes};
  image.digest = w.digest;
  image.revision = w.revision;
  kept_->seal(kept_at(slot), image);
}

void Images::keep_free(const ImageSlot& slot) {
  kept_->free(kept_at(slot));
  fault_hit(FaultPoint::kManagerUnsealed);
}

void Images::keep_none(RecordId record) {
  keep_free({record, 0});
  for (std::uint32_t i = table_.cold(record).further; i != 0; i = further_.at(i).next) keep_free({record, i});
}

void Images::note_device(RecordId record) {
  if (kept_ == nullptr) return;
  for (std::uint16_t s = 0; s < shards(record); ++s) keep_lent(slot_of(record, ShardId(s)), {});
}

// As if it had been loaded, and the tier had ended at once.
RecordId Images::adopt(std::span<const mem::KeptSlot> slots, NamespaceIndex name_space) {
  const mem::KeptImage& first = slots.front().slot;
  const BlockKey key{BlockHash{first.hash}, name_space, first.group};
  for (const mem::KeptSlot& each : slots)
    taken_extents_.push_back(
        pool_.adopt(each.slab, each.slot.place.offset, each.slot.place.bytes).dissolve());
  bool room = true;
  for (std::size_t s = 1; s < slots.size() && room; ++s) {
    const std::uint32_t i = further_.take();
    room = i != 0;
    if (room) taken_further_.push_back(i);
  }
  if (const RecordId older = table_.find(key); older != kNoRecord) drop(older);
  const RecordId record = room ? make_record(key, ImageEvent::kLoad) : kNoRecord;
  if (record == kNoRecord) {
    give_all_back();
    return kNoRecord;
  }
  table_.hot(record).shards = static_cast<std::uint8_t>(slots.size());
  table_.hot(record).minute = minute_;
  ByteCount bytes;
  for (std::size_t s = slots.size(); s-- > 0;) {
    const mem::KeptImage& from = slots[s].slot;
    const std::uint32_t further = s == 0 ? 0 : taken_further_[s - 1];
    const ImageSlot slot =
        put_words(record, {from.shard, from.digest, further}, mem::Extent::restore(taken_extents_[s]));
    mark(slot, from.digest, from.revision);
    bytes += from.place.bytes;
    if (kept_ != nullptr) keep_sealed(slot);
  }
  taken_further_.clear();
  taken_extents_.clear();
  step(table_.hot(record).state, ImageEvent::kLanded);
  table_.cold(record).total_units = units(bytes);
  table_.push_recent(record);
  ++stats_.sealed;
  return record;
}

}  // namespace orbitkv::cache
