// Where free runs begin and end: position -> run, open addressing, eight bytes an
// entry. Begin and end share one table, because free neighbours are merged: no run
// ends where another begins. Owned by ExtentAllocator; core thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace orbitkv::mem {

class BoundaryTable {
 public:
  using Position = std::uint64_t;  // below 2^37
  struct Run {
    std::uint32_t index;  // below 2^27
    friend bool operator==(Run, Run) = default;
  };
  static constexpr Run kNone{~0u};

  BoundaryTable();
  Run find(Position position) const;         // kNone: no boundary there
  void put(Position position, Run run);      // none may be there
  void repoint(Position position, Run run);  // one must be there
  void drop(Position position);              // likewise
  std::size_t size() const { return size_; }

 private:
  static constexpr std::uint32_t kRunBits = 27;
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  std::size_t home(Position position) const;
  std::size_t slot_of(Position position) const;
  void grow();

  std::vector<std::uint64_t> entries_;  // position << kRunBits | run
  std::size_t mask_;
  std::size_t size_ = 0;
};

}  // namespace orbitkv::mem
