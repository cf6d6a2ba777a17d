// What a copy waits for: streams of every kind, captures, and the caller's contexts.
#include "tests/cuda/fake_bed.h"

namespace orbitkv::device::cuda {
namespace {

class FenceTest : public FakeDeviceTest {
 protected:
  void SetUp() override { open(); }
  void expect_rejected(StreamHandle stream, const std::string& words) {
    auto fence = device->fence(stream);
    ASSERT_FALSE(fence.ok());
    EXPECT_EQ(fence.error().code(), Code::kReject) << fence.error().message();
    EXPECT_TRUE(contains(fence.error().message(), words)) << fence.error().message();
  }
};

TEST_F(FenceTest, OnlyABusyStreamCostsAnEvent) {
  const CuStream stream = fake.new_stream(0);
  EXPECT_FALSE(*device->fence(handle(stream)));
  EXPECT_FALSE(*device->fence(kNoStream));
  fake.hold(stream);
  EXPECT_TRUE(*device->fence(handle(stream)));
  fake.let_go(stream);
}

TEST_F(FenceTest, EventsComeBack) {
  const CuStream stream = fake.new_stream(0);
  fake.hold(stream);
  const std::uint32_t before = fake.calls("cuEventCreate");
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(*device->fence(handle(stream)));
  EXPECT_EQ(fake.calls("cuEventCreate") - before, 1u);
  fake.let_go(stream);
}

// It is idle itself, and yet stands behind every blocking stream.
TEST_F(FenceTest, TheDefaultStreamStandsForAllBlockingOnes) {
  const CuStream producer = fake.new_stream(0, 0);
  fake.hold(producer);
  for (const std::uint64_t value : {0, 1}) {
    PrimaryScope scope(bed());
    auto fence = device->fence(special(value));
    ASSERT_TRUE(fence.ok()) << fence.error().message();
    ASSERT_TRUE(*fence);
    EXPECT_EQ(driver.cuEventQuery(reinterpret_cast<CuEvent>(fence->event().value)), kCuNotReady);
  }
  fake.let_go(producer);
  PrimaryScope scope(bed());
  EXPECT_EQ(driver.cuStreamSynchronize(nullptr), kCuSuccess);
}

TEST_F(FenceTest, TheThreadsOwnDefaultStreamIsOne) {
  EXPECT_TRUE(device->fence(special(2)).ok());
}

// The default stream is the current context's, and that is not ours.
TEST_F(FenceTest, TheDefaultStreamOfAnotherContextIsRefused) {
  const CuContext other = fake.new_context(0);
  ASSERT_EQ(driver.cuCtxPushCurrent(other), kCuSuccess);
  for (const std::uint64_t value : {0, 1, 2}) expect_rejected(special(value), "another CUDA context");
  CuContext current = nullptr;
  driver.cuCtxPopCurrent(&current);
  EXPECT_EQ(current, other);
}

TEST_F(FenceTest, ACapturingStreamIsRefusedAndItsCaptureLives) {
  const CuStream stream = fake.new_stream(0);
  for (const auto mode :
       {fake::CaptureMode::kGlobal, fake::CaptureMode::kThreadLocal, fake::CaptureMode::kRelaxed}) {
    fake.begin_capture(stream, mode);
    expect_rejected(handle(stream), "captured");
    EXPECT_TRUE(fake.end_capture(stream));
  }
}

TEST_F(FenceTest, TheDefaultStreamIsRefusedWhileABlockingOneCaptures) {
  const CuStream stream = fake.new_stream(0, 0);
  fake.begin_capture(stream, fake::CaptureMode::kGlobal);
  expect_rejected(special(0), "captured");
  EXPECT_TRUE(fake.end_capture(stream));
}

TEST_F(FenceTest, ForeignAndDeadStreamsAreRefused) {
  expect_rejected(handle(fake.new_stream(1)), "not a stream of GPU-90");
  const CuStream dead = fake.new_stream(0);
  fake.destroy_stream(dead);
  expect_rejected(handle(dead), "INVALID_HANDLE");
}

// All that the copier does while the engine captures in the strictest mode.
TEST_F(FenceTest, CopiesLeaveACaptureAlone) {
  const CuStream engine = fake.new_stream(0), producer = fake.new_stream(0);
  auto rig = new_rig(suite::engine_layouts()[1]);
  auto events = make_events(bed());
  std::vector<SlotCopy> slots = saved(*rig, {1, 2});
  const std::vector<LayerEvent> layers = layer_events(*rig, *events);
  std::vector<std::byte> slab(4096);
  fake.begin_capture(engine, fake::CaptureMode::kGlobal);
  fake.hold(producer);
  device->add_slab(slab);
  CopyBatch batch = rig->batch(Direction::kRestore, slots);
  auto fence = device->fence(handle(producer));
  ASSERT_TRUE(fence.ok()) << fence.error().message();
  batch.ready = std::move(*fence);
  batch.events = layers;
  auto ticket = rig->copier().submit(std::move(batch));
  ASSERT_TRUE(ticket.ok()) << ticket.error().message();
  EXPECT_FALSE(rig->copier().poll(*ticket));
  fake.let_go(producer);
  EXPECT_TRUE(rig->copier().drain(*ticket).status.ok());
  device->remove_slab(slab);
  {
    auto copier = device->new_copier({});
    EXPECT_TRUE(copier.ok());
  }
  EXPECT_TRUE(fake.end_capture(engine));
  EXPECT_TRUE(slots[0].verified && slots[1].verified);
}

}  // namespace
}  // namespace orbitkv::device::cuda
