// The extent allocators of a pool, one for each NUMA node that slabs lie on: an extent comes
// from the nearest node that has a run for it. Owned by Pool; core thread. Never splits one
// request over nodes, and never evicts for the sake of a nearer one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "mem/extent_allocator.h"
#include "mem/placement.h"

namespace orbitkv::mem {

struct NodeStats {
  NodeId node;  // kAnyNode: of slabs whose node is not known
  ByteCount capacity;
  ByteCount used;  // rounded as the allocator rounds
};

class NodeAllocator {
 public:
  using Place = ExtentAllocator::Place;

  // Which policy gives the order; it outlives this.
  explicit NodeAllocator(const NodePolicy& policy) : policy_(policy) {}
  struct NewSlab {
    SlabSlot slot;
    ByteCount bytes;
    NodeId node = kAnyNode;
  };
  void add_slab(const NewSlab& slab, std::span<const UsedRun> used = {});
  void retire_slab(SlabSlot slab);  // as ExtentAllocator has it
  void remove_slab(SlabSlot slab);
  // near: where the bytes will be used; unknown: where most is free.
  std::optional<Place> allocate(ByteCount bytes, NodeId near);
  void release(Place place, ByteCount bytes);

  ByteCount largest() const;  // the longest request that would succeed now, somewhere
  std::vector<NodeStats> stats() const;
  // Extents that came from the nearest memory node of a known place, and from others.
  std::uint64_t local() const { return local_; }
  std::uint64_t remote() const { return remote_; }

 private:
  struct Part {
    NodeId node;
    ByteCount capacity, used;
    ExtentAllocator allocator;
    ByteCount free() const { return capacity - used; }
  };
  struct Slab {
    Part* part = nullptr;
    ByteCount bytes, used;
    bool retiring = false;
  };
  std::optional<Place> take(Part& part, ByteCount bytes);
  Part* find(NodeId node) const;

  const NodePolicy& policy_;
  std::vector<std::unique_ptr<Part>> parts_;  // a few
  std::vector<Slab> slabs_;                   // by slot
  std::uint64_t local_ = 0, remote_ = 0;
};

}  // namespace orbitkv::mem
