// The tier behind DRAM, as the core sees it: which blocks it holds, loads into lent slots,
// stores of sealed images. The daemon puts ssd/store.h behind it, tests a scripted one.
// Called from Core calls only, on the core thread; must not call back into Core and never
// waits. Every accepted load and store ends in exactly one Core::loaded() or Core::stored();
// until then the slots belong to the device, cancelled or not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/images.h"
#include "model/geometry.h"
#include "orbitkv/types.h"

namespace orbitkv::cache {

using TierSpace = Id<struct TierSpaceTag, std::uint32_t>;
inline constexpr TierSpace kNoTierSpace{0xFFFFFFFFu};
using TransferId = Id<struct TierTransferTag, std::uint64_t>;  // never 0, never reused

// A version of a stored block.
struct TierRef {
  std::uint32_t record = 0xFFFFFFFFu, generation = 0;
  explicit operator bool() const { return record != 0xFFFFFFFFu; }
};

// How a chain of blocks was asked for or saved, for the admission policy.
struct TierContext {
  std::uint32_t position = 0, hit_run = 0, length = 0;
};

// What the record says of an image; its header has been compared with it once it is loaded.
struct LoadedSlot {
  std::uint64_t digest = 0;
  AllocationId revision;
};

class Tier {
 public:
  virtual ~Tier() = default;
  // When an instance registers: how images of this namespace and group look. kNoTierSpace:
  // the tier holds none of them and takes none.
  virtual TierSpace open_space(const model::RankRegistration& rank, GroupId group) = 0;
  virtual void close_space(TierSpace space) = 0;  // once for each open_space()
  virtual void find(TierSpace space, std::span<const BlockHash> hashes, std::span<TierRef> out) = 0;
  struct Key {
    TierSpace space;
    BlockHash hash;
  };
  // Into lent extents, one a shard, which the tier does not own; `slots_out` is filled in at
  // once. kBusy: too many are on their way, Core::tier_ready() says when to ask again.
  // kRecompute: gone, a miss.
  virtual Result<TransferId> load(const Key& key, TierRef record, std::span<const mem::Extent::Words> slots,
                                  std::span<LoadedSlot> slots_out) = 0;
  // A held, sealed image. kBusy: not taken, counted there.
  virtual Result<TransferId> store(const Key& key, std::span<const SlotWords> slots) = 0;
  // A restore says that the image with this mark did not verify; the tier looks itself.
  virtual void suspect(const Key& key, const LoadedSlot& first_shard) = 0;
  virtual void drop_space(TierSpace space) = 0;

  // ---- admission ----
  enum class Answer : std::uint8_t { kStore, kLater, kNo };
  struct Asked {
    BlockHash hash;
    bool found = false;  // in DRAM or here
  };
  // Blocks of one query, `first.position` on. Not for polls of the same list.
  virtual void asked(TierSpace space, std::span<const Asked> blocks, const TierContext& first) = 0;
  virtual Answer sealed(const Key& key, const TierContext& context, ByteCount bytes) = 0;
  virtual Answer leaving(const Key& key, ByteCount bytes) = 0;
};

}  // namespace orbitkv::cache
