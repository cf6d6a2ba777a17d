#include "cache/residency.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/limits.h"

namespace orbitkv::cache {

namespace {

constexpr std::size_t kWindow = limits::kProbeWindow;
// How far a lookup runs ahead of the next stage: enough to cover a miss to DRAM, few
// enough to stay within the CPU's outstanding misses.
constexpr std::size_t kAhead = 12;
constexpr std::uint64_t kNoCell = ~std::uint64_t{0};

std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const auto p = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(p) ^ static_cast<std::uint64_t>(p >> 64);
}

// Bijective scrambling of a seed word (splitmix64).
std::uint64_t scramble(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

std::uint64_t word(const BlockHash& hash, std::size_t i) {
  std::uint64_t w = 0;
  std::memcpy(&w, hash.bytes.data() + 8 * i, 8);
  return w;
}

}  // namespace

Residency::Residency(const Config& config)
    : max_blocks_(config.max_blocks),
      homes_(2 * std::uint64_t{config.max_blocks}),
      keys_{scramble(config.seed[0]), scramble(config.seed[1]), scramble(config.seed[0] ^ 0x51),
            scramble(config.seed[1] ^ 0x52)},
      hot_(max_blocks_),
      cold_(max_blocks_),
      index_(homes_ + kWindow) {
  ORBITKV_CHECK(max_blocks_ > 0 && max_blocks_ <= limits::kBlocks, "max_blocks must be 1 .. 2^30");
}

std::uint64_t Residency::hash_key(std::uint64_t mix, const BlockHash& hash) const {
  const std::uint64_t a = fold(word(hash, 0) ^ keys_[0], word(hash, 1) ^ keys_[1]);
  const std::uint64_t b = fold(word(hash, 2) ^ keys_[2], word(hash, 3) ^ keys_[3]);
  return fold(a ^ mix, b ^ keys_[0]);
}

KeySpace Residency::key_space(NamespaceIndex name_space, GroupId group) const {
  const std::uint64_t id = std::uint64_t{name_space.value} << 16 | group.value;
  return {name_space, group, scramble(id ^ keys_[1])};
}

std::uint64_t Residency::hash_of(const BlockKey& key) const {
  return hash_key(key_space(key.name_space, key.group).mix, key.hash);
}

bool Residency::matches(std::uint32_t record, const KeySpace& space, const BlockHash& hash) const {
  const HotRecord& h = hot_[record];
  return std::memcmp(h.hash.bytes.data(), hash.bytes.data(), sizeof hash.bytes) == 0 &&
         h.name_space == space.name_space && h.group == space.group;
}

// First record in the window with this tag: almost always the key's own.
std::uint32_t Residency::candidate(std::uint64_t hash) const {
  const std::uint32_t tag = tag_of(hash);
  const std::uint64_t first = home(tag);
  for (std::uint64_t i = first; i < first + kWindow; ++i) {
    const Cell cell = index_[i];
    if (cell.record_plus_1 == 0) return kNoLink;
    if (cell.tag == tag) return cell.record_plus_1 - 1;
  }
  return kNoLink;
}

RecordId Residency::find_hashed(const KeySpace& space, const BlockHash& hash, std::uint64_t hashed) const {
  const std::uint32_t tag = tag_of(hashed);
  const std::uint64_t first = home(tag);
  for (std::uint64_t i = first; i < first + kWindow; ++i) {
    const Cell cell = index_[i];
    if (cell.record_plus_1 == 0) break;
    if (cell.tag == tag && matches(cell.record_plus_1 - 1, space, hash)) {
      return RecordId(cell.record_plus_1 - 1);
    }
  }
  return kNoRecord;
}

RecordId Residency::find(const BlockKey& key) const {
  const KeySpace space = key_space(key.name_space, key.group);
  return find_hashed(space, key.hash, hash_key(space.mix, key.hash));
}

void Residency::find_batch(const KeySpace& space, std::span<const BlockHash> hashes,
                           std::span<Lookup> out) const {
  const std::size_t n = hashes.size();
  ORBITKV_CHECK(out.size() >= n, "find_batch needs one result a hash");
  for (std::size_t i = 0; i < n + 2 * kAhead; ++i) {
    if (i < n) {
      out[i].hash = hash_key(space.mix, hashes[i]);
      __builtin_prefetch(&index_[home(tag_of(out[i].hash))]);
    }
    if (i >= kAhead && i - kAhead < n) {
      Lookup& l = out[i - kAhead];
      l.record = RecordId(candidate(l.hash));
      if (l.record != kNoRecord) __builtin_prefetch(&hot_[l.record.value]);
    }
    if (i < 2 * kAhead) continue;
    Lookup& l = out[i - 2 * kAhead];
    const BlockHash& hash = hashes[i - 2 * kAhead];
    if (l.record != kNoRecord && !matches(l.record.value, space, hash)) {
      l.record = find_hashed(space, hash, l.hash);
    }
  }
}

// Cells are kept in the order of their homes, so that no key lies far from its own: at
// half load a dozen cells at most. Moves the cells behind the new one by one; kNoCell,
// and nothing moved, if that would push one out of its window.
std::uint64_t Residency::open_cell(std::uint32_t tag) {
  const std::uint64_t first = home(tag);
  std::uint64_t at = first;
  while (at < first + kWindow && index_[at].record_plus_1 != 0 && home(index_[at].tag) <= first) ++at;
  if (at == first + kWindow) return kNoCell;
  std::uint64_t empty = at;
  for (; index_[empty].record_plus_1 != 0; ++empty) {
    if (empty + 1 - home(index_[empty].tag) >= kWindow) return kNoCell;
  }
  for (std::uint64_t i = empty; i > at; --i) index_[i] = index_[i - 1];
  return at;
}

Residency::Insert Residency::insert(const BlockKey& key, RecordId& out, ImageState state) {
  if (free_ == kNoLink && fresh_ == max_blocks_) return Insert::kTableFull;
  const std::uint32_t tag = tag_of(hash_of(key));
  const std::uint64_t at = open_cell(tag);
  if (at == kNoCell) return Insert::kWindowFull;
  std::uint32_t r = free_;
  if (r == kNoLink) {
    r = fresh_++;
  } else {
    free_ = cold_[r].next;
  }
  hot_[r] = HotRecord{};
  hot_[r].hash = key.hash;
  hot_[r].name_space = key.name_space;
  hot_[r].group = key.group;
  hot_[r].state = state;
  cold_[r] = ColdRecord{};
  set_class(RecordId(r), EvictionClass::kProbationary);
  index_[at] = {tag, r + 1};
  ++used_;
  out = RecordId(r);
  return Insert::kInserted;
}

std::size_t Residency::window(const BlockKey& key, std::span<RecordId> out) const {
  const std::uint64_t first = home_of(key);
  const std::size_t n = std::min(kWindow, out.size());
  std::size_t found = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const Cell cell = index_[first + i];
    if (cell.record_plus_1 != 0) out[found++] = RecordId(cell.record_plus_1 - 1);
  }
  return found;
}

