#include "cache/images.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "base/fault.h"
#include "base/limits.h"
#include "mem/kept_table.h"

namespace orbitkv::cache {

namespace {

// Attempts to make room for one slot: each evicts a batch. More would empty a
// fragmented cache for the sake of one block.
constexpr int kEvictionRounds = 8;

std::uint32_t further_capacity(std::uint32_t max_blocks) {
  const std::uint64_t n = std::uint64_t{kFurtherSlotsPerBlock} * max_blocks;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(n, kNoLink - 1));
}

constexpr std::uint32_t kFirstUnits = (1u << 24) - 1;  // ColdRecord::units
static_assert(limits::kSlotImageBytes.value / Images::kUnitBytes.value <= kFirstUnits);

}  // namespace

Images::Images(const Config& config, mem::Pool& pool, Namespaces& namespaces)
    : pool_(pool),
      namespaces_(namespaces),
      eviction_batch_(config.eviction_batch),
      protected_percent_(config.protected_percent),
      table_(config.table),
      further_(further_capacity(config.table.max_blocks)) {}

Images::~Images() {
  for (std::uint32_t r = 0; r < table_.high_water(); ++r) {
    const RecordId record(r);
    if (table_.hot(record).state == ImageState::kFree) continue;
    take_apart(record, ImageEvent::kClose, unsafe_shards(record));
  }
}

// Slots that somebody may still copy into or out of.
std::uint64_t Images::unsafe_shards(RecordId record) const {
  const ImageState state = table_.hot(record).state;
  if (state == ImageState::kLent) return inflight(record).lent;
  return state == ImageState::kLoading || held(record) ? ~std::uint64_t{0} : 0;
}

// ---- reading ----

ImageSlot Images::slot_of(RecordId record, ShardId shard) const {
  if (shard.value == 0) return {record, 0};
  std::uint32_t i = table_.cold(record).further;
  while (i != 0 && further_.at(i).shard != shard) i = further_.at(i).next;
  ORBITKV_CHECK(i != 0, "image has no slot of this shard");
  return {record, i};
}

SlotWords Images::words(const ImageSlot& slot) const {
  if (slot.further != 0) {
    const FurtherSlot& f = further_.at(slot.further);
    return {{f.slab, f.offset, f.units * ByteCount(kUnit), AllocationId(f.allocation)},
            f.digest,
            AllocationId(f.revision)};
  }
  const HotRecord& h = table_.hot(slot.record);
  const ColdRecord& c = table_.cold(slot.record);
  return {{h.slab, h.offset, c.units * ByteCount(kUnit), AllocationId(c.allocation)},
          c.digest,
          AllocationId(h.revision)};
}

BlockKey Images::key(RecordId record) const {
  const HotRecord& h = table_.hot(record);
  return {h.hash, h.name_space, h.group};
}

bool Images::serves(RecordId record, const BlockKey& key) const {
  const HotRecord& h = table_.hot(record);
  return (sealed(record) || loading(record)) && h.hash == key.hash && h.name_space == key.name_space &&
         h.group == key.group;
}

ByteCount Images::bytes(RecordId record) const {
  return table_.cold(record).total_units * ByteCount(kUnit);
}

Images::SlotView Images::view(RecordId record, ShardId shard) const {
  if (sealed(record)) return {SlotState::kCommitted, kNoOperation};
  if (loading(record)) return {SlotState::kLoading, kNoOperation};
  const Inflight& f = inflight(record);
  if (f.committed & bit(shard)) return {SlotState::kCommitted, kNoOperation};
  if (!(f.lent & bit(shard))) return {};
  const auto owner = static_cast<std::uint32_t>(words(slot_of(record, shard)).digest);
  return {SlotState::kLent, OperationIndex(owner)};
}

ShardId Images::shard_of(const ImageSlot& slot) const {
  return slot.further == 0 ? ShardId(0) : further_.at(slot.further).shard;
}

// ---- lending ----

std::optional<mem::Extent> Images::allocate(ByteCount bytes, NodeId near) {
  for (int round = 0;; ++round) {
    if (auto extent = pool_.allocate(bytes, near)) return extent;
    if (round == kEvictionRounds) return std::nullopt;
    if (evict({bytes, std::max(bytes, eviction_batch_)}).value == 0) return std::nullopt;
  }
}

