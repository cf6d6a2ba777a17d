#include "bench/dma.h"

namespace orbitkv::bench {
namespace {

using device::Direction;
using device::cuda::CuPtr;
using device::cuda::CuResult;
using device::cuda::Driver;

Status enqueue(const Gpu& gpu, device::cuda::CuStream stream, Direction direction, const Piece& piece,
               ByteCount bytes) {
  const Driver& d = gpu.driver();
  if (direction == Direction::kRestore)
    return gpu.check("cuMemcpyHtoDAsync", d.cuMemcpyHtoDAsync(piece.page, piece.image, bytes.value, stream));
  return gpu.check("cuMemcpyDtoHAsync", d.cuMemcpyDtoHAsync(piece.image, piece.page, bytes.value, stream));
}

}  // namespace

// ---- one after the other ----

Result<std::unique_ptr<Dma>> Dma::make(const Gpu& gpu, Piece plain) {
  std::unique_ptr<Dma> made(new Dma(gpu, plain));
  ORBITKV_ASSIGN_OR_RETURN(made->stream_, GpuStream::make(gpu));
  return made;
}

Result<Duration> Dma::one(Direction direction, ByteCount bytes) {
  return each(direction, {&plain_, 1}, bytes);
}

Result<Duration> Dma::each(Direction direction, std::span<const Piece> pieces, ByteCount fragment) {
  const TimePoint start = monotonic_now();
  for (const Piece& piece : pieces)
    ORBITKV_RETURN_IF_ERROR(enqueue(gpu_, stream_->handle(), direction, piece, fragment));
  ORBITKV_RETURN_IF_ERROR(stream_->mark());
  ORBITKV_RETURN_IF_ERROR(stream_->finish());
  return monotonic_now() - start;
}

Result<Duration> Dma::batched(Direction direction, std::span<const Piece> pieces, ByteCount fragment) {
  const Driver& d = gpu_.driver();
  if (d.cuMemcpyBatchAsync == nullptr) return reject("this driver has no batched copy call (CUDA 12.8)");
  std::vector<CuPtr> to, from;
  std::vector<std::size_t> bytes(pieces.size(), fragment.value);
  for (const Piece& piece : pieces) {
    const auto image = reinterpret_cast<CuPtr>(piece.image);
    to.push_back(direction == Direction::kRestore ? piece.page : image);
    from.push_back(direction == Direction::kRestore ? image : piece.page);
  }
  device::cuda::CuCopyAttributes attributes;
  std::size_t first = 0, failed = 0;
  const TimePoint start = monotonic_now();
  const CuResult code = d.cuMemcpyBatchAsync(to.data(), from.data(), bytes.data(), to.size(), &attributes,
                                             &first, 1, &failed, stream_->handle());
  ORBITKV_RETURN_IF_ERROR(gpu_.check("cuMemcpyBatchAsync", code));
  ORBITKV_RETURN_IF_ERROR(stream_->mark());
  ORBITKV_RETURN_IF_ERROR(stream_->finish());
  return monotonic_now() - start;
}

// ---- both directions ----

Result<std::unique_ptr<DmaLane>> DmaLane::make(CopyBed& bed, Direction direction, ByteCount bytes) {
  std::unique_ptr<DmaLane> made(new DmaLane(bed, direction, bytes));
  ORBITKV_ASSIGN_OR_RETURN(made->stream_, GpuStream::make(bed.gpu()));
  return made;
}

// The directions use different halves of the plain memory.
Status DmaLane::start(std::size_t which) {
  const std::uint64_t offset = direction_ == Direction::kRestore ? 0 : bed_.set_bytes() / 2;
  const Piece piece{bed_.plain_device() + offset, bed_.plain_host() + offset};
  ORBITKV_RETURN_IF_ERROR(enqueue(bed_.gpu(), stream_->handle(), direction_, piece, bytes_));
  return stream_->mark(which);
}

CopierLane::CopierLane(device::Copier& copier, CopyRig& rig, Direction direction, Set set)
    : copier_(copier), rig_(rig), direction_(direction) {
  const auto slots = rig.slots(set);
  halves_ = {slots.first(slots.size() / 2), slots.last(slots.size() / 2)};
}

Status CopierLane::start(std::size_t which) {
  ORBITKV_ASSIGN_OR_RETURN(tickets_[which], copier_.submit(rig_.batch(direction_, halves_[which])));
  return ok_status();
}

Result<bool> CopierLane::ended(std::size_t which) {
  const auto end = copier_.poll(tickets_[which]);
  if (!end) return false;
  ORBITKV_RETURN_IF_ERROR(check_end(*end));
  stats_ = end->stats;
  for (const device::SlotCopy& slot : halves_[which])
    if (direction_ == Direction::kRestore && !slot.verified)
      return bug("a restored block was found wrong by its checksum");
  return true;
}

namespace {
struct Progress {
  explicit Progress(Lane& which) : lane(which) {}
  Lane& lane;
  std::size_t started = 0, ended = 0;
  TimePoint last;

  Status fill() {
    while (started < ended + 2) ORBITKV_RETURN_IF_ERROR(lane.start(started++ % 2));
    return ok_status();
  }
  Status look() {
    if (started == ended) return ok_status();
    ORBITKV_ASSIGN_OR_RETURN(const bool over, lane.ended(ended % 2));
    if (!over) return ok_status();
    ++ended;
    last = monotonic_now();
    return ok_status();
  }
  double rate(TimePoint start) const {
    if (ended == 0) return 0;
    return static_cast<double>(ended * lane.bytes().value) / static_cast<double>((last - start).ns);
  }
};
}  // namespace

Result<double> rate_of_both(Lane& one, Lane& other, std::size_t operations) {
  Progress a(one), b(other);
  const TimePoint start = monotonic_now();
  while (a.ended < operations && b.ended < operations) {
    for (Progress* lane : {&a, &b}) {
      ORBITKV_RETURN_IF_ERROR(lane->fill());
      ORBITKV_RETURN_IF_ERROR(lane->look());
    }
  }
  const double rate = a.rate(start) + b.rate(start);
  while (a.started != a.ended || b.started != b.ended) {
    ORBITKV_RETURN_IF_ERROR(a.look());
    ORBITKV_RETURN_IF_ERROR(b.look());
  }
  return rate;
}

}  // namespace orbitkv::bench
