// Residency tables: which block images there are and where their first slot lies.
// Flat, 32-bit links, no pointers, sized at start, pages touched when used; 120 bytes
// a one-slot block at the full load of max_blocks (hot 64, cold 40, index 2 x 8).
// Owned by the core thread through cache/images.h, which knows what states and pins
// mean; this file only keeps the tables consistent. Never allocates after the start.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/mapped_array.h"
#include "cache/transitions.h"
#include "mem/slab_slot.h"
#include "orbitkv/types.h"

namespace orbitkv::cache {

using RecordId = Id<struct RecordIdTag, std::uint32_t>;
inline constexpr RecordId kNoRecord{0xFFFFFFFFu};
inline constexpr std::uint32_t kNoLink = 0xFFFFFFFFu;
inline constexpr std::uint32_t kUnlisted = 0xFFFFFFFEu;  // ColdRecord::prev: not in a recency list

// Who goes first when memory is short; in a class the least recent goes first.
enum class EvictionClass : std::uint8_t {
  kReclaimable,   // brought for somebody who may ask, and nobody has
  kProbationary,  // new, or read and beyond the protected share
  kRetained,      // came back to a foreground read; at most the protected share
};
inline constexpr std::size_t kEvictionClasses = 3;

struct BlockKey {
  BlockHash hash;
  NamespaceIndex name_space;
  GroupId group;
};

// Of HotRecord::flags.
inline constexpr std::uint8_t kHeldForIo = 1;   // the tier reads its bytes
inline constexpr std::uint8_t kStoredHint = 2;  // the tier had it when it was last heard of

// What a lookup touches: one line.
struct alignas(64) HotRecord {
  BlockHash hash;
  NamespaceIndex name_space;
  GroupId group;
  std::uint8_t encoding;
  ImageState state;
  SlabSlot slab;        // first slot (shard 0)
  std::uint8_t shards;  // limits::kShards
  std::uint8_t flags;
  std::uint16_t minute;    // of the last use, of the core's clock; wraps after 45 days
  std::uint64_t offset;    // first slot, in the slab
  std::uint64_t revision;  // first slot
};
static_assert(sizeof(HotRecord) == 64);

// What pins and moves in the recency lists touch, and nothing else of a record.
struct ColdRecord {
  std::uint64_t digest;      // first slot: header digest; while lent, the owner's operation index
  std::uint64_t allocation;  // first slot; 0: absent
  EvictionClass eviction : 2;
  bool considered : 1;        // in its list, between the tail and the cursor
  bool was_read : 1;          // a foreground read has held it, and others hold it yet
  std::uint32_t units : 24;   // first slot, in 64 bytes; limits::kSlotImageBytes
  std::uint32_t total_units;  // all slots
  std::uint32_t pins;
  std::uint32_t prev;     // list of its class; while in flight: index of the in-flight image
  std::uint32_t next;     // list of its class; while free: free list
  std::uint32_t further;  // first further slot + 1; 0: none
};
static_assert(sizeof(ColdRecord) == 40);

// A namespace and group, premixed for hashing.
struct KeySpace {
  NamespaceIndex name_space;
  GroupId group;
  std::uint64_t mix = 0;
};

struct Lookup {
  std::uint64_t hash = 0;  // keyed hash of the key
  RecordId record = kNoRecord;
};

class Residency {
 public:
  struct Config {
    std::uint32_t max_blocks = 0;
    std::array<std::uint64_t, 2> seed{};
  };
  explicit Residency(const Config& config);

  KeySpace key_space(NamespaceIndex name_space, GroupId group) const;

  RecordId find(const BlockKey& key) const;
  // out[i] for hashes[i]; prefetches ahead, so that a batch costs less than its misses.
  void find_batch(const KeySpace& space, std::span<const BlockHash> hashes, std::span<Lookup> out) const;

  enum class Insert : std::uint8_t { kInserted, kTableFull, kWindowFull };
  // The key must be absent. kInserted: a record with this key and state, all else zero.
  Insert insert(const BlockKey& key, RecordId& out, ImageState state = ImageState::kLent);
  // First cell of the key's probe window.
  std::uint64_t home_of(const BlockKey& key) const { return home(tag_of(hash_of(key))); }
  // Records whose index cells lie in the key's probe window; returns how many.
  std::size_t window(const BlockKey& key, std::span<RecordId> out) const;
  // Takes the record out of the index (no tombstone: later cells move back).
  void unindex(RecordId record);
  // The record must be out of the index and the recency lists.
  void free_record(RecordId record);