RecordId Images::make_record(const BlockKey& key, ImageEvent event) {
  ImageState state = ImageState::kFree;
  step(state, event);
  RecordId record = kNoRecord;
  for (Residency::Insert r = table_.insert(key, record, state); r != Residency::Insert::kInserted;
       r = table_.insert(key, record, state)) {
    const bool room =
        r == Residency::Insert::kWindowFull ? evict_in_window(key) : evict(ByteCount(1)).value > 0;
    if (!room) return kNoRecord;
  }
  namespaces_.acquire(key.name_space);
  return record;
}

RecordId Images::make_inflight(const SlotWant& want) {
  if (stats_.inflight == limits::kInflightImages) return kNoRecord;
  const RecordId record = make_record(want.key, ImageEvent::kLend);
  if (record == kNoRecord) return kNoRecord;
  std::uint32_t i = inflight_free_;
  if (i == kNoLink) {
    i = static_cast<std::uint32_t>(inflight_.size());
    inflight_.emplace_back();
  } else {
    inflight_free_ = inflight_[i].next;
  }
  inflight_[i] = Inflight{};
  inflight_[i].record = record;
  table_.hot(record).shards = static_cast<std::uint8_t>(want.shards);
  table_.cold(record).prev = i;
  ++stats_.inflight;
  return record;
}

ImageSlot Images::put_words(RecordId record, const Placed& placed, mem::Extent extent) {
  const mem::Extent::Words w = extent.dissolve();
  ColdRecord& c = table_.cold(record);
  if (placed.shard.value == 0) {
    HotRecord& h = table_.hot(record);
    h.slab = w.slab;
    h.offset = w.offset;
    h.revision = w.allocation.value;
    c.allocation = w.allocation.value;
    c.units = units(w.bytes) & kFirstUnits;
    c.digest = placed.digest;
    return {record, 0};
  }
  FurtherSlot& f = further_.at(placed.further);
  f.digest = placed.digest;
  f.allocation = f.revision = w.allocation.value;
  f.offset = w.offset;
  f.slab = w.slab;
  f.units = units(w.bytes);
  f.next = c.further;
  f.shard = placed.shard;
  c.further = placed.further;
  return {record, placed.further};
}

std::optional<ImageSlot> Images::lend(const SlotWant& want) {
  const std::uint32_t further = want.shard.value == 0 ? 0 : further_.take();
  if (want.shard.value != 0 && further == 0) return std::nullopt;
  auto extent = allocate(want.bytes, want.near);
  RecordId record = kNoRecord;
  if (extent) {
    record = table_.find(want.key);
    if (record == kNoRecord) record = make_inflight(want);
    if (record == kNoRecord) pool_.release(std::move(*extent));
  }
  if (record == kNoRecord) {
    if (further != 0) further_.give_back(further);
    return std::nullopt;
  }
  const HotRecord& hot = table_.hot(record);
  ORBITKV_CHECK(hot.state == ImageState::kLent && hot.shards == want.shards, "image is complete already");
  Inflight& f = inflight(record);
  ORBITKV_CHECK(!((f.lent | f.committed) & bit(want.shard)), "slot is there already");
  if (f.lent == 0 && f.committed != 0) idle_unlink(table_.cold(record).prev);
  f.lent |= bit(want.shard);
  table_.cold(record).total_units += units(extent->bytes());
  const ImageSlot slot = put_words(record, {want.shard, want.owner.value, further}, std::move(*extent));
  if (kept_ != nullptr) {
    const Writer& w = want.writer;
    keep_lent(slot, {kept_->session(w.session), w.record, w.operation});
    fault_hit(FaultPoint::kManagerLent);
  }
  return slot;
}

// ---- ends of a lent slot ----

bool Images::commit(const ImageSlot& slot, std::uint64_t digest, TimePoint now) {
  const ShardId shard = shard_of(slot);
  ORBITKV_CHECK(table_.hot(slot.record).state == ImageState::kLent, "commit into an image that is not lent");
  Inflight& f = inflight(slot.record);
  ORBITKV_CHECK(f.lent & bit(shard), "commit of a slot that is not lent");
  if (pool_.slab(words(slot).extent.slab).state == mem::SlabState::kRetiring) {
    end_lent(slot, Exit::kRelease, now);
    return false;
  }
  f.lent &= ~bit(shard);
  f.committed |= bit(shard);
  (slot.further == 0 ? table_.cold(slot.record).digest : further_.at(slot.further).digest) = digest;
  if (kept_ != nullptr) {
    keep_sealed(slot);
    fault_hit(FaultPoint::kManagerSealed);
  }
  if (std::popcount(f.committed) == table_.hot(slot.record).shards) {
    seal(slot.record);
    return true;
  }
  after_lent(slot.record, now);
  return false;
}

