// What of the images is written to kept memory, and what an earlier life left there.
#include <limits>

#include "base/check.h"
#include "base/fault.h"
#include "cache/images.h"
#include "mem/kept_scan.h"
#include "mem/kept_table.h"

namespace orbitkv::cache {
namespace {

constexpr EvictionClass class_in(mem::KeptClass kept) {
  switch (kept) {
    case mem::KeptClass::kReclaimable: return EvictionClass::kReclaimable;
    case mem::KeptClass::kRetained: return EvictionClass::kRetained;
    default: return EvictionClass::kProbationary;
  }
}

}  // namespace

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

void Images::keep_use(RecordId record, const mem::KeptUse& use) {
  kept_->note_use(record.value, use);
}

void Images::keep_new(RecordId record) {
  const bool asked = table_.class_of(record) != EvictionClass::kReclaimable;
  keep_use(record, {asked ? mem::KeptClass::kProbationary : mem::KeptClass::kReclaimable, minute_});
}

void Images::keep_read(RecordId record) {
  const bool retained = table_.class_of(record) == EvictionClass::kRetained;
  keep_use(record, {retained ? mem::KeptClass::kRetained : mem::KeptClass::kDemoted, minute_});
}

// The last one is the most recent of the lower class. The minute is not that of its last use: it would
// stand behind all that has come to that class since.
void Images::keep_demoted(std::size_t count) {
  RecordId record = table_.most_recent(EvictionClass::kProbationary);
  for (; count > 0; --count, record = table_.less_recent(record)) keep_read(record);
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
  adopt_use(record, first.use);
  ++stats_.sealed;
  return record;
}

void Images::adopt_use(RecordId record, const mem::KeptUse& use) {
  table_.hot(record).minute = use.minute;
  const Residency::Listed most = share();
  EvictionClass as = class_in(use.eviction);
  const bool too_large = as == EvictionClass::kRetained && table_.cold(record).total_units > most.units;
  if (too_large) as = EvictionClass::kProbationary;
  table_.set_class(record, as);
  table_.push_recent(record);
  const std::size_t demoted =
      as == EvictionClass::kRetained ? table_.demote(most, std::numeric_limits<std::size_t>::max()) : 0;
  if (kept_ == nullptr) return;
  mem::KeptClass kept = too_large ? mem::KeptClass::kDemoted : use.eviction;
  if (kept == mem::KeptClass::kUnknown) kept = mem::KeptClass::kProbationary;
  keep_use(record, {kept, use.minute});
  keep_demoted(demoted);
}

}  // namespace orbitkv::cache
