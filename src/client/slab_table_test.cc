#include "client/slab_table.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <condition_variable>
#include <thread>

#include "base/time.h"
#include "mem/slab.h"

namespace orbitkv::client {
namespace {
using Found = SlabTable::Found;

constexpr ByteCount kBytes = 64 * kKiB;

// Knows which slabs it was given; may be told to take its time.
class User final : public SlabUser {
 public:
  void add_slab(std::span<std::byte> slab) override {
    const std::lock_guard lock(mutex_);
    slabs_.push_back(slab.data());
  }
  void remove_slab(std::span<std::byte> slab) override {
    std::unique_lock lock(mutex_);
    EXPECT_EQ(::msync(slab.data(), 4096, MS_ASYNC), 0) << "unmapped before the device let go";
    removing_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
    EXPECT_EQ(std::erase(slabs_, slab.data()), 1u);
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return slabs_.size();
  }
  void hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  void await_removal() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return removing_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::byte*> slabs_;
  bool held_ = false, removing_ = false;
};

mem::MappedSlab slab(std::uint32_t name) {
  const UniqueFd fd = mem::make_slab_memory(SlabId(name), kBytes, mem::PageSource::kShared).value();
  return mem::MappedSlab::map(fd, SlabId(name), kBytes).value();
}

// nothing: it did not come within ten seconds.
std::vector<SlabId> await_released(SlabTable& table) {
  const TimePoint end = monotonic_now() + seconds(10);
  while (monotonic_now() < end) {
    if (auto released = table.collect_released(); !released.empty()) return released;
    std::this_thread::yield();
  }
  return {};
}

TEST(SlabTable, AUseKeepsTheMappingAndThenItGoes) {
  User user;
  SlabTable table(&user);
  SlabTable::Use use, other;
  EXPECT_EQ(table.use(SlabId(1), use), Found::kNotYet);
  table.add(slab(1));
  ASSERT_EQ(table.use(SlabId(1), use), Found::kMapped);
  ASSERT_EQ(table.use(SlabId(1), other), Found::kMapped);
  EXPECT_FALSE(table.retiring());
  table.retire(SlabId(1));
  table.retire(SlabId(1));
  EXPECT_TRUE(table.retiring());
  SlabTable::Use late;
  EXPECT_EQ(table.use(SlabId(1), late), Found::kRetiring);
  SlabTable::Use moved = std::move(use);
  other = {};
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(table.collect_released().empty());
  moved->base()[100] = std::byte{1};
  EXPECT_EQ(user.count(), 1u);
  std::byte* const base = moved->base();
  moved = {};
  EXPECT_EQ(await_released(table), std::vector{SlabId(1)});
  EXPECT_EQ(user.count(), 0u);
  EXPECT_EQ(::msync(base, 4096, MS_ASYNC), -1) << "still mapped";
  EXPECT_FALSE(table.retiring());
  EXPECT_EQ(table.use(SlabId(1), late), Found::kNotYet);
}

TEST(SlabTable, WhatIsNotHereIsLetGoOfAtOnce) {
  SlabTable table(nullptr);
  table.retire(SlabId(7));
  EXPECT_TRUE(table.retiring());
  EXPECT_EQ(table.collect_released(), std::vector{SlabId(7)});
  EXPECT_FALSE(table.retiring());
}

TEST(SlabTable, ClosesStepByStepWhereItsOwnerDoesIt) {
  User user;
  SlabTable table(&user, SlabTable::Closing::kStepped);
  table.add(slab(1));
  table.add(slab(2));
  SlabTable::Use use;
  ASSERT_EQ(table.use(SlabId(2), use), Found::kMapped);
  table.retire(SlabId(1));
  table.retire(SlabId(2));
  EXPECT_FALSE(table.close_one()) << "nothing has been let go of yet";
  EXPECT_TRUE(table.collect_released().empty());
  EXPECT_EQ(user.count(), 2u);
  EXPECT_TRUE(table.close_one());
  EXPECT_FALSE(table.close_one()) << "the other is in use";
  EXPECT_EQ(user.count(), 1u);
  EXPECT_EQ(table.collect_released(), std::vector{SlabId(1)});
  use = {};
  EXPECT_TRUE(table.collect_released().empty());
  table.unmap_all();
  EXPECT_EQ(user.count(), 0u);
}

TEST(SlabTable, ADeviceThatTakesItsTimeKeepsNobodyElse) {
  User user;
  SlabTable table(&user);
  table.add(slab(1));
  table.add(slab(2));
  user.hold(true);
  table.retire(SlabId(1));
  EXPECT_TRUE(table.collect_released().empty());
  user.await_removal();
  SlabTable::Use use;
  EXPECT_EQ(table.use(SlabId(2), use), Found::kMapped);
  EXPECT_TRUE(table.collect_released().empty());
  EXPECT_TRUE(table.retiring());
  user.hold(false);
  EXPECT_EQ(await_released(table), std::vector{SlabId(1)});
}

TEST(SlabTable, TheUserHearsOfAllThatGo) {
  User user;
  {
    SlabTable table(&user);
    for (std::uint32_t i = 0; i < 4; ++i) table.add(slab(i));
    table.retire(SlabId(0));
    (void)table.collect_released();  // on its way, or not begun
    table.retire(SlabId(1));
  }
  EXPECT_EQ(user.count(), 0u);
  SlabTable table(&user);
  table.add(slab(9));
  table.unmap_all();
  EXPECT_EQ(user.count(), 0u);
}

// Whoever says afterwards that it maps none speaks of those, too, that were being closed.
TEST(SlabTable, UnmapsWhatRetiresBeforeItReturns) {
  for (int round = 0; round < 50; ++round) {
    User user;
    SlabTable table(&user);
    for (std::uint32_t i = 0; i < 4; ++i) table.add(slab(i));
    table.retire(SlabId(0));
    table.retire(SlabId(1));
    (void)table.collect_released();
    table.unmap_all();
    ASSERT_EQ(user.count(), 0u);
  }
}

// A slab in use stays as it is whoever retires it meanwhile.
TEST(SlabTable, UsesAndRetirementFromManyThreads) {
  User user;
  SlabTable table(&user);
  constexpr std::uint32_t kNames = 200;
  std::atomic<std::uint32_t> newest{0};
  table.add(slab(0));
  std::vector<std::thread> users;
  for (int t = 0; t < 3; ++t)
    users.emplace_back([&] {
      while (newest < kNames) {
        SlabTable::Use use;
        if (table.use(SlabId(newest), use) != Found::kMapped) continue;
        auto* word = reinterpret_cast<std::atomic<std::uint64_t>*>(use->base());
        word->fetch_add(1);
      }
    });
  std::vector<SlabId> released;
  while (newest < kNames) {
    table.add(slab(newest + 1));
    table.retire(SlabId(newest++));
    for (const SlabId name : table.collect_released()) released.push_back(name);
  }
  for (std::thread& each : users) each.join();
  while (released.size() < kNames)
    for (const SlabId name : await_released(table)) released.push_back(name);
  EXPECT_EQ(user.count(), 1u);
}

SlabOrigin origin_of(std::uint64_t inode, bool kept = true) {
  return {7, 1, inode, kept};
}

// The same memory is the same slab: neither mapping nor device hears of the new session.
TEST(SlabTable, KeptSlabsWaitForTheNextSession) {
  User user;
  SlabTable table(&user);
  table.add(slab(1), origin_of(11));
  table.add(slab(2), origin_of(12, false));
  SlabTable::Use use;
  ASSERT_EQ(table.use(SlabId(1), use), Found::kMapped);
  const std::byte* const base = use->base();
  use = {};
  EXPECT_TRUE(table.suspend());
  EXPECT_EQ(table.use(SlabId(1), use), Found::kNotYet) << "no session has offered it";
  EXPECT_FALSE(table.has(SlabId(1)));
  EXPECT_FALSE(table.resume(SlabId(2), kBytes, origin_of(12))) << "its memory went with its Manager";
  EXPECT_TRUE(table.resume(SlabId(1), kBytes, origin_of(11)));
  ASSERT_EQ(table.use(SlabId(1), use), Found::kMapped);
  EXPECT_EQ(use->base(), base);
  use = {};
  table.drop_waiting();
  EXPECT_TRUE(table.has(SlabId(1)));
  table.unmap_all();
  EXPECT_EQ(user.count(), 0u);
}

TEST(SlabTable, OtherMemoryUnderTheSameNameIsMappedAnew) {
  for (const SlabOrigin& other :
       {SlabOrigin{8, 1, 11, true}, SlabOrigin{7, 2, 11, true}, SlabOrigin{7, 1, 99, true}}) {
    User user;
    SlabTable table(&user);
    table.add(slab(1), origin_of(11));
    ASSERT_TRUE(table.suspend());
    EXPECT_FALSE(table.resume(SlabId(1), kBytes, other));
    EXPECT_FALSE(table.has(SlabId(1)));
    table.add(slab(1), other);
    EXPECT_TRUE(table.has(SlabId(1)));
    table.unmap_all();
    EXPECT_EQ(user.count(), 0u);
  }
  User user;
  SlabTable table(&user);
  table.add(slab(1), origin_of(11));
  ASSERT_TRUE(table.suspend());
  EXPECT_FALSE(table.resume(SlabId(1), kBytes + kBytes, origin_of(11)));
}

// Nobody waits to hear of slabs that an earlier Manager retired, or that were not offered again.
TEST(SlabTable, TheNextManagerHearsOnlyOfWhatItRetires) {
  User user;
  SlabTable table(&user);
  for (std::uint32_t i = 1; i <= 3; ++i) table.add(slab(i), origin_of(i));
  table.retire(SlabId(1));
  user.hold(true);
  EXPECT_TRUE(table.collect_released().empty());
  user.await_removal();
  EXPECT_TRUE(table.suspend());
  user.hold(false);
  ASSERT_TRUE(table.resume(SlabId(2), kBytes, origin_of(2)));
  table.drop_waiting();
  EXPECT_FALSE(table.retiring());
  table.retire(SlabId(2));
  EXPECT_EQ(await_released(table), std::vector{SlabId(2)});
  EXPECT_FALSE(table.retiring());
  table.unmap_all();
  EXPECT_EQ(user.count(), 0u);
}

// One that waits to be offered again is mapped, and so is one that waits to be closed.
TEST(SlabTable, WhatIsLetGoOfIsSaidWhenItIsUnmapped) {
  User user;
  SlabTable table(&user);
  for (std::uint32_t i = 1; i <= 3; ++i) table.add(slab(i), origin_of(i));
  table.retire(SlabId(1));
  user.hold(true);
  EXPECT_TRUE(table.collect_released().empty());
  user.await_removal();
  table.retire(SlabId(2));
  EXPECT_TRUE(table.collect_released().empty());  // behind the first
  EXPECT_TRUE(table.suspend());
  table.retire(SlabId(2));
  table.retire(SlabId(2));
  table.retire(SlabId(3));
  EXPECT_TRUE(table.collect_released().empty());
  EXPECT_TRUE(table.retiring());
  user.hold(false);
  std::vector<SlabId> released = await_released(table);
  while (released.size() < 2) {
    const auto more = await_released(table);
    released.insert(released.end(), more.begin(), more.end());
  }
  std::sort(released.begin(), released.end());
  EXPECT_EQ(released, (std::vector{SlabId(2), SlabId(3)}));
  EXPECT_FALSE(table.retiring());
  EXPECT_EQ(user.count(), 0u);
}

TEST(SlabTable, WithoutKeptSlabsNothingWaits) {
  User user;
  SlabTable table(&user);
  table.add(slab(1));
  EXPECT_FALSE(table.suspend());
  table.unmap_all();
  EXPECT_EQ(user.count(), 0u);
}

}  // namespace
}  // namespace orbitkv::client