void Images::seal(RecordId record) {
  free_inflight(table_.cold(record).prev);
  step(table_.hot(record).state, ImageEvent::kSeal);
  table_.hot(record).minute = minute_;
  table_.push_recent(record);
  ++stats_.sealed;
  if (kept_ != nullptr) keep_new(record);
}

void Images::give_back(const ImageSlot& slot, TimePoint now) {
  end_lent(slot, Exit::kRelease, now);
}

void Images::quarantine(const ImageSlot& slot, TimePoint now) {
  end_lent(slot, Exit::kQuarantine, now);
}

void Images::end_lent(const ImageSlot& slot, Exit exit, TimePoint now) {
  const ShardId shard = shard_of(slot);
  ORBITKV_CHECK(table_.hot(slot.record).state == ImageState::kLent,
                "end of a slot of an image that is not lent");
  Inflight& f = inflight(slot.record);
  ORBITKV_CHECK(f.lent & bit(shard), "end of a slot that is not lent");
  f.lent &= ~bit(shard);
  if (kept_ != nullptr && exit == Exit::kQuarantine) kept_->taint_slab(words(slot).extent.slab);
  mem::Extent extent = take_out(slot);
  if (exit == Exit::kRelease) {
    pool_.release(std::move(extent));
  } else {
    pool_.quarantine(std::move(extent));
    ++stats_.quarantined_extents;
  }
  after_lent(slot.record, now);
}

// The slot's extent; the slot is absent from now on.
mem::Extent Images::take_out(const ImageSlot& slot) {
  if (kept_ != nullptr) keep_free(slot);
  mem::Extent extent = mem::Extent::restore(words(slot).extent);
  ColdRecord& c = table_.cold(slot.record);
  c.total_units -= units(extent.bytes());
  if (slot.further == 0) {
    c.allocation = 0;
    c.units = 0;
    return extent;
  }
  std::uint32_t* link = &c.further;
  while (*link != slot.further) link = &further_.at(*link).next;
  *link = further_.at(slot.further).next;
  further_.give_back(slot.further);
  return extent;
}

void Images::after_lent(RecordId record, TimePoint now) {
  const Inflight& f = inflight(record);
  if (f.lent != 0) return;
  if (f.committed == 0) {
    remove_inflight(record);
  } else {
    idle_push(table_.cold(record).prev, now);
  }
}

void Images::remove_inflight(RecordId record) {
  const std::uint32_t i = table_.cold(record).prev;
  ORBITKV_CHECK(inflight_[i].lent == 0, "an image with a lent slot cannot go");
  table_.unindex(record);
  take_apart(record, ImageEvent::kGone);
  free_inflight(i);
}

void Images::free_inflight(std::uint32_t index) {
  inflight_[index].next = inflight_free_;
  inflight_free_ = index;
  --stats_.inflight;
}

void Images::idle_push(std::uint32_t index, TimePoint now) {
  Inflight& f = inflight_[index];
  f.idle_since = now;
  f.prev = idle_tail_;
  f.next = kNoLink;
  (idle_tail_ == kNoLink ? idle_head_ : inflight_[idle_tail_].next) = index;
  idle_tail_ = index;
}

void Images::idle_unlink(std::uint32_t index) {
  const Inflight& f = inflight_[index];
  (f.prev == kNoLink ? idle_head_ : inflight_[f.prev].next) = f.next;
  (f.next == kNoLink ? idle_tail_ : inflight_[f.next].prev) = f.prev;
}

void Images::abandon_idle_since(TimePoint limit) {
  while (idle_head_ != kNoLink && inflight_[idle_head_].idle_since <= limit) {
    const std::uint32_t i = idle_head_;
    idle_unlink(i);
    remove_inflight(inflight_[i].record);
    ++stats_.abandoned;
  }
}

std::optional<TimePoint> Images::idle_since(RecordId record) const {
  if (table_.hot(record).state != ImageState::kLent || inflight(record).lent != 0) return std::nullopt;
  return inflight(record).idle_since;
}

ImageStats Images::stats() const {
  return stats_;
}

}  // namespace orbitkv::cache
