// What happens when the driver says no: in the middle of a batch, at the making of a
// device, for good, and at the end of the process.
#include <algorithm>

#include "tests/cuda/fake_bed.h"

namespace orbitkv::device::cuda {
namespace {

constexpr CuResult kInvalidValue = 1;

// Fragments of all widths: a batch is several launches.
suite::EngineLayout mixed() {
  return suite::contiguous("mixed", {4096, 72, 4096, 56, 8192, 13});
}
suite::EngineLayout layers(std::uint16_t count) {
  return suite::contiguous("layers", std::vector<std::uint64_t>(count, 4096));
}

class FailureTest : public FakeDeviceTest {
 protected:
  void SetUp() override { open(); }

  struct Started {
    CopyTicket ticket;
    std::vector<LayerEvent> events;
  };
  // A restore behind a stream that stands still, with an event a layer.
  Started start_held(suite::Rig& rig, suite::DeviceEvents& events, std::span<SlotCopy> slots) {
    Started started;
    started.events = layer_events(rig, events);
    CopyBatch batch = rig.batch(Direction::kRestore, slots);
    batch.ready = std::move(*device->fence(events.hold()));
    batch.events = started.events;
    auto ticket = rig.copier().submit(std::move(batch));
    EXPECT_TRUE(ticket.ok()) << ticket.error().message();
    if (ticket.ok()) started.ticket = *ticket;
    return started;
  }
  // The copier does its work as if nothing had happened.
  void expect_works(suite::Rig& rig, suite::DeviceEvents& events) {
    Watchdog watchdog("a batch after one that failed");
    const auto content = rig.pages(6);
    std::vector<SlotCopy> slots = saved(rig, {6});
    rig.expect_pages(6, content);
    const Started started = start_held(rig, events, slots);
    events.release();
    EXPECT_TRUE(rig.copier().drain(started.ticket).status.ok());
    EXPECT_TRUE(slots[0].verified && rig.pages_are_as_expected());
    for (const LayerEvent& event : started.events) wait_for(events, event);
  }
};

TEST_F(FailureTest, ALaunchThatFailsInTheMiddleDrainsWhatWasAccepted) {
  Watchdog watchdog("a batch of which one launch failed");
  auto rig = new_rig(mixed());
  auto events = make_events(bed());
  std::vector<SlotCopy> slots = saved(*rig, {1, 4, 7});
  const std::uint32_t before = fake.calls("cuLaunchKernel");
  fake.fail({.entry = "cuLaunchKernel", .call = 3, .code = kInvalidValue});
  const Started started = start_held(*rig, *events, slots);
  EXPECT_EQ(fake.calls("cuLaunchKernel") - before, 3u) << "nothing after the one that failed";
  // Two launches stand behind the held stream: the error waits for them.
  for (int i = 0; i < 2000; ++i) ASSERT_FALSE(rig->copier().poll(started.ticket));
  events->release();
  std::optional<CopyEnd> end;
  while (!end) end = rig->copier().poll(started.ticket);
  ASSERT_FALSE(end->status.ok());
  EXPECT_TRUE(contains(end->status.error().message(), "cuLaunchKernel")) << end->status.error().message();
  EXPECT_FALSE(rig->copier().poll(started.ticket)) << "a second end";
  for (const SlotCopy& slot : slots) EXPECT_FALSE(slot.verified);
  // A consumer that waits in a graph is let go; the verdict says what its pages are worth.
  for (const LayerEvent& event : started.events) wait_for(*events, event);
  EXPECT_TRUE(rig->guards_are_whole());
  expect_works(*rig, *events);
}

// Every call of a batch, one after the other, until none is left to fail.
TEST_F(FailureTest, AnyCallMayFail) {
  const CopyMethod methods[] = {CopyMethod::kKernel, CopyMethod::kDirect};
  for (const CopyMethod method : methods) {
    auto rig = new_rig(mixed(), {.method = method});
    auto events = make_events(bed());
    for (const std::string entry : {"cuLaunchKernel", "cuEventRecord", "cuStreamWaitEvent",
                                    "cuStreamWaitValue32", "cuMemcpyBatchAsync", "cuMemcpy2DAsync"}) {
      for (std::uint32_t call = 1; call < 100; ++call) {
        Watchdog watchdog(entry.c_str());
        std::vector<SlotCopy> slots = saved(*rig, {1, 4});
        auto producer = device->fence(events->hold());
        CopyBatch batch = rig->batch(Direction::kRestore, slots);
        batch.ready = std::move(*producer);
        batch.events = layer_events(*rig, *events);
        const std::vector<LayerEvent> all = batch.events;
        const std::uint32_t before = fake.calls(entry);
        fake.fail({.entry = entry, .call = call, .code = kInvalidValue});
        auto ticket = rig->copier().submit(std::move(batch));
        events->release();
        Status status = ok_status();
        if (ticket.ok())
          status = rig->copier().drain(*ticket).status;
        else
          status = ticket.error();
        fake.heal();
        const bool hit = fake.calls(entry) - before >= call;
        EXPECT_TRUE(hit || status.ok()) << entry << " call " << call << ": " << status.error().message();
        EXPECT_TRUE(!hit || !status.ok() || call > 1)
            << entry << ": no failure of the first call is harmless";
        for (const SlotCopy& slot : slots) EXPECT_EQ(slot.verified, status.ok()) << entry << " call " << call;
        // Whatever the end was, nobody waits for a layer for ever.
        for (const LayerEvent& event :
             ticket.ok() && (entry != "cuEventRecord" || status.ok()) ? all : std::vector<LayerEvent>())
          wait_for(*events, event);
        EXPECT_TRUE(rig->guards_are_whole());
        expect_works(*rig, *events);
        if (!hit) break;
      }
    }
  }
}

TEST_F(FailureTest, ADeviceThatCannotBeMadeLeavesNothing) {
  constexpr std::uint32_t kTraits = 5;  // attributes that it must have
  for (const std::string entry :
       {"cuDeviceGetAttribute", "cuDeviceGetUuid", "cuDevicePrimaryCtxRetain", "cuCtxGetStreamPriorityRange",
        "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute"}) {
    for (std::uint32_t call = 1;; ++call) {
      const std::uint32_t before = fake.calls(entry);
      fake.fail({.entry = entry, .call = call, .code = kCuOutOfMemory});
      const bool made = make_cuda_device(driver, 1, {}).ok();
      fake.heal();
      const bool hit = fake.calls(entry) - before >= call;
      // The module may come from the compiler of the process instead; where it hangs is a hint.
      const bool hint = entry == "cuDeviceGetAttribute" && call > kTraits;
      if (entry != "cuModuleLoadData" && !hint) {
        EXPECT_EQ(made, !hit) << entry << " call " << call;
      }
      if (!hit) break;
    }
  }
  device.reset();
  EXPECT_EQ(fake.leaks(), "");
}

TEST_F(FailureTest, ACopierThatCannotBeMadeLeavesNothing) {
  for (const std::string entry : {"cuStreamCreateWithPriority", "cuEventCreate", "cuMemHostAlloc",
                                  "cuMemAlloc", "cuMemHostGetDevicePointer", "cuMemcpyHtoD"}) {
    for (std::uint32_t call = 1;; ++call) {
      const std::uint32_t before = fake.calls(entry);
      fake.fail({.entry = entry, .call = call, .code = kCuOutOfMemory});
      const bool made = device->new_copier({}).ok();
      fake.heal();
      const bool hit = fake.calls(entry) - before >= call;
      EXPECT_EQ(made, !hit) << entry << " call " << call;
      if (!hit) break;
    }
  }
}

// An event of another GPU among those of a batch: the others must not wait for ever.
TEST_F(FailureTest, AnEventThatCannotBeRecordedFailsTheBatchAlone) {
  Watchdog watchdog("a batch with a foreign event");
  auto rig = new_rig(layers(6));
  auto events = make_events(bed());
  std::vector<SlotCopy> slots = saved(*rig, {1, 4});
  CopyBatch batch = rig->batch(Direction::kRestore, slots);
  batch.ready = std::move(*device->fence(events->hold()));
  batch.events = layer_events(*rig, *events);
  batch.events[2].event = {reinterpret_cast<std::uint64_t>(fake.new_event(1))};
  const std::vector<LayerEvent> all = batch.events;
  auto ticket = rig->copier().submit(std::move(batch));
  ASSERT_TRUE(ticket.ok());
  events->release();
  EXPECT_FALSE(rig->copier().drain(*ticket).status.ok());
  for (const LayerEvent& event : all)
    if (event.turn != 2) wait_for(*events, event);
  expect_works(*rig, *events);
}

TEST_F(FailureTest, AKernelWithoutItsFlagFailsItsBatchAlone) {
  Watchdog watchdog("a batch of which a flag never came");
  auto rig = new_rig(layers(6));
  auto events = make_events(bed());
  std::vector<SlotCopy> slots = saved(*rig, {1, 4});
  const Started started = start_held(*rig, *events, slots);
  fake.drop_flags(1);
  events->release();
  const CopyEnd end = rig->copier().drain(started.ticket);
  EXPECT_FALSE(end.status.ok());
  for (int i = 0; i < 20; ++i) expect_works(*rig, *events);
}

TEST_F(FailureTest, TheFirstLayerIsReadyLongBeforeTheLast) {
  Watchdog watchdog("layers that come one by one");
  auto rig = new_rig(layers(36));
  auto events = make_events(bed());
  std::vector<SlotCopy> slots = saved(*rig, {0, 1, 2, 3, 4, 5, 6, 7});
  const Started started = start_held(*rig, *events, slots);
  while (!rig->copier().enqueued(started.ticket)) ASSERT_FALSE(rig->copier().poll(started.ticket));
  fake.stall_after_flags(1);
  events->release();
  wait_for(*events, started.events.front());
  EXPECT_FALSE(events->done(started.events.back().event));
  EXPECT_FALSE(rig->copier().poll(started.ticket));
  fake.release();
  EXPECT_TRUE(rig->copier().drain(started.ticket).status.ok());
}

// Whoever drains in another order than he submitted in.
TEST_F(FailureTest, TheLastOfManyBatchesMayBeDrainedFirst) {
  Watchdog watchdog("the last of many batches");
  for (const bool registers : {true, false}) {
    device.reset();
    device = make({.slabs = {.registers = registers}}, 0, {.wait_for_slabs = registers});
    auto rig = new_rig(mixed());
    std::vector<SlotCopy> slots = rig->new_slots({0, 1, 2, 3, 4, 5, 6, 7, 8});
    std::vector<CopyTicket> tickets;
    for (SlotCopy& slot : slots) {
      auto ticket = rig->copier().submit(rig->batch(Direction::kSave, {&slot, 1}));
      ASSERT_TRUE(ticket.ok());
      tickets.push_back(*ticket);
    }
    for (auto ticket = tickets.rbegin(); ticket != tickets.rend(); ++ticket)
      EXPECT_TRUE(rig->copier().drain(*ticket).status.ok());
    for (SlotCopy& slot : slots) EXPECT_TRUE(rig->restores(slot));
  }
}

TEST_F(FailureTest, ACopierThatDiesDrains) {
  Watchdog watchdog("the end of a copier");
  auto rig = new_rig(mixed());
  auto events = make_events(bed());
  std::vector<SlotCopy> slots = saved(*rig, {1, 4});
  (void)start_held(*rig, *events, slots);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    events->release();
  });
  rig->stand()->copier.reset();
  for (const SlotCopy& slot : slots) EXPECT_TRUE(slot.verified);
  later.join();
}

