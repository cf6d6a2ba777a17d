// How copies are started: by which method and with how many thread blocks.
#include <algorithm>
#include <vector>

#include "device/cuda/windows.h"
#include "tests/cuda/fake_bed.h"

namespace orbitkv::device::cuda {
namespace {

class LaunchTest : public FakeDeviceTest {
 protected:
  std::unique_ptr<suite::Rig> rig_on(CuDevice ordinal, const suite::EngineLayout& layout, CopyPace pace) {
    device = make({}, ordinal);
    auto rig =
        std::make_unique<suite::Rig>(implementation(device, ordinal), layout, CopierOptions{.pace = pace});
    rig->fill_pages(7);
    return rig;
  }
  CopyEnd run(suite::Rig& rig, Direction direction, std::span<SlotCopy> slots) {
    auto ticket = rig.copier().submit(rig.batch(direction, slots));
    EXPECT_TRUE(ticket.ok()) << ticket.error().message();
    return rig.copier().drain(*ticket);
  }
  std::uint32_t dma_calls() const {
    std::uint32_t sum = 0;
    for (const char* entry :
         {"cuMemcpyBatchAsync", "cuMemcpy2DAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"})
      sum += fake.calls(entry);
    return sum;
  }
};

constexpr std::uint64_t kSizes[] = {2048, 16384, 32768, 65536, 262144, kDirectFromFull};

// Whatever the size of a fragment, on parts with bulk copies and without.
TEST_F(LaunchTest, GentleCopiesTakeASmallWindowOfTheKernel) {
  const Windows windows;
  for (const CuDevice ordinal : {0, 1}) {
    for (const std::uint64_t bytes : kSizes) {
      auto rig = rig_on(ordinal, suite::contiguous("gentle", {bytes, bytes}), CopyPace::kGentle);
      std::vector<SlotCopy> slots = rig->new_slots({1, 4, 7});
      for (const Direction direction : {Direction::kSave, Direction::kRestore}) {
        const std::size_t before = fake.grids().size();
        const CopyEnd end = run(*rig, direction, slots);
        EXPECT_TRUE(end.status.ok());
        EXPECT_EQ(end.stats.method, CopyMethod::kKernel) << bytes;
        const std::uint32_t most = std::max(windows.of(direction, CopyPace::kGentle, bytes).ctas,
                                            windows.any_ctas_of(CopyPace::kGentle));
        const std::vector<std::uint32_t> grids = fake.grids();
        ASSERT_GT(grids.size(), before);
        for (std::size_t i = before; i < grids.size(); ++i) EXPECT_LE(grids[i], most) << bytes;
      }
    }
  }
  EXPECT_EQ(dma_calls(), 0u);
}

// A save that runs turns a restore at full pace to DMA, and no gentle one.
TEST_F(LaunchTest, BesideASaveOnlyFullPaceTakesDma) {
  for (const CopyPace pace : {CopyPace::kFull, CopyPace::kGentle}) {
    auto rig = rig_on(0, suite::contiguous("beside", {kDirectFromBesideSave}), pace);
    std::vector<SlotCopy> slots = rig->new_slots({1, 2});
    EXPECT_TRUE(run(*rig, Direction::kSave, slots).status.ok());
    SlotCopy other = rig->new_slot(5);
    const CuStream producer = fake.new_stream(0);
    fake.hold(producer);
    CopyBatch save = rig->batch(Direction::kSave, {&other, 1});
    save.ready = std::move(*device->fence(handle(producer)));
    auto ticket = rig->copier().submit(std::move(save));
    ASSERT_TRUE(ticket.ok());
    const CopyEnd restored = run(*rig, Direction::kRestore, slots);
    EXPECT_TRUE(restored.status.ok() && slots[0].verified && slots[1].verified);
    EXPECT_EQ(restored.stats.method, pace == CopyPace::kFull ? CopyMethod::kDirect : CopyMethod::kKernel);
    fake.let_go(producer);
    EXPECT_TRUE(rig->copier().drain(*ticket).status.ok());
  }
}

TEST_F(LaunchTest, LargeFragmentsGoByDmaAtFullPace) {
  auto rig = rig_on(0, suite::contiguous("large", {kDirectFromFull}), CopyPace::kFull);
  SlotCopy slot = rig->new_slot(3);
  EXPECT_EQ(run(*rig, Direction::kSave, {&slot, 1}).stats.method, CopyMethod::kDirect);
  EXPECT_GT(dma_calls(), 0u);
}

}  // namespace
}  // namespace orbitkv::device::cuda
