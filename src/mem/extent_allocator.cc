#include "mem/extent_allocator.h"

#include <bit>

#include "base/check.h"

// Why this shape (bench/alloc.cc measures it; the mix is five slot sizes from 64 KiB
// to 4.5 MiB at 90 % live, a replacement draws a new size):
// - Best fit over *all* slabs. The first slab that fits, best fit inside, ends at
//   0.90 to 0.98, because small extents get strewn over every slab.
// - Footprints are rounded to the bins' own boundaries. Then any run of a bin fits
//   any request of that bin, so best fit needs no search, and sizes that are
//   multiples of each other stay so with their headers on (two images of 1.125 MiB
//   and a bit fill the hole of one of 2.25 MiB and a bit). It costs 0.2 % and brings
//   2 % on one slab.
// - Large extents are cut from the high end of a run and small ones from the low
//   end, which keeps small ones together in a pool of one slab.
// - Size classes in carved chunks were not taken: a pool of one slab cannot afford a
//   chunk of each class, and a change of the mix strands the old class's chunks.
// - A bitmap or boundary tags for every 64 bytes would cost 2 to 64 bytes a block
//   (a touched page for each 64 KiB of payload); nodes for free runs cost nothing
//   while the pool is full.
namespace orbitkv::mem {

namespace {

// An extent of more than 1/2048 of its slab is large.
constexpr std::uint32_t kLargeShift = 11;

}  // namespace

ExtentAllocator::ExtentAllocator() {
  heads_.fill(kEnd);
}

std::uint32_t ExtentAllocator::bin_of(std::uint32_t units) {
  if (units < 1u << kStepBits) return units;
  const std::uint32_t shift = 31 - static_cast<std::uint32_t>(std::countl_zero(units)) - kStepBits;
  return (shift << kStepBits) + (units >> shift);
}

std::uint32_t ExtentAllocator::shortest_in(std::uint32_t bin) {
  if (bin < 2u << kStepBits) return bin;
  const std::uint32_t shift = (bin >> kStepBits) - 1;
  return (bin - (shift << kStepBits)) << shift;
}

std::uint32_t ExtentAllocator::footprint_units(ByteCount bytes) {
  const auto units = static_cast<std::uint32_t>((bytes.value + kExtentUnit - 1) / kExtentUnit);
  const std::uint32_t bin = bin_of(units);
  const std::uint32_t shortest = shortest_in(bin);
  return shortest == units ? units : shortest_in(bin + 1);
}

ByteCount ExtentAllocator::footprint(ByteCount bytes) {
  return ByteCount(footprint_units(bytes) * kExtentUnit);
}

void ExtentAllocator::add_slab(SlabSlot slab, ByteCount bytes, std::span<const UsedRun> used) {
  ORBITKV_CHECK(slab.value < limits::kSlabs, "slab slot above limits::kSlabs");
  ORBITKV_CHECK(bytes.value > 0 && bytes.value % kExtentUnit == 0 && bytes <= limits::kSlabBytes,
                "a slab is a multiple of 64 bytes and at most limits::kSlabBytes");
  if (slab_units_.size() <= slab.value) {
    slab_units_.resize(slab.value + 1, 0);
    retiring_.resize(slab.value + 1, false);
  }
  ORBITKV_CHECK(slab_units_[slab.value] == 0, "slab added twice");
  const auto units = static_cast<std::uint32_t>(bytes.value / kExtentUnit);
  slab_units_[slab.value] = units;
  const Position begin = Position{slab.value} << kSlabShift;
  std::uint32_t free = 0;
  for (const UsedRun& run : used) {
    ORBITKV_CHECK(run.begin >= free && run.units > 0 && run.begin <= units && run.units <= units - run.begin,
                  "used runs of a slab overlap or leave it");
    if (run.begin > free) add_run(begin + free, run.begin - free);
    free = run.begin + run.units;
  }
  if (free < units) add_run(begin + free, units - free);
}

void ExtentAllocator::retire_slab(SlabSlot slab) {
  ORBITKV_CHECK(slab.value < slab_units_.size() && slab_units_[slab.value] != 0 && !retiring_[slab.value],
                "only a slab that is lent from can retire");
  retiring_[slab.value] = true;
  for (std::uint32_t i = 0; i < runs_.size(); ++i)
    if (runs_[i].units != 0 && runs_[i].begin >> kSlabShift == slab.value) remove_run(i);
}

void ExtentAllocator::remove_slab(SlabSlot slab) {
  ORBITKV_CHECK(slab.value < slab_units_.size() && retiring_[slab.value], "only a retiring slab can go");
  slab_units_[slab.value] = 0;
  retiring_[slab.value] = false;
}

std::optional<ExtentAllocator::Place> ExtentAllocator::allocate(ByteCount bytes) {
  if (bytes.value == 0 || bytes > limits::kSlabBytes) return std::nullopt;
  const std::uint32_t units = footprint_units(bytes);
  const std::uint32_t bin = first_bin_from(bin_of(units));
  if (bin == kEnd) return std::nullopt;
  const Position at = cut(heads_[bin], units);
  const std::uint64_t unit = at & ((Position{1} << kSlabShift) - 1);
  return Place{SlabSlot(static_cast<std::uint32_t>(at >> kSlabShift)), unit * kExtentUnit};
}

// Takes `units` off one end of a free run.
ExtentAllocator::Position ExtentAllocator::cut(std::uint32_t index, std::uint32_t units) {
  Run& run = runs_[index];
  const Position begin = run.begin;
  const Position end = run.end();
  if (run.units == units) {
    remove_run(index);
    return begin;
  }
  unlink(index);
  const bool large = units > slab_units_[begin >> kSlabShift] >> kLargeShift;
  run.units -= units;
  if (large) {
    boundaries_.drop(end);
    boundaries_.put(run.end(), RunIndex{index});
  } else {
    run.begin += units;
    boundaries_.drop(begin);
    boundaries_.put(run.begin, RunIndex{index});
  }
  link(index);
  return large ? run.end() : begin;
}

void ExtentAllocator::release(Place place, ByteCount bytes) {
  const std::uint32_t slab = place.slab.value;
  ORBITKV_CHECK(slab < slab_units_.size() && bytes.value > 0 && bytes <= limits::kSlabBytes &&
                    place.offset % kExtentUnit == 0,
                "released extent is not of this pool");
  const std::uint32_t units = footprint_units(bytes);
  ORBITKV_CHECK(place.offset / kExtentUnit + units <= slab_units_[slab], "released extent leaves its slab");
  if (retiring_[slab]) return;
  const Position begin = (Position{slab} << kSlabShift) + place.offset / kExtentUnit;
  const Position end = begin + units;
  const RunIndex left = boundaries_.find(begin), right = boundaries_.find(end);
  if (left != BoundaryTable::kNone)
    ORBITKV_CHECK(runs_[left.index].end() == begin, "extent released twice: its first byte is free");
  if (right != BoundaryTable::kNone)
    ORBITKV_CHECK(runs_[right.index].begin == end, "extent released twice: its last byte is free");
  merge(begin, units, left, right);
}

// In place where there is a neighbour: half the table's work of taking runs out and
// putting one in.
void ExtentAllocator::merge(Position begin, std::uint32_t units, RunIndex left, RunIndex right) {
  const Position end = begin + units;
  if (left == BoundaryTable::kNone && right == BoundaryTable::kNone) return add_run(begin, units);
  if (left == BoundaryTable::kNone) {
    unlink(right.index);
    runs_[right.index].begin = begin;
    runs_[right.index].units += units;
    boundaries_.drop(end);
    boundaries_.put(begin, right);
    return link(right.index);
  }
  unlink(left.index);
  boundaries_.drop(begin);
  if (right == BoundaryTable::kNone) {
    runs_[left.index].units += units;
    boundaries_.put(end, left);
    return link(left.index);
  }
  const Run after = runs_[right.index];
  unlink(right.index);
  recycle(right.index);
  runs_[left.index].units += units + after.units;
  boundaries_.drop(end);
  boundaries_.repoint(after.end(), left);
  link(left.index);
}

ByteCount ExtentAllocator::largest() const {
  for (std::size_t w = filled_.size(); w-- > 0;) {
    if (filled_[w] == 0) continue;
    const auto bit = static_cast<std::uint32_t>(63 - std::countl_zero(filled_[w]));
    return ByteCount(shortest_in(static_cast<std::uint32_t>(w) * 64 + bit) * kExtentUnit);
  }
  return ByteCount(0);
}

std::uint32_t ExtentAllocator::first_bin_from(std::uint32_t bin) const {
  std::uint32_t word = bin / 64;
  if (const std::uint64_t here = filled_[word] >> (bin % 64) << (bin % 64); here != 0) {
    return word * 64 + static_cast<std::uint32_t>(std::countr_zero(here));
  }
  ++word;
  for (std::uint32_t top = word / 64; top < filled_words_.size(); ++top, word = top * 64) {
    const std::uint64_t words = filled_words_[top] >> (word % 64) << (word % 64);
    if (words == 0) continue;
    word = top * 64 + static_cast<std::uint32_t>(std::countr_zero(words));
    return word * 64 + static_cast<std::uint32_t>(std::countr_zero(filled_[word]));
  }
  return kEnd;
}

void ExtentAllocator::add_run(Position begin, std::uint32_t units) {
  std::uint32_t index = unused_;
  if (index == kEnd) {
    index = static_cast<std::uint32_t>(runs_.size());
    runs_.emplace_back();
  } else {
    unused_ = runs_[index].next;
  }
  runs_[index].begin = begin;
  runs_[index].units = units;
  boundaries_.put(begin, RunIndex{index});
  boundaries_.put(begin + units, RunIndex{index});
  link(index);
}

void ExtentAllocator::remove_run(std::uint32_t index) {
  unlink(index);
  boundaries_.drop(runs_[index].begin);
  boundaries_.drop(runs_[index].end());
  recycle(index);
}

void ExtentAllocator::recycle(std::uint32_t index) {
  runs_[index].units = 0;
  runs_[index].next = unused_;
  unused_ = index;
}

void ExtentAllocator::link(std::uint32_t index) {
  const std::uint32_t bin = bin_of(runs_[index].units);
  runs_[index].prev = kEnd;
  runs_[index].next = heads_[bin];
  if (heads_[bin] != kEnd) runs_[heads_[bin]].prev = index;
  heads_[bin] = index;
  filled_[bin / 64] |= std::uint64_t{1} << (bin % 64);
  filled_words_[bin / 4096] |= std::uint64_t{1} << (bin / 64 % 64);
}

void ExtentAllocator::unlink(std::uint32_t index) {
  const Run& run = runs_[index];
  if (run.next != kEnd) runs_[run.next].prev = run.prev;
  if (run.prev != kEnd) {
    runs_[run.prev].next = run.next;
    return;
  }
  const std::uint32_t bin = bin_of(run.units);
  heads_[bin] = run.next;
  if (run.next != kEnd) return;
  filled_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
  if (filled_[bin / 64] == 0) filled_words_[bin / 4096] &= ~(std::uint64_t{1} << (bin / 64 % 64));
}

}  // namespace orbitkv::mem
