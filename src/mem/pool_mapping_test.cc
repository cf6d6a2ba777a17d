#include "mem/pool_mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <utility>

namespace orbitkv::mem {
namespace {

std::unique_ptr<Pool> sparse_pool(ByteCount bytes, std::uint32_t unit) {
  PoolConfig config;
  config.bytes = bytes;
  config.unit = unit;
  config.prefault = false;
  return Pool::create(config).value();
}

TEST(PoolMapping, NamesTheBytesThatClientsSee) {
  const auto pool = sparse_pool(4 * kMiB, 4096);
  PoolMapping mapping(*pool);
  EXPECT_TRUE(mapping.slab(SlabSlot(0)).empty());
  const auto offered = pool->collect_offered();
  ASSERT_EQ(offered.size(), 1u);
  ASSERT_TRUE(mapping.add(offered[0]).ok());
  EXPECT_EQ(mapping.slab(SlabSlot(0)).size(), (4 * kMiB).value);
  auto first = pool->allocate(ByteCount(100)), second = pool->allocate(ByteCount(100));
  ASSERT_TRUE(first && second);
  const Extent::Words words = second->dissolve();
  const std::span<std::byte> ours = mapping.extent(words);
  EXPECT_EQ(ours.size(), 4096u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(ours.data()) % 4096, 0u);
  ours[7] = std::byte{0x5A};
  const auto client = MappedSlab::map(pool->slab_memory(SlabSlot(0)), SlabId(0), offered[0].bytes);
  ASSERT_TRUE(client.ok());
  EXPECT_EQ(client->base()[words.offset + 7], std::byte{0x5A});
  pool->release(Extent::restore(words));
  pool->release(std::move(*first));
}

TEST(PoolMappingDeathTest, AnExtentOutsideIsABug) {
  const auto pool = sparse_pool(kMiB, 64);
  PoolMapping mapping(*pool);
  ASSERT_TRUE(mapping.add(pool->collect_offered().at(0)).ok());
  EXPECT_DEATH(mapping.extent({SlabSlot(0), kMiB.value - 64, ByteCount(128), AllocationId(1)}),
               "does not lie in");
  EXPECT_DEATH(mapping.extent({SlabSlot(1), 0, ByteCount(64), AllocationId(1)}), "does not lie in");
}

}  // namespace
}  // namespace orbitkv::mem
