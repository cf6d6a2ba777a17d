// Block images: their slots from lent to sealed to gone, pins, recency, eviction.
// The only place that takes extents from the pool and gives them back. Owned by the
// core; single-threaded. A pinned image is never evicted; a lent slot only ends by
// commit, give_back or quarantine; a dropped image keeps its bytes until the last pin.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "cache/further_slots.h"
#include "cache/namespaces.h"
#include "cache/residency.h"
#include "mem/pool.h"

namespace orbitkv::cache {

using OperationIndex = Id<struct OperationIndexTag, std::uint32_t>;
inline constexpr OperationIndex kNoOperation{0xFFFFFFFFu};

// Where one slot of an image stands: in the record (0) or in the further table.
struct ImageSlot {
  RecordId record = kNoRecord;
  std::uint32_t further = 0;
};

enum class SlotState : std::uint8_t { kAbsent, kLent, kCommitted };

struct SlotWords {
  mem::Extent::Words extent;
  std::uint64_t digest = 0;
  AllocationId revision;  // the allocation that it was saved into: bound into its checksums
};

struct SlotWant {
  BlockKey key;
  ShardId shard;
  std::uint16_t shards = 1;
  ByteCount bytes;
  OperationIndex owner;
};

struct ImageStats {
  std::uint64_t sealed = 0, inflight = 0, evicted = 0, abandoned = 0, quarantined_extents = 0;
  ByteCount pinned;
};

class Images {
 public:
  struct Config {
    Residency::Config table;
    ByteCount eviction_batch;
  };
  Images(const Config& config, mem::Pool& pool, Namespaces& namespaces);
  // Gives what is committed back to the pool; what is still lent is quarantined.
  ~Images();

  Residency& table() { return table_; }
  const Residency& table() const { return table_; }
  bool sealed(RecordId record) const { return table_.hot(record).state == ImageState::kSealed; }

  struct SlotView {
    SlotState state = SlotState::kAbsent;
    OperationIndex owner = kNoOperation;
  };
  SlotView view(RecordId record, ShardId shard) const;
  ImageSlot slot_of(RecordId record, ShardId shard) const;  // committed; of a sealed or dropped image
  SlotWords words(const ImageSlot& slot) const;
  BlockKey key(RecordId record) const;

  // Allocates the slot of an image that is absent or in flight without it; evicts for
  // memory, a record or an index cell. nullopt: nothing more can be evicted.
  std::optional<ImageSlot> lend(const SlotWant& want);
  // The slot's bytes are complete. Seals the image with its last shard.
  void commit(const ImageSlot& slot, std::uint64_t digest, TimePoint now);
  void give_back(const ImageSlot& slot, TimePoint now);
  void quarantine(const ImageSlot& slot, TimePoint now);

  void pin(std::span<const RecordId> records);
  // Last record first, so that the head of a prefix outlives its tail.
  void unpin(std::span<const RecordId> records);
  // Removes a sealed image from sight at once; pinned bytes stay until the last unpin.
  void drop(RecordId record);

  // Unpinned images, least recent first, until at least `bytes` came free or none is left.
  ByteCount evict(ByteCount bytes);
  // Images that have been without a lent slot, incomplete, since before `limit`.
  void abandon_idle_since(TimePoint limit);

  ImageStats stats() const;

 private:
  struct Inflight {
    std::uint64_t lent = 0, committed = 0;  // shard bitmaps
    RecordId record = kNoRecord;
    TimePoint idle_since;                          // no slot lent
    std::uint32_t prev = kNoLink, next = kNoLink;  // idle list, or free list by next
  };
  enum class Exit : std::uint8_t { kRelease, kQuarantine };

  Inflight& inflight(RecordId record) { return inflight_[table_.cold(record).prev]; }
  const Inflight& inflight(RecordId record) const { return inflight_[table_.cold(record).prev]; }
  std::optional<mem::Extent> allocate(ByteCount bytes);
  RecordId make_record(const SlotWant& want);
  bool evict_in_window(const BlockKey& key);
  ImageSlot put_words(RecordId record, const SlotWant& want, mem::Extent extent);
  void end_lent(const ImageSlot& slot, Exit exit, TimePoint now);
  void after_lent(RecordId record, TimePoint now);
  ShardId shard_of(const ImageSlot& slot) const;
  void seal(RecordId record);
  ByteCount take_apart(RecordId record, std::uint64_t lent_shards);
  ByteCount evict_one(RecordId record);
  void remove_inflight(RecordId record);
  void free_inflight(std::uint32_t index);
  void idle_push(std::uint32_t index, TimePoint now);
  void idle_unlink(std::uint32_t index);
  void unpin_one(RecordId record);
  RecordId victim();

  mem::Pool& pool_;
  Namespaces& namespaces_;
  ByteCount eviction_batch_;
  Residency table_;
  FurtherSlots further_;
  std::vector<Inflight> inflight_;
  std::uint32_t inflight_free_ = kNoLink;
  std::uint32_t idle_head_ = kNoLink, idle_tail_ = kNoLink;  // oldest first
  ImageStats stats_;
};

}  // namespace orbitkv::cache
