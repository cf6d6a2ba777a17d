#include "base/mapped_array.h"

#include <gtest/gtest.h>

#include "base/limits.h"

namespace orbitkv {
namespace {

constexpr std::size_t kHuge = limits::kHugePageBytes.value;

TEST(MappedArray, ZeroAtFirstAndUsableToItsEnd) {
  for (const std::size_t bytes : {std::size_t{1}, kHuge - 1, kHuge, kHuge + 1, 3 * kHuge}) {
    SCOPED_TRACE(bytes);
    MappedArray<std::byte> array(bytes);
    EXPECT_EQ(array[0], std::byte{0});
    EXPECT_EQ(array[bytes - 1], std::byte{0});
    array[bytes - 1] = array[0] = std::byte{1};
    EXPECT_EQ(array[bytes - 1], std::byte{1});
  }
}

TEST(MappedArray, OneOfAHugePageOrMoreBeginsWithOne) {
  for (const std::size_t bytes : {kHuge, kHuge + 4096, 3 * kHuge}) {
    const MappedBytes first(bytes), second(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.data()) % kHuge, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second.data()) % kHuge, 0u);
  }
}

}  // namespace
}  // namespace orbitkv
