// Places extents in the slabs of a pool: best fit over all offered slabs, O(1).
// Keeps nodes for free runs only, in its own memory: a live extent costs nothing
// (its owner hands slab, offset and length back), and payload is never read or
// written, because clients can write it. Offsets are multiples of 64 bytes.
// Owned by Pool; core thread. It does not remember live extents, so it notices a
// double release only where the extent borders on free bytes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "mem/boundary_table.h"
#include "mem/slab_slot.h"

namespace orbitkv::mem {

inline constexpr std::uint64_t kExtentUnit = 64;

// Of a slab, in units.
struct UsedRun {
  std::uint32_t begin = 0, units = 0;
  friend bool operator==(const UsedRun&, const UsedRun&) = default;
};

class ExtentAllocator {
 public:
  struct Place {
    SlabSlot slab;
    std::uint64_t offset = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };

  ExtentAllocator();
  // bytes: a multiple of kExtentUnit, at most limits::kSlabBytes. `used`: the footprints of what
  // is lent from it already, ascending and disjoint.
  void add_slab(SlabSlot slab, ByteCount bytes, std::span<const UsedRun> used = {});
  // Nothing is lent from it from now on; what is released there is only checked.
  void retire_slab(SlabSlot slab);
  void remove_slab(SlabSlot slab);                 // a retiring one: its slot may be added again
  std::optional<Place> allocate(ByteCount bytes);  // nullopt: no free run is long enough
  void release(Place place, ByteCount bytes);      // bytes: as allocated

  // What an extent takes: bytes rounded up to 64, above 32 KiB to 1/256 of the power
  // of two below it.
  static ByteCount footprint(ByteCount bytes);
  ByteCount largest() const;  // the longest request that would succeed now
  std::size_t free_runs() const { return boundaries_.size() / 2; }

 private:
  // slab << kSlabShift | unit. One bit more than a slab has units, so that the end
  // of a slab is not the beginning of the next.
  using Position = BoundaryTable::Position;
  using RunIndex = BoundaryTable::Run;
  static constexpr std::uint32_t kSlabShift = 25;
  static_assert(limits::kSlabBytes.value / kExtentUnit < (1u << kSlabShift));
  static_assert(std::uint64_t{limits::kSlabs} << kSlabShift <= std::uint64_t{1} << 37);

  struct Run {
    Position begin;
    std::uint32_t units;  // 0: an unused node
    std::uint32_t next;   // in its bin, or among the unused nodes
    std::uint32_t prev;
    Position end() const { return begin + units; }
  };

  // Bins are free-run lengths: exact up to 511 units, then 256 for each power of two.
  static constexpr std::uint32_t kStepBits = 8;
  static constexpr std::uint32_t kBins = (17u << kStepBits) + 64;  // a run of 2^24 units included
  static constexpr std::uint32_t kEnd = RunIndex(BoundaryTable::kNone).index;
  static std::uint32_t bin_of(std::uint32_t units);
  static std::uint32_t shortest_in(std::uint32_t bin);
  static std::uint32_t footprint_units(ByteCount bytes);
  std::uint32_t first_bin_from(std::uint32_t bin) const;  // kEnd: all empty

  Position cut(std::uint32_t index, std::uint32_t units);
  void add_run(Position begin, std::uint32_t units);
  void remove_run(std::uint32_t index);
  void merge(Position begin, std::uint32_t units, RunIndex left, RunIndex right);
  void recycle(std::uint32_t index);
  void link(std::uint32_t index);
  void unlink(std::uint32_t index);

  std::vector<std::uint32_t> slab_units_;  // by slab; 0: not added
  std::vector<bool> retiring_;             // likewise
  std::vector<Run> runs_;
  std::uint32_t unused_ = kEnd;
  std::array<std::uint32_t, kBins> heads_;
  // Which bins hold a run, and which words of that are not zero.
  std::array<std::uint64_t, kBins / 64> filled_{};
  std::array<std::uint64_t, (kBins / 64 + 63) / 64> filled_words_{};
  BoundaryTable boundaries_;
};

}  // namespace orbitkv::mem
