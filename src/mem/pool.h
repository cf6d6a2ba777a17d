// The payload pool: slabs of sealed memfd memory and the extents lent from them.
// Owned by the Manager's core thread; only SlabBuilder runs threads of its own.
// Never maps an address over memory that may still be pinned, never reuses an
// allocation id (nor one of an earlier process's pool, whose images may lie on an SSD),
// and never shrinks a slab under a living extent.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "mem/node_allocator.h"
#include "mem/placement.h"
#include "mem/slab.h"

namespace orbitkv::mem {

struct PoolConfig {
  ByteCount bytes;  // total; one slab if <= 1 GiB, else slabs of 1 GiB
  HugePages huge_pages = HugePages::kAuto;
  std::uint32_t unit = 64;    // extents begin and end at multiples of it: a power of two, 64 .. 4096
  bool prefault = true;       // false: slabs are sparse and offered at once
  std::uint32_t threads = 0;  // first touch; 0 = min(4, CPUs)
  int stop_fd = -1;           // readable (a signalfd): create() gives up waiting for kOn
  bool numa = true;           // spread slabs over the NUMA nodes
  // For tests: slabs count as if they lay on the nodes that it describes; nothing is bound.
  std::optional<Topology> topology = std::nullopt;
};

// A lent extent. Move-only; its only exits are Pool::release and Pool::quarantine.
// One that dies open stops the daemon with its name.
class Extent {
 public:
  Extent() = default;
  Extent(Extent&& other) noexcept;
  Extent& operator=(Extent&& other) noexcept;  // *this must be empty
  ~Extent();
  SlabId slab() const { return slab_; }
  std::uint64_t offset() const { return offset_; }
  ByteCount bytes() const { return bytes_; }
  AllocationId allocation() const { return allocation_; }
  bool open() const { return allocation_.value != 0; }
  // For tables that keep extents as plain words: the caller takes over the duty.
  struct Words {
    SlabId slab;
    std::uint64_t offset;
    ByteCount bytes;
    AllocationId allocation;
  };
  Words dissolve();
  static Extent restore(const Words& words);

 private:
  friend class Pool;
  SlabId slab_;
  std::uint64_t offset_ = 0;
  ByteCount bytes_;
  AllocationId allocation_;
};

struct PoolStats {
  ByteCount capacity;  // of offered slabs
  ByteCount used;      // lent, quarantined included
  ByteCount quarantined;
  ByteCount largest_free;
  ByteCount huge;                       // in huge pages
  ByteCount configured;                 // of all slabs; capacity stays below it after a build_failure()
  std::vector<NodeStats> nodes;         // that offered slabs lie on
  std::uint64_t local = 0, remote = 0;  // extents near to where they were asked for, and others
};

struct ReleaseReceipt {
  ByteCount bytes;
};

class Pool {
 public:
  // Checks the size against memory and cgroup limits, makes the slabs, starts building
  // in the background; raises the soft limit of open files where the slabs need it. kOn
  // waits until every 2 MiB is a huge page, and refuses where one cannot be had.
  static Result<std::unique_ptr<Pool>> create(const PoolConfig& config);
  ~Pool();

  // Core thread: takes slabs that have become ready; returns those newly offered.
  std::vector<SlabInfo> collect_offered();
  // eventfd that is readable when collect_offered() has news.
  int ready_fd() const;
  bool building() const;  // more slabs will be offered
  // Why slabs will never be offered (logged once by the pool): the pool stays smaller.
  const std::optional<Error>& build_failure() const;

  // Rounded up to the unit; from the node nearest to `near` that has room. nullopt: none fits.
  std::optional<Extent> allocate(ByteCount bytes, NodeId near = kAnyNode);
  ReleaseReceipt release(Extent extent);
  ReleaseReceipt quarantine(Extent extent);  // bytes stay out of use for ever

  const UniqueFd& slab_memory(SlabId slab) const;
  int slab_fd(SlabId slab) const { return slab_memory(slab).get(); }  // for SCM_RIGHTS
  const std::vector<SlabInfo>& slabs() const;                         // all, with state
  std::uint64_t id() const;                                           // pool id, random
  PoolStats stats() const;
  ByteCount capacity() const;    // of offered slabs
  ByteCount free_bytes() const;  // of those, in pieces

 private:
  struct Impl;
  explicit Pool(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Default of --pool-size: min(30 GiB, usable / 4), cgroup limits counted.
ByteCount default_pool_bytes();

}  // namespace orbitkv::mem
