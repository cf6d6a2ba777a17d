// The portable kernel, the path for rows of odd sizes, and the choice of a kernel.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "base/check.h"
#include "base/checksum.h"
#include "device/host/mix_copy.h"

namespace orbitkv::device {

namespace {

constexpr std::uint64_t kPieceBytes = 4096;  // multiple of 8; fits the first-level cache

// Walks rows as if they were one range.
template <class Byte>
class RowCursor {
 public:
  RowCursor(Byte* base, std::uint64_t row_bytes, std::uint64_t stride)
      : row_(base), row_bytes_(row_bytes), stride_(stride) {}
  // Calls body(part of the row, offset in the range) until `bytes` have been walked.
  template <class Body>
  void walk(std::uint64_t bytes, Body body) {
    for (std::uint64_t done = 0; done < bytes;) {
      const std::uint64_t part = std::min(row_bytes_ - at_, bytes - done);
      body(std::span<Byte>(row_ + at_, part), done);
      done += part;
      at_ += part;
      if (at_ < row_bytes_) continue;
      at_ = 0;
      row_ += stride_;
    }
  }

 private:
  Byte* row_;
  std::uint64_t row_bytes_;
  std::uint64_t stride_;
  std::uint64_t at_ = 0;
};

}  // namespace

std::uint64_t mix_rows_of_any_size(const RowCopy& copy, Stores stores) {
  std::array<std::byte, kPieceBytes> piece;
  RowCursor<const std::byte> from(copy.from, copy.row_bytes, copy.from_stride);
  RowCursor<std::byte> to(copy.to, copy.row_bytes, copy.to_stride);
  const std::uint64_t total = copy.rows * copy.row_bytes;
  std::uint64_t sum = 0;
  for (std::uint64_t done = 0; done < total;) {
    const std::uint64_t bytes = std::min(kPieceBytes, total - done);
    from.walk(bytes, [&](std::span<const std::byte> part, std::uint64_t offset) {
      std::memcpy(piece.data() + offset, part.data(), part.size());
    });
    // The buffer is private: what is summed is what is stored.
    sum += checksum::raw(std::span(piece).first(bytes), done / 8);
    if (stores != Stores::kNone) {
      to.walk(bytes, [&](std::span<std::byte> part, std::uint64_t offset) {
        std::memcpy(part.data(), piece.data() + offset, part.size());
      });
    }
    done += bytes;
  }
  return sum;
}

std::uint64_t mix_scalar(const RowCopy& copy, Stores stores) {
  return mix_rows_of_any_size(copy, stores);
}

void stream_fence() {
  _mm_sfence();
}

bool isa_supported(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return true;
    case Isa::kAvx2: return __builtin_cpu_supports("avx2") != 0;
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
             __builtin_cpu_supports("avx512bw") != 0;
  }
  return false;
}

Isa best_isa() {
  if (isa_supported(Isa::kAvx512)) return Isa::kAvx512;
  return isa_supported(Isa::kAvx2) ? Isa::kAvx2 : Isa::kScalar;
}

MixKernel mix_kernel(Isa isa) {
  ORBITKV_CHECK(isa_supported(isa),
                "this CPU lacks the instruction set asked for; ask isa_supported() first");
  switch (isa) {
    case Isa::kScalar: break;
    case Isa::kAvx2: return {isa, "avx2", mix_avx2};
    case Isa::kAvx512: return {isa, "avx512", mix_avx512};
  }
  return {Isa::kScalar, "scalar", mix_scalar};
}

}  // namespace orbitkv::device
