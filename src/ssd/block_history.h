// What is remembered of blocks that were asked for or saved: 16 bytes each, in sets of
// eight, the longest untouched of a set makes room. Owned by Admission, core thread.
// Never grows; forgetting a block costs a wrong guess.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace orbitkv::ssd {

using AdmissionKey = Id<struct AdmissionKeyTag, std::uint64_t>;
using BlockClass = Id<struct BlockClassTag, std::uint16_t>;  // of ReturnRates

// What became of it when DRAM let it go, or when it was saved: the last word counts.
enum class BlockFate : std::uint8_t { kNone, kAdmitted, kUnlikely, kOverBudget, kRefused };

struct BlockMemory {
  static constexpr unsigned kClockBits = 29;

  AdmissionKey key;
  std::uint32_t touched : kClockBits = 0;
  BlockFate fate : 32 - kClockBits = BlockFate::kNone;
  BlockClass kind;
  std::uint8_t lot = 0;  // of its request: shares that are written are shares of requests
  bool used : 1 = false;
  bool saved : 1 = false;     // once; it may have left since
  bool returned : 1 = false;  // to a query that found it
  bool left : 1 = false;      // DRAM, and has not come back since
  bool skipped : 1 = false;   // is unwritten by kAuto's choice
  std::uint8_t hits : 3 = 0;  // times it was asked for again, at most kMostHits
};
static_assert(sizeof(BlockMemory) == 16);
inline constexpr std::uint8_t kMostHits = 7;

class BlockHistory {
 public:
  static constexpr std::uint32_t kWays = 8;
  // Room for `blocks`, rounded up to a power of two; the seed spreads them.
  BlockHistory(std::uint32_t blocks, std::uint64_t seed);

  // Null where it is not remembered. Valid until the next call of remember().
  BlockMemory* find(AdmissionKey key);
  // Found and touched, or new.
  BlockMemory& remember(AdmissionKey key);
  ByteCount memory() const { return ByteCount(blocks_.size() * sizeof(BlockMemory)); }

 private:
  BlockMemory* set_of(AdmissionKey key);

  std::vector<BlockMemory> blocks_;
  std::uint64_t seed_;
  std::uint32_t shift_;
  std::uint32_t clock_ = 0;
};

}  // namespace orbitkv::ssd
