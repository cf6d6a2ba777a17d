#include "base/crc32c.h"

#include <array>
#include <atomic>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace orbitkv {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}
constexpr auto kTable = make_table();

std::uint32_t table_crc(const std::byte* p, std::size_t n, std::uint32_t crc) {
  for (; n > 0; --n, ++p) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint32_t>(*p)) & 0xFF];
  return crc;
}

#if defined(__x86_64__)

std::uint64_t load64(const std::byte* p) {
  std::uint64_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Factor that moves a CRC over `bytes` zero bytes when it is multiplied without carry
// and the 64-bit product is reduced by the crc32 instruction: x^(8*bytes - 33) mod P.
constexpr std::uint32_t shift_factor(std::size_t bytes) {
  std::uint32_t power = 0x80000000u;  // x^0, reflected
  for (std::size_t i = 0; i < 8 * bytes - 33; ++i) power = (power >> 1) ^ ((power & 1) ? kPolynomial : 0);
  return power;
}

[[gnu::target("sse4.2,pclmul")]] std::uint64_t shifted(std::uint64_t crc, std::uint32_t factor) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(crc)),
                                               _mm_cvtsi32_si128(static_cast<int>(factor)), 0);
  return _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product)));
}

// Three independent streams hide the three cycles of the instruction.
constexpr std::size_t kStream = 512;
constexpr std::uint32_t kShiftOne = shift_factor(kStream);
constexpr std::uint32_t kShiftTwo = shift_factor(2 * kStream);

[[gnu::target("sse4.2,pclmul")]] std::uint64_t three_streams(const std::byte* p, std::uint64_t crc) {
  std::uint64_t second = 0, third = 0;
  for (std::size_t i = 0; i < kStream; i += 8) {
    crc = _mm_crc32_u64(crc, load64(p + i));
    second = _mm_crc32_u64(second, load64(p + kStream + i));
    third = _mm_crc32_u64(third, load64(p + 2 * kStream + i));
  }
  return shifted(crc, kShiftTwo) ^ shifted(second, kShiftOne) ^ third;
}

[[gnu::target("sse4.2,pclmul")]] std::uint32_t hardware_crc(const std::byte* p, std::size_t n,
                                                            std::uint32_t seed) {
  std::uint64_t crc = seed;
  for (; n >= 3 * kStream; n -= 3 * kStream, p += 3 * kStream) crc = three_streams(p, crc);
  for (; n >= 8; n -= 8, p += 8) crc = _mm_crc32_u64(crc, load64(p));
  auto tail = static_cast<std::uint32_t>(crc);
  if (n >= 4) {
    std::uint32_t word;
    std::memcpy(&word, p, sizeof word);
    tail = _mm_crc32_u32(tail, word);
    n -= 4, p += 4;
  }
  for (; n > 0; --n, ++p) tail = _mm_crc32_u8(tail, static_cast<unsigned char>(*p));
  return tail;
}

bool has_hardware() {
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

using Function = std::uint32_t (*)(const std::byte*, std::size_t, std::uint32_t);

std::uint32_t choose(const std::byte* p, std::size_t n, std::uint32_t crc);
// Constant-initialised, so that a call before main works too.
constinit std::atomic<Function> g_function{choose};

std::uint32_t choose(const std::byte* p, std::size_t n, std::uint32_t crc) {
  const Function chosen = has_hardware() ? hardware_crc : table_crc;
  g_function.store(chosen, std::memory_order_relaxed);
  return chosen(p, n, crc);
}

#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed) {
#if defined(__x86_64__)
  return ~g_function.load(std::memory_order_relaxed)(bytes.data(), bytes.size(), ~seed);
#else
  return crc32c_portable(bytes, seed);
#endif
}

std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t seed) {
  return ~table_crc(bytes.data(), bytes.size(), ~seed);
}

}  // namespace orbitkv
