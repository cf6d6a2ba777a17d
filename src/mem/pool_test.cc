#include "mem/pool.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "base/time.h"
#include "mem/host_memory.h"
#include "mem/mapped_slab.h"

namespace orbitkv::mem {
namespace {

std::unique_ptr<Pool> sparse_pool(ByteCount bytes) {
  PoolConfig config;
  config.bytes = bytes;
  config.prefault = false;
  return Pool::create(config).value();
}

bool readable(int fd) {
  pollfd ready{fd, POLLIN, 0};
  return ::poll(&ready, 1, 0) == 1;
}

void build(Pool& pool, std::vector<SlabInfo>& offered) {
  while (pool.building()) {
    pollfd ready{pool.ready_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 30'000), 1);
    for (const SlabInfo& slab : pool.collect_offered()) offered.push_back(slab);
  }
}

TEST(Pool, SparseSlabsAreOfferedAtOnce) {
  const auto pool = sparse_pool(2 * kGiB + 8 * kMiB);
  EXPECT_FALSE(pool->building());
  EXPECT_TRUE(readable(pool->ready_fd()));
  const auto offered = pool->collect_offered();
  EXPECT_FALSE(readable(pool->ready_fd()));
  EXPECT_TRUE(pool->collect_offered().empty());
  ASSERT_EQ(offered.size(), 4u);
  for (const SlabInfo& slab : offered) EXPECT_EQ(slab.bytes, 514 * kMiB);
  for (const SlabInfo& slab : pool->slabs()) {
    EXPECT_EQ(slab.state, SlabState::kOffered);
    EXPECT_TRUE(MappedSlab::map(pool->slab_memory(slab.slot), slab.id, slab.bytes).ok());
  }
  EXPECT_EQ(pool->stats().capacity, 2 * kGiB + 8 * kMiB);
  EXPECT_EQ(pool->stats().largest_free, 514 * kMiB);
}

TEST(Pool, LendsOnlyWhatHasBeenPlaced) {
  PoolConfig config;
  config.bytes = 24 * kMiB;
  const auto pool = Pool::create(config).value();
  // Whether or not it is built by now: nothing is offered before it is collected.
  EXPECT_FALSE(pool->allocate(ByteCount(64)));
  EXPECT_EQ(pool->stats().capacity, ByteCount(0));
  EXPECT_EQ(pool->stats().configured, 24 * kMiB);
  std::vector<SlabInfo> offered;
  ASSERT_NO_FATAL_FAILURE(build(*pool, offered));
  ASSERT_EQ(offered.size(), 1u);
  struct stat status{};
  ASSERT_EQ(::fstat(pool->slab_fd(offered[0].slot), &status), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(status.st_blocks) * 512, config.bytes.value);
  EXPECT_EQ(pool->stats().huge, offered[0].huge);
  auto extent = pool->allocate(ByteCount(64));
  ASSERT_TRUE(extent);
  pool->release(std::move(*extent));
}

TEST(Pool, ASizeThatIsNotThereIsRefusedByName) {
  PoolConfig config;
  config.bytes = read_host_memory().available + 64 * kGiB;
  const auto pool = Pool::create(config);
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.error().code(), Code::kBusy);
  for (const char* word : {"--pool-size", "available", "a pool of "})
    EXPECT_NE(pool.error().message().find(word), std::string::npos) << pool.error().message();
  config.bytes = ByteCount(0);
  EXPECT_FALSE(Pool::create(config).ok());
  config.bytes = (limits::kSlabs + std::uint64_t{1}) * limits::kSlabBytes;
  EXPECT_FALSE(Pool::create(config).ok());
  config.bytes = kMiB;
  config.prefault = false;
  config.huge_pages = HugePages::kOn;
  EXPECT_FALSE(Pool::create(config).ok());
}

TEST(Pool, ATebibyteIsMadeAtOnce) {
  const TimePoint begin = monotonic_now();
  const auto pool = sparse_pool(1024 * kGiB);
  EXPECT_LT((monotonic_now() - begin).ns, seconds(1).ns);
  EXPECT_EQ(pool->collect_offered().size(), 1024u);
}

// In a process of its own, since a limit is the whole process'.
[[noreturn]] void leave_with_pool_under(rlim_t soft, rlim_t hard) {
  rlimit limit{};
  limit.rlim_cur = soft;
  limit.rlim_max = hard;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  PoolConfig config;
  config.bytes = 128 * kGiB;
  config.prefault = false;
  const auto pool = Pool::create(config);
  if (!pool.ok()) std::fprintf(stderr, "%s\n", pool.error().message().c_str());
  ::_exit(pool.ok() ? 0 : 1);
}

TEST(PoolDeathTest, RaisesTheSoftLimitOfOpenFilesOrSaysWhichLimitIsLow) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max >= 512) {
    EXPECT_EXIT(leave_with_pool_under(64, limit.rlim_max), testing::ExitedWithCode(0), "");
  }
  EXPECT_EXIT(leave_with_pool_under(64, 64), testing::ExitedWithCode(1), "hard limit is 64; raise it");
}

TEST(Pool, AllocationIdsNeverRepeat) {
  const auto pool = sparse_pool(4 * kMiB);
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 10000; ++i) {
    auto extent = pool->allocate(kMiB);
    ASSERT_TRUE(extent);
    ASSERT_TRUE(seen.insert(extent->allocation().value).second);
    pool->release(std::move(*extent));
  }
}

