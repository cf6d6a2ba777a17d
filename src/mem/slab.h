// A slab's memory: a memfd whose size is sealed and whose contents are not. Made by
// the Manager, checked by clients; the descriptor is close-on-exec. Any thread.
// Seals: GROW, SHRINK, SEAL. Never WRITE or FUTURE_WRITE: they would forbid the
// next Manager's writable mapping.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "mem/slab_slot.h"

namespace orbitkv::mem {

enum class HugePages : std::uint8_t { kAuto, kOn, kOff };

enum class SlabState : std::uint8_t {
  kRaw,        // its pages are being placed
  kTouched,    // placed, perhaps small
  kCollapsed,  // placed, huge where they could be
  kOffered,    // lent from, and known to clients
  kRetiring,   // lent from no more
  kGone,       // the Manager has let go of its memory, or never got it
  kCount,
};
// A slab is never offered before its pages are placed, because a pinned page blocks its
// 2 MiB for good; but for pools that are sparse as a whole.
enum class Placement : std::uint8_t { kBeforeOffer, kSparse };
enum class SlabEdge : std::uint8_t { kNone, kPlaced, kSparse, kAny };

namespace detail {
using E = SlabEdge;
inline constexpr std::size_t kSlabStates = static_cast<std::size_t>(SlabState::kCount);
inline constexpr std::array<std::array<SlabEdge, kSlabStates>, kSlabStates> kSlabEdges{{
    // to kRaw, kTouched, kCollapsed, kOffered, kRetiring, kGone
    {{E::kNone, E::kPlaced, E::kNone, E::kSparse, E::kNone, E::kAny}},   // kRaw
    {{E::kNone, E::kNone, E::kPlaced, E::kPlaced, E::kNone, E::kNone}},  // kTouched
    {{E::kNone, E::kNone, E::kNone, E::kPlaced, E::kNone, E::kNone}},    // kCollapsed
    {{E::kNone, E::kNone, E::kNone, E::kNone, E::kAny, E::kNone}},       // kOffered
    {{E::kNone, E::kNone, E::kNone, E::kNone, E::kNone, E::kAny}},       // kRetiring
    {{E::kNone, E::kNone, E::kNone, E::kNone, E::kNone, E::kNone}},      // kGone
}};
}  // namespace detail

struct SlabInfo {
  SlabSlot slot;
  SlabId id;
  ByteCount bytes;
  SlabState state = SlabState::kRaw;
  ByteCount huge;               // bytes in huge pages, as reached
  NodeId node = kAnyNode;       // that its pages are on, or will be
  ByteCount used, quarantined;  // lent from it; of that out of use for good
};

// Checks that the edge exists.
void advance(SlabInfo& slab, SlabState to, Placement placement = Placement::kBeforeOffer);

// Where the pages come from: ordinary shared memory, or the 2 MiB pages that the
// administrator has reserved (bytes must then be a multiple of 2 MiB; they are
// reserved for this slab at once).
enum class PageSource : std::uint8_t { kShared, kReservedHuge };
Result<UniqueFd> make_slab_memory(SlabId id, ByteCount bytes, PageSource source);

// What a client asks of a descriptor that it was handed: a memfd of exactly these
// bytes that nobody can resize. kReject says what is wrong.
Status check_slab_memory(const UniqueFd& fd, SlabId id, ByteCount bytes);

}  // namespace orbitkv::mem
