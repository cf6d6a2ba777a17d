// How copies are started: by which method, with how many thread blocks, and by how many
// calls of the driver.
#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/limits.h"
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

// A queue would be full before the engine's stream has come to the ready event.
TEST_F(LaunchTest, SlotsOfManyRowsGoByTheKernelAlsoWhereDmaIsForced) {
  open();
  for (const std::uint32_t rows : {std::uint32_t{kDirectRuns}, std::uint32_t{kDirectRuns} + 1}) {
    const auto layout =
        suite::paged("rows", 128 * rows, {.rows = rows, .row_bytes = 64, .row_stride = 128}, 1);
    auto rig = new_rig(layout, {.method = CopyMethod::kDirect});
    std::vector<SlotCopy> slots = rig->new_slots({1, 4, 7});
    const CopyEnd end = run(*rig, Direction::kSave, slots);
    EXPECT_TRUE(end.status.ok());
    EXPECT_EQ(end.stats.method, rows > kDirectRuns ? CopyMethod::kKernel : CopyMethod::kDirect) << rows;
    for (SlotCopy& slot : slots) EXPECT_TRUE(rig->restores(slot));
  }
}

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

// The driver's calls of a copier that nothing stands in front of.
class CallsTest : public LaunchTest {
 protected:
  using Calls = std::map<std::string, std::uint32_t>;
  void SetUp() override {
    auto made = make_cuda_device(driver, 0, {});
    ASSERT_TRUE(made.ok()) << made.error().message();
    device = *made;
    rig_ = new_rig(suite::contiguous("one", {4096}));
    slots_ = rig_->new_slots(std::vector<std::uint32_t>(1, 3));
    while (device->reachable_slabs() == 0) std::this_thread::yield();
    EXPECT_TRUE(run(*rig_, Direction::kSave, slots_).status.ok());
  }
  CopyTicket submit(Fence ready = {}) {
    CopyBatch batch = rig_->batch(Direction::kRestore, slots_);
    batch.ready = std::move(ready);
    auto ticket = rig_->copier().submit(std::move(batch));
    EXPECT_TRUE(ticket.ok()) << ticket.error().message();
    return *ticket;
  }
  void expect_end(CopyTicket ticket) {
    fake.settle();
    EXPECT_TRUE(rig_->copier().poll(ticket)) << "one look after the device has done its work";
    EXPECT_TRUE(slots_[0].verified);
  }
  Calls since(const Calls& before) const {
    Calls more;
    for (const auto& [entry, count] : fake.all_calls()) {
      auto known = before.find(entry);
      const std::uint32_t made = count - (known == before.end() ? 0 : known->second);
      if (made > 0) more[entry] = made;
    }
    return more;
  }

  std::unique_ptr<suite::Rig> rig_;
  std::vector<SlotCopy> slots_;
  std::vector<CopyTicket> tickets_;
};

// One look tells of all launches that have ended.
TEST_F(CallsTest, ASmallRestoreTakesSixAndAnEighth) {
  for (std::uint32_t i = 0; i < limits::kCopyLaunches; ++i) expect_end(submit());
  const Calls before = fake.all_calls();
  for (std::uint32_t i = 0; i < limits::kCopyLaunches; ++i) expect_end(submit());
  EXPECT_EQ(since(before), (Calls{{"cuThreadExchangeStreamCaptureMode", 16},
                                  {"cuCtxPushCurrent", 8},
                                  {"cuCtxPopCurrent", 8},
                                  {"cuLaunchKernel", 8},
                                  {"cuEventRecord", 8},
                                  {"cuEventQuery", 1}}));
}

TEST_F(CallsTest, AFenceTakesOneMore) {
  const CuStream producer = fake.new_stream(0);
  fake.hold(producer);
  Fence ready = std::move(*device->fence(handle(producer)));
  const std::uint32_t before = fake.calls("cuStreamWaitEvent");
  const CopyTicket ticket = submit(std::move(ready));
  EXPECT_EQ(fake.calls("cuStreamWaitEvent") - before, 1u);
  fake.let_go(producer);
  expect_end(ticket);
}

// However many batches there are: what is polled for lies in host memory.
TEST_F(CallsTest, AskingInVainTakesNone) {
  const CuStream producer = fake.new_stream(0);
  fake.hold(producer);
  std::vector<CopyTicket> tickets;
  for (std::uint32_t i = 0; i < limits::kCopyLaunches; ++i)
    tickets.push_back(submit(std::move(*device->fence(handle(producer)))));
  const Calls before = fake.all_calls();
  for (int round = 0; round < 20; ++round)
    for (const CopyTicket ticket : tickets) EXPECT_FALSE(rig_->copier().poll(ticket));
  EXPECT_EQ(since(before), Calls{});
  fake.let_go(producer);
  for (const CopyTicket ticket : tickets) expect_end(ticket);
}

// A launch's memory serves the next one only after its kernel has left, whatever its flags say.
TEST_F(CallsTest, MemoryOfALaunchThatMayStillRunIsNotGivenAway) {
  Watchdog watchdog("a launch that waits for memory");
  for (std::uint32_t i = 0; i < limits::kCopyLaunches; ++i) expect_end(submit());
  const std::uint32_t before = fake.calls("cuLaunchKernel");
  fake.stall("cuEventRecord");
  for (std::uint32_t i = 0; i < limits::kCopyLaunches; ++i) {
    const CopyTicket ticket = submit();
    // Its record stands still, and the launches behind it.
    if (i == 0) expect_end(ticket);
    tickets_.push_back(ticket);
  }
  EXPECT_EQ(fake.calls("cuLaunchKernel") - before, limits::kCopyLaunches);
  const CopyTicket late = submit();
  fake.settle();
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(rig_->copier().poll(late));
  EXPECT_EQ(fake.calls("cuLaunchKernel") - before, limits::kCopyLaunches)
      << "one launch was seen to end, but not its kernel";
  fake.release();
  for (std::uint32_t i = 1; i < limits::kCopyLaunches; ++i)
    EXPECT_TRUE(rig_->copier().drain(tickets_[i]).status.ok());
  EXPECT_TRUE(rig_->copier().drain(late).status.ok());
}

}  // namespace
}  // namespace orbitkv::device::cuda
