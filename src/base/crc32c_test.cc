#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace orbitkv {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::vector<std::byte> random_bytes(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(n);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

// RFC 3720, B.4.
TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32)), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xFF})), 0x62A8AB43u);
  std::vector<std::byte> rising(32);
  for (std::size_t i = 0; i < 32; ++i) rising[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(rising), 0x46DD794Eu);
}

TEST(Crc32c, TheTableAgreesAtEveryLengthAndAlignment) {
  const auto data = random_bytes(8192, 1);
  const std::span<const std::byte> all(data);
  for (std::size_t n = 0; n < 200; ++n)
    for (std::size_t at = 0; at < 8; ++at)
      ASSERT_EQ(crc32c(all.subspan(at, n)), crc32c_portable(all.subspan(at, n))) << n << " at " << at;
  // Around one, two and more rounds of the interleaved loop.
  for (const std::size_t n : {511, 512, 1535, 1536, 1537, 1543, 3071, 3072, 4608, 5000, 8191})
    ASSERT_EQ(crc32c(all.first(n), 77), crc32c_portable(all.first(n), 77)) << n;
}

TEST(Crc32c, ContinuesFromASeed) {
  const auto data = random_bytes(5000, 2);
  const std::span<const std::byte> all(data);
  for (const std::size_t cut : {0, 1, 7, 64, 1536, 4999, 5000})
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all)) << cut;
}

}  // namespace
}  // namespace orbitkv
