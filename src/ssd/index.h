// The store's index in memory: (space, block hash) -> where the newest record of it lies.
// Flat tables with 32-bit links that grow with the records, one step an insertion; lists of
// the records of each segment. Owned by the store; one thread; no I/O. Never holds two
// records of one key, never more than it was made for, and never moves a record: its number
// stays, and a number that serves another record has another generation.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/mapped_array.h"
#include "ssd/format_entries.h"
#include "ssd/store.h"

namespace orbitkv::ssd {

using IndexSegment = Id<struct IndexSegmentTag, std::uint32_t>;  // over all paths; the store's numbering

struct IndexRecord {
  SpaceIndex space;  // < limits::kStoredSpaces
  BlockHash hash;
  RecordSequence sequence;
  IndexSegment segment;
  std::uint32_t first_page = 0, image_pages = 0;  // as in RecordEntry
  std::uint16_t shards = 1;
  std::uint8_t flags = 0;  // the caller's
};

class Index {
 public:
  struct Config {
    std::uint32_t max_records = 0;  // <= 2^26
    std::uint32_t max_further = 0;  // marks beyond one a record
    std::uint32_t segments = 0;
    std::uint64_t seed = 0;  // random: of the hash
  };
  explicit Index(const Config& config);

  // kNotStored and generation 0: a miss.
  StoredRef find(SpaceIndex space, const BlockHash& hash) const;
  // out[i] for hashes[i]; memory latencies overlap.
  void find_batch(SpaceIndex space, std::span<const BlockHash> hashes, std::span<StoredRef> out) const;
  bool live(StoredRef ref) const;  // it still names that record

  enum class Put : std::uint8_t {
    kNew,
    kReplaced,  // an older record of the key went
    kOlder,     // the index holds one with this sequence or a higher one: nothing changed
    kFull,      // no record or no room for its marks: nothing changed
  };
  struct Placed {
    Put outcome = Put::kFull;
    StoredRef ref;                        // of kNew, kReplaced: the new one; of kOlder: the one held
    std::optional<IndexRecord> replaced;  // of kReplaced
  };
  // One mark a shard.
  Placed put(const IndexRecord& record, std::span<const ImageMark> marks);
  // The same record at another place, as a forward copy leaves it; refs stay valid.
  void relocate(StoredId id, IndexSegment segment, std::uint32_t first_page);
  void erase(StoredId id);

  // Of a live record.
  IndexRecord at(StoredId id) const;
  StoredRef ref(StoredId id) const { return {id, hot_[id.value].generation}; }
  ImageMark first_mark(StoredId id) const {
    return {cold_[id.value].digest, AllocationId(cold_[id.value].revision)};
  }
  void marks(StoredId id, std::span<ImageMark> out) const;  // one a shard
  std::uint8_t& flags(StoredId id) { return hot_[id.value].flags; }
  std::uint32_t& minute(StoredId id) { return cold_[id.value].minute; }  // the caller's; 0 of a new one

  // Records of a segment in no order; what is erased or relocated must not be the one to go
  // on from.
  StoredId first_in(IndexSegment segment) const;
  StoredId next_in(StoredId id) const;
  std::uint32_t count_in(IndexSegment segment) const { return lists_[segment.value].count; }

  std::uint32_t size() const { return size_; }
  // Another record of so many shards finds a place.
  bool has_room(std::uint16_t shards) const {
    return size_ < config_.max_records && further_size_ + shards - 1u <= config_.max_further;
  }
  // A sixty-fourth of its records or of the other shards' marks is left, at most.
  bool nearly_full() const {
    return size_ >= config_.max_records - config_.max_records / 64 ||
           further_size_ >= config_.max_further - config_.max_further / 64;
  }
  // Ids ever taken are below it.
  std::uint32_t high_water() const { return used_; }
  bool holds(StoredId id) const { return hot_[id.value].shards != 0; }
  std::uint32_t capacity() const { return config_.max_records; }
  ByteCount memory() const;  // touched at most since the start

 private:
  static constexpr std::uint32_t kNone = 0;  // links are numbers + 1, so that zero memory is empty
  struct Hot {                               // what a look-up reads: one cache line
    BlockHash hash;
    std::uint64_t sequence;
    std::uint32_t segment, first_page, generation;
    std::uint32_t further;  // marks of the other shards
    std::uint32_t chain;    // the next in the bucket, or free
    std::uint16_t space;
    std::uint8_t shards;  // 0: free
    std::uint8_t flags;
  };
  static_assert(sizeof(Hot) == 64);
  struct Cold {
    std::uint64_t digest, revision;
    std::uint32_t image_pages, prev, next;  // list of the segment
    std::uint32_t minute;
  };
  struct Further {
    std::uint64_t digest, revision;
    std::uint32_t next, reserved;
  };
  struct List {
    std::uint32_t first, count;
  };

  std::uint64_t hash_of(SpaceIndex space, const BlockHash& hash) const;
  std::uint32_t bucket_of(std::uint64_t hash) const;
  bool matches(std::uint32_t link, SpaceIndex space, const BlockHash& hash) const;
  std::uint32_t walk(std::uint32_t link, SpaceIndex space, const BlockHash& hash) const;
  StoredRef ref_of(std::uint32_t link) const;
  void chain_in(std::uint32_t link);
  void chain_out(std::uint32_t link);
  void add_bucket();
  void list_in(std::uint32_t link, std::uint32_t segment);
  void list_out(std::uint32_t link);
  std::uint32_t take_record();
  std::uint32_t take_further(std::span<const ImageMark> marks);
  void give_further(std::uint32_t link);
  void fill(std::uint32_t link, const IndexRecord& record, std::span<const ImageMark> marks);

  const Config config_;
  MappedArray<Hot> hot_;
  MappedArray<Cold> cold_;
  MappedArray<Further> further_;
  MappedArray<std::uint32_t> buckets_;
  MappedArray<List> lists_;
  std::uint32_t size_ = 0, used_ = 0, free_ = kNone;  // records; used_: ever taken
  std::uint32_t further_size_ = 0, further_used_ = 0, further_free_ = kNone;
  // Linear hashing: buckets below split_ use one bit more than the rest.
  std::uint32_t level_ = 1, split_ = 0;
};

}  // namespace orbitkv::ssd
