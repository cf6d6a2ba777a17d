// BlockHashes: an immutable run of 32-byte block hashes for Python. All slices of
// one list share one bytes object; nothing is copied after construction. Every
// member needs the GIL; the span stays valid as long as the object, also without it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <span>

#include "orbitkv/types.h"

namespace orbitkv::python {

namespace nb = nanobind;

class BlockHashes {
 public:
  // An iterable of bytes objects of 32 bytes each; ValueError says which one is not.
  static BlockHashes from_iterable(nb::handle items);
  // The hashes one behind the other; ValueError unless whole hashes.
  static BlockHashes from_bytes(nb::bytes data);

  std::size_t size() const { return count_; }
  nb::bytes at(nb::ssize_t index) const;     // IndexError outside
  BlockHashes slice(nb::slice range) const;  // ValueError unless the step is 1
  nb::bytes to_bytes() const;
  bool equals(const BlockHashes& other) const;
  std::size_t hash() const;
  std::span<const BlockHash> view() const;

 private:
  BlockHashes(nb::bytes data, std::size_t first, std::size_t count);

  nb::bytes data_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

void bind_block_hashes(nb::module_& m);

}  // namespace orbitkv::python
