// The memory that a ring has registered: which address lies in which buffer. Used by the
// ring's thread only, which pins it in steps of a few milliseconds: a slab of small pages
// takes half a second. What cannot be registered (no room in the table, limit of locked
// memory) is used all the same, at the cost of pinning it for every request; said once.
#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "base/ids.h"

namespace orbitkv::ssd {

class UringMemory {
 public:
  explicit UringMemory(io_uring& ring);

  // To be registered; the first step of it is done at once.
  void add(std::span<std::byte> memory);
  bool waiting() const { return !waiting_.empty(); }
  void step();
  void remove(std::span<std::byte> memory);  // as it was added
  // The buffer in which all of it lies; -1: none.
  int index_of(const std::byte* at, std::size_t bytes) const;
  ByteCount registered() const { return registered_; }

 private:
  struct Buffer {
    std::byte* at;
    std::size_t bytes;
    unsigned index;
  };

  // Not registered yet; of its next piece so much has its pages in place.
  struct Waiting {
    std::span<std::byte> memory;
    std::size_t populated = 0;
  };

  void populate(Waiting& first, std::size_t piece) const;
  bool add_part(std::span<std::byte> part);
  void say_once(int error);

  io_uring& ring_;
  std::map<const std::byte*, Buffer> buffers_;  // by address
  std::vector<unsigned> free_;
  std::deque<Waiting> waiting_;
  ByteCount registered_;
  bool said_ = false;
  mutable const Buffer* last_ = nullptr;  // requests often name the same slab
};

}  // namespace orbitkv::ssd
