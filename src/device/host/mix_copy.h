// Copy kernels of the host copier: move rows of bytes and sum mixR over them in the
// same pass, for each instruction set. Every source word is loaded once into a
// register, and that register is both stored and mixed: the sum is of exactly the
// bytes handed to the destination, even while somebody else writes the source.
// Pure; any thread. Never checks ranges.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orbitkv::device {

enum class Isa : std::uint8_t { kScalar, kAvx2, kAvx512 };
inline constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};

// How the destination is written. kStream bypasses the caches; the caller owes a
// stream_fence() before it tells anybody that the bytes are there.
enum class Stores : std::uint8_t { kNone, kNormal, kStream };

// `rows` rows, concatenated for the checksum. More than one row only with row_bytes a
// multiple of 8 (mix_rows_of_any_size takes the others).
struct RowCopy {
  std::byte* to = nullptr;  // ignored with Stores::kNone
  const std::byte* from = nullptr;
  std::uint64_t rows = 1;
  std::uint64_t row_bytes = 0;
  std::uint64_t to_stride = 0;
  std::uint64_t from_stride = 0;
  const std::byte* next = nullptr;  // what will be read after this, for prefetching; or null
};

// Returns checksum::raw of the concatenated rows.
using MixFn = std::uint64_t (*)(const RowCopy& copy, Stores stores);
struct MixKernel {
  Isa isa = Isa::kScalar;
  const char* name = "";
  MixFn mix = nullptr;
};

bool isa_supported(Isa isa);
Isa best_isa();
// An instruction set that this CPU has; anything else is a check failure.
MixKernel mix_kernel(Isa isa);

// Any row size, through a small private buffer: the slow path.
std::uint64_t mix_rows_of_any_size(const RowCopy& copy, Stores stores);
// Orders streamed stores before whatever publishes them.
void stream_fence();

// How far ahead of the load the source is prefetched. Without it the mixing keeps too
// few loads in flight to reach the memory's rate.
inline constexpr std::uint64_t kPrefetchBytes = 2048;

std::uint64_t mix_scalar(const RowCopy& copy, Stores stores);
std::uint64_t mix_avx2(const RowCopy& copy, Stores stores);
std::uint64_t mix_avx512(const RowCopy& copy, Stores stores);

}  // namespace orbitkv::device
