// What the next life of a Manager may go on with, read from the kept table of the last one:
// slabs, block images that are complete, verify and overlap nothing, and extents that somebody
// may still copy into. Believes nothing: what does not fit is left out and counted, and where
// it may hide a lent extent, its slab (or each slab) lends nothing more. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "base/unique_fd.h"
#include "mem/extent_allocator.h"
#include "mem/kept_table.h"
#include "mem/slab_slot.h"

namespace orbitkv::mem {

// One shard of an image.
struct KeptSlot {
  KeptImage slot;
  SlabSlot slab;
};

// A pool to go on with. Slots of the new pool are the indices of `slabs`.
struct KeptPool {
  struct Slab {
    SlabId name;
    ByteCount bytes, huge;
    NodeId node = kAnyNode;
    bool tainted = false;       // what is not used is quarantined
    std::vector<UsedRun> used;  // ascending, disjoint
    UniqueFd memory;
  };
  using Image = KeptSlot;  // those of one image follow each other, by shard
  struct Lent {
    KeptLent lent;
    SlabSlot slab;
  };
  struct Counts {
    std::uint64_t sealed = 0, lent = 0;  // records that verify
    std::uint64_t wrong = 0;             // that do not
    std::uint64_t misplaced = 0;         // out of bounds, or on a slab that is not there
    std::uint64_t overlapping = 0, incomplete = 0, nameless = 0;
  };
  // What the operator asked for last, if so many slabs are configured still.
  std::optional<std::uint32_t> wanted_of(std::uint32_t configured) const {
    if ((wanted & 0xFFFF) != configured || wanted >> 16 == 0) return std::nullopt;
    return wanted >> 16;
  }
  std::uint64_t id = 0;
  std::uint32_t next_name = 0;
  AllocationId allocations;
  std::uint32_t wanted = 0;  // slabs << 16 | of how many that were configured; see wanted_of()
  std::vector<Slab> slabs;
  std::vector<KeptName> names;       // namespaces by number, as the images have it
  std::vector<KeptRetired> retired;  // gone, or about to go, and perhaps mapped by others
  DeviceFiles device_files;
  std::vector<Image> images;
  // Of each image its first slot, in `images`, in the order of eviction: by class (unknown as
  // probationary), then by minute, then as they were saved, those that were read the other way round.
  std::vector<std::uint32_t> oldest_first;
  std::vector<Lent> lent;  // by somebody whose end is not known
  Counts counts;
};

// What a restore of an earlier life, which nobody can take back, reads from.
using KeptReader = Id<struct KeptReaderTag, std::uint32_t>;  // one such restore
struct KeptRead {
  KeptReader reader;
  SlabId slab;
  std::uint64_t offset = 0;
  AllocationId revision;
};

// A descriptor that was found beside the table.
struct KeptMemory {
  SlabId name;
  UniqueFd fd;
};

// Takes of `memories` what the pool uses. `unit`: of the new pool's extents. kReject: the table
// says nothing that could be gone on with. `goes_on` is called as it comes forward: well within a second.
// `now`: an image of which the class is not known, or a minute from before the clock began, counts as used
// then.
Result<KeptPool> scan_kept(const KeptTable& table, std::vector<KeptMemory>& memories, std::uint32_t unit,
                           const std::function<void()>& goes_on = {}, TimePoint now = monotonic_now());

}  // namespace orbitkv::mem
