// Block images: their slots from lent or loading to sealed to gone, pins, recency,
// eviction. The only place that takes extents from the pool and gives them back. Owned by
// the core; single-threaded. A pinned image or one that a device reads is never evicted; a
// lent slot only ends by commit, give_back or quarantine, the slots of a loading image by
// load_done or load_failed; a dropped image keeps its bytes until the last pin or read.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/time.h"
#include "cache/census.h"
#include "cache/further_slots.h"
#include "cache/namespaces.h"
#include "cache/residency.h"
#include "cache/shard_nodes.h"
#include "cache/use.h"
#include "mem/pool.h"

namespace orbitkv::mem {
struct KeptAt;
struct KeptSlot;
struct KeptUse;
struct KeptWriter;
class KeptTable;
}  // namespace orbitkv::mem

namespace orbitkv::cache {

using OperationIndex = Id<struct OperationIndexTag, std::uint32_t>;
inline constexpr OperationIndex kNoOperation{0xFFFFFFFFu};

// Where one slot of an image stands: in the record (0) or in the further table.
struct ImageSlot {
  RecordId record = kNoRecord;
  std::uint32_t further = 0;
};

enum class SlotState : std::uint8_t { kAbsent, kLent, kLoading, kCommitted };

struct SlotWords {
  mem::Extent::Words extent;
  std::uint64_t digest = 0;
  AllocationId revision;  // the allocation that it was saved into: bound into its checksums
};

// Whose grant a lent slot is for: kept, so that the next life of the Manager knows whom to ask.
struct Writer {
  SessionId session;
  RecordIndex record;
  OperationId operation;
};

struct SlotWant {
  BlockKey key;
  ShardId shard;
  std::uint16_t shards = 1;
  ByteCount bytes;
  OperationIndex owner;
  NodeId near = kAnyNode;  // where the bytes come from
  Writer writer = {};
};

// All slots of an image at once.
struct LoadWant {
  BlockKey key;
  std::uint16_t shards = 1;
  ByteCount bytes;                   // of one slot
  const ShardNodes* near = nullptr;  // where the bytes are wanted; nullptr: not known
  Use use = Use::kForeground;        // kSpeculative: it lands reclaimable
};

struct ImageStats {
  std::uint64_t sealed = 0, inflight = 0, loading = 0;
  std::uint64_t pinned_images = 0, held = 0;  // held: a device reads them
  std::uint64_t evicted = 0, abandoned = 0, quarantined_extents = 0;
  ByteCount evicted_bytes, pinned;
  std::array<std::uint64_t, kEvictionClasses> evicted_of{};  // by class
};

// Asked about images that are about to be evicted.
class Keeper {
 public:
  virtual ~Keeper() = default;
  enum class Leave : std::uint8_t {
    kGo,
    kHeld,   // it is being stored, hold_for_io() was called
    kDirty,  // it ought to be stored and cannot be now: others may go first
  };
  virtual Leave leaving(RecordId record) = 0;
};

class Images {
 public:
  struct Config {
    Residency::Config table;
    ByteCount eviction_batch;
    // Of the pool and of the table: what may be retained. 0: plain recency.
    std::uint32_t protected_percent = 0;
  };
  static constexpr ByteCount kUnitBytes{64};  // that extents are counted in
  Images(const Config& config, mem::Pool& pool, Namespaces& namespaces);
  // Every slot is written there, too, from now on; outlives this. Before the first image.
  void keep_in(mem::KeptTable& table) { kept_ = &table; }
  // Gives what is committed back to the pool; what is still lent, loading or held for a
  // device is quarantined.
  ~Images();
  void set_keeper(Keeper* keeper) { keeper_ = keeper; }

  Residency& table() { return table_; }
  const Residency& table() const { return table_; }
  bool sealed(RecordId record) const { return table_.hot(record).state == ImageState::kSealed; }
  bool loading(RecordId record) const { return table_.hot(record).state == ImageState::kLoading; }
  bool held(RecordId record) const { return table_.hot(record).flags & kHeldForIo; }
  // Neither pinned nor read by a device.
  bool unheld(RecordId record) const { return table_.cold(record).pins == 0 && !held(record); }
  // It is the sealed or loading image of this key.
  bool serves(RecordId record, const BlockKey& key) const;

  struct SlotView {
    SlotState state = SlotState::kAbsent;
    OperationIndex owner = kNoOperation;  // of kLent
  };
  SlotView view(RecordId record, ShardId shard) const;
  // Of an image in flight that nobody copies into: since when. nullopt: somebody does.
  std::optional<TimePoint> idle_since(RecordId record) const;
  ImageSlot slot_of(RecordId record, ShardId shard) const;  // there; of an image that is not kLent
  SlotWords words(const ImageSlot& slot) const;
  BlockKey key(RecordId record) const;
  SlabId slab_name(SlabSlot slot) const { return pool_.slab(slot).id; }
  // There is none to lend yet, and some is being made.
  bool memory_coming() const { return pool_.building() && pool_.capacity().value == 0; }
  std::uint16_t shards(RecordId record) const { return table_.hot(record).shards; }
  ByteCount bytes(RecordId record) const;  // of all slots of a sealed or dropped image

