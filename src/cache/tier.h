// The tier behind DRAM, as the core sees it: which blocks it holds, loads into lent slots,
// stores of sealed images. The daemon puts ssd/store.h behind it, tests a scripted one.
// Called from Core calls only, on the core thread; must not call back into Core and never
// waits. Every accepted load and store ends in exactly one Core::loaded() or Core::stored();
// until then the slots belong to the device, cancelled or not.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "cache/images.h"
#include "model/geometry.h"
#include "orbitkv/types.h"

namespace orbitkv::cache {

using TransferId = Id<struct TierTransferTag, std::uint64_t>;  // never 0, never reused

// A version of a stored block.
struct TierRef {
  std::uint32_t record = 0xFFFFFFFFu, generation = 0;
  explicit operator bool() const { return record != 0xFFFFFFFFu; }
};

// Where blocks stand in the chain that was asked for, for the admission policy.
struct TierContext {
  std::uint32_t position = 0;  // of the first block
  std::uint32_t length = 0;    // blocks of the chain
};

// What the record says of an image; its header has been compared with it once it is loaded.
struct LoadedSlot {
  std::uint64_t digest = 0;
  AllocationId revision;
};

class Tier {
 public:
  virtual ~Tier() = default;
  // When an instance registers whose namespace has none yet: how images of this namespace
  // and group look. kNoTierSpace: the tier holds none of them and takes none now; asked
  // again at the next registration.
  virtual TierSpace open_space(const model::RankRegistration& rank, GroupId group) = 0;
  // What was saved before the Manager started, and whose namespace nobody has registered yet. As
  // open_space(), but only once the tier has found images of the kind. Not asked for: see Asked.
  struct Kind {
    model::NamespaceDigest digest;
    GroupId group;
    std::uint16_t shards = 1;
    ByteCount bytes;  // of one slot, rounded up to the pool's unit
  };
  virtual TierSpace reopen_space(const Kind&) { return TierSpace{0xFFFFFFFFu}; }
  // Once for each open_space() and reopen_space(): no instance is left, no image in DRAM and no transfer; or
  // the core ends, then transfers may be under way.
  virtual void close_space(TierSpace space) = 0;
  virtual void find(TierSpace space, std::span<const BlockHash> hashes, std::span<TierRef> out) = 0;
  struct Key {
    TierSpace space;
    BlockHash hash;
  };
  // Into lent extents, one a shard in their order, which the tier does not own; `slots_out`
  // is filled in at once. kBusy: too many are on their way, Core::tier_ready() says when to ask again.
  // kRecompute: gone, a miss. A load that ends well has the bytes of that record and its
  // headers; whoever restores verifies the fragments.
  virtual Result<TransferId> load(const Key& key, TierRef record, std::span<const mem::Extent::Words> slots,
                                  std::span<LoadedSlot> slots_out) = 0;
  // A held, sealed image, one slot a shard in their order. kBusy: not taken, counted there.
  virtual Result<TransferId> store(const Key& key, std::span<const SlotWords> slots) = 0;
  // A restore says that the image with this mark did not verify; the tier looks itself and
  // fences stores of it that are under way. Nothing where it holds another one or none.
  virtual void suspect(const Key& key, const LoadedSlot& first_shard) = 0;

  // ---- admission ----
  enum class Answer : std::uint8_t { kStore, kLater, kNo };
  // Blocks of one query, `first.position` on, with bitmaps over them. Not for polls of the
  // same list.
  struct Asked {
    std::span<const BlockHash> hashes;
    std::span<const std::uint64_t> resident;  // in DRAM
    std::span<const std::uint64_t> stored;    // only here; empty: none
  };
  virtual void asked(TierSpace space, const Asked& blocks, const TierContext& first) = 0;
  // It was saved by an engine. kLater: leaving() decides.
  virtual Answer sealed(const Key& key, ByteCount bytes) = 0;
  // DRAM is about to let it go. Anything but kStore: it goes as it is; also where the tier
  // holds it already.
  virtual Answer leaving(const Key& key, ByteCount bytes) = 0;
};

}  // namespace orbitkv::cache
