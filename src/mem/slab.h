// A slab's memory: a memfd whose size is sealed and whose contents are not. Made by
// the Manager, checked by clients; the descriptor is close-on-exec. Any thread.
// Seals: GROW, SHRINK, SEAL. Never WRITE or FUTURE_WRITE: they would forbid
// punching it and the next Manager's writable mapping.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace orbitkv::mem {

enum class HugePages : std::uint8_t { kAuto, kOn, kOff };

// raw → touched → collapsed → offered; touched → offered where pages stay small, raw →
// offered where a slab may be sparse. Later: retiring, gone.
enum class SlabState : std::uint8_t { kRaw, kTouched, kCollapsed, kOffered };

struct SlabInfo {
  SlabId id;
  ByteCount bytes;
  SlabState state = SlabState::kRaw;
  ByteCount huge;          // bytes in huge pages, as reached
  NodeId node = kAnyNode;  // that its pages are on, or will be
};

// Checks that the edge exists; a slab is never offered before its pages are placed,
// because a pinned page blocks its 2 MiB for good.
enum class Placement : std::uint8_t { kBeforeOffer, kSparse };
void advance(SlabInfo& slab, SlabState to, Placement placement);

// Where the pages come from: ordinary shared memory, or the 2 MiB pages that the
// administrator has reserved (bytes must then be a multiple of 2 MiB; they are
// reserved for this slab at once).
enum class PageSource : std::uint8_t { kShared, kReservedHuge };
Result<UniqueFd> make_slab_memory(SlabId id, ByteCount bytes, PageSource source);

// What a client asks of a descriptor that it was handed: a memfd of exactly these
// bytes that nobody can resize. kReject says what is wrong.
Status check_slab_memory(const UniqueFd& fd, SlabId id, ByteCount bytes);

}  // namespace orbitkv::mem