  // Allocates the slot of an image that is absent or in flight without it; evicts for
  // memory, a record or an index cell. nullopt: nothing more can be evicted.
  std::optional<ImageSlot> lend(const SlotWant& want);
  // The slot's bytes are complete. True: it was the last shard, the image is sealed. On a slab
  // that retires it is given back.
  bool commit(const ImageSlot& slot, std::uint64_t digest, TimePoint now);
  void give_back(const ImageSlot& slot, TimePoint now);
  void quarantine(const ImageSlot& slot, TimePoint now);

  // ---- loading from the tier ----
  // The key must be absent. Allocates every slot; evicts as lend() does. nullopt: no room.
  std::optional<RecordId> lend_all(const LoadWant& want);
  // What the tier's record says of a slot.
  void mark(const ImageSlot& slot, std::uint64_t digest, AllocationId revision);
  // A number of the caller's for a loading image.
  std::uint32_t& tag(RecordId record) { return table_.cold(record).prev; }
  void load_done(RecordId record);    // seals it
  void load_failed(RecordId record);  // its slots go back; the record when nothing pins it
  // Ahead of the tier's first word: a device may write to its slots.
  void note_device(RecordId record);

  // A sealed image that an earlier life left, all its shards; the most recent one of the class and of the
  // minute that it had (not known: probationary). Beyond the share it demotes as a read does. One that
  // has its key goes. kNoRecord: there is no room for it.
  RecordId adopt(std::span<const mem::KeptSlot> slots, NamespaceIndex name_space);

  // ---- storing to the tier: a device reads a sealed image, which keeps its place ----
  void hold_for_io(RecordId record);
  void end_io(RecordId record, bool stored);
  // A window at the least recent end whose images the tier has been asked about.
  RecordId next_unconsidered() const { return table_.next_unconsidered(); }
  void consider_next() { table_.consider_next(); }
  ByteCount considered() const;

  // Also records that are loading: they count as pinned once they have landed.
  void pin(std::span<const RecordId> records);
  // Last record first, so that the head of a prefix outlives its tail. What a foreground use
  // has held becomes recent and is retained with its last pin; else it keeps its place.
  void unpin(std::span<const RecordId> records, Use use = Use::kForeground);
  // A sealed image becomes the most recent one of its class.
  void touch(RecordId record);
  // Of the pool as it is: what retained images may take. 0: none is retained.
  ByteCount protected_share() const;
  Residency::Listed listed(EvictionClass of) const { return table_.listed(of); }
  // Removes a sealed image from sight at once; pinned bytes stay until the last unpin.
  void drop(RecordId record);
  // ---- by namespace and age: cache/drops.h walks the table ----
  struct Filter {
    std::vector<bool> of;  // by namespace
    Duration unused;       // pinned ones are in use; 0: of any age
  };
  struct OfNamespace {
    std::uint64_t images = 0;
    ByteCount bytes;
  };
  using Tally = std::vector<OfNamespace>;  // by namespace
  struct Range {
    std::uint32_t begin = 0, end = 0;  // of records
  };
  void count_some(const Range& range, const Filter& filter, Tally& tally) const;
  // Drops what matches, limits::kDropsPerTurn at most. Returns the first record that it has not
  // looked at.
  std::uint32_t drop_some(const Range& range, const Filter& filter, Tally& tally);
  // Time goes on for the ages of images, in minutes.
  void set_clock(TimePoint now) { minute_ = minute_of(now); }

  // Unpinned images, least recent first, until at least `bytes` came free or none is left.
  // Those that the keeper wants stored first are passed over, a bounded number of them. Where very many
  // are pinned none may be found before turns of sweep().
  ByteCount evict(ByteCount bytes) { return evict({bytes, bytes}); }
  // Likewise, but only what the keeper lets go, however many stay. Returns how many did
  // because they ought to be stored and cannot be now.
  std::uint64_t evict_let_go(ByteCount bytes);
  // Pinned images that a call passes over are counted from here on.
  void begin_call() { looks_ = limits::kEvictLooks; }
  // An eviction ended at that bound: sweep() takes more of them out of its way.
  bool sweeps() const { return sweeps_; }
  void sweep();
  // Images that have been without a lent slot, incomplete, since before `limit`.
  void abandon_idle_since(TimePoint limit);

  // ---- a slab that retires: nothing is lent there any more, and nothing commits there ----
  bool on_slab(RecordId record, SlabSlot slab) const;  // one of its slots
  bool on_slab(const ImageSlot& slot, SlabSlot slab) const;
  enum class Store : std::uint8_t { kFirst, kNo };
  // Out of sight, as retire_action() says. False: it ought to be stored first and cannot be now.
  bool retire(RecordId record, SlabSlot slab, Store store);
  // The slots there of an image that is out of sight and pinned. False: it is none, or a
  // device reads it.
  bool strip(RecordId record, SlabSlot slab);

  // Rises when a sealed image goes out of sight while it may be pinned: while it is the same, what was
  // sealed and pinned is there.
  using View = Id<struct ViewTag, std::uint64_t>;
  View view() const { return view_; }