TEST(Pool, AllocationIdsOfAnotherPoolDoNotRepeat) {
  std::set<std::uint64_t> seen;
  for (int pools = 0; pools < 8; ++pools) {
    const auto pool = sparse_pool(kMiB);
    for (int i = 0; i < 100; ++i) {
      auto extent = pool->allocate(ByteCount(64));
      ASSERT_TRUE(extent);
      ASSERT_TRUE(seen.insert(extent->allocation().value).second);
      pool->release(std::move(*extent));
    }
  }
}

TEST(Pool, UnitRoundsAndAlignsEveryExtent) {
  PoolConfig config;
  config.bytes = 64 * kMiB;
  config.prefault = false;
  config.unit = 4096;
  const auto pool = Pool::create(config).value();
  pool->collect_offered();
  std::vector<Extent> extents;
  std::mt19937_64 random(5);
  for (int i = 0; i < 2000; ++i) {
    if (!extents.empty() && random() % 3 == 0) {
      std::swap(extents[random() % extents.size()], extents.back());
      pool->release(std::move(extents.back()));
      extents.pop_back();
      continue;
    }
    const ByteCount bytes(1 + random() % (std::uint64_t{1} << (6 + random() % 15)));
    auto extent = pool->allocate(bytes);
    if (!extent) continue;
    EXPECT_EQ(extent->offset() % 4096, 0u);
    EXPECT_EQ(extent->bytes().value, (bytes.value + 4095) / 4096 * 4096);
    extents.push_back(std::move(*extent));
  }
  EXPECT_GT(extents.size(), 100u);
  EXPECT_EQ(pool->free_bytes() + pool->stats().used, pool->stats().capacity);
  for (Extent& e : extents) pool->release(std::move(e));
  EXPECT_EQ(pool->stats().largest_free, 64 * kMiB);
  for (const std::uint32_t bad : {0u, 32u, 96u, 8192u}) {
    config.unit = bad;
    EXPECT_FALSE(Pool::create(config).ok()) << bad;
  }
}

TEST(Pool, CountsWhatItLends) {
  const auto pool = sparse_pool(4 * kMiB);
  auto extent = pool->allocate(ByteCount(100));
  ASSERT_TRUE(extent);
  EXPECT_EQ(extent->bytes(), ByteCount(128));
  EXPECT_EQ(pool->stats().used, ByteCount(128));
  EXPECT_FALSE(pool->allocate(4 * kMiB));
  const Extent::Words words = extent->dissolve();
  EXPECT_FALSE(extent->open());
  EXPECT_EQ(pool->release(Extent::restore(words)).bytes, ByteCount(128));
  EXPECT_EQ(pool->stats().used, ByteCount(0));
  EXPECT_EQ(pool->stats().largest_free, 4 * kMiB);
}

TEST(Pool, QuarantinedBytesAreNeverLentAgain) {
  const auto pool = sparse_pool(4 * kMiB);
  auto before = pool->allocate(64 * kKiB);
  auto bad = pool->allocate(64 * kKiB);
  ASSERT_TRUE(before && bad);
  const std::uint64_t bad_begin = bad->offset(), bad_end = bad->offset() + bad->bytes().value;
  EXPECT_EQ(pool->quarantine(std::move(*bad)).bytes, 64 * kKiB);
  pool->release(std::move(*before));
  for (int round = 0; round < 3; ++round) {
    std::vector<Extent> all;
    while (auto extent = pool->allocate(4 * kKiB)) {
      EXPECT_TRUE(extent->offset() >= bad_end || extent->offset() + extent->bytes().value <= bad_begin);
      all.push_back(std::move(*extent));
    }
    EXPECT_EQ(all.size(), (4 * kMiB - 64 * kKiB).value / (4 * kKiB).value);
    for (Extent& extent : all) pool->release(std::move(extent));
  }
  EXPECT_EQ(pool->stats().quarantined, 64 * kKiB);
  EXPECT_EQ(pool->stats().used, 64 * kKiB);
}

TEST(Pool, DestroyedWhileBuildingItStops) {
  PoolConfig config;
  config.bytes = std::min(4 * kGiB, default_pool_bytes());
  auto pool = Pool::create(config).value();
  const TimePoint begin = monotonic_now();
  pool.reset();
  EXPECT_LT((monotonic_now() - begin).ns, seconds(2).ns);
}

TEST(Pool, NamesFollowFromALifeAndRise) {
  PoolConfig config;
  config.bytes = kMiB;
  config.prefault = false;
  config.life = 3;
  const auto pool = Pool::create(config).value();
  EXPECT_EQ(pool->id(), 3u);
  Extent first = *pool->allocate(ByteCount(64));
  EXPECT_EQ(first.allocation().value, (std::uint64_t{3} << 32) + 1);
  pool->release(std::move(first));
}

TEST(PoolDeathTest, OpenExtentsStopTheProcessWithTheirName) {
  const auto pool = sparse_pool(4 * kMiB);
  EXPECT_DEATH(
      { auto extent = pool->allocate(ByteCount(64)); },
      "extent of allocation [0-9]+ died unreleased: slab 0");
  EXPECT_DEATH(
      {
        Extent extent = *pool->allocate(ByteCount(64));
        extent = *pool->allocate(ByteCount(64));
      },
      "extent of allocation [0-9]+ overwritten unreleased");
  EXPECT_DEATH(pool->release(Extent()), "release of no extent");
  EXPECT_DEATH(pool->quarantine(Extent()), "quarantine of no extent");
  EXPECT_DEATH(Extent::restore({}), "restore");
  EXPECT_DEATH(pool->release(Extent::restore({SlabSlot(0), 0, ByteCount(64), AllocationId(99)})), "not lent");
}

}  // namespace
}  // namespace orbitkv::mem
