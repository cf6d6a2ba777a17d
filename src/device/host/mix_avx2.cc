// The AVX2 kernel: four words a step; 64-bit multiplies out of 32-bit ones.
#include <immintrin.h>

#include <cstring>

#include "base/checksum.h"
#include "device/host/mix_copy.h"
#include "device/host/prefetch.h"

#define ORBITKV_AVX2 __attribute__((target("avx2"), always_inline)) inline

namespace orbitkv::device {

namespace {

constexpr std::uint64_t kStep = 64;  // two vectors: one line, one prefetch

struct Lanes {
  __m256i key;
  __m256i sum;
};

ORBITKV_AVX2 __m256i splat(std::uint64_t value) {
  return _mm256_set1_epi64x(static_cast<long long>(value));
}

// x * constant mod 2^64 = lo*lo + ((lo*hi' + hi*lo') << 32).
template <std::uint64_t constant>
ORBITKV_AVX2 __m256i multiply(__m256i x) {
  const __m256i low = splat(constant);
  const __m256i high = splat(constant >> 32);
  const __m256i cross =
      _mm256_add_epi64(_mm256_mul_epu32(x, high), _mm256_mul_epu32(_mm256_srli_epi64(x, 32), low));
  return _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64(cross, 32));
}

template <int bits>
ORBITKV_AVX2 __m256i rotate_right(__m256i x) {
  return _mm256_or_si256(_mm256_srli_epi64(x, bits), _mm256_slli_epi64(x, 64 - bits));
}

ORBITKV_AVX2 __m256i mix(__m256i words, __m256i key) {
  __m256i x = _mm256_xor_si256(words, key);
  x = _mm256_xor_si256(x, _mm256_xor_si256(rotate_right<25>(x), rotate_right<50>(x)));
  x = multiply<checksum::kMul1>(x);
  x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
  x = multiply<checksum::kMul2>(x);
  return _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
}

template <Stores stores>
ORBITKV_AVX2 void mix_vector(Lanes& lanes, std::byte* to, const std::byte* from) {
  __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  // The compiler must not load the source a second time.
  asm("" : "+x"(words));
  auto* out = reinterpret_cast<__m256i*>(to);
  if constexpr (stores == Stores::kNormal) _mm256_storeu_si256(out, words);
  if constexpr (stores == Stores::kStream) _mm256_stream_si256(out, words);
  lanes.sum = _mm256_add_epi64(lanes.sum, mix(words, lanes.key));
  lanes.key = _mm256_add_epi64(lanes.key, splat(4 * checksum::kGolden));
}

template <Stores stores>
ORBITKV_AVX2 void mix_stretch(Lanes& lanes, std::byte* to, const std::byte* from, const Stretch& stretch) {
#pragma GCC unroll 2
  for (std::uint64_t at = 0; at < stretch.bytes; at += kStep) {
    _mm_prefetch(reinterpret_cast<const char*>(stretch.ahead + at), _MM_HINT_T0);
    mix_vector<stores>(lanes, to + at, from + at);
    mix_vector<stores>(lanes, to + at + 32, from + at + 32);
  }
}

// The last 1..63 bytes of a row, word by word.
template <Stores stores>
ORBITKV_AVX2 void mix_tail(Lanes& lanes, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += 8) {
    const std::uint64_t part = bytes - at < 8 ? bytes - at : 8;
    std::uint64_t word = 0;
    std::memcpy(&word, from + at, part);
    asm("" : "+r"(word));
    if constexpr (stores != Stores::kNone) std::memcpy(to + at, &word, part);
    const __m256i lane = _mm256_set_epi64x(0, 0, 0, static_cast<long long>(word));
    const __m256i mixed = _mm256_blend_epi32(_mm256_setzero_si256(), mix(lane, lanes.key), 0b11);
    lanes.sum = _mm256_add_epi64(lanes.sum, mixed);
    lanes.key = _mm256_add_epi64(lanes.key, splat(checksum::kGolden));
  }
}

template <Stores stores>
ORBITKV_AVX2 std::uint64_t mix_rows(const RowCopy& copy) {
  const std::uint64_t g = checksum::kGolden;
  Lanes lanes{_mm256_set_epi64x(static_cast<long long>(4 * g), static_cast<long long>(3 * g),
                                static_cast<long long>(2 * g), static_cast<long long>(g)),
              _mm256_setzero_si256()};
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
  std::uint64_t sums[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), lanes.sum);
  return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace

__attribute__((target("avx2"))) std::uint64_t mix_avx2(const RowCopy& copy, Stores stores) {
  switch (stores) {
    case Stores::kNone: return mix_rows<Stores::kNone>(copy);
    case Stores::kNormal: return mix_rows<Stores::kNormal>(copy);
    case Stores::kStream: return mix_rows<Stores::kStream>(copy);
  }
  return 0;
}

}  // namespace orbitkv::device
