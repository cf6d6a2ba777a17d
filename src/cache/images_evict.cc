// Pins, and who goes when memory, a record or an index cell is needed.
#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"
#include "base/limits.h"
#include "cache/images.h"
#include "mem/kept_table.h"

namespace orbitkv::cache {

namespace {

constexpr std::size_t kAhead = 12;  // blocks, of prefetches
// Images that one eviction passes over because they ought to be stored first.
constexpr std::uint64_t kPassedOver = 64;
// Retained images that one block of a read demotes at most: after the pool has shrunk there are many.
constexpr std::size_t kDemoted = 16;

}  // namespace

// ---- pins ----

// A pinned image stays in the recency list until eviction meets it or its last pin goes:
// leasing then costs one line a block, not three. A loading image has no bytes yet.
void Images::pin(std::span<const RecordId> records) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (i + kAhead < records.size()) table_.prefetch_pins(records[i + kAhead]);
    ColdRecord& c = table_.cold(records[i]);
    if (c.pins++ > 0) continue;
    stats_.pinned += c.total_units * ByteCount(kUnit);
    ++stats_.pinned_images;
  }
}

ByteCount Images::protected_share() const {
  return ByteCount(pool_.capacity().value * protected_percent_ / 100);
}

// The table is a bound on what is kept as the pool is.
Residency::Listed Images::share() const {
  const std::uint64_t records = std::uint64_t{table_.max_blocks()} * protected_percent_ / 100;
  return {static_cast<std::uint32_t>(records), protected_share().value / kUnit};
}

// Its last pin has gone. Where no foreground read held it, it keeps its place; if eviction met it
// meanwhile, that is among the next to go.
inline void Images::retain(RecordId record, const Residency::Listed& share) {
  ColdRecord& c = table_.cold(record);
  if (!c.was_read) {
    if (!table_.listed(record)) table_.push_unconsidered(record);
    return;
  }
  c.was_read = false;
  HotRecord& h = table_.hot(record);
  const EvictionClass was = c.eviction;
  const bool new_minute = h.minute != minute_;
  h.minute = minute_;
  std::size_t demoted = 0;
  // Demoted one by one, so that the line of the next one comes while others are dealt with.
  if (c.total_units <= share.units)
    demoted = table_.retain(record, share, kDemoted);
  else
    table_.renew(record, EvictionClass::kProbationary);
  if (kept_ == nullptr) return;
  // A read of what is retained already writes there once a minute at most.
  if (new_minute || c.eviction != was) keep_read(record);
  if (demoted > 0) keep_demoted(demoted);
}

inline void Images::unpin_one(RecordId record, Use use, const Residency::Listed& share) {
  ColdRecord& c = table_.cold(record);
  ORBITKV_CHECK(c.pins > 0, "unpin without a pin");
  if (use == Use::kForeground) c.was_read = true;
  if (--c.pins > 0) return;
  stats_.pinned -= c.total_units * ByteCount(kUnit);
  --stats_.pinned_images;
  if (sealed(record)) {
    retain(record, share);
  } else if (!loading(record) && !held(record)) {
    take_apart(record, ImageEvent::kUnheld);
  }
}

void Images::unpin(std::span<const RecordId> records, Use use) {
  const Residency::Listed most = share();
  for (std::size_t i = records.size(); i-- > 0;) {
    if (i >= 2 * kAhead) table_.prefetch_pins(records[i - 2 * kAhead]);
    if (i >= kAhead) table_.prefetch_neighbours(records[i - kAhead]);
    unpin_one(records[i], use, most);
  }
}

// A pinned one becomes recent with its last unpin.
void Images::touch(RecordId record) {
  if (!sealed(record) || table_.cold(record).pins > 0) return;
  table_.renew(record, table_.class_of(record));
}

void Images::drop(RecordId record) {
  if (!sealed(record)) return;
  if (kept_ != nullptr) keep_none(record);
  table_.unindex(record);
  --stats_.sealed;
  step(table_.hot(record).state, ImageEvent::kDrop);
  view_ = View(view_.value + 1);
  if (table_.listed(record)) table_.unlink(record);
  if (unheld(record)) take_apart(record, ImageEvent::kUnheld);
}

// The clock of a record is a minute long, so that of its last use may be almost over.
bool Images::matches(RecordId record, const Filter& filter) const {
  const HotRecord& h = table_.hot(record);
  if (h.state != ImageState::kSealed || h.name_space.value >= filter.of.size() ||
      !filter.of[h.name_space.value])
    return false;
  if (filter.unused.ns == 0) return true;
  if (table_.cold(record).pins > 0) return false;
  const auto minutes = static_cast<std::uint16_t>(minute_ - h.minute);
  return minutes > (filter.unused.ns + seconds(60).ns - 1) / seconds(60).ns;
}

void Images::count_one(RecordId record, Tally& tally) const {
  OfNamespace& of = tally[table_.hot(record).name_space.value];
  ++of.images;
  of.bytes += bytes(record);
}

void Images::count_some(const Range& range, const Filter& filter, Tally& tally) const {
  for (std::uint32_t r = range.begin; r < range.end; ++r)
    if (matches(RecordId(r), filter)) count_one(RecordId(r), tally);
}

std::uint32_t Images::drop_some(const Range& range, const Filter& filter, Tally& tally) {
  std::uint32_t dropped = 0;
  for (std::uint32_t r = range.begin; r < range.end; ++r) {
    if (!matches(RecordId(r), filter)) continue;
    if (dropped++ == limits::kDropsPerTurn) return r;
    count_one(RecordId(r), tally);
    drop(RecordId(r));
  }
  return range.end;
}