void Residency::unindex(RecordId record) {
  const HotRecord& h = hot_[record.value];
  const std::uint64_t first = home_of({h.hash, h.name_space, h.group});
  std::uint64_t hole = first;
  while (hole < first + kWindow && index_[hole].record_plus_1 != record.value + 1) ++hole;
  ORBITKV_CHECK(hole < first + kWindow, "record is not in the index");
  // Backward shift, up to the first cell that is at home.
  const std::uint64_t end = homes_ + kWindow;
  for (std::uint64_t i = hole + 1; i < end; hole = i++) {
    if (index_[i].record_plus_1 == 0 || home(index_[i].tag) == i) break;
    index_[hole] = index_[i];
  }
  index_[hole] = Cell{};
}

void Residency::free_record(RecordId record) {
  const std::uint32_t r = record.value;
  ORBITKV_CHECK(hot_[r].state != ImageState::kFree, "record freed twice");
  hot_[r].state = ImageState::kFree;
  cold_[r] = ColdRecord{};
  cold_[r].next = free_;
  free_ = r;
  --used_;
}

// ---- recency ----

inline std::uint32_t Residency::tail_above(EvictionClass of) const {
  for (std::size_t c = static_cast<std::size_t>(of) + 1; c < kEvictionClasses; ++c) {
    if (lists_[c].tail != kNoLink) return lists_[c].tail;
  }
  return kNoLink;
}

inline std::uint32_t Residency::head_below(EvictionClass of) const {
  for (std::size_t c = static_cast<std::size_t>(of); c-- > 0;) {
    if (lists_[c].head != kNoLink) return lists_[c].head;
  }
  return kNoLink;
}

inline void Residency::link(List& in, std::uint32_t record, Between at) {
  ColdRecord& c = cold_[record];
  c.prev = at.prev;
  c.next = at.next;
  if (at.prev != kNoLink) cold_[at.prev].next = record;
  if (at.next != kNoLink) cold_[at.next].prev = record;
  ++in.listed.records;
  in.listed.units += c.total_units;
}

inline void Residency::push_front(EvictionClass of, std::uint32_t record) {
  List& in = list(of);
  link(in, record, {tail_above(of), in.head != kNoLink ? in.head : head_below(of)});
  in.head = record;
  if (in.tail == kNoLink) in.tail = record;
}