  // ---- recency: a list a class; one after the other they are one chain, the order of eviction ----
  EvictionClass class_of(RecordId record) const { return cold_[record.value].eviction; }
  // Of one that is not listed. A new record is probationary.
  void set_class(RecordId record, EvictionClass to) { cold_[record.value].eviction = to; }
  void push_recent(RecordId record);
  void push_least_recent(RecordId record);  // of its class; considered
  void push_unconsidered(RecordId record);  // of its class, the least recent of those
  void unlink(RecordId record);
  // Listed or not: the most recent of a class.
  void renew(RecordId record, EvictionClass as);
  struct Listed {
    std::uint32_t records = 0;
    std::uint64_t units = 0;
  };
  // The least recent retained ones become the most recent probationary ones, `most` of them, until
  // what is retained is no more than `share` in either. Returns how many.
  std::size_t demote(const Listed& share, std::size_t most);
  // renew() as retained, and demote() where that is too many.
  std::size_t retain(RecordId record, const Listed& share, std::size_t most);
  RecordId least_recent() const;  // of all
  RecordId most_recent(EvictionClass of) const { return link_of(list(of).head); }
  // Who would go after it; kNoRecord: it is the last one.
  RecordId more_recent(RecordId record) const { return link_of(cold_[record.value].prev); }
  RecordId less_recent(RecordId record) const { return link_of(cold_[record.value].next); }
  const Listed& listed(EvictionClass of) const { return list(of).listed; }

  // The cursor of a list parts it: what lies behind it, to the tail, has been considered. A
  // record that leaves its list is not considered any more.
  RecordId next_unconsidered() const;
  void consider_next();
  std::uint64_t considered_units() const { return considered_units_; }

  HotRecord& hot(RecordId r) { return hot_[r.value]; }
  const HotRecord& hot(RecordId r) const { return hot_[r.value]; }
  ColdRecord& cold(RecordId r) { return cold_[r.value]; }
  const ColdRecord& cold(RecordId r) const { return cold_[r.value]; }
  bool listed(RecordId record) const { return cold_[record.value].prev != kUnlisted; }
  void prefetch_hot(RecordId record) const { __builtin_prefetch(&hot_[record.value]); }
  // Ahead of a change of the pins.
  void prefetch_pins(RecordId record) const { __builtin_prefetch(&cold_[record.value].pins, 1); }
  // Ahead of a move in the recency lists.
  void prefetch_neighbours(RecordId record) const {
    const ColdRecord& c = cold_[record.value];
    if (c.prev < max_blocks_) __builtin_prefetch(&cold_[c.prev].next, 1);
    if (c.next < max_blocks_) __builtin_prefetch(&cold_[c.next].prev, 1);
  }
  std::uint32_t records() const { return used_; }
  std::uint32_t max_blocks() const { return max_blocks_; }
  // Records ever used are below this; for walks over the whole table.
  std::uint32_t high_water() const { return fresh_; }

 private:
  struct Cell {
    std::uint32_t tag;
    std::uint32_t record_plus_1;  // 0: empty
  };
  struct List {
    std::uint32_t head = kNoLink, tail = kNoLink;
    std::uint32_t cursor = kNoLink;  // the most recent one that is considered; kNoLink: none is
    Listed listed;
  };
  static RecordId link_of(std::uint32_t link) { return link == kNoLink ? kNoRecord : RecordId(link); }
  List& list(EvictionClass of) { return lists_[static_cast<std::size_t>(of)]; }
  const List& list(EvictionClass of) const { return lists_[static_cast<std::size_t>(of)]; }
  std::uint32_t unconsidered(const List& list) const {
    if (list.cursor == kNoLink) return list.tail;
    return list.cursor == list.head ? kNoLink : cold_[list.cursor].prev;
  }
  // Places in the chain.
  struct Between {
    std::uint32_t prev = kNoLink, next = kNoLink;
  };
  std::uint32_t tail_above(EvictionClass of) const;
  std::uint32_t head_below(EvictionClass of) const;
  void link(List& in, std::uint32_t record, Between at);
  void push_front(EvictionClass of, std::uint32_t record);
  void push_back(EvictionClass of, std::uint32_t record);
  void take_out(std::uint32_t record);
  void renew_as(std::uint32_t record, EvictionClass as);
  bool beyond(const Listed& share) const;
  void demote_last();
  std::size_t demote_beyond(const Listed& share, std::size_t most);
  void forget_considered(List& in, std::uint32_t record);
  std::uint64_t hash_key(std::uint64_t mix, const BlockHash& hash) const;
  std::uint64_t hash_of(const BlockKey& key) const;
  static std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }
  std::uint64_t home(std::uint32_t tag) const { return (std::uint64_t{tag} * homes_) >> 32; }
  bool matches(std::uint32_t record, const KeySpace& space, const BlockHash& hash) const;
  std::uint32_t candidate(std::uint64_t hash) const;
  std::uint64_t open_cell(std::uint32_t tag);
  RecordId find_hashed(const KeySpace& space, const BlockHash& hash, std::uint64_t hashed) const;

  std::uint32_t max_blocks_;
  std::uint64_t homes_;  // cells that may be a home; kProbeWindow more follow, so nothing wraps
  std::array<std::uint64_t, 4> keys_;
  MappedArray<HotRecord> hot_;
  MappedArray<ColdRecord> cold_;
  MappedArray<Cell> index_;
  std::uint32_t used_ = 0, fresh_ = 0, free_ = kNoLink;
  std::array<List, kEvictionClasses> lists_;
  std::uint64_t considered_units_ = 0;
};

}  // namespace orbitkv::cache
