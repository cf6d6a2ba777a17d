// Slots of shards 1 .. n-1 of sharded block images, chained from the record (shard 0
// stands in the record itself). Flat, 48 bytes a slot, pages touched when used.
// Owned by cache/images.h; single-threaded. Never grows: full is an answer.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/mapped_array.h"
#include "mem/slab_slot.h"

namespace orbitkv::cache {

// Slots there may be for each block of the table on average; address space only.
inline constexpr std::uint32_t kFurtherSlotsPerBlock = 8;

struct FurtherSlot {
  std::uint64_t digest;      // header digest; while lent, the owner's operation index
  std::uint64_t allocation;  // 0: absent
  std::uint64_t revision;
  std::uint64_t offset;
  SlabSlot slab;
  std::uint32_t units;  // of 64 bytes
  std::uint32_t next;   // index + 1 of the next slot of the image, or of the free list; 0: none
  ShardId shard;
  std::uint16_t pad;
};
static_assert(sizeof(FurtherSlot) == 48);

class FurtherSlots {
 public:
  explicit FurtherSlots(std::uint32_t capacity) : capacity_(capacity), slots_(capacity) {}

  // Index + 1 of a zeroed slot, 0: the table is full.
  std::uint32_t take() {
    std::uint32_t i = free_;
    if (i != 0) {
      free_ = slots_[i - 1].next;
    } else if (fresh_ < capacity_) {
      i = ++fresh_;
    } else {
      return 0;
    }
    slots_[i - 1] = FurtherSlot{};
    ++used_;
    return i;
  }
  void give_back(std::uint32_t index_plus_1) {
    slots_[index_plus_1 - 1].next = free_;
    free_ = index_plus_1;
    --used_;
  }
  FurtherSlot& at(std::uint32_t index_plus_1) { return slots_[index_plus_1 - 1]; }
  const FurtherSlot& at(std::uint32_t index_plus_1) const { return slots_[index_plus_1 - 1]; }
  std::uint32_t used() const { return used_; }

 private:
  std::uint32_t capacity_;
  MappedArray<FurtherSlot> slots_;
  std::uint32_t fresh_ = 0, free_ = 0, used_ = 0;
};

}  // namespace orbitkv::cache
