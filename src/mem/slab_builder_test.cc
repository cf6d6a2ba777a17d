#include "mem/slab_builder.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/time.h"
#include "mem/touch.h"

namespace orbitkv::mem {
namespace {

std::uint64_t placed_bytes(const UniqueFd& memory) {
  struct stat status{};
  EXPECT_EQ(::fstat(memory.get(), &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

struct Slabs {
  explicit Slabs(const std::vector<ByteCount>& sizes) {
    for (const ByteCount bytes : sizes) {
      const SlabId id(static_cast<std::uint32_t>(memory.size()));
      memory.push_back(make_slab_memory(id, bytes, PageSource::kShared).value());
      todo.push_back({SlabSlot(id.value), id, bytes, nullptr, PageSource::kShared});
    }
    for (std::size_t i = 0; i < memory.size(); ++i) todo[i].memory = &memory[i];
  }
  std::vector<UniqueFd> memory;
  std::vector<SlabBuilder::Slab> todo;
};

// Whether this machine turns 2 MiB of shared memory into a huge page when asked.
bool machine_collapses() {
  const std::atomic<bool> stop{false};
  const UniqueFd fd = make_slab_memory(SlabId(0), limits::kHugePageBytes, PageSource::kShared).value();
  const MappedSlab slab = MappedSlab::map(fd, SlabId(0), limits::kHugePageBytes).value();
  ::madvise(slab.base(), limits::kHugePageBytes.value, MADV_HUGEPAGE);
  return touch(slab.base(), ByteCount(4096)) == 0 && collapse(slab.base(), stop) == 0;
}

TEST(SlabBuilder, TouchesEveryPageAndStaysSmallWhereToldTo) {
  Slabs slabs({34 * kMiB + ByteCount(12288)});
  SlabBuilder builder(slabs.todo, HugePages::kOff, 3);
  ASSERT_TRUE(builder.wait(-1));
  const auto built = builder.take_built();
  ASSERT_EQ(built.size(), 1u);
  EXPECT_EQ(built[0].reached, SlabState::kTouched);
  EXPECT_EQ(built[0].huge, ByteCount(0));
  EXPECT_EQ(placed_bytes(slabs.memory[0]), slabs.todo[0].bytes.value);
  EXPECT_TRUE(builder.take_built().empty());
  EXPECT_FALSE(builder.failure());
}

TEST(SlabBuilder, AutoCollapsesWhatItCanAndFillsTheRest) {
  Slabs slabs({20 * kMiB + ByteCount(4096)});
  SlabBuilder builder(slabs.todo, HugePages::kAuto, 2);
  ASSERT_TRUE(builder.wait(-1));
  const auto built = builder.take_built();
  ASSERT_EQ(built.size(), 1u);
  EXPECT_EQ(built[0].reached, SlabState::kCollapsed);
  EXPECT_EQ(placed_bytes(slabs.memory[0]), slabs.todo[0].bytes.value);
  if (!machine_collapses()) GTEST_SKIP() << explain_collapse_refusal();
  EXPECT_EQ(built[0].huge, 20 * kMiB);
}

TEST(SlabBuilder, OnReachesEveryPageWhereTheMachineCan) {
  if (!machine_collapses()) GTEST_SKIP() << explain_collapse_refusal();
  Slabs slabs({4 * kMiB});
  SlabBuilder builder(slabs.todo, HugePages::kOn, 1);
  ASSERT_TRUE(builder.wait(-1));
  ASSERT_FALSE(builder.failure());
  EXPECT_EQ(builder.take_built().at(0).huge, 4 * kMiB);
}

// In a process of its own that the kernel gives no huge pages.
[[noreturn]] void leave_with_slab_without_huge_pages(HugePages wanted) {
  ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  Slabs slabs({4 * kMiB});
  int result = 0;
  {
    SlabBuilder builder(slabs.todo, wanted, 1);
    const bool waited = builder.wait(-1).ok();
    if (const auto failure = builder.failure()) std::fprintf(stderr, "%s\n", failure->message().c_str());
    const auto built = builder.take_built();
    result = waited && built.size() == 1 && built[0].huge == ByteCount(0) ? 0 : 1;
  }
  if (result == 0 && placed_bytes(slabs.memory[0]) != 4 * kMiB.value) result = 2;
  ::_exit(result);
}

TEST(SlabBuilderDeathTest, WithoutHugePagesAutoStaysSmallAndOnRefuses) {
  EXPECT_EXIT(leave_with_slab_without_huge_pages(HugePages::kAuto), testing::ExitedWithCode(0),
              "stays at 4 KiB pages: transparent huge pages are disabled");
  EXPECT_EXIT(leave_with_slab_without_huge_pages(HugePages::kOn), testing::ExitedWithCode(1),
              "--hugepages on: slab 0 has no 2 MiB page at 0 MiB");
}

TEST(SlabBuilder, TakesPagesThatTheAdministratorReserved) {
  auto memory = make_slab_memory(SlabId(0), 4 * kMiB, PageSource::kReservedHuge);
  if (!memory.ok()) GTEST_SKIP() << memory.error().message();
  const UniqueFd fd = std::move(memory).value();
  SlabBuilder builder({{SlabSlot(0), SlabId(0), 4 * kMiB, &fd, PageSource::kReservedHuge}}, HugePages::kAuto,
                      2);
  ASSERT_TRUE(builder.wait(-1));
  ASSERT_FALSE(builder.failure());
  EXPECT_EQ(builder.take_built().at(0).huge, 4 * kMiB);
  EXPECT_TRUE(MappedSlab::map(fd, SlabId(0), 4 * kMiB).ok());
}

TEST(SlabBuilder, RingsForEachSlabOnceItIsPlaced) {
  Slabs slabs({kGiB, 8 * kMiB});  // the first is long in the making
  SlabBuilder builder(slabs.todo, HugePages::kOff, 1);
  pollfd ready{builder.ready_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
  EXPECT_TRUE(builder.take_built().empty());
  EXPECT_FALSE(builder.finished());
}

TEST(SlabBuilder, StopsPromptlyInTheMidst) {
  Slabs slabs(std::vector<ByteCount>(64, kGiB));
  TimePoint begin;
  {
    const SlabBuilder builder(slabs.todo, HugePages::kOff, 2);
    while (placed_bytes(slabs.memory[0]) == 0) ::usleep(1000);
    begin = monotonic_now();
  }
  EXPECT_LT((monotonic_now() - begin).ns, seconds(2).ns);
}

TEST(SlabBuilder, WaitEndsWhenAskedTo) {
  Slabs slabs({kGiB, kGiB, kGiB, kGiB});
  const UniqueFd stop(::eventfd(1, EFD_CLOEXEC));
  const SlabBuilder builder(slabs.todo, HugePages::kOff, 1);
  const Status status = builder.wait(stop.get());
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message().find("stopped"), std::string::npos);
}

TEST(SlabBuilder, AFailureEndsTheRestAndNamesTheSlab) {
  Slabs slabs({kGiB, 4 * kMiB});
  // Stands for any refusal of the kernel: this memory has no seals.
  slabs.memory[0] = UniqueFd(::memfd_create("unsealed", MFD_CLOEXEC));
  SlabBuilder builder(slabs.todo, HugePages::kOff, 2);
  ASSERT_TRUE(builder.wait(-1));
  ASSERT_TRUE(builder.finished());
  ASSERT_TRUE(builder.failure());
  EXPECT_NE(builder.failure()->message().find("slab 0"), std::string::npos);
  builder.join();
  EXPECT_LE(builder.take_built().size(), 1u);
}

}  // namespace
}  // namespace orbitkv::mem
