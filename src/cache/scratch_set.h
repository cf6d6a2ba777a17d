// A set that finds repeats in one list and is then forgotten: open addressing with a
// generation stamp, so that clearing costs nothing. Single-threaded.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace orbitkv::cache {

class ScratchSet {
 public:
  // Forgets everything; room for `count` values.
  void begin(std::size_t count) {
    const std::size_t cells = std::bit_ceil(2 * count + 1);
    if (cells > cells_.size()) cells_.assign(cells, Cell{});
    ++stamp_;
  }
  // False: the value is there already.
  bool insert(std::uint64_t value) {
    const std::size_t mask = cells_.size() - 1;
    std::size_t i = (value * 0x9E3779B97F4A7C15) >> 20 & mask;
    for (; cells_[i].stamp == stamp_; i = (i + 1) & mask) {
      if (cells_[i].value == value) return false;
    }
    cells_[i] = {value, stamp_};
    return true;
  }

 private:
  struct Cell {
    std::uint64_t value = 0, stamp = 0;
  };
  std::vector<Cell> cells_;
  std::uint64_t stamp_ = 0;
};

}  // namespace orbitkv::cache
