// What the copy bench compares with: one large DMA, one asynchronous copy a fragment, one
// batched call, and both directions of the link at once. Main thread.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "bench/copy_rig.h"

namespace orbitkv::bench {

// Each enqueues, spins until the device has ended, and says how long both took. One large
// copy is between the plain memory on both sides.
class Dma {
 public:
  static Result<std::unique_ptr<Dma>> make(const Gpu& gpu, Piece plain);
  Result<Duration> one(device::Direction direction, ByteCount bytes);
  Result<Duration> each(device::Direction direction, std::span<const Piece> pieces, ByteCount fragment);
  // kReject: the driver has no such call.
  Result<Duration> batched(device::Direction direction, std::span<const Piece> pieces, ByteCount fragment);

 private:
  Dma(const Gpu& gpu, Piece plain) : gpu_(gpu), plain_(plain) {}
  const Gpu& gpu_;
  const Piece plain_;
  std::unique_ptr<GpuStream> stream_;
};

// Operations of one kind, two of which are under way at a time: number n follows n - 2.
class Lane {
 public:
  virtual ~Lane() = default;
  virtual ByteCount bytes() const = 0;  // of one
  virtual Status start(std::size_t which) = 0;
  virtual Result<bool> ended(std::size_t which) = 0;
};
// Plain copies of contiguous memory.
class DmaLane final : public Lane {
 public:
  static Result<std::unique_ptr<DmaLane>> make(CopyBed& bed, device::Direction direction, ByteCount bytes);
  ByteCount bytes() const override { return bytes_; }
  Status start(std::size_t which) override;
  Result<bool> ended(std::size_t which) override { return stream_->passed(which); }

 private:
  DmaLane(CopyBed& bed, device::Direction direction, ByteCount bytes)
      : bed_(bed), direction_(direction), bytes_(bytes) {}
  CopyBed& bed_;
  const device::Direction direction_;
  const ByteCount bytes_;
  std::unique_ptr<GpuStream> stream_;
};
// Halves of a set by a copier.
class CopierLane final : public Lane {
 public:
  CopierLane(device::Copier& copier, CopyRig& rig, device::Direction direction, Set set);
  ByteCount bytes() const override { return ByteCount(rig_.shape().set_bytes().value / 2); }
  Status start(std::size_t which) override;
  Result<bool> ended(std::size_t which) override;
  const device::CopyStats& stats() const { return stats_; }

 private:
  device::Copier& copier_;
  CopyRig& rig_;
  const device::Direction direction_;
  std::array<std::span<device::SlotCopy>, 2> halves_;
  std::array<device::CopyTicket, 2> tickets_;
  device::CopyStats stats_;  // of the last that ended
};

// Runs both without a pause until one has ended `operations`; the sum of their rates, GB/s.
Result<double> rate_of_both(Lane& one, Lane& other, std::size_t operations);

}  // namespace orbitkv::bench