  ImageStats stats() const;
  void count(Census& census) const;

 private:
  struct Inflight {
    std::uint64_t lent = 0, committed = 0;  // shard bitmaps
    RecordId record = kNoRecord;
    TimePoint idle_since;                          // no slot lent
    std::uint32_t prev = kNoLink, next = kNoLink;  // idle list, or free list by next
  };
  enum class Exit : std::uint8_t { kRelease, kQuarantine };
  static constexpr std::uint64_t kUnit = kUnitBytes.value;
  static std::uint16_t minute_of(TimePoint at) { return static_cast<std::uint16_t>(at.ns / seconds(60).ns); }
  bool matches(RecordId record, const Filter& filter) const;
  void count_one(RecordId record, Tally& tally) const;
  static std::uint32_t units(ByteCount bytes) { return static_cast<std::uint32_t>(bytes.value / kUnit); }
  static std::uint64_t bit(ShardId shard) { return std::uint64_t{1} << shard.value; }

  Inflight& inflight(RecordId record) { return inflight_[table_.cold(record).prev]; }
  const Inflight& inflight(RecordId record) const { return inflight_[table_.cold(record).prev]; }
  std::optional<mem::Extent> allocate(ByteCount bytes, NodeId near);
  RecordId make_record(const BlockKey& key, ImageEvent event);
  RecordId make_inflight(const SlotWant& want);
  bool evict_in_window(const BlockKey& key);
  struct Placed {
    ShardId shard;
    std::uint64_t digest = 0;
    std::uint32_t further = 0;  // taken; 0 for shard 0
  };
  ImageSlot put_words(RecordId record, const Placed& placed, mem::Extent extent);
  bool take_all(const LoadWant& want);
  void give_all_back();
  void end_lent(const ImageSlot& slot, Exit exit, TimePoint now);
  mem::Extent take_out(const ImageSlot& slot);
  void take_back(RecordId record, SlabSlot slab);
  void after_lent(RecordId record, TimePoint now);
  ShardId shard_of(const ImageSlot& slot) const;
  void seal(RecordId record);
  ByteCount give_slots_back(RecordId record, std::uint64_t unsafe_shards);
  ByteCount take_apart(RecordId record, ImageEvent event, std::uint64_t unsafe_shards = 0);
  std::uint64_t unsafe_shards(RecordId record) const;
  ByteCount evict_one(RecordId record);
  // As many as are asked for; more, up to the batch, if they are not too many.
  struct Evict {
    ByteCount least, batch;
    bool enough(ByteCount freed, std::uint32_t images) const {
      return freed >= batch || (freed >= least && images >= limits::kEvictedAtOnce);
    }
  };
  ByteCount evict(const Evict& want);
  bool pass_over(RecordId record);
  struct Clean {
    std::uint32_t images = 0;
    ByteCount freed;
    std::uint64_t passed = 0, dirty = 0;  // passed over; of them not being stored
  };
  Clean evict_clean(const Evict& want, std::uint64_t most_passed);
  Keeper::Leave leave(RecordId record);
  void remove_inflight(RecordId record);
  void free_inflight(std::uint32_t index);
  void idle_push(std::uint32_t index, TimePoint now);
  void idle_unlink(std::uint32_t index);
  // What may be retained at most, as the pool is.
  Residency::Listed share() const;
  void unpin_one(RecordId record, Use use, const Residency::Listed& share);
  void retain(RecordId record, const Residency::Listed& share);
  // Kept memory (images_kept.cc). Nothing without.
  mem::KeptAt kept_at(const ImageSlot& slot) const;
  void keep_lent(const ImageSlot& slot, const mem::KeptWriter& writer);
  void keep_sealed(const ImageSlot& slot);
  void keep_free(const ImageSlot& slot);
  void keep_none(RecordId record);
  // Of a sealed image; that it is new, or was read, now; and of the `count` that were demoted last.
  void keep_use(RecordId record, const mem::KeptUse& use);
  void keep_new(RecordId record);
  void keep_read(RecordId record);
  void keep_demoted(std::size_t count);
  void adopt_use(RecordId record, const mem::KeptUse& use);
  RecordId victim();

  mem::Pool& pool_;
  Namespaces& namespaces_;
  ByteCount eviction_batch_;
  std::uint32_t protected_percent_;
  Residency table_;
  FurtherSlots further_;
  Keeper* keeper_ = nullptr;
  mem::KeptTable* kept_ = nullptr;
  std::vector<Inflight> inflight_;
  std::uint32_t inflight_free_ = kNoLink;
  std::uint32_t idle_head_ = kNoLink, idle_tail_ = kNoLink;  // oldest first
  std::vector<mem::Extent::Words> taken_extents_;            // of take_all()
  std::vector<std::uint32_t> taken_further_;
  std::uint32_t looks_ = limits::kEvictLooks;
  bool sweeps_ = false;
  std::uint16_t minute_ = 0;
  View view_{1};
  ImageStats stats_;
};

}  // namespace orbitkv::cache
