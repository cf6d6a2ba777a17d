// The AVX-512 kernel: eight words a step, 64-bit multiplies in hardware (DQ).
#include <immintrin.h>

#include "base/checksum.h"
#include "device/host/mix_copy.h"
#include "device/host/prefetch.h"

#define ORBITKV_AVX512 __attribute__((target("avx512f,avx512dq,avx512bw"), always_inline)) inline

namespace orbitkv::device {

namespace {

constexpr std::uint64_t kStep = 64;

// (i + 1) * G of the eight words that come next, and the lanes' sums.
struct Lanes {
  __m512i key;
  __m512i sum;
};

ORBITKV_AVX512 __m512i splat(std::uint64_t value) {
  return _mm512_set1_epi64(static_cast<long long>(value));
}

// Masked with all ones: GCC 12 warns of the undefined operand in its plain forms.
constexpr __mmask8 kAllLanes = 0xFF;

template <unsigned bits>
ORBITKV_AVX512 __m512i rotate_right(__m512i x) {
  return _mm512_maskz_ror_epi64(kAllLanes, x, bits);
}

ORBITKV_AVX512 __m512i fold_half(__m512i x) {
  return _mm512_xor_si512(x, _mm512_maskz_srli_epi64(kAllLanes, x, 32));
}

ORBITKV_AVX512 __m512i mix(__m512i words, __m512i key) {
  constexpr int kXorOfThree = 0x96;
  __m512i x = _mm512_xor_si512(words, key);
  x = _mm512_ternarylogic_epi64(x, rotate_right<25>(x), rotate_right<50>(x), kXorOfThree);
  x = _mm512_mullo_epi64(x, splat(checksum::kMul1));
  x = _mm512_mullo_epi64(fold_half(x), splat(checksum::kMul2));
  return fold_half(x);
}

template <Stores stores>
ORBITKV_AVX512 void mix_stretch(Lanes& lanes, std::byte* to, const std::byte* from, const Stretch& stretch) {
  const __m512i step = splat(8 * checksum::kGolden);
#pragma GCC unroll 4
  for (std::uint64_t at = 0; at < stretch.bytes; at += kStep) {
    _mm_prefetch(reinterpret_cast<const char*>(stretch.ahead + at), _MM_HINT_T0);
    __m512i words = _mm512_loadu_si512(from + at);
    // The compiler must not load the source a second time.
    asm("" : "+v"(words));
    if constexpr (stores == Stores::kNormal) _mm512_storeu_si512(to + at, words);
    if constexpr (stores == Stores::kStream) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), words);
    lanes.sum = _mm512_add_epi64(lanes.sum, mix(words, lanes.key));
    lanes.key = _mm512_add_epi64(lanes.key, step);
  }
}

// The last 1..63 bytes of a row.
template <Stores stores>
ORBITKV_AVX512 void mix_tail(Lanes& lanes, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  const __mmask64 present = ~std::uint64_t{0} >> (64 - bytes);
  const std::uint64_t word_count = (bytes + 7) / 8;
  const auto counted = static_cast<__mmask8>((1u << word_count) - 1);
  __m512i words = _mm512_maskz_loadu_epi8(present, from);
  asm("" : "+v"(words));
  if constexpr (stores != Stores::kNone) _mm512_mask_storeu_epi8(to, present, words);
  lanes.sum = _mm512_mask_add_epi64(lanes.sum, counted, lanes.sum, mix(words, lanes.key));
  lanes.key = _mm512_add_epi64(lanes.key, splat(word_count * checksum::kGolden));
}

template <Stores stores>
ORBITKV_AVX512 std::uint64_t mix_rows(const RowCopy& copy) {
  const __m512i numbers = _mm512_set_epi64(8, 7, 6, 5, 4, 3, 2, 1);
  Lanes lanes{_mm512_mullo_epi64(numbers, splat(checksum::kGolden)), _mm512_setzero_si512()};
  const std::uint64_t whole = copy.row_bytes / kStep * kStep;
  for (std::uint64_t row = 0; row < copy.rows; ++row) {
    const std::byte* from = copy.from + row * copy.from_stride;
    // Without stores `to` only has to be some pointer.
    std::byte* to = stores == Stores::kNone ? const_cast<std::byte*>(from) : copy.to + row * copy.to_stride;
    const auto [first, last] = stretches(copy, row, whole);
    mix_stretch<stores>(lanes, to, from, first);
    mix_stretch<stores>(lanes, to + first.bytes, from + first.bytes, last);
    if (whole < copy.row_bytes) mix_tail<stores>(lanes, to + whole, from + whole, copy.row_bytes - whole);
  }
  std::uint64_t sums[8];
  _mm512_storeu_si512(sums, lanes.sum);
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : sums) sum += lane;
  return sum;
}

}  // namespace

__attribute__((target("avx512f,avx512dq,avx512bw"))) std::uint64_t mix_avx512(const RowCopy& copy,
                                                                              Stores stores) {
  switch (stores) {
    case Stores::kNone: return mix_rows<Stores::kNone>(copy);
    case Stores::kNormal: return mix_rows<Stores::kNormal>(copy);
    case Stores::kStream: return mix_rows<Stores::kStream>(copy);
  }
  return 0;
}

}  // namespace orbitkv::device
