// The Manager's own mapping of its pool, for I/O: slabs as they are offered, 2 MiB
// aligned, MADV_DONTFORK. Owned by the core thread; others may use addresses of slabs that
// were added before. Copies no payload and reads none; a slab once added stays mapped,
// because a device may be told its address at any time, until it is retired.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "mem/mapped_slab.h"
#include "mem/pool.h"
#include "mem/slab.h"

namespace orbitkv::mem {

class PoolMapping {
 public:
  explicit PoolMapping(const Pool& pool) : pool_(pool) {}

  // Once for each slab that Pool::collect_offered() returned. kBusy: no address space.
  Status add(const SlabInfo& slab);
  // Whole; empty: not added.
  std::span<std::byte> slab(SlabSlot slot) const;
  // No device holds an address of it, and none is told one any more.
  void remove(SlabSlot slot);
  // All bytes of an extent of the pool, its rounding included. Its slab must have been added.
  std::span<std::byte> extent(const Extent::Words& words) const;

 private:
  const Pool& pool_;
  std::vector<std::optional<MappedSlab>> slabs_;  // by slot
};

}  // namespace orbitkv::mem
