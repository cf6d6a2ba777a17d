// Pages on a GPU and slot images in a registered slab for the copy bench, both in shuffled
// order, and the means to say afterwards that every byte is right. A bed has the memory, a
// rig lays one shape out in it. Main thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "bench/gpu.h"
#include "device/cuda/cuda_copier.h"

namespace orbitkv::bench {

// Bytes of one set of blocks. There are two sets, and as much again for ceilings.
struct SetBytes {
  ByteCount value;
};

class CopyBed {
 public:
  static Result<std::unique_ptr<CopyBed>> make(Gpu& gpu, SetBytes set);
  ~CopyBed();
  CopyBed(const CopyBed&) = delete;
  Gpu& gpu() { return gpu_; }
  device::cuda::DeviceParts& parts() { return *parts_; }
  Result<std::unique_ptr<device::Copier>> copier(const device::CopierOptions& options) {
    return device::cuda::make_cuda_copier(parts_, options, {});
  }
  std::uint64_t set_bytes() const { return set_.value.value; }
  // For ceilings: nothing of a rig lies there.
  std::byte* plain_host() { return slab_->bytes().data(); }
  device::cuda::CuPtr plain_device() const { return plain_->at(); }

 private:
  friend class CopyRig;
  CopyBed(Gpu& gpu, SetBytes set) : gpu_(gpu), set_(set) {}
  Gpu& gpu_;
  const SetBytes set_;
  std::unique_ptr<FileMemory> slab_;
  std::unique_ptr<GpuMemory> pages_, plain_;
  std::vector<std::byte> content_;  // of the pages
  std::shared_ptr<device::cuda::DeviceParts> parts_;
};

struct CopyShape {
  std::uint64_t fragment_bytes = 0;
  std::uint16_t layers = 1;
  std::uint16_t components = 1;  // 2: K and V apart
  std::uint32_t blocks = 1;      // of one set
  std::uint32_t fragments() const { return std::uint32_t{layers} * components; }
  ByteCount set_bytes() const { return ByteCount(fragment_bytes * fragments() * blocks); }
};

// Where a copy of one fragment goes, for those who copy without a Copier.
struct Piece {
  device::cuda::CuPtr page = 0;
  std::byte* image = nullptr;
};

enum class Set : std::uint8_t { kFirst, kSecond };

class CopyRig {
 public:
  // The pages hold their content; the images do not yet.
  static Result<std::unique_ptr<CopyRig>> make(CopyBed& bed, const CopyShape& shape);
  const CopyShape& shape() const { return shape_; }
  std::span<device::SlotCopy> slots(Set set) { return sets_[static_cast<std::size_t>(set)]; }
  device::CopyBatch batch(device::Direction direction, std::span<device::SlotCopy> slots) const;
  std::vector<Piece> pieces(Set set) const;

  // Not what they should hold, so that a copy that did nothing is found out.
  Status spoil_pages();
  void spoil_images(Set set);
  // All pages of both sets; the payload of a set's images.
  Result<std::uint64_t> wrong_page_bytes() const;
  std::uint64_t wrong_image_bytes(Set set) const;
  // Of these copies alone.
  Result<std::uint64_t> wrong_page_bytes(std::span<const Piece> pieces) const;
  std::uint64_t wrong_image_bytes(std::span<const Piece> pieces) const;

 private:
  CopyRig(CopyBed& bed, const CopyShape& shape) : bed_(bed), shape_(shape) {}
  void place_slots();
  std::uint64_t page_offset(std::uint32_t fragment, std::uint32_t block) const {
    return (std::uint64_t{fragment} * group_.num_blocks + block) * shape_.fragment_bytes;
  }

  CopyBed& bed_;
  const CopyShape shape_;
  device::GroupGeometry group_;
  model::SlotLayout layout_;
  std::vector<device::SlotCopy> sets_[2];
};

// One batch, from the call until it has ended; never sleeps meanwhile.
struct Copied {
  Duration took;
  device::CopyStats stats;
};
Result<Copied> copy_once(device::Copier& copier, device::CopyBatch batch);
// What an ended batch must be to count.
Status check_end(const device::CopyEnd& end);

}  // namespace orbitkv::bench
