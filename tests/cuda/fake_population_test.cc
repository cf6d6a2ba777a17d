// Slabs that nobody has touched: made present piece by piece, then registered one at a
// time, with room for copies in between.
#include <sys/mman.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "base/time.h"
#include "tests/cuda/fake_bed.h"

namespace orbitkv::device::cuda {
namespace {

// Memory of which no page has been touched, like a pool that nobody prefaulted.
class Sparse {
 public:
  explicit Sparse(ByteCount bytes)
      : bytes_(static_cast<std::byte*>(
                   ::mmap(nullptr, bytes.value, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
               bytes.value) {}
  ~Sparse() { ::munmap(bytes_.data(), bytes_.size()); }
  Sparse(const Sparse&) = delete;
  std::span<std::byte> all() const { return bytes_; }
  std::size_t pages() const { return bytes_.size() / 4096; }
  std::size_t present_pages() const {
    std::vector<unsigned char> there(pages());
    EXPECT_EQ(::mincore(bytes_.data(), bytes_.size(), there.data()), 0);
    return static_cast<std::size_t>(std::count(there.begin(), there.end(), 1));
  }

 private:
  std::span<std::byte> bytes_;
};

// Stands in for populate(): pieces pass one by one as they are let, and are remembered.
class Pieces {
 public:
  Populate populate(bool result = true) {
    return [this, result](std::span<std::byte> piece) {
      std::unique_lock lock(mutex_);
      seen_.push_back(piece.data());
      changed_.notify_all();
      changed_.wait(lock, [&] { return seen_.size() <= let_; });
      return result;
    };
  }
  void let(std::size_t pieces) {
    std::lock_guard lock(mutex_);
    let_ = pieces > kAll - let_ ? kAll : let_ + pieces;
    changed_.notify_all();
  }
  void wait_for(std::size_t pieces) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return seen_.size() >= pieces; });
  }
  std::vector<const std::byte*> seen() {
    std::lock_guard lock(mutex_);
    return seen_;
  }
  static constexpr std::size_t kAll = 1 << 20;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const std::byte*> seen_;
  std::size_t let_ = 0;
};

class PopulationTest : public FakeDeviceTest {
 protected:
  static suite::EngineLayout layout() { return suite::contiguous("two", {4096, 4096}); }
  // Until the slab takes no more copies.
  void wait_until_refused(std::span<std::byte> slab) {
    auto rig = new_rig(layout());
    SlotCopy slot = rig->new_slot(0);
    slot.image = slab.data();
    for (Code code = Code::kOk; code != Code::kRecompute; std::this_thread::yield()) {
      auto ticket = rig->copier().submit(rig->batch(Direction::kSave, {&slot, 1}));
      code = ticket.ok() ? Code::kOk : ticket.error().code();
      if (ticket.ok()) (void)rig->copier().drain(*ticket);
    }
  }
};

TEST_F(PopulationTest, PagesAreThereBeforeTheDriverIsAsked) {
  const Sparse slab(ByteCount(3 * kPopulatePiece.value + 4096));
  ASSERT_EQ(slab.present_pages(), 0u);
  std::atomic<std::size_t> present{0};
  fake.before("cuMemHostRegister", [&] { present = slab.present_pages(); });
  open();
  device->add_slab(slab.all());
  EXPECT_EQ(present, slab.pages());
  device->remove_slab(slab.all());
}

TEST_F(PopulationTest, PopulatingTellsOfPagesThatCannotBeHadAndWritesNone) {
  for (auto* way : {&populate, &populate_by_reading}) {
    const Sparse memory(ByteCount(1024 * 4096));
    EXPECT_TRUE((*way)(memory.all().subspan(4096, 700 * 4096 - 1)));
    EXPECT_EQ(memory.present_pages(), 700u);
    memory.all()[5000] = std::byte{7};
    EXPECT_TRUE((*way)(memory.all()));
    EXPECT_EQ(memory.present_pages(), memory.pages());
    EXPECT_EQ(memory.all()[5000], std::byte{7});
    ASSERT_EQ(::mprotect(memory.all().data() + 300 * 4096, 4096, PROT_NONE), 0);
    EXPECT_FALSE((*way)(memory.all()));
  }
}

TEST_F(PopulationTest, WhatCannotBePopulatedIsTheDriversToRefuse) {
  Watchdog watchdog("a slab of which a page cannot be had");
  Pieces pieces;
  pieces.let(Pieces::kAll);
  const Sparse slab(ByteCount(8 * kPopulatePiece.value));
  open({.slabs = {.populate = pieces.populate(false)}});
  device->add_slab(slab.all());
  EXPECT_EQ(pieces.seen().size(), 1u);
  EXPECT_EQ(device->reachable_slabs(), 1u);
  device->remove_slab(slab.all());
}

// A slab has many pieces; whoever ends its life waits for the one under way.
TEST_F(PopulationTest, ASlabMayGoInTheMiddleOfItsPopulation) {
  Watchdog watchdog("removal of a slab that is being populated");
  Pieces pieces;
  const Sparse slab(ByteCount(1000 * kPopulatePiece.value));
  device = make({.slabs = {.populate = pieces.populate()}}, 0, {});
  device->add_slab(slab.all());
  pieces.let(2);
  pieces.wait_for(3);
  std::thread remover([&] { device->remove_slab(slab.all()); });
  wait_until_refused(slab.all());
  pieces.let(1);
  remover.join();
  EXPECT_EQ(pieces.seen().size(), 3u);
  EXPECT_EQ(fake.calls("cuMemHostRegister"), 0u);
}

TEST_F(PopulationTest, ADeviceMayGoInTheMiddleOfAPopulation) {
  Watchdog watchdog("the end of a device that populates");
  Pieces pieces;
  const Sparse slab(ByteCount(1000 * kPopulatePiece.value));
  device = make({.slabs = {.populate = pieces.populate()}}, 0, {});
  device->add_slab(slab.all());
  pieces.wait_for(1);
  std::thread end([&] { device.reset(); });
  // The end may come before or after some of these; never after all of them.
  pieces.let(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  pieces.let(500);
  end.join();
  EXPECT_LT(pieces.seen().size(), 1000u);
  EXPECT_EQ(fake.calls("cuMemHostRegister"), 0u);
}

TEST_F(PopulationTest, TheSlabThatACopyAsksForGoesFirst) {
  Watchdog watchdog("a slab that a copy asks for");
  Pieces pieces;
  const Sparse other(ByteCount(3 * kPopulatePiece.value));
  device = make({.slabs = {.populate = pieces.populate()}}, 0, {});
  device->add_slab(other.all());
  pieces.wait_for(1);
  const Sparse third(ByteCount(2 * kPopulatePiece.value));
  device->add_slab(third.all());
  auto rig = new_rig(layout());
  (void)saved(*rig, {4});
  const std::byte* wanted = rig->stand()->slabs[0].data();
  pieces.let(Pieces::kAll);
  while (device->reachable_slabs() < 3) std::this_thread::yield();
  const std::byte *first = other.all().data(), *last = third.all().data();
  EXPECT_EQ(pieces.seen(), (std::vector<const std::byte*>{first, wanted, first + kPopulatePiece.value,
                                                          first + 2 * kPopulatePiece.value, last,
                                                          last + kPopulatePiece.value}));
  for (const auto slab : {other.all(), third.all()}) device->remove_slab(slab);
}

// At least as long as it was busy: who waits for the driver's lock gets it in between.
TEST_F(PopulationTest, TheDriverIsLeftAloneBetweenRegistrations) {
  constexpr Duration kBusy = milliseconds(20);
  std::vector<TimePoint> begun;
  fake.before("cuMemHostRegister", [&] {
    begun.push_back(monotonic_now());
    std::this_thread::sleep_for(std::chrono::nanoseconds(kBusy.ns));
  });
  const Sparse one(ByteCount(4096)), two(ByteCount(4096)), three(ByteCount(4096));
  device = make({}, 0, {});
  for (const Sparse* slab : {&one, &two, &three}) device->add_slab(slab->all());
  while (device->reachable_slabs() < 3) std::this_thread::yield();
  ASSERT_EQ(begun.size(), 3u);
  for (std::size_t i = 1; i < begun.size(); ++i) EXPECT_GE((begun[i] - begun[i - 1]).ns, 2 * kBusy.ns);
  for (const Sparse* slab : {&one, &two, &three}) device->remove_slab(slab->all());
}

class GiveWayTest : public PopulationTest {
 protected:
  // A save that stands still, and a slab that is ready to be registered beside it.
  void start(Duration give_way) {
    device = make({.slabs = {.give_way = give_way, .populate = pieces_.populate()}}, 0, {});
    pieces_.let(Pieces::kAll);
    rig_ = new_rig(layout());
    slot_ = rig_->new_slot(1);
    while (device->reachable_slabs() == 0) std::this_thread::yield();
    producer_ = fake.new_stream(0);
    fake.hold(producer_);
    CopyBatch batch = rig_->batch(Direction::kSave, {&slot_, 1});
    batch.ready = std::move(*device->fence(handle(producer_)));
    auto ticket = rig_->copier().submit(std::move(batch));
    ASSERT_TRUE(ticket.ok());
    ticket_ = *ticket;
    device->add_slab(late_.all());
    pieces_.wait_for(2);
  }
  void end() {
    fake.let_go(producer_);
    EXPECT_TRUE(rig_->copier().drain(ticket_).status.ok());
  }
  void wait_for_both() {
    while (device->reachable_slabs() < 2) std::this_thread::yield();
  }

  Pieces pieces_;
  const Sparse late_{ByteCount(4096)};
  std::unique_ptr<suite::Rig> rig_;
  SlotCopy slot_;
  CuStream producer_ = nullptr;
  CopyTicket ticket_;
};

TEST_F(GiveWayTest, CopiesThatRunGoBeforeARegistration) {
  Watchdog watchdog("a registration after the copies");
  start(seconds(3600));
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(rig_->copier().poll(ticket_));
  EXPECT_EQ(fake.calls("cuMemHostRegister"), 1u);
  end();
  wait_for_both();
  device->remove_slab(late_.all());
}

TEST_F(GiveWayTest, CopiesWithoutEndDoNotKeepARegistrationFromItsTurn) {
  Watchdog watchdog("a registration beside copies");
  start(milliseconds(1));
  wait_for_both();
  end();
  device->remove_slab(late_.all());
}

TEST_F(GiveWayTest, ASlabThatGivesWayMayGo) {
  Watchdog watchdog("removal of a slab that gives way");
  start(seconds(3600));
  device->remove_slab(late_.all());
  EXPECT_EQ(fake.calls("cuMemHostRegister"), 1u);
  end();
}

}  // namespace
}  // namespace orbitkv::device::cuda