// ---- the end of an image ----

// Returns every slot to the pool, those in `unsafe_shards` to quarantine.
ByteCount Images::give_slots_back(RecordId record, std::uint64_t unsafe_shards) {
  ByteCount freed;
  const auto exit_slot = [&](const ImageSlot& slot) {
    mem::Extent extent = mem::Extent::restore(words(slot).extent);
    const bool unsafe = unsafe_shards & bit(shard_of(slot));
    if (kept_ != nullptr && unsafe) kept_->taint_slab(extent.slab());
    if (kept_ != nullptr) keep_free(slot);
    if (unsafe) {
      pool_.quarantine(std::move(extent));
    } else {
      freed += pool_.release(std::move(extent)).bytes;
    }
  };
  ColdRecord& c = table_.cold(record);
  if (c.allocation != 0) exit_slot({record, 0});
  c.allocation = 0;
  for (std::uint32_t i = c.further; i != 0;) {
    const std::uint32_t next = further_.at(i).next;
    exit_slot({record, i});
    further_.give_back(i);
    i = next;
  }
  c.further = 0;
  return freed;
}

ByteCount Images::take_apart(RecordId record, ImageEvent event, std::uint64_t unsafe_shards) {
  ImageState state = table_.hot(record).state;
  step(state, event);
  ORBITKV_CHECK(state == ImageState::kFree, "this image may not go yet");
  const ByteCount freed = give_slots_back(record, unsafe_shards);
  const NamespaceIndex name_space = table_.hot(record).name_space;
  table_.free_record(record);
  namespaces_.release(name_space);
  return freed;
}

// ---- eviction ----

ByteCount Images::evict_one(RecordId record) {
  table_.unlink(record);
  table_.unindex(record);
  --stats_.sealed;
  ++stats_.evicted;
  ++stats_.evicted_of[static_cast<std::size_t>(table_.class_of(record))];
  const ByteCount freed = take_apart(record, ImageEvent::kEvict);
  stats_.evicted_bytes += freed;
  return freed;
}

// A held one that stands in the way leaves the list. False: there were too many of them.
bool Images::pass_over(RecordId record) {
  sweeps_ = looks_ == 0;
  if (sweeps_) return false;
  --looks_;
  table_.unlink(record);
  return true;
}

// The least recent image that nothing holds.
RecordId Images::victim() {
  for (;;) {
    const RecordId record = table_.least_recent();
    if (record == kNoRecord || unheld(record)) return record;
    if (!pass_over(record)) return kNoRecord;
  }
}

void Images::sweep() {
  sweeps_ = false;
  victim();
}

Keeper::Leave Images::leave(RecordId record) {
  if (table_.cold(record).considered) return Keeper::Leave::kGo;
  return keeper_->leaving(record);
}

// Goes up the list and takes what the keeper lets go.
Images::Clean Images::evict_clean(const Evict& want, std::uint64_t most_passed) {
  Clean done;
  RecordId at = table_.least_recent();
  while (!want.enough(done.freed, done.images) && at != kNoRecord && done.passed < most_passed) {
    const RecordId record = at;
    at = table_.more_recent(record);
    if (!unheld(record)) {
      if (!pass_over(record)) break;
      continue;
    }
    const Keeper::Leave answer = leave(record);
    if (answer == Keeper::Leave::kGo) {
      done.freed += evict_one(record);
      ++done.images;
    } else {
      ++done.passed;
      done.dirty += answer == Keeper::Leave::kDirty ? 1 : 0;
    }
  }
  return done;
}

ByteCount Images::evict(const Evict& want) {
  Clean done;
  if (keeper_ != nullptr) done = evict_clean(want, kPassedOver);
  for (; !want.enough(done.freed, done.images); ++done.images) {
    const RecordId record = victim();
    if (record == kNoRecord) break;
    done.freed += evict_one(record);
  }
  return done.freed;
}

// The operator asked: it takes as long as it takes.
std::uint64_t Images::evict_let_go(ByteCount bytes) {
  looks_ = std::numeric_limits<std::uint32_t>::max();
  const Evict all{bytes, bytes};
  const std::uint64_t dirty =
      keeper_ != nullptr ? evict_clean(all, std::numeric_limits<std::uint64_t>::max()).dirty : 0;
  if (keeper_ == nullptr) evict(all);
  begin_call();
  return dirty;
}

bool Images::evict_in_window(const BlockKey& key) {
  std::array<RecordId, limits::kProbeWindow> cells;
  const std::size_t n = table_.window(key, cells);
  std::stable_sort(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(n),
                   [&](RecordId a, RecordId b) { return table_.class_of(a) < table_.class_of(b); });
  const auto may_go = [&](RecordId r) { return sealed(r) && unheld(r); };
  for (std::size_t i = 0; i < n; ++i) {
    const bool stored = table_.hot(cells[i]).flags & kStoredHint || table_.cold(cells[i]).considered;
    if (!may_go(cells[i]) || !stored) continue;
    evict_one(cells[i]);
    return true;
  }
  RecordId dirty = kNoRecord;
  for (std::size_t i = 0; i < n; ++i) {
    if (!may_go(cells[i])) continue;
    if (keeper_ == nullptr || leave(cells[i]) == Keeper::Leave::kGo) {
      evict_one(cells[i]);
      return true;
    }
    if (may_go(cells[i])) dirty = cells[i];
  }
  if (dirty == kNoRecord) return false;
  evict_one(dirty);
  return true;
}

}  // namespace orbitkv::cache
