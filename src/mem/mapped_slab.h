// A client's mapping of a slab: 32 MiB aligned, MADV_DONTFORK. Checks that the
// descriptor is a memfd of the offered size with the size seals. Any thread.
#pragma once

#include <cstddef>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace orbitkv::mem {

class MappedSlab {
 public:
  static Result<MappedSlab> map(const UniqueFd& fd, SlabId id, ByteCount bytes);
  MappedSlab(MappedSlab&& other) noexcept;
  MappedSlab& operator=(MappedSlab&& other) noexcept;
  ~MappedSlab();
  std::byte* base() const { return base_; }
  ByteCount bytes() const { return bytes_; }
  SlabId id() const { return id_; }

 private:
  MappedSlab() = default;
  SlabId id_;
  std::byte* base_ = nullptr;
  ByteCount bytes_;
};

}  // namespace orbitkv::mem
