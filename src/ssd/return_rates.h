// How often blocks of a kind come back after they left DRAM, learnt from those that did,
// and which kinds are left unwritten for it. A kind is the block's place in its request:
// fresh, branched from a shared prefix or continuing one, by how much the request added,
// and how far from its end. Owned by Admission, core thread. Fixed size.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "ssd/block_history.h"

namespace orbitkv::ssd {

// A block that no query has found so far.
struct NewBlock {
  std::uint32_t position = 0, known_run = 0, length = 0;
  std::uint8_t branch_hits = 0;  // of the last known block of its chain
};

class ReturnRates {
 public:
  static BlockClass of(const NewBlock& block);
  static BlockClass of_unasked();  // such as an answer
  static BlockClass of_returned(std::uint8_t hits);

  ReturnRates();
  void left(BlockClass kind);
  void came_back(BlockClass kind);
  double rate(BlockClass kind) const;  // estimate of came_back / left
  void halve();                        // so that what is new weighs more

  // Leaves the kinds with the lowest rates out, as long as their returns stay below
  // `returns_lost` a block that leaves; further ones until at most `affordable` of the
  // blocks that leave are written.
  struct Limits {
    double returns_lost = 0;
    double affordable = 1;
  };
  void plan(const Limits& limits);
  // By the last plan. `lot` spreads a kind that is written in part over requests.
  bool writes(BlockClass kind, std::uint8_t lot) const { return lot >= unwritten_[kind.value]; }

 private:
  struct Cell {
    double left = 0, came_back = 0;
  };
  static constexpr std::uint32_t kOrigins = 4, kSizes = 32, kEnds = 16;
  static constexpr std::uint32_t kOthers = 4;  // never asked for; asked again once, twice, more often
  static constexpr std::uint32_t kPlaces = kOrigins * kSizes * kEnds;
  static constexpr std::uint32_t kClasses = kPlaces + kOthers;

  // From the coarse to the fine; kinds that are no places have the last only.
  struct Path {
    std::uint32_t origin, size;
  };
  static Path path_of(BlockClass kind);

  std::array<Cell, kOrigins * 2> origins_;
  std::array<Cell, kOrigins * 2 * kSizes> sizes_;
  std::array<Cell, kClasses> cells_;
  std::array<std::uint16_t, kClasses> unwritten_{};  // of 256 lots
  std::vector<std::pair<double, std::uint32_t>> order_;
};

}  // namespace orbitkv::ssd