inline void Residency::push_back(EvictionClass of, std::uint32_t record) {
  List& in = list(of);
  link(in, record, {in.tail != kNoLink ? in.tail : tail_above(of), head_below(of)});
  in.tail = record;
  if (in.head == kNoLink) in.head = record;
}

void Residency::push_recent(RecordId record) {
  push_front(class_of(record), record.value);
}

void Residency::push_least_recent(RecordId record) {
  push_back(class_of(record), record.value);
  ColdRecord& c = cold_[record.value];
  c.considered = true;
  considered_units_ += c.total_units;
  List& in = list(class_of(record));
  if (in.cursor == kNoLink) in.cursor = record.value;
}

void Residency::push_unconsidered(RecordId record) {
  List& in = list(class_of(record));
  if (in.cursor == kNoLink) return push_back(class_of(record), record.value);
  link(in, record.value, {cold_[in.cursor].prev, in.cursor});
  if (in.head == in.cursor) in.head = record.value;
}

RecordId Residency::least_recent() const {
  for (const List& each : lists_) {
    if (each.tail != kNoLink) return RecordId(each.tail);
  }
  return kNoRecord;
}

RecordId Residency::next_unconsidered() const {
  for (const List& each : lists_) {
    if (const std::uint32_t r = unconsidered(each); r != kNoLink) return RecordId(r);
  }
  return kNoRecord;
}

void Residency::consider_next() {
  const RecordId next = next_unconsidered();
  ORBITKV_CHECK(next != kNoRecord, "everything is considered already");
  cold_[next.value].considered = true;
  considered_units_ += cold_[next.value].total_units;
  list(class_of(next)).cursor = next.value;
}

void Residency::forget_considered(List& in, std::uint32_t record) {
  ColdRecord& c = cold_[record];
  c.considered = false;
  considered_units_ -= c.total_units;
  if (in.cursor == record) in.cursor = in.tail == record ? kNoLink : c.next;
}

inline void Residency::take_out(std::uint32_t record) {
  ColdRecord& c = cold_[record];
  List& in = list(c.eviction);
  if (c.considered) forget_considered(in, record);
  if (c.prev != kNoLink) cold_[c.prev].next = c.next;
  if (c.next != kNoLink) cold_[c.next].prev = c.prev;
  if (in.head == record || in.tail == record) {
    const List was = in;
    if (was.head == record) in.head = was.tail == record ? kNoLink : c.next;
    if (was.tail == record) in.tail = was.head == record ? kNoLink : c.prev;
  }
  --in.listed.records;
  in.listed.units -= c.total_units;
}

void Residency::unlink(RecordId record) {
  take_out(record.value);
  cold_[record.value].prev = kUnlisted;
}

inline void Residency::renew_as(std::uint32_t record, EvictionClass as) {
  if (cold_[record].prev != kUnlisted) take_out(record);
  cold_[record].eviction = as;
  push_front(as, record);
}

void Residency::renew(RecordId record, EvictionClass as) {
  renew_as(record.value, as);
}

inline bool Residency::beyond(const Listed& share) const {
  const Listed& retained = list(EvictionClass::kRetained).listed;
  return retained.units > share.units || retained.records > share.records;
}

// The end of one list is the beginning of the next, so no link changes.
inline void Residency::demote_last() {
  List& from = list(EvictionClass::kRetained);
  List& to = list(EvictionClass::kProbationary);
  const std::uint32_t last = from.tail;
  ORBITKV_CHECK(last != kNoLink, "there is nothing to demote");
  ColdRecord& c = cold_[last];
  if (c.prev != kNoLink) __builtin_prefetch(&cold_[c.prev], 1);
  if (c.considered) forget_considered(from, last);
  c.eviction = EvictionClass::kProbationary;
  to.head = last;
  if (to.tail == kNoLink) to.tail = last;
  from.tail = c.prev;
  if (from.head == last) from.head = from.tail = kNoLink;
  --from.listed.records;
  from.listed.units -= c.total_units;
  ++to.listed.records;
  to.listed.units += c.total_units;
}

inline std::size_t Residency::demote_beyond(const Listed& share, std::size_t most) {
  std::size_t demoted = 0;
  for (; demoted < most && beyond(share); ++demoted) demote_last();
  return demoted;
}

std::size_t Residency::demote(const Listed& share, std::size_t most) {
  return demote_beyond(share, most);
}

std::size_t Residency::retain(RecordId record, const Listed& share, std::size_t most) {
  renew_as(record.value, EvictionClass::kRetained);
  return demote_beyond(share, most);
}

}  // namespace orbitkv::cache
