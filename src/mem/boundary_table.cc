#include "mem/boundary_table.h"

#include <utility>

#include "base/check.h"

namespace orbitkv::mem {

namespace {
constexpr std::size_t kFirstEntries = 64;
}

BoundaryTable::BoundaryTable() : entries_(kFirstEntries, kEmpty), mask_(kFirstEntries - 1) {}

std::size_t BoundaryTable::home(Position position) const {
  // Multiplicative hashing; the high half of the product is the well-mixed one.
  return static_cast<std::size_t>((position * 0x9E3779B97F4A7C15u) >> 32) & mask_;
}

BoundaryTable::Run BoundaryTable::find(Position position) const {
  for (std::size_t i = home(position); entries_[i] != kEmpty; i = (i + 1) & mask_) {
    if (entries_[i] >> kRunBits == position) {
      return Run{static_cast<std::uint32_t>(entries_[i] & ((1u << kRunBits) - 1))};
    }
  }
  return kNone;
}

void BoundaryTable::put(Position position, Run run) {
  ORBITKV_CHECK(run.index < (1u << kRunBits), "too many free runs for the boundary table");
  if (2 * (size_ + 1) > entries_.size()) grow();
  std::size_t i = home(position);
  while (entries_[i] != kEmpty) i = (i + 1) & mask_;
  entries_[i] = position << kRunBits | run.index;
  ++size_;
}

std::size_t BoundaryTable::slot_of(Position position) const {
  std::size_t i = home(position);
  while (entries_[i] >> kRunBits != position) {
    ORBITKV_CHECK(entries_[i] != kEmpty, "no boundary at this position");
    i = (i + 1) & mask_;
  }
  return i;
}

void BoundaryTable::repoint(Position position, Run run) {
  entries_[slot_of(position)] = position << kRunBits | run.index;
}

void BoundaryTable::drop(Position position) {
  std::size_t hole = slot_of(position);
  // Later entries of the cluster move up, so that no tombstones are needed.
  for (std::size_t i = (hole + 1) & mask_; entries_[i] != kEmpty; i = (i + 1) & mask_) {
    const std::size_t from_home = (i - home(entries_[i] >> kRunBits)) & mask_;
    if (from_home >= ((i - hole) & mask_)) {
      entries_[hole] = entries_[i];
      hole = i;
    }
  }
  entries_[hole] = kEmpty;
  --size_;
}

void BoundaryTable::grow() {
  std::vector<std::uint64_t> old =
      std::exchange(entries_, std::vector<std::uint64_t>(2 * entries_.size(), kEmpty));
  mask_ = entries_.size() - 1;
  for (const std::uint64_t entry : old) {
    if (entry == kEmpty) continue;
    std::size_t i = home(entry >> kRunBits);
    while (entries_[i] != kEmpty) i = (i + 1) & mask_;
    entries_[i] = entry;
  }
}

}  // namespace orbitkv::mem
