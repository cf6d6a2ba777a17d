// The payload pool: slabs of sealed memfd memory and the extents lent from them.
// Owned by the Manager's core thread; only SlabBuilder runs threads of its own.
// Slabs come and go at run time: a retired one is abandoned, never punched, its name
// (SlabId) never used again; its slot is. Never maps an address over memory that may still
// be pinned, never reuses an allocation id (nor one of an earlier process's pool, whose images may lie on
// an SSD).
#pragma once

#include <cstdint>
#include <functional>
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

struct KeptPool;
class KeptTable;

struct PoolConfig {
  ByteCount bytes;  // total, cut as slab_sizes() says
  ByteCount slab;   // 0; else slabs of so many bytes, for tests and simulation
  HugePages huge_pages = HugePages::kAuto;
  std::uint32_t unit = 64;             // extents begin and end at multiples of it: a power of two, 64 .. 4096
  bool prefault = true;                // false: slabs are sparse and offered at once
  std::uint32_t threads = 0;           // first touch; 0 = min(4, CPUs)
  int stop_fd = -1;                    // readable (a signalfd): create() gives up waiting for kOn
  std::function<void()> goes_on = {};  // called as create() comes forward, by its caller's thread
  bool numa = true;                    // spread slabs over the NUMA nodes
  // For tests: slabs count as if they lay on the nodes that it describes; nothing is bound.
  std::optional<Topology> topology = std::nullopt;
  // 0: the pool's id is random, its first allocation from clock and chance. Else both follow
  // from this number, which rises from one life of a Manager to the next. For simulation.
  std::uint32_t life = 0;
  // What an earlier life left: its slabs are this pool's, the rest is built. Taken from.
  KeptPool* kept = nullptr;
};

// A lent extent. Move-only; its only exits are Pool::release and Pool::quarantine.
// One that dies open stops the daemon with its name.
class Extent {
 public:
  Extent() = default;
  Extent(Extent&& other) noexcept;
  Extent& operator=(Extent&& other) noexcept;  // *this must be empty
  ~Extent();
  SlabSlot slab() const { return slab_; }
  std::uint64_t offset() const { return offset_; }
  ByteCount bytes() const { return bytes_; }
  AllocationId allocation() const { return allocation_; }
  bool open() const { return allocation_.value != 0; }
  // For tables that keep extents as plain words: the caller takes over the duty.
  struct Words {
    SlabSlot slab;
    std::uint64_t offset;
    ByteCount bytes;
    AllocationId allocation;
  };
  Words dissolve();
  static Extent restore(const Words& words);

 private:
  friend class Pool;
  SlabSlot slab_;
  std::uint64_t offset_ = 0;
  ByteCount bytes_;
  AllocationId allocation_;
};

struct PoolStats {
  ByteCount capacity;  // of offered slabs
  ByteCount used;      // lent from offered and retiring slabs, quarantined included
  ByteCount quarantined;
  ByteCount largest_free;
  ByteCount huge;                       // of offered slabs, in huge pages
  ByteCount retiring;                   // of slabs that retire
  ByteCount building;                   // of slabs that are not offered yet
  ByteCount configured;                 // as the pool was made
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
  bool building() const;  // a slab is not offered yet
  // Why slabs were not built, of the last build (logged once by the pool): the pool is smaller.
  const std::optional<Error>& build_failure() const;

  // Rounded up to the unit; from the node nearest to `near` that has room. nullopt: none fits.
  std::optional<Extent> allocate(ByteCount bytes, NodeId near = kAnyNode);
  ReleaseReceipt release(Extent extent);
  ReleaseReceipt quarantine(Extent extent);  // bytes stay out of use as long as their slab lives

  // ---- what outlives the process ----

  // From now on names, allocation ids and the ends of slabs are written there first. Outlives
  // the pool.
  void keep_in(KeptTable& table);
  // An extent that PoolConfig::kept names as used; each once.
  Extent adopt(SlabSlot slab, std::uint64_t offset, ByteCount bytes);

  // ---- slabs at run time ----

  // One slab more, built in the background and offered like the others. kBusy: one is being
  // built, all limits::kSlabs slots are taken, or the host has not so much memory now.
  Result<SlabId> add(ByteCount bytes);
  // An offered slab lends no more. What is lent from it comes back as before.
  void begin_retire(SlabSlot slab);
  // A retiring slab, of which nothing is lent that is not quarantined: closes its memory.
  // Its pages live as long as others map or pin them.
  void abandon(SlabSlot slab);

  const UniqueFd& slab_memory(SlabSlot slab) const;
  int slab_fd(SlabSlot slab) const { return slab_memory(slab).get(); }  // for SCM_RIGHTS
  const std::vector<SlabInfo>& slabs() const;                           // by slot, those that are gone too
  const SlabInfo& slab(SlabSlot slab) const;
  std::uint64_t id() const;  // pool id, random
  PoolStats stats() const;
  std::uint32_t planned_slabs() const;  // that make up the configured size
  ByteCount capacity() const;           // of offered slabs
  ByteCount free_bytes() const;         // of those, in pieces

 private:
  struct Impl;
  explicit Pool(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Default of --pool-size: min(30 GiB, usable / 4), cgroup limits counted.
ByteCount default_pool_bytes();

}  // namespace orbitkv::mem
