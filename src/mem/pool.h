// The payload pool: slabs of sealed memfd memory and the extents lent from them.
// Owned by the Manager's core thread; only SlabBuilder runs threads of its own.
// Never maps an address over memory that may still be pinned, never reuses an
// allocation id, and never shrinks a slab under a living extent.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace orbitkv::mem {

enum class HugePages : std::uint8_t { kAuto, kOn, kOff };

struct PoolConfig {
  ByteCount bytes;                     // total; one slab if <= 1 GiB, else slabs of 1 GiB
  HugePages huge_pages = HugePages::kAuto;
  bool prefault = true;                // false: slabs are sparse and offered at once
  std::uint32_t threads = 0;           // first touch; 0 = min(4, CPUs)
};

// raw → touched → collapsed → offered; later: retiring, gone.
enum class SlabState : std::uint8_t { kRaw, kTouched, kCollapsed, kOffered };

struct SlabInfo {
  SlabId id;
  ByteCount bytes;
  SlabState state = SlabState::kRaw;
  ByteCount huge;       // bytes in huge pages, as reached
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
  struct Words { SlabId slab; std::uint64_t offset; ByteCount bytes; AllocationId allocation; };
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
  ByteCount capacity;      // of offered slabs
  ByteCount used;          // lent, quarantined included
  ByteCount quarantined;
  ByteCount largest_free;
  ByteCount huge;          // in huge pages
  ByteCount configured;    // what the pool will have when all slabs are offered
};

struct ReleaseReceipt { ByteCount bytes; };

class Pool {
 public:
  // Checks the size against memory and cgroup limits, makes the slabs, starts building
  // in the background. kOn refuses where 2 MiB pages cannot be had for every slab.
  static Result<std::unique_ptr<Pool>> create(const PoolConfig& config);
  ~Pool();

  // Core thread: takes slabs that have become ready; returns those newly offered.
  std::vector<SlabInfo> collect_offered();
  // eventfd that is readable when collect_offered() has news.
  int ready_fd() const;
  bool building() const;

  std::optional<Extent> allocate(ByteCount bytes);   // rounded up to 64 bytes; nullopt: none fits
  ReleaseReceipt release(Extent extent);
  ReleaseReceipt quarantine(Extent extent);          // bytes stay out of use for ever

  int slab_fd(SlabId slab) const;                    // for SCM_RIGHTS
  const std::vector<SlabInfo>& slabs() const;        // all, with state
  std::uint64_t id() const;                          // pool id, random
  PoolStats stats() const;

 private:
  struct Impl;
  explicit Pool(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Default of --pool-size: min(30 GiB, usable / 4), cgroup limits counted.
ByteCount default_pool_bytes();

}  // namespace orbitkv::mem
