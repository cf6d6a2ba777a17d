// Images on their way from the tier and to it.
#include "base/check.h"
#include "cache/images.h"

namespace orbitkv::cache {

// ---- loading ----

// Fills taken_extents_ and taken_further_; all or nothing. Evicts.
bool Images::take_all(const LoadWant& want) {
  bool room = true;
  for (std::uint16_t s = 1; s < want.shards && room; ++s) {
    const std::uint32_t i = further_.take();
    room = i != 0;
    if (room) taken_further_.push_back(i);
  }
  for (std::uint16_t s = 0; s < want.shards && room; ++s) {
    auto extent = allocate(want.bytes, want.near ? want.near->of(ShardId(s)) : kAnyNode);
    room = extent.has_value();
    if (room) taken_extents_.push_back(extent->dissolve());
  }
  if (!room) give_all_back();
  return room;
}

void Images::give_all_back() {
  for (const std::uint32_t i : taken_further_) further_.give_back(i);
  for (const mem::Extent::Words& w : taken_extents_) pool_.release(mem::Extent::restore(w));
  taken_further_.clear();
  taken_extents_.clear();
}

std::optional<RecordId> Images::lend_all(const LoadWant& want) {
  if (!take_all(want)) return std::nullopt;
  const RecordId record = make_record(want.key, ImageEvent::kLoad);
  if (record == kNoRecord) {
    give_all_back();
    return std::nullopt;
  }
  table_.hot(record).shards = static_cast<std::uint8_t>(want.shards);
  if (want.use == Use::kSpeculative) table_.set_class(record, EvictionClass::kReclaimable);
  for (std::uint16_t s = want.shards; s-- > 0;) {
    const std::uint32_t further = s == 0 ? 0 : taken_further_[s - 1u];
    put_words(record, {ShardId(s), 0, further}, mem::Extent::restore(taken_extents_[s]));
  }
  taken_further_.clear();
  taken_extents_.clear();
  ++stats_.loading;
  return record;
}

void Images::mark(const ImageSlot& slot, std::uint64_t digest, AllocationId revision) {
  ORBITKV_CHECK(loading(slot.record), "only what loads learns its mark from the tier");
  if (slot.further != 0) {
    further_.at(slot.further).digest = digest;
    further_.at(slot.further).revision = revision.value;
  } else {
    table_.cold(slot.record).digest = digest;
    table_.hot(slot.record).revision = revision.value;
  }
}

void Images::load_done(RecordId record) {
  step(table_.hot(record).state, ImageEvent::kLanded);
  table_.hot(record).flags |= kStoredHint;
  table_.hot(record).minute = minute_;
  ColdRecord& c = table_.cold(record);
  c.total_units = c.units;
  for (std::uint32_t i = c.further; i != 0; i = further_.at(i).next) c.total_units += further_.at(i).units;
  if (c.pins > 0) stats_.pinned += bytes(record);
  if (kept_ != nullptr)
    for (std::uint16_t s = 0; s < shards(record); ++s) keep_sealed(slot_of(record, ShardId(s)));
  if (kept_ != nullptr) keep_new(record);
  table_.push_recent(record);
  --stats_.loading;
  ++stats_.sealed;
}

void Images::load_failed(RecordId record) {
  ORBITKV_CHECK(loading(record), "load_failed of an image that does not load");
  table_.unindex(record);
  --stats_.loading;
  if (table_.cold(record).pins == 0) {
    take_apart(record, ImageEvent::kGone);
    return;
  }
  give_slots_back(record, 0);
  step(table_.hot(record).state, ImageEvent::kLoadFail);
}

// ---- storing ----

void Images::hold_for_io(RecordId record) {
  HotRecord& h = table_.hot(record);
  ORBITKV_CHECK(h.state == ImageState::kSealed && !(h.flags & kHeldForIo),
                "one store of a sealed image at a time");
  h.flags |= kHeldForIo;
  ++stats_.held;
}

// Where eviction met it meanwhile it stands at the least recent end, as before.
void Images::end_io(RecordId record, bool stored) {
  HotRecord& h = table_.hot(record);
  ORBITKV_CHECK(h.flags & kHeldForIo, "end of a store that has not begun");
  h.flags &= static_cast<std::uint8_t>(~kHeldForIo);
  if (stored) h.flags |= kStoredHint;
  --stats_.held;
  if (table_.cold(record).pins > 0) return;
  if (h.state != ImageState::kSealed) {
    take_apart(record, ImageEvent::kUnheld);
  } else if (!table_.listed(record)) {
    table_.push_least_recent(record);
  }
}

ByteCount Images::considered() const {
  return table_.considered_units() * ByteCount(kUnit);
}

}  // namespace orbitkv::cache
