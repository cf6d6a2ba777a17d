// Runs of lists that are longer than memory, through the whole core.
#include <algorithm>

#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

// Memory for `blocks` of a list of `stored` ones, all of which the tier has.
struct Long {
  std::uint64_t stored;
  TierWorld t;
  Engine e;
  Long(std::uint64_t blocks, std::uint64_t stored_in)
      : stored(stored_in), t(options(blocks)), e(*t), half((blocks - 1) / 2) {
    for (std::uint64_t n = 0; n < stored; ++n) t.tier.put(n);
  }
  static WorldOptions options(std::uint64_t blocks) {
    WorldOptions options;
    options.pool = blocks * slot_bytes();
    options.core.eviction_batch = 8 * slot_bytes();
    return options;
  }
  // Asks until the answer is there, and gives the lease back.
  std::uint32_t hits(std::uint64_t first, std::uint64_t count) {
    const auto list = hashes(first, count);
    QueryAnswer a = t->read(e.scheduler, list, "r");
    if (a.loading) {
      EXPECT_LE(t.stats().loading_bytes.value, t->pool->capacity().value / 2);
      t.all_loaded();
      a = t->read(e.scheduler, list, "r");
    }
    EXPECT_FALSE(a.loading);
    EXPECT_EQ(static_cast<bool>(a.lease), a.hit_blocks > 0);
    if (a.lease) {
      EXPECT_TRUE(t->core->release(e.scheduler, a.lease).ok());
    }
    EXPECT_EQ(t.stats().leased, ByteCount(0));
    return a.hit_blocks;
  }
  std::uint64_t half;  // what may be on its way at once
};

TEST(CoreRun, a_list_longer_than_memory_with_its_own_tail_resident) {
  for (const std::uint64_t first : {10, 20, 30, 60}) {
    Long l(40, 100);
    for (std::uint64_t n = first; n < first + 40; n += 10) EXPECT_EQ(l.hits(n, 10), 10u);
    std::uint32_t last = 0;
    for (int again = 0; again < 5; ++again) {
      const std::uint64_t finds = l.t.tier.finds;
      const std::uint32_t hits = l.hits(0, 100);
      EXPECT_LE(l.t.tier.finds - finds, 2u) << "one look a query, and one more once it is there";
      EXPECT_GE(hits, l.half) << "tail from " << first << ", time " << again;
      EXPECT_GE(hits, last) << "tail from " << first << ", time " << again;
      last = hits;
    }
    EXPECT_GE(last, 36u) << "in the end all of memory holds its head";
  }
}

TEST(CoreRun, a_list_published_in_order_that_memory_does_not_hold) {
  for (const std::uint64_t length : {38, 41, 45, 60}) {
    Long l(40, length);
    for (std::uint64_t n = 0; n < length; n += 5) {
      l.t->store(l.e.worker, l.e.registration, hashes(n, std::min<std::uint64_t>(5, length - n)));
    }
    for (int again = 0; again < 4; ++again) {
      EXPECT_GE(l.hits(0, length), std::min(length, l.half)) << length << ", time " << again;
    }
    EXPECT_GE(l.hits(0, length), std::min<std::uint64_t>(length, 36)) << length;
  }
}

// What room for its head took out of memory is read again where the run comes to it.
TEST(CoreRun, a_block_evicted_for_its_own_head_is_loaded) {
  Long l(40, 38);
  for (std::uint64_t n = 4; n < 38; n += 17) EXPECT_EQ(l.hits(n, 17), 17u);
  const std::uint64_t loads = l.t.tier.loads.size();
  EXPECT_EQ(l.hits(100, 0), 0u);
  for (std::uint64_t n = 100; n < 106; ++n) l.t.tier.put(n);
  EXPECT_EQ(l.hits(100, 6), 6u);
  EXPECT_EQ(l.hits(0, 38), 38u);
  EXPECT_LE(l.t.tier.loads.size() - loads, 6u + 4u + 16u) << "the head, and two batches of eviction at most";
  EXPECT_EQ(l.hits(0, 38), 38u);
}

TEST(CoreRun, a_block_evicted_for_its_own_head_that_is_stored_nowhere_ends_the_run) {
  Long l(40, 4);
  l.t->store(l.e.worker, l.e.registration, hashes(4, 38));
  const std::uint32_t hits = l.hits(0, 42);
  EXPECT_GE(hits, 24u) << "the end of the list went, not its head";
  EXPECT_LT(hits, 42u);
  EXPECT_EQ(l.hits(0, 42), hits);
}

TEST(CoreRun, the_tail_is_the_last_victim) {
  Long l(40, 40);
  EXPECT_EQ(l.hits(4, 12), 12u);
  for (std::uint64_t n = 200; n < 216; ++n) l.t.tier.put(n);
  EXPECT_EQ(l.hits(200, 16), 16u);  // more recent than the list
  l.t->store(l.e.worker, l.e.registration, hashes(300, 10));
  const std::uint64_t loads = l.t.tier.loads.size();
  EXPECT_EQ(l.hits(0, 16), 16u);
  EXPECT_EQ(l.t.tier.loads.size() - loads, 4u) << "others made room";
}

}  // namespace
}  // namespace orbitkv::cache
