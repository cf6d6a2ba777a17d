#include "mem/pool_size.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/limits.h"

namespace orbitkv::mem {
namespace {

TEST(PoolSize, SmallPoolsAreOneSlabAndOthersCanBeCut) {
  struct Case {
    ByteCount bytes;
    std::size_t slabs;
    ByteCount first;
  };
  const Case cases[] = {{ByteCount(4096), 1, ByteCount(4096)},
                        {8 * kMiB, 1, 8 * kMiB},
                        {511 * kMiB, 1, 511 * kMiB},
                        {512 * kMiB, 2, 256 * kMiB},
                        {900 * kMiB, 3, 300 * kMiB},
                        {kGiB, 4, 256 * kMiB},
                        {4 * kGiB, 4, kGiB},
                        {30 * kGiB, 30, kGiB},
                        {30 * kGiB + kMiB, 31, 992 * kMiB},
                        {1024 * kGiB, 1024, kGiB}};
  for (const Case& each : cases) {
    const auto sizes = slab_sizes(each.bytes);
    EXPECT_EQ(sizes.size(), each.slabs) << each.bytes.value;
    EXPECT_EQ(sizes.front(), each.first) << each.bytes.value;
    EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), ByteCount()), each.bytes);
  }
}

TEST(PoolSize, SlabsOfAGivenSizeAndWhatIsLeft) {
  const ByteCount page(4096);
  EXPECT_EQ(slab_sizes(10 * page, 4 * page), (std::vector{4 * page, 4 * page, 2 * page}));
  EXPECT_EQ(slab_sizes(2 * kGiB, 2 * kGiB), std::vector{2 * kGiB});
}

TEST(PoolSize, EverySizeKeepsTheBounds) {
  for (std::uint64_t mib = 512; mib < 70 * 1024; mib += 37) {
    const auto sizes = slab_sizes(mib * kMiB);
    EXPECT_GE(sizes.size(), 2u);
    EXPECT_GE(sizes.front(), limits::kSlotImageBytes) << mib;
    for (const ByteCount bytes : sizes) EXPECT_LE(bytes, limits::kSlabBytes) << mib;
    EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), ByteCount()), mib * kMiB);
  }
}

}  // namespace
}  // namespace orbitkv::mem
