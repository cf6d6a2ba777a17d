// Slabs: registered in the background, shared by devices, let go of in the right order,
// and bounced where they cannot be registered.
#include <algorithm>
#include <future>

#include "tests/cuda/fake_bed.h"

namespace orbitkv::device::cuda {
namespace {

// A gate that an entry of the driver waits at.
class Gate {
 public:
  void pass() { opened_.get_future().wait(); }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> opened_;
};

class SlabTest : public FakeDeviceTest {
 protected:
  static suite::EngineLayout layout() { return suite::contiguous("two", {4096, 4096}); }
  CopyEnd copy(suite::Rig& rig, Direction direction, std::span<SlotCopy> slots) {
    auto ticket = rig.copier().submit(rig.batch(direction, slots));
    EXPECT_TRUE(ticket.ok()) << ticket.error().message();
    return rig.copier().drain(*ticket);
  }
  void expect_bounced_round_trip(suite::Rig& rig) {
    const auto content = rig.pages(4);
    SlotCopy slot = rig.new_slot(4);
    const CopyEnd saved_end = copy(rig, Direction::kSave, {&slot, 1});
    EXPECT_TRUE(saved_end.status.ok() && saved_end.stats.bounced);
    rig.fill_pages(9);
    rig.expect_pages(4, content);
    const CopyEnd restored_end = copy(rig, Direction::kRestore, {&slot, 1});
    EXPECT_TRUE(restored_end.status.ok() && restored_end.stats.bounced);
    EXPECT_TRUE(slot.verified && rig.pages_are_as_expected() && rig.guards_are_whole());
  }
};

TEST_F(SlabTest, CopiesDoNotWaitForARegistration) {
  Watchdog watchdog("a copy from a slab that is being registered");
  Gate gate;
  fake.before("cuMemHostRegister", [&] { gate.pass(); });
  device = make({}, 0, {});
  auto rig = new_rig(layout());
  expect_bounced_round_trip(*rig);
  EXPECT_EQ(device->reachable_slabs(), 0u);
  gate.open();
  while (device->reachable_slabs() == 0) std::this_thread::yield();
  SlotCopy slot = rig->new_slot(5);
  const CopyEnd end = copy(*rig, Direction::kSave, {&slot, 1});
  EXPECT_TRUE(end.status.ok() && !end.stats.bounced);
}

TEST_F(SlabTest, ASlabMayGoWhileItIsBeingRegistered) {
  Watchdog watchdog("removal of a slab that is being registered");
  Gate gate, at_gate;
  fake.before("cuMemHostRegister", [&] {
    at_gate.open();
    gate.pass();
  });
  device = make({}, 0, {});
  std::vector<std::byte> slab(4096), waiting(4096);
  device->add_slab(slab);
  device->add_slab(waiting);
  at_gate.pass();
  device->remove_slab(waiting);  // its turn had not come
  std::thread remover([&] { device->remove_slab(slab); });
  gate.open();
  remover.join();
  EXPECT_EQ(fake.registrations(), 0u);
  EXPECT_EQ(device->reachable_slabs(), 0u);
}

TEST_F(SlabTest, ASlabThatCannotBeRegisteredBounces) {
  fake.fail({.entry = "cuMemHostRegister", .code = kCuOutOfMemory, .for_ever = true});
  device = make({}, 0, {});
  auto rig = new_rig(layout());
  for (int i = 0; i < 3; ++i) expect_bounced_round_trip(*rig);
}

// An image that needs a larger buffer than there is must not be copied through the smaller.
TEST_F(SlabTest, ABufferThatCannotGrowRefusesWhatItHasNoRoomFor) {
  device = make({.slabs = {.registers = false}, .bounce = 16 * kKiB}, 0, {});
  auto small = new_rig(layout()), large = new_rig(suite::contiguous("large", {65536, 65536}));
  expect_bounced_round_trip(*small);
  SlotCopy slot = large->new_slot(1);
  const auto save_large = [&] {
    auto ticket = small->copier().submit(large->batch(Direction::kSave, {&slot, 1}));
    EXPECT_TRUE(ticket.ok()) << ticket.error().message();
    return small->copier().drain(*ticket).status;
  };
  fake.fail({.entry = "cuMemHostAlloc", .code = kCuOutOfMemory, .for_ever = true});
  for (int i = 0; i < 2; ++i) {
    const Status status = save_large();
    ASSERT_FALSE(status.ok());
    EXPECT_TRUE(contains(status.error().message(), "cuMemHostAlloc")) << status.error().message();
  }
  expect_bounced_round_trip(*small);
  fake.heal();
  EXPECT_TRUE(save_large().ok());
  EXPECT_TRUE(large->restores(slot));
}

// Somebody else's, who will end it as he likes.
TEST_F(SlabTest, AForeignRegistrationIsNotUsed) {
  device = make({}, 0, {});
  auto memory = make_memory(bed());
  const std::span slab(memory->alloc_slab(64 * kKiB), 64 * 1024);
  PrimaryScope scope(bed());
  ASSERT_EQ(driver.cuMemHostRegister(slab.data(), slab.size(), kHostRegisterDeviceMap), kCuSuccess);
  device->add_slab(slab);
  while (fake.calls("cuMemHostRegister") < 2) std::this_thread::yield();
  device->remove_slab(slab);
  EXPECT_EQ(fake.registrations(), 1u);
  EXPECT_EQ(driver.cuMemHostUnregister(slab.data()), kCuSuccess);
}

TEST_F(SlabTest, RemovalWaitsForTheCopies) {
  Watchdog watchdog("removal of a slab after its copies");
  open();
  auto rig = new_rig(layout());
  const std::span slab = [&] {
    (void)rig->new_slot(0);
    return rig->stand()->slabs[0];
  }();
  std::vector<SlotCopy> slots = rig->new_slots({1, 2});
  const CuStream producer = fake.new_stream(0);
  fake.hold(producer);
  CopyBatch batch = rig->batch(Direction::kSave, slots);
  batch.ready = std::move(*device->fence(handle(producer)));
  auto ticket = rig->copier().submit(std::move(batch));
  ASSERT_TRUE(ticket.ok());
  std::atomic<bool> removed{false};
  std::thread remover([&] {
    device->remove_slab(slab);
    removed = true;
  });
  // New copies are refused from the moment that the removal begins.
  SlotCopy late = rig->new_slot(3);
  std::vector<CopyTicket> accepted;
  for (;;) {
    auto refused = rig->copier().submit(rig->batch(Direction::kSave, {&late, 1}));
    if (!refused.ok()) {
      EXPECT_TRUE(refused.error().code() == Code::kRecompute || refused.error().code() == Code::kBusy)
          << refused.error().message();
      break;
    }
    accepted.push_back(*refused);
    std::this_thread::yield();
  }
  EXPECT_FALSE(removed);
  EXPECT_EQ(fake.registrations(), 1u);
  fake.let_go(producer);
  EXPECT_TRUE(rig->copier().drain(*ticket).status.ok());
  for (const CopyTicket each : accepted) EXPECT_TRUE(rig->copier().drain(each).status.ok());
  remover.join();
  EXPECT_EQ(fake.registrations(), 0u);
  const auto history = fake.history();
  EXPECT_EQ(history.back(), "unregister");
  EXPECT_EQ(std::count(history.begin(), history.end(), "unregister"), 1);
  auto gone = rig->copier().submit(rig->batch(Direction::kSave, slots));
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code(), Code::kBug) << "no slab any more";
}

TEST_F(SlabTest, TwoDevicesShareARegistration) {
  device = make();
  auto other = make({}, 1);
  auto rig = new_rig(layout());
  const std::span slab = [&] {
    (void)rig->new_slot(0);
    return rig->stand()->slabs[0];
  }();
  other->add_slab(slab);
  EXPECT_EQ(fake.registrations(), 1u);
  EXPECT_EQ(other->reachable_slabs(), 1u);
  other->remove_slab(slab);
  EXPECT_EQ(fake.registrations(), 1u) << "the first device uses it";
  std::vector<SlotCopy> slots = saved(*rig, {3});
  EXPECT_TRUE(rig->restores(slots[0]));
  other->add_slab(slab);
  device->remove_slab(slab);
  EXPECT_EQ(fake.registrations(), 1u);
  other->remove_slab(slab);
  EXPECT_EQ(fake.registrations(), 0u);
}

// Images lie anywhere in a slab, also where a piece ends: copies see one slab.
TEST_F(SlabTest, ALargeSlabIsRegisteredInPieces) {
  open();
  for (const CopyMethod method : {CopyMethod::kKernel, CopyMethod::kDirect}) {
    for (const auto& shape : {layout(), suite::halves("rows", 1024)}) {
      auto rig = new_rig(shape, {.method = method});
      SlotCopy slot = rig->new_slot(4);
      const std::uint32_t before = fake.registrations();
      const std::span slab(rig->stand()->memory->alloc_slab(ByteCount(2 * kRegisterPiece + 4096)),
                           2 * kRegisterPiece + 4096);
      device->add_slab(slab);
      EXPECT_EQ(fake.registrations(), before + 3);
      slot.image = slab.data() + kRegisterPiece - 128 * 5;
      EXPECT_TRUE(copy(*rig, Direction::kSave, {&slot, 1}).status.ok());
      EXPECT_TRUE(rig->restores(slot));
      device->remove_slab(slab);
      EXPECT_EQ(fake.registrations(), before);
    }
  }
}

TEST_F(SlabTest, ASlabOfWhichOnePieceCannotBeRegisteredBounces) {
  open();
  auto memory = make_memory(bed());
  const std::span slab(memory->alloc_slab(ByteCount(3 * kRegisterPiece)), 3 * kRegisterPiece);
  fake.fail({.entry = "cuMemHostRegister", .call = 2, .code = kCuOutOfMemory});
  auto unchecked = make({}, 0, {});
  unchecked->add_slab(slab);
  const TimePoint end = monotonic_now() + seconds(60);
  const auto waits = [&] { return fake.calls("cuMemHostRegister") < 2 || fake.registrations() > 0; };
  while (waits() && monotonic_now() < end) std::this_thread::yield();
  EXPECT_FALSE(waits()) << "the second piece fails, and then no other is registered";
  EXPECT_EQ(unchecked->reachable_slabs(), 0u);
  unchecked->remove_slab(slab);
}

TEST_F(SlabTest, ImagesOutsideEverySlabAreRefused) {
  open();
  auto rig = new_rig(layout());
  SlotCopy slot = rig->new_slot(1);
  alignas(128) static std::byte elsewhere[16384];
  const std::span slab = rig->stand()->slabs[0];
  for (std::byte* image : {elsewhere, slab.data() + slab.size() - 4096}) {
    slot.image = image;
    auto refused = rig->copier().submit(rig->batch(Direction::kSave, {&slot, 1}));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), Code::kBug) << refused.error().message();
  }
}

}  // namespace
}  // namespace orbitkv::device::cuda
