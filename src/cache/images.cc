#include "cache/images.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "base/limits.h"

namespace orbitkv::cache {

namespace {

constexpr std::uint64_t kUnit = 64;
// Attempts to make room for one slot: each evicts a batch. More would empty a
// fragmented cache for the sake of one block.
constexpr int kEvictionRounds = 8;
constexpr std::size_t kAhead = 12;  // blocks, of prefetches

std::uint64_t bit(ShardId shard) {
  return std::uint64_t{1} << shard.value;
}

std::uint32_t units(ByteCount bytes) {
  return static_cast<std::uint32_t>(bytes.value / kUnit);
}

std::uint32_t further_capacity(std::uint32_t max_blocks) {
  const std::uint64_t n = std::uint64_t{kFurtherSlotsPerBlock} * max_blocks;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(n, kNoLink - 1));
}

}  // namespace

Images::Images(const Config& config, mem::Pool& pool, Namespaces& namespaces)
    : pool_(pool),
      namespaces_(namespaces),
      eviction_batch_(config.eviction_batch),
      table_(config.table),
      further_(further_capacity(config.table.max_blocks)) {}

Images::~Images() {
  for (std::uint32_t r = 0; r < table_.high_water(); ++r) {
    const RecordId record(r);
    const ImageState state = table_.hot(record).state;
    if (state == ImageState::kFree) continue;
    take_apart(record, state == ImageState::kLent ? inflight(record).lent : 0);
  }
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

Images::SlotView Images::view(RecordId record, ShardId shard) const {
  if (sealed(record)) return {SlotState::kCommitted, kNoOperation};
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

std::optional<mem::Extent> Images::allocate(ByteCount bytes) {
  for (int round = 0;; ++round) {
    if (auto extent = pool_.allocate(bytes)) return extent;
    if (round == kEvictionRounds) return std::nullopt;
    if (evict(std::max(bytes, eviction_batch_)).value == 0) return std::nullopt;
  }
}

bool Images::evict_in_window(const BlockKey& key) {
  std::array<RecordId, limits::kProbeWindow> cells;
  const std::size_t n = table_.window(key, cells);
  for (std::size_t i = 0; i < n; ++i) {
    if (sealed(cells[i]) && table_.cold(cells[i]).pins == 0) {
      evict_one(cells[i]);
      return true;
    }
  }
  return false;
}

RecordId Images::make_record(const SlotWant& want) {
  if (stats_.inflight == limits::kInflightImages) return kNoRecord;
  RecordId record = kNoRecord;
  for (Residency::Insert r = table_.insert(want.key, record); r != Residency::Insert::kInserted;
       r = table_.insert(want.key, record)) {
    const bool room =
        r == Residency::Insert::kWindowFull ? evict_in_window(want.key) : evict(ByteCount(1)).value > 0;
    if (!room) return kNoRecord;
  }
  std::uint32_t i = inflight_free_;
  if (i == kNoLink) {
    i = static_cast<std::uint32_t>(inflight_.size());
    inflight_.emplace_back();
  } else {
    inflight_free_ = inflight_[i].next;
  }
  inflight_[i] = Inflight{};
  inflight_[i].record = record;
  table_.hot(record).shards = want.shards;
  table_.cold(record).prev = i;
  namespaces_.acquire(want.key.name_space);
  ++stats_.inflight;
  return record;
}

ImageSlot Images::put_words(RecordId record, const SlotWant& want, mem::Extent extent) {
  const mem::Extent::Words w = extent.dissolve();
  ColdRecord& c = table_.cold(record);
  c.total_units += units(w.bytes);
  if (want.shard.value == 0) {
    table_.hot(record).slab = w.slab;
    table_.hot(record).offset = w.offset;
    table_.hot(record).revision = w.allocation.value;
    c.allocation = w.allocation.value;
    c.units = units(w.bytes);
    c.digest = want.owner.value;
    return {record, 0};
  }
  const std::uint32_t i = further_.take();
  ORBITKV_CHECK(i != 0, "further slots ran out between check and use");
  further_.at(i) = {want.owner.value, w.allocation.value, w.allocation.value, w.offset, w.slab,
                    units(w.bytes),   c.further,          want.shard,         0};
  c.further = i;
  return {record, i};
}

std::optional<ImageSlot> Images::lend(const SlotWant& want) {
  if (want.shard.value != 0) {
    // Taken and given back: the check that put_words relies on.
    const std::uint32_t probe = further_.take();
    if (probe == 0) return std::nullopt;
    further_.give_back(probe);
  }
  auto extent = allocate(want.bytes);
  if (!extent) return std::nullopt;
  RecordId record = table_.find(want.key);
  if (record == kNoRecord) record = make_record(want);
  if (record == kNoRecord) {
    pool_.release(std::move(*extent));
    return std::nullopt;
  }
  const HotRecord& hot = table_.hot(record);
  ORBITKV_CHECK(hot.state == ImageState::kLent && hot.shards == want.shards, "image is complete already");
  Inflight& f = inflight(record);
  ORBITKV_CHECK(!((f.lent | f.committed) & bit(want.shard)), "slot is there already");
  if (f.lent == 0 && f.committed != 0) idle_unlink(table_.cold(record).prev);
  f.lent |= bit(want.shard);
  return put_words(record, want, std::move(*extent));
}

// ---- ends of a lent slot ----

void Images::commit(const ImageSlot& slot, std::uint64_t digest, TimePoint now) {
  const ShardId shard = shard_of(slot);
  Inflight& f = inflight(slot.record);
  ORBITKV_CHECK(f.lent & bit(shard), "commit of a slot that is not lent");
  f.lent &= ~bit(shard);
  f.committed |= bit(shard);
  (slot.further == 0 ? table_.cold(slot.record).digest : further_.at(slot.further).digest) = digest;
  if (std::popcount(f.committed) == table_.hot(slot.record).shards) {
    seal(slot.record);
  } else {
    after_lent(slot.record, now);
  }
}

void Images::seal(RecordId record) {
  free_inflight(table_.cold(record).prev);
  table_.hot(record).state = ImageState::kSealed;
  table_.push_recent(record);
  ++stats_.sealed;
}

void Images::give_back(const ImageSlot& slot, TimePoint now) {
  end_lent(slot, Exit::kRelease, now);
}

void Images::quarantine(const ImageSlot& slot, TimePoint now) {
  end_lent(slot, Exit::kQuarantine, now);
}

void Images::end_lent(const ImageSlot& slot, Exit exit, TimePoint now) {
  const ShardId shard = shard_of(slot);
  Inflight& f = inflight(slot.record);
  ORBITKV_CHECK(f.lent & bit(shard), "end of a slot that is not lent");
  f.lent &= ~bit(shard);
  mem::Extent extent = mem::Extent::restore(words(slot).extent);
  ColdRecord& c = table_.cold(slot.record);
  c.total_units -= units(extent.bytes());
  if (slot.further == 0) {
    c.allocation = 0;
    c.units = 0;
  } else {
    std::uint32_t* link = &c.further;
    while (*link != slot.further) link = &further_.at(*link).next;
    *link = further_.at(slot.further).next;
    further_.give_back(slot.further);
  }
  if (exit == Exit::kRelease) {
    pool_.release(std::move(extent));
  } else {
    pool_.quarantine(std::move(extent));
    ++stats_.quarantined_extents;
  }
  after_lent(slot.record, now);
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
  take_apart(record, 0);
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

// ---- pins ----

// A pinned image stays in the recency list until eviction meets it or its last pin goes:
// leasing then costs one line a block, not three.
void Images::pin(std::span<const RecordId> records) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (i + kAhead < records.size()) table_.prefetch_pins(records[i + kAhead]);
    ColdRecord& c = table_.cold(records[i]);
    if (c.pins++ == 0) stats_.pinned += c.total_units * ByteCount(kUnit);
  }
}

void Images::unpin(std::span<const RecordId> records) {
  for (std::size_t i = records.size(); i-- > 0;) {
    if (i >= 2 * kAhead) table_.prefetch_pins(records[i - 2 * kAhead]);
    if (i >= kAhead) table_.prefetch_neighbours(records[i - kAhead]);
    unpin_one(records[i]);
  }
}

void Images::unpin_one(RecordId record) {
  ColdRecord& c = table_.cold(record);
  ORBITKV_CHECK(c.pins > 0, "unpin without a pin");
  if (--c.pins > 0) return;
  stats_.pinned -= c.total_units * ByteCount(kUnit);
  if (!sealed(record)) {
    take_apart(record, 0);
    return;
  }
  if (table_.listed(record)) table_.unlink(record);
  table_.push_recent(record);
}

// The least recent image that is not pinned; pinned ones on the way leave the list.
RecordId Images::victim() {
  for (;;) {
    const RecordId record = table_.least_recent();
    if (record == kNoRecord || table_.cold(record).pins == 0) return record;
    table_.unlink(record);
  }
}

void Images::drop(RecordId record) {
  if (!sealed(record)) return;
  table_.unindex(record);
  --stats_.sealed;
  table_.hot(record).state = ImageState::kDropped;
  if (table_.listed(record)) table_.unlink(record);
  if (table_.cold(record).pins == 0) take_apart(record, 0);
}

// ---- eviction ----

// Returns every slot to the pool (those in `lent_shards` to quarantine) and frees the record.
ByteCount Images::take_apart(RecordId record, std::uint64_t lent_shards) {
  ByteCount freed;
  const auto exit_slot = [&](const ImageSlot& slot) {
    mem::Extent extent = mem::Extent::restore(words(slot).extent);
    if (lent_shards & bit(shard_of(slot))) {
      pool_.quarantine(std::move(extent));
    } else {
      freed += pool_.release(std::move(extent)).bytes;
    }
  };
  if (table_.cold(record).allocation != 0) exit_slot({record, 0});
  for (std::uint32_t i = table_.cold(record).further; i != 0;) {
    const std::uint32_t next = further_.at(i).next;
    exit_slot({record, i});
    further_.give_back(i);
    i = next;
  }
  namespaces_.release(table_.hot(record).name_space);
  table_.free_record(record);
  return freed;
}

ByteCount Images::evict_one(RecordId record) {
  table_.unlink(record);
  table_.unindex(record);
  --stats_.sealed;
  ++stats_.evicted;
  return take_apart(record, 0);
}

ByteCount Images::evict(ByteCount bytes) {
  ByteCount freed;
  while (freed < bytes) {
    const RecordId record = victim();
    if (record == kNoRecord) break;
    freed += evict_one(record);
  }
  return freed;
}

ImageStats Images::stats() const {
  return stats_;
}

}  // namespace orbitkv::cache
