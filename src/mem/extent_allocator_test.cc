#include "mem/extent_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace orbitkv::mem {
namespace {

using Place = ExtentAllocator::Place;

// What is lent, by slab and offset; notices overlap and what leaves its slab.
class Oracle {
 public:
  explicit Oracle(std::vector<ByteCount> slabs) : slabs_(std::move(slabs)) {}

  void lend(const Place& place, ByteCount bytes) {
    ASSERT_LT(place.slab.value, slabs_.size());
    ASSERT_EQ(place.offset % kExtentUnit, 0u);
    ASSERT_LE(place.offset + bytes.value, slabs_[place.slab.value].value);
    auto& lent = lent_[place.slab.value];
    const auto next = lent.lower_bound(place.offset);
    if (next != lent.end()) {
      ASSERT_LE(place.offset + bytes.value, next->first);
    }
    if (next != lent.begin()) {
      ASSERT_LE(std::prev(next)->first + std::prev(next)->second, place.offset);
    }
    lent[place.offset] = bytes.value;
    used_ += bytes;
  }
  void take_back(const Place& place, ByteCount bytes) {
    ASSERT_EQ(lent_[place.slab.value].erase(place.offset), 1u);
    used_ -= bytes;
  }
  ByteCount used() const { return used_; }

 private:
  std::vector<ByteCount> slabs_;
  std::map<std::uint32_t, std::map<std::uint64_t, std::uint64_t>> lent_;
  ByteCount used_;
};

struct Lent {
  Place place;
  ByteCount bytes;
};

ExtentAllocator with_slabs(const std::vector<ByteCount>& slabs) {
  ExtentAllocator allocator;
  for (std::uint32_t i = 0; i < slabs.size(); ++i) allocator.add_slab(SlabSlot(i), slabs[i]);
  return allocator;
}

// Sizes over all magnitudes, so that exact and rounded bins and both ends of a run are met.
ByteCount any_size(std::mt19937_64& random, int bits) {
  const std::uint64_t magnitude = std::uint64_t{1} << random() % bits;
  return ByteCount(1 + random() % (2 * magnitude));
}

void churn(std::uint64_t seed, const std::vector<ByteCount>& slabs, int steps) {
  std::mt19937_64 random(seed);
  ExtentAllocator allocator = with_slabs(slabs);
  Oracle oracle(slabs);
  std::vector<Lent> lent;
  for (int step = 0; step < steps; ++step) {
    const bool growing = step / 1000 % 2 == 0;
    if (lent.empty() || random() % 100 < (growing ? 70u : 30u)) {
      const ByteCount bytes = any_size(random, 23);
      const bool should_fit = ExtentAllocator::footprint(bytes) <= allocator.largest();
      const auto place = allocator.allocate(bytes);
      ASSERT_EQ(place.has_value(), should_fit) << "seed " << seed << " step " << step;
      if (!place) continue;
      lent.push_back({*place, bytes});
      // What is rounded away is nobody else's either.
      ASSERT_NO_FATAL_FAILURE(oracle.lend(*place, ExtentAllocator::footprint(bytes))) << "seed " << seed;
    } else {
      std::swap(lent[random() % lent.size()], lent.back());
      oracle.take_back(lent.back().place, ExtentAllocator::footprint(lent.back().bytes));
      allocator.release(lent.back().place, lent.back().bytes);
      lent.pop_back();
    }
  }
  for (const Lent& each : lent) allocator.release(each.place, each.bytes);
  EXPECT_EQ(allocator.free_runs(), slabs.size()) << "seed " << seed;
  for (const ByteCount slab : slabs) EXPECT_TRUE(allocator.allocate(slab)) << "seed " << seed;
}

TEST(ExtentAllocator, NeverOverlapsAndMergesBackToWholeSlabs) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    ASSERT_NO_FATAL_FAILURE(churn(seed, {64 * kMiB}, 20000));
    ASSERT_NO_FATAL_FAILURE(churn(seed, {32 * kMiB, 32 * kMiB, 8 * kMiB}, 20000));
  }
}

TEST(ExtentAllocator, NeighbouringSlabsNeverMerge) {
  ExtentAllocator allocator = with_slabs({kGiB, kGiB});
  const auto first = allocator.allocate(kGiB);
  const auto second = allocator.allocate(kGiB);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->slab, second->slab);
  EXPECT_FALSE(allocator.allocate(ByteCount(1)));
  allocator.release(*first, kGiB);
  allocator.release(*second, kGiB);
  EXPECT_EQ(allocator.free_runs(), 2u);
  EXPECT_EQ(allocator.largest(), kGiB);
}

