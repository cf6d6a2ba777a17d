#include "base/chacha20.h"

#include <gtest/gtest.h>

namespace orbitkv {
namespace {

// RFC 8439, 2.3.2: its counter and nonce lie in the same words.
TEST(ChaCha20, KnownBlock) {
  const std::array<std::uint32_t, 8> key{0x03020100, 0x07060504, 0x0b0a0908, 0x0f0e0d0c,
                                         0x13121110, 0x17161514, 0x1b1a1918, 0x1f1e1d1c};
  const std::array<std::uint32_t, 16> block{
      0xe4e7f110, 0x15593bd1, 0x1fdd0f50, 0xc47120a3, 0xc7f4d1c7, 0x0368c033, 0x9aaa2204, 0x4e6cd4c3,
      0x466482d2, 0x09aa9f07, 0x05d7c214, 0xa2028bd9, 0xd19c12b5, 0xb94e16de, 0xe883d0cb, 0x4e3c50a2};
  EXPECT_EQ(chacha20_block(key, 0x09000000'00000001, 0x4a000000), block);
}

TEST(ChaCha20, EveryWordOfTheInputCounts) {
  const std::array<std::uint32_t, 8> key{};
  const auto block = chacha20_block(key, 0);
  EXPECT_NE(chacha20_block(key, 1), block);
  EXPECT_NE(chacha20_block(key, std::uint64_t{1} << 32), block);
  EXPECT_NE(chacha20_block(key, 0, 1), block);
  for (std::size_t i = 0; i < key.size(); ++i) {
    auto other = key;
    other[i] = 1;
    EXPECT_NE(chacha20_block(other, 0), block) << i;
  }
}

}  // namespace
}  // namespace orbitkv
