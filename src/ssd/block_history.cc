#include "ssd/block_history.h"

#include <algorithm>
#include <bit>

namespace orbitkv::ssd {

BlockHistory::BlockHistory(std::uint32_t blocks, std::uint64_t seed)
    : blocks_(std::bit_ceil(std::max(blocks, 2 * kWays))), seed_(seed) {
  shift_ = 64 - static_cast<std::uint32_t>(std::countr_zero(blocks_.size() / kWays));
}

BlockMemory* BlockHistory::set_of(AdmissionKey key) {
  return &blocks_[((key.value ^ seed_) * 0x9E3779B97F4A7C15u >> shift_) * kWays];
}

BlockMemory* BlockHistory::find(AdmissionKey key) {
  BlockMemory* set = set_of(key);
  for (std::uint32_t i = 0; i < kWays; ++i)
    if (set[i].used && set[i].key == key) return &set[i];
  return nullptr;
}

BlockMemory& BlockHistory::remember(AdmissionKey key) {
  constexpr std::uint32_t kClock = (1u << BlockMemory::kClockBits) - 1;
  ++clock_;
  BlockMemory* set = set_of(key);
  BlockMemory* oldest = set;
  for (BlockMemory* block = set; block != set + kWays; ++block) {
    if (block->used && block->key == key) {
      block->touched = clock_ & kClock;
      return *block;
    }
    // The clock wraps, ages do not.
    const bool older = ((clock_ - block->touched) & kClock) > ((clock_ - oldest->touched) & kClock);
    if (oldest->used && (!block->used || older)) oldest = block;
  }
  *oldest = BlockMemory{};
  oldest->key = key;
  oldest->touched = clock_ & kClock;
  oldest->used = true;
  return *oldest;
}

}  // namespace orbitkv::ssd