// What the driver says from its own exit handler on. No error, no hang, no end of the process.
TEST_F(FailureTest, TheEndOfTheProcessIsQuiet) {
  Watchdog watchdog("a copier whose driver has gone");
  expects_order = false;
  auto rig = new_rig(mixed());
  auto events = make_events(bed());
  std::vector<SlotCopy> slots = saved(*rig, {1, 4});
  const Started started = start_held(*rig, *events, slots);
  fake.deinitialise();
  const CopyEnd end = rig->copier().drain(started.ticket);
  EXPECT_FALSE(end.status.ok());
  EXPECT_FALSE(end.proven);
  auto refused = rig->copier().submit(rig->batch(Direction::kRestore, slots));
  if (refused.ok()) {
    EXPECT_FALSE(rig->copier().drain(*refused).status.ok());
  }
  EXPECT_FALSE(device->fence(handle(fake.new_stream(0))).ok());
  rig->stand()->copier.reset();
  for (const auto slab : rig->stand()->slabs) device->remove_slab(slab);
  rig->stand()->slabs.clear();
  rig->stand()->device.reset();
  device.reset();
  fake.revive();
}

using FailureDeathTest = FailureTest;

// Nobody can tell any more which copies still run.
TEST_F(FailureDeathTest, ALostDeviceEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  auto rig = new_rig(mixed());
  auto events = make_events(bed());
  std::vector<SlotCopy> slots = saved(*rig, {1, 4});
  EXPECT_DEATH(
      {
        const Started started = start_held(*rig, *events, slots);
        fake.lose(0, kCuIllegalAddress);
        (void)rig->copier().drain(started.ticket);
      },
      "cannot say whether copies have ended");
}

}  // namespace
}  // namespace orbitkv::device::cuda
