#include "ssd/index.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/limits.h"

namespace orbitkv::ssd {
namespace {

constexpr std::uint32_t kMostRecords = 1u << 26;
constexpr std::uint32_t kBucketsPerRecord = 2;
constexpr std::uint32_t kFirstLevel = 6;
constexpr std::size_t kBatch = 16;  // look-ups whose memory accesses overlap

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace

Index::Index(const Config& config)
    : config_(config),
      hot_(std::max<std::size_t>(config.max_records, 1)),
      cold_(std::max<std::size_t>(config.max_records, 1)),
      further_(std::max<std::size_t>(config.max_further, 1)),
      buckets_((std::size_t{1} << kFirstLevel) + std::size_t{kBucketsPerRecord} * config.max_records),
      lists_(std::max<std::size_t>(config.segments, 1)),
      level_(kFirstLevel) {
  ORBITKV_CHECK(config.max_records <= kMostRecords, "an index has at most 2^26 records");
}

// ---- hashing ----

std::uint64_t Index::hash_of(SpaceIndex space, const BlockHash& hash) const {
  std::array<std::uint64_t, 4> words;
  std::memcpy(words.data(), hash.bytes.data(), sizeof words);
  const std::uint64_t seed = config_.seed ^ (std::uint64_t{space.value} * 0x9E3779B97F4A7C15);
  const std::uint64_t a = mix(words[0] ^ seed, words[1] ^ 0xA0761D6478BD642F);
  const std::uint64_t b = mix(words[2] ^ seed, words[3] ^ 0xE7037ED1A0B428DB);
  return mix(a ^ 0x8EBC6AF09C88C6E3, b ^ seed);
}

std::uint32_t Index::bucket_of(std::uint64_t hash) const {
  const auto narrow = static_cast<std::uint32_t>(hash & ((std::uint64_t{1} << level_) - 1));
  if (narrow >= split_) return narrow;
  return static_cast<std::uint32_t>(hash & ((std::uint64_t{2} << level_) - 1));
}

bool Index::matches(std::uint32_t link, SpaceIndex space, const BlockHash& hash) const {
  const Hot& hot = hot_[link - 1];
  return hot.space == space.value && hot.hash == hash;
}

std::uint32_t Index::walk(std::uint32_t link, SpaceIndex space, const BlockHash& hash) const {
  while (link != kNone && !matches(link, space, hash)) link = hot_[link - 1].chain;
  return link;
}

StoredRef Index::ref_of(std::uint32_t link) const {
  if (link == kNone) return {};
  return {StoredId(link - 1), hot_[link - 1].generation};
}

StoredRef Index::find(SpaceIndex space, const BlockHash& hash) const {
  return ref_of(walk(buckets_[bucket_of(hash_of(space, hash))], space, hash));
}

void Index::find_batch(SpaceIndex space, std::span<const BlockHash> hashes, std::span<StoredRef> out) const {
  ORBITKV_CHECK(hashes.size() == out.size(), "one answer a hash");
  for (std::size_t from = 0; from < hashes.size(); from += kBatch) {
    const std::size_t n = std::min(kBatch, hashes.size() - from);
    std::array<std::uint32_t, kBatch> at;
    for (std::size_t i = 0; i < n; ++i) {
      at[i] = bucket_of(hash_of(space, hashes[from + i]));
      __builtin_prefetch(&buckets_[at[i]]);
    }
    for (std::size_t i = 0; i < n; ++i) {
      at[i] = buckets_[at[i]];
      if (at[i] != kNone) __builtin_prefetch(&hot_[at[i] - 1]);
    }
    for (std::size_t i = 0; i < n; ++i) out[from + i] = ref_of(walk(at[i], space, hashes[from + i]));
  }
}

void Index::chain_in(std::uint32_t link) {
  Hot& hot = hot_[link - 1];
  std::uint32_t& head = buckets_[bucket_of(hash_of(SpaceIndex(hot.space), hot.hash))];
  hot.chain = head;
  head = link;
}

void Index::chain_out(std::uint32_t link) {
  const Hot& hot = hot_[link - 1];
  std::uint32_t* at = &buckets_[bucket_of(hash_of(SpaceIndex(hot.space), hot.hash))];
  while (*at != link) at = &hot_[*at - 1].chain;
  *at = hot.chain;
}

// Splits the next bucket in line, so that a table that grows never stops to be rebuilt.
void Index::add_bucket() {
  std::uint32_t link = buckets_[split_];
  buckets_[split_] = kNone;
  ++split_;
  while (link != kNone) {
    const std::uint32_t next = hot_[link - 1].chain;
    chain_in(link);
    link = next;
  }
  if (split_ == std::uint32_t{1} << level_) {
    ++level_;
    split_ = 0;
  }
}

// ---- lists of segments ----

void Index::list_in(std::uint32_t link, std::uint32_t segment) {
  ORBITKV_CHECK(segment < config_.segments, "a record in a segment that the index was not made for");
  List& list = lists_[segment];
  hot_[link - 1].segment = segment;
  Cold& cold = cold_[link - 1];
  cold.prev = kNone;
  cold.next = list.first;
  if (list.first != kNone) cold_[list.first - 1].prev = link;
  list.first = link;
  ++list.count;
}

void Index::list_out(std::uint32_t link) {
  List& list = lists_[hot_[link - 1].segment];
  const Cold& cold = cold_[link - 1];
  if (cold.prev != kNone) cold_[cold.prev - 1].next = cold.next;
  if (cold.next != kNone) cold_[cold.next - 1].prev = cold.prev;
  if (list.first == link) list.first = cold.next;
  --list.count;
}

StoredId Index::first_in(IndexSegment segment) const {
  return StoredId(lists_[segment.value].first - 1);  // none: kNotStored
}

StoredId Index::next_in(StoredId id) const {
  return StoredId(cold_[id.value].next - 1);
}

// ---- records ----

bool Index::live(StoredRef ref) const {
  if (ref.id.value >= used_) return false;
  const Hot& hot = hot_[ref.id.value];
  return hot.shards != 0 && hot.generation == ref.generation;
}

std::uint32_t Index::take_record() {
  if (free_ == kNone) return ++used_;
  const std::uint32_t link = free_;
  free_ = hot_[link - 1].chain;
  return link;
}

std::uint32_t Index::take_further(std::span<const ImageMark> marks) {
  std::uint32_t first = kNone;
  for (std::size_t i = marks.size(); i-- > 0;) {
    std::uint32_t link = further_free_;
    if (link != kNone) {
      further_free_ = further_[link - 1].next;
    } else {
      link = ++further_used_;
    }
    further_[link - 1] = {marks[i].digest, marks[i].revision.value, first, 0};
    first = link;
    ++further_size_;
  }
  return first;
}

void Index::give_further(std::uint32_t link) {
  while (link != kNone) {
    const std::uint32_t next = further_[link - 1].next;
    further_[link - 1].next = further_free_;
    further_free_ = link;
    link = next;
    --further_size_;
  }
}

void Index::fill(std::uint32_t link, const IndexRecord& record, std::span<const ImageMark> marks) {
  Hot& hot = hot_[link - 1];
  hot.hash = record.hash;
  hot.sequence = record.sequence.value;
  hot.first_page = record.first_page;
  hot.further = take_further(marks.subspan(1));
  hot.space = static_cast<std::uint16_t>(record.space.value);
  hot.shards = static_cast<std::uint8_t>(record.shards);
  hot.flags = record.flags;
  Cold& cold = cold_[link - 1];
  cold.digest = marks[0].digest;
  cold.revision = marks[0].revision.value;
  cold.image_pages = record.image_pages;
  cold.minute = 0;
}

Index::Placed Index::put(const IndexRecord& record, std::span<const ImageMark> marks) {
  ORBITKV_CHECK(record.shards >= 1 && record.shards <= limits::kShards && marks.size() == record.shards,
                "one mark a shard");
  ORBITKV_CHECK(record.space.value < limits::kStoredSpaces, "a space that the store does not know");
  Placed out;
  const StoredRef held = find(record.space, record.hash);
  const std::uint32_t held_further = held ? hot_[held.id.value].shards - 1u : 0;
  if (held && hot_[held.id.value].sequence >= record.sequence.value) return {Put::kOlder, held, {}};
  if (further_size_ - held_further + (record.shards - 1u) > config_.max_further) return out;
  if (!held && size_ == config_.max_records) return out;
  if (held) {
    out.replaced = at(held.id);
    erase(held.id);
  }
  const std::uint32_t link = take_record();
  fill(link, record, marks);
  ++size_;
  while ((std::uint64_t{1} << level_) + split_ < std::uint64_t{kBucketsPerRecord} * size_) add_bucket();
  chain_in(link);
  list_in(link, record.segment.value);
  out.outcome = held ? Put::kReplaced : Put::kNew;
  out.ref = ref_of(link);
  return out;
}

void Index::relocate(StoredId id, IndexSegment segment, std::uint32_t first_page) {
  list_out(id.value + 1);
  list_in(id.value + 1, segment.value);
  hot_[id.value].first_page = first_page;
}

void Index::erase(StoredId id) {
  Hot& hot = hot_[id.value];
  ORBITKV_CHECK(id.value < used_ && hot.shards != 0, "a record that is not there cannot go");
  const std::uint32_t link = id.value + 1;
  chain_out(link);
  list_out(link);
  give_further(hot.further);
  hot.further = kNone;
  hot.shards = 0;
  ++hot.generation;
  hot.chain = free_;
  free_ = link;
  --size_;
}

IndexRecord Index::at(StoredId id) const {
  const Hot& hot = hot_[id.value];
  IndexRecord out;
  out.space = SpaceIndex(hot.space);
  out.hash = hot.hash;
  out.sequence = RecordSequence(hot.sequence);
  out.segment = IndexSegment(hot.segment);
  out.first_page = hot.first_page;
  out.image_pages = cold_[id.value].image_pages;
  out.shards = hot.shards;
  out.flags = hot.flags;
  return out;
}

void Index::marks(StoredId id, std::span<ImageMark> out) const {
  ORBITKV_CHECK(out.size() == hot_[id.value].shards, "one mark a shard");
  out[0] = first_mark(id);
  std::uint32_t link = hot_[id.value].further;
  for (ImageMark& mark : out.subspan(1)) {
    const Further& further = further_[link - 1];
    mark = {further.digest, AllocationId(further.revision)};
    link = further.next;
  }
}

ByteCount Index::memory() const {
  const std::uint64_t buckets = (std::uint64_t{1} << level_) + split_;
  return ByteCount(used_ * (sizeof(Hot) + sizeof(Cold)) + further_used_ * sizeof(Further) +
                   buckets * sizeof(std::uint32_t) + config_.segments * sizeof(List));
}

}  // namespace orbitkv::ssd