TEST(ExtentAllocator, FootprintIsCloseStableAndMonotone) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 100000; ++i) {
    const ByteCount bytes = std::min(any_size(random, 30), kGiB);
    const ByteCount taken = ExtentAllocator::footprint(bytes);
    ASSERT_GE(taken, bytes);
    ASSERT_EQ(taken.value % kExtentUnit, 0u);
    ASSERT_LE(taken.value,
              bytes.value + std::max<std::uint64_t>(kExtentUnit - 1, bytes.value / 256 + kExtentUnit));
    ASSERT_EQ(ExtentAllocator::footprint(taken), taken);
    ASSERT_LE(taken, ExtentAllocator::footprint(std::min(bytes + ByteCount(1), kGiB)));
  }
  EXPECT_EQ(ExtentAllocator::footprint(ByteCount(4096 + 64)), ByteCount(4096 + 64));
}

TEST(ExtentAllocator, TwoSmallImagesFillTheHoleOfALargeOne) {
  constexpr ByteCount kHeader(640);
  const ByteCount large = 2304 * kKiB + kHeader, small = 1152 * kKiB + kHeader;
  ASSERT_GT(2 * small, large);
  ExtentAllocator allocator = with_slabs({ExtentAllocator::footprint(large)});
  EXPECT_TRUE(allocator.allocate(small));
  EXPECT_TRUE(allocator.allocate(small));
}

TEST(ExtentAllocator, LiveExtentsKeepNoNodes) {
  ExtentAllocator allocator = with_slabs({kGiB, kGiB});
  for (int i = 0; i < 500000; ++i) ASSERT_TRUE(allocator.allocate(ByteCount(4096 - 64)));
  EXPECT_LE(allocator.free_runs(), 2u);
}

TEST(ExtentAllocator, FillsOneSlabBeforeTheNext) {
  ExtentAllocator allocator = with_slabs({kGiB, kGiB, kGiB});
  const auto first = allocator.allocate(kMiB);
  ASSERT_TRUE(first);
  for (int i = 1; i < 1000; ++i) ASSERT_EQ(allocator.allocate(kMiB)->slab, first->slab);
}

// The bar of the design, at a size that suits a unit test; bench/alloc.cc has the full one.
TEST(ExtentAllocator, ChurnOfMixedSizesLeavesLittleUnusable) {
  const ByteCount sizes[] = {64 * kKiB, 144 * kKiB, 1152 * kKiB, 2304 * kKiB, 4608 * kKiB};
  constexpr ByteCount kHeader(640);
  const std::vector<ByteCount> slabs(4, kGiB);
  const std::uint64_t target = 4 * kGiB.value / 10 * 9;
  std::mt19937_64 random(11);
  ExtentAllocator allocator = with_slabs(slabs);
  std::vector<Lent> lent;
  ByteCount live;
  const auto lend = [&](ByteCount bytes) {
    const auto place = allocator.allocate(bytes);
    if (!place) return false;
    lent.push_back({*place, bytes});
    live += bytes;
    return true;
  };
  const auto any = [&] { return sizes[random() % 5] + kHeader; };
  while (live.value < target) ASSERT_TRUE(lend(any()));
  for (int i = 0; i < 100000; ++i) {
    const ByteCount bytes = any();
    while (live.value + bytes.value > target) {
      std::swap(lent[random() % lent.size()], lent.back());
      allocator.release(lent.back().place, lent.back().bytes);
      live -= lent.back().bytes;
      lent.pop_back();
    }
    ASSERT_TRUE(lend(bytes)) << i;
  }
  while (lend(any())) continue;
  EXPECT_GE(static_cast<double>(live.value) / (4.0 * kGiB.value), 0.95);
}

TEST(ExtentAllocator, RefusesWhatCannotFit) {
  ExtentAllocator empty;
  EXPECT_FALSE(empty.allocate(ByteCount(64)));
  EXPECT_EQ(empty.largest(), ByteCount(0));
  ExtentAllocator allocator = with_slabs({kMiB});
  EXPECT_FALSE(allocator.allocate(ByteCount(0)));
  EXPECT_FALSE(allocator.allocate(kMiB + ByteCount(1)));
  EXPECT_FALSE(allocator.allocate(limits::kSlabBytes + ByteCount(1)));
  EXPECT_FALSE(allocator.allocate(ByteCount(~std::uint64_t{0})));
  EXPECT_TRUE(allocator.allocate(kMiB));
  EXPECT_EQ(allocator.largest(), ByteCount(0));
}

TEST(ExtentAllocatorDeathTest, WrongReleases) {
  ExtentAllocator allocator = with_slabs({kMiB});
  const auto first = allocator.allocate(ByteCount(4096));
  const auto second = allocator.allocate(ByteCount(4096));
  ASSERT_TRUE(first && second);
  allocator.release(*first, ByteCount(4096));
  EXPECT_DEATH(allocator.release(*first, ByteCount(4096)), "released twice");
  EXPECT_DEATH(allocator.release(*second, kMiB), "leaves its slab");
  EXPECT_DEATH(allocator.release({SlabSlot(1), 0}, ByteCount(4096)), "not of this pool");
  EXPECT_DEATH(allocator.release({SlabSlot(0), 32}, ByteCount(4096)), "not of this pool");
  EXPECT_DEATH(allocator.add_slab(SlabSlot(0), kMiB), "added twice");
}

}  // namespace
}  // namespace orbitkv::mem
