// GPU engines in this process, against a real Manager that dies, hangs, refuses or hands
// out damaged images, and on a device that fails. Every operation ends as the contract
// says, and what waits for a layer is always let go.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/fault.h"
#include "base/time.h"
#include "tests/native/gpu_bed.h"

namespace orbitkv::test {
namespace {

constexpr int kInvalidValue = 1;
constexpr std::uint32_t kSoon = 300;  // of engines whose waits are meant to end

// The driver complains of nothing, and no fault outlives its test.
class GpuFailures : public testing::Test {
 protected:
  void SetUp() override { keep_windows_in(directory_.path()); }
  void TearDown() override {
    fake_gpu().heal();
    fake_gpu().before("cuMemHostRegister", {});
    EXPECT_TRUE(configure_faults("").ok());
    EXPECT_EQ(fake_gpu().complaints(), "");
  }
  EngineOptions options(std::uint8_t instance = 1, std::uint32_t timeout_ms = 5000) const {
    EngineOptions made;
    made.socket = manager_.socket();
    made.instance = instance;
    made.timeout_ms = timeout_ms;
    return on_gpu(made);
  }
  std::unique_ptr<Engine> engine(const EngineOptions& with) const {
    const std::uint32_t before = fake_gpu().registrations();
    auto made = std::make_unique<Engine>(with);
    EXPECT_EQ(made->connect().message, "");
    if (waits_for_slabs_) {
      EXPECT_TRUE(registered_within(before + 1));
    }
    return made;
  }
  std::unique_ptr<Engine> engine() const { return engine(options()); }
  static bool attached_again(Engine& engine, std::uint64_t old_incarnation) {
    const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
    while (monotonic_now() < deadline) {
      const auto health = engine.client().health();
      if (health.connected && health.incarnation != old_incarnation) return true;
      ::usleep(2000);
    }
    return false;
  }
  static client::Outcome start_restore(Engine& engine, const LeaseId& lease,
                                       std::span<const std::uint32_t> blocks,
                                       const client::RestoreOptions& how, client::OperationHandle& out) {
    const client::Load load{lease, 0, blocks};
    return engine.client().start_restore(engine.registration(), {&load, 1}, how, out);
  }
  static std::uint64_t wrong(const Engine& engine, std::uint32_t block, std::uint64_t hash,
                             std::uint32_t count) {
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < count; ++i) sum += engine.wrong_bytes(block + i, hash_of(hash + i));
    return sum;
  }
  // Saved, and found by the next.
  void publish(Engine& engine, std::uint32_t block, std::uint64_t hash, std::uint32_t count) {
    const std::uint64_t before = manager_.status()["blocks"];
    const auto saved = engine.save(block, hash, count);
    EXPECT_TRUE(saved.success) << saved.message;
    EXPECT_EQ(manager_.settle("blocks", before + count), before + count);
  }
  void expect_works(Engine& engine, std::uint64_t hash) {
    publish(engine, 0, hash, 4);
    Layers layers(engine);
    client::Ready ready;
    ASSERT_EQ(engine.lease(hash, 4, ready).message, "");
    ASSERT_EQ(ready.hit_blocks, 4u);
    client::RestoreOptions how;
    how.layer_events = layers.events();
    client::OperationHandle handle;
    ASSERT_EQ(start_restore(engine, ready.lease, blocks_of(60, 4), how, handle).message, "");
    EXPECT_EQ(engine.client().wait_enqueued(handle, kDoneWithinMs).message, "");
    const auto status = engine.client().wait(handle, kDoneWithinMs);
    EXPECT_TRUE(status.success) << status.message;
    EXPECT_TRUE(layers.fire_within(kDoneWithinMs));
    EXPECT_EQ(wrong(engine, 60, hash, 4), 0u);
    layers.disarm();
  }

  Directory directory_;
  Manager manager_{{"--pool-size", "32MiB"}};  // one piece of a registration
  bool waits_for_slabs_ = true;
};

// Copies that were claimed end on the old slabs, which stay registered until then.
TEST_F(GpuFailures, TheManagerDiesUnderRunningCopies) {
  const std::uint32_t before = fake_gpu().registrations();
  auto one = engine();
  publish(*one, 0, 1, 12);
  ASSERT_TRUE(registered_within(before + 1));
  Layers layers(*one);
  const HeldStream held;
  const auto stream = held.get();
  client::Ready ready;
  ASSERT_TRUE(one->lease(1, 12, ready).ok());
  client::RestoreOptions how;
  how.ready_stream = stream;
  how.layer_events = layers.events();
  client::OperationHandle restore, save;
  ASSERT_EQ(start_restore(*one, ready.lease, blocks_of(20, 12), how, restore).message, "");
  const auto hashes = hashes_of(100, 12);
  for (std::uint32_t i = 0; i < 12; ++i) one->compute(40 + i, hashes[i]);
  ASSERT_EQ(one->start_save(blocks_of(40, 12), hashes, save, {stream}).message, "");
  ASSERT_EQ(one->client().wait_enqueued(restore, kDoneWithinMs).message, "");
  ASSERT_EQ(one->client().wait_enqueued(save, kDoneWithinMs).message, "");
  const auto incarnation = one->client().health().incarnation;
  manager_.process().signal(SIGKILL);
  ASSERT_TRUE(manager_.process().ended_within());
  manager_.start();
  EXPECT_FALSE(one->client().wait(restore, kSoon).done);
  EXPECT_FALSE(layers.fired());
  EXPECT_EQ(fake_gpu().registrations(), before + 1);
  EXPECT_FALSE(one->client().health().connected);
  let_go(stream);
  const auto restored = one->client().wait(restore, kDoneWithinMs);
  EXPECT_TRUE(restored.success) << restored.message;
  EXPECT_EQ(wrong(*one, 20, 1, 12), 0u);
  EXPECT_TRUE(layers.fire_within(kDoneWithinMs));
  const auto saved = one->client().wait(save, kDoneWithinMs);
  EXPECT_TRUE(saved.done && !saved.success);
  ASSERT_TRUE(attached_again(*one, incarnation)) << one->client().health().message;
  EXPECT_TRUE(registered_within(before + 1));
  EXPECT_EQ(one->restore(0, 1, 12).hits, 0u);
  for (std::uint64_t hash : {1000u, 2000u}) expect_works(*one, hash);
  layers.disarm();
  one.reset();
  EXPECT_EQ(fake_gpu().registrations(), before);
}

// Under load, at moments that differ from run to run; slabs come and go with the sessions.
TEST_F(GpuFailures, TheManagerDiesAgainAndAgainUnderLoad) {
  const std::uint32_t before = fake_gpu().registrations();
  auto one = engine(options(1)), two = engine(options(2));
  std::uint64_t hash = 1;
  for (int moment = 0; moment < 8; ++moment, hash += 10'000) {
    SCOPED_TRACE(moment);
    const auto incarnation = one->client().health().incarnation;
    std::atomic<bool> stop{false};
    const auto load = [&](Engine& engine) {
      std::vector<client::OperationHandle> open;
      for (std::uint64_t i = 0; !stop && i < 300; ++i) {
        client::OperationHandle handle;
        const std::uint64_t first = hash + i % 20 * 16;
        const auto hashes = hashes_of(first, 16);
        if (engine.start_save(blocks_of(0, 16), hashes, handle).ok()) open.push_back(handle);
        client::Ready ready;
        if (!engine.lease(first, 16, ready).ok() || !ready.lease) continue;
        client::RestoreOptions how;
        if (start_restore(engine, ready.lease, blocks_of(32, ready.hit_blocks), how, handle).ok())
          open.push_back(handle);
      }
      std::uint32_t unfinished = 0;
      for (const auto handle : open) unfinished += !engine.client().wait(handle, kDoneWithinMs).done;
      return unfinished;
    };
    auto first = std::async(std::launch::async, [&] { return load(*one); });
    auto second = std::async(std::launch::async, [&] { return load(*two); });
    ::usleep(static_cast<useconds_t>(moment) * 3000);
    manager_.process().signal(SIGKILL);
    ASSERT_TRUE(manager_.process().ended_within());
    stop = true;
    EXPECT_EQ(first.get() + second.get(), 0u);
    manager_.start();
    for (Engine* each : {one.get(), two.get()}) {
      ASSERT_TRUE(attached_again(*each, incarnation)) << each->client().health().message;
      publish(*each, 0, hash + 5000 + (each == one.get() ? 0 : 100), 8);
      const auto restored = each->restore(40, hash + 5000 + (each == one.get() ? 0 : 100), 8);
      EXPECT_EQ(restored.hits, 8u);
      EXPECT_EQ(restored.wrong, 0u);
    }
  }
  one.reset();
  two.reset();
  EXPECT_EQ(fake_gpu().registrations(), before);
}

// A Manager that hangs before its grant: the engine gets its pages back in time, nobody
// waits for a layer, and the grant that comes after all copies nothing.
TEST_F(GpuFailures, TheManagerHangsBeforeItsGrant) {
  Manager manager({"--pool-size", "32MiB"}, {{"ORBITKV_FAULT", "manager_before_grant:stop:2"}});
  auto with = options(1, kSoon);
  with.socket = manager.socket();
  auto one = engine(with);
  ASSERT_TRUE(one->save(0, 1, 8).success);
  ASSERT_EQ(manager.settle("blocks", 8), 8u);
  client::Ready ready;
  ASSERT_TRUE(one->lease(1, 8, ready).ok());
  Layers layers(*one);
  client::RestoreOptions how;
  how.layer_events = layers.events();
  client::OperationHandle handle;
  const auto started = start_restore(*one, ready.lease, blocks_of(20, 8), how, handle);
  ASSERT_TRUE(manager.process().stopped_within());
  if (started.ok()) {
    EXPECT_EQ(one->client().wait_enqueued(handle, kDoneWithinMs).action, client::Action::kRecompute);
    const auto status = one->client().wait(handle, kDoneWithinMs);
    EXPECT_TRUE(status.done && !status.success);
    EXPECT_TRUE(layers.fire_within(kDoneWithinMs));
  }
  EXPECT_FALSE(one->save(30, 500, 4).success);
  one->wipe();
  manager.process().signal(SIGCONT);
  EXPECT_EQ(manager.settle("operations", 0), 0u);
  EXPECT_EQ(one->wrong_gap_bytes(), 0u);
  for (std::uint32_t b = 20; b < 28; ++b)
    EXPECT_GT(one->wrong_bytes(b, hash_of(1 + b - 20)), 0u) << "a page that was given back was written";
  const auto saved = one->save(0, 600, 8);
  EXPECT_TRUE(saved.success) << saved.message;
  ASSERT_EQ(manager.settle("blocks", 16), 16u);
  EXPECT_EQ(one->restore(30, 600, 8).wrong, 0u);
  layers.disarm();
}

TEST_F(GpuFailures, TheManagerIsStoppedWhileCopiesRun) {
  auto one = engine(options(1, kSoon));
  publish(*one, 0, 1, 8);
  client::Ready ready;
  ASSERT_TRUE(one->lease(1, 8, ready).ok());
  Layers layers(*one);
  const HeldStream held;
  const auto stream = held.get();
  client::RestoreOptions how;
  how.ready_stream = stream;
  how.layer_events = layers.events();
  client::OperationHandle handle, late;
  ASSERT_EQ(start_restore(*one, ready.lease, blocks_of(20, 8), how, handle).message, "");
  ASSERT_EQ(one->client().wait_enqueued(handle, kDoneWithinMs).message, "");
  manager_.process().signal(SIGSTOP);
  let_go(stream);
  const auto status = one->client().wait(handle, kDoneWithinMs);
  EXPECT_TRUE(status.success) << status.message;
  EXPECT_TRUE(layers.fire_within(kDoneWithinMs));
  EXPECT_EQ(wrong(*one, 20, 1, 8), 0u);
  if (one->start_save(blocks_of(0, 4), hashes_of(90, 4), late).ok()) {
    EXPECT_TRUE(one->client().wait(late, kDoneWithinMs).done);
  }
  manager_.process().signal(SIGCONT);
  EXPECT_EQ(manager_.settle("operations", 0), 0u);
  expect_works(*one, 3000);
  layers.disarm();
}

// The n-th launch or record of a save and of a restore fails: the operation fails after what
// was accepted has drained, the Manager has its receipt, and nothing is quarantined.
TEST_F(GpuFailures, EnqueuesThatFailInTheMiddle) {
  auto with = options();
  with.shape = shape_of(2);  // rows that go in several launches
  auto one = engine(with);
  publish(*one, 0, 1, 12);
  std::uint64_t hash = 1000;
  for (const char* entry : {"cuLaunchKernel", "cuEventRecord", "cuStreamWaitValue32", "cuStreamWaitEvent"}) {
    for (std::uint32_t call = 1; call <= 6; ++call, hash += 100) {
      SCOPED_TRACE(std::string(entry) + " " + std::to_string(call));
      Layers layers(*one);
      client::Ready ready;
      ASSERT_TRUE(one->lease(1, 12, ready).ok());
      ASSERT_EQ(ready.hit_blocks, 12u);
      one->wipe();
      const HeldStream held;
      const auto stream = held.get();
      client::RestoreOptions how;
      how.ready_stream = stream;
      how.layer_events = layers.events();
      client::OperationHandle handle;
      fake_gpu().fail({.entry = entry, .call = call, .code = kInvalidValue});
      const auto started = start_restore(*one, ready.lease, blocks_of(20, 12), how, handle);
      let_go(stream);
      if (started.ok()) {
        const auto enqueued = one->client().wait_enqueued(handle, kDoneWithinMs);
        EXPECT_NE(enqueued.action, client::Action::kRetry) << enqueued.message;
        const auto status = one->client().wait(handle, kDoneWithinMs);
        EXPECT_TRUE(status.done);
        if (status.success) {
          EXPECT_EQ(wrong(*one, 20, 1, 12), 0u);
        }
        // Who was told that the events stand waits for them.
        if (enqueued.ok()) {
          EXPECT_TRUE(layers.fire_within(kDoneWithinMs));
        }
      } else {
        ASSERT_TRUE(one->client().release(ready.lease).ok());
      }
      fake_gpu().heal();
      fake_gpu().fail({.entry = entry, .call = call, .code = kInvalidValue});
      const auto saved = one->save(40, hash, 12);
      EXPECT_TRUE(saved.done);
      fake_gpu().heal();
      EXPECT_EQ(manager_.settle("operations", 0), 0u);
      const auto again = one->restore(20, hash, 12);
      EXPECT_EQ(again.hits, saved.success ? 12u : 0u) << saved.message;
      EXPECT_EQ(again.wrong, 0u);
      EXPECT_EQ(one->wrong_gap_bytes(), 0u);
      layers.disarm();
    }
  }
  EXPECT_EQ(manager_.status()["pool.quarantined"], 0u);
  EXPECT_EQ(manager_.settle("pool.leased", 0), 0u);
}

TEST_F(GpuFailures, DestroyedReadyStreams) {
  auto one = engine();
  const auto stream = new_stream();
  fake_gpu().destroy_stream(reinterpret_cast<device::cuda::CuStream>(stream));
  client::OperationHandle handle;
  EXPECT_EQ(one->start_save(blocks_of(0, 4), hashes_of(1, 4), handle, {stream}).action,
            client::Action::kReject);
  EXPECT_EQ(one->client().health().open_operations, 0u);
  // What stood on it when it was destroyed is still waited for.
  const auto later = new_stream();
  hold(later);
  for (std::uint32_t i = 0; i < 4; ++i) one->compute(i, hash_of(1 + i));
  ASSERT_EQ(one->start_save(blocks_of(0, 4), hashes_of(1, 4), handle, {later}).message, "");
  EXPECT_FALSE(one->client().wait(handle, 20).done);
  let_go(later);
  fake_gpu().destroy_stream(reinterpret_cast<device::cuda::CuStream>(later));
  EXPECT_TRUE(one->client().wait(handle, kDoneWithinMs).success);
  expect_works(*one, 1000);
}

TEST_F(GpuFailures, LayersOfACorruptImageFire) {
  auto one = engine();
  publish(*one, 0, 1, 4);
  ASSERT_TRUE(configure_faults("client_digest:flip:1").ok());
  publish(*one, 0, 5, 4);
  ASSERT_TRUE(configure_faults("").ok());
  client::Ready ready;
  ASSERT_TRUE(one->lease(1, 8, ready).ok());
  ASSERT_EQ(ready.hit_blocks, 8u);
  Layers layers(*one);
  client::RestoreOptions how;
  how.layer_events = layers.events();
  client::OperationHandle handle;
  ASSERT_EQ(start_restore(*one, ready.lease, blocks_of(20, 8), how, handle).message, "");
  EXPECT_NE(one->client().wait_enqueued(handle, kDoneWithinMs).action, client::Action::kRetry);
  const auto status = one->client().wait(handle, kDoneWithinMs);
  EXPECT_TRUE(status.done && !status.success);
  EXPECT_NE(status.message.find("1 of 8 blocks failed verification"), std::string::npos) << status.message;
  EXPECT_TRUE(layers.fire_within(kDoneWithinMs));
  EXPECT_EQ(manager_.settle("blocks", 7), 7u);
  layers.disarm();
}

// One of the loads is refused, or both: no layer is waited for in vain.
TEST_F(GpuFailures, LayersOfARefusedPartFire) {
  auto one = engine();
  publish(*one, 0, 1, 8);
  publish(*one, 8, 101, 8);
  for (const bool first : {false, true}) {
    client::Ready good, gone;
    ASSERT_TRUE(one->lease(1, 8, good).ok());
    ASSERT_TRUE(one->lease(101, 8, gone).ok());
    ASSERT_TRUE(one->client().release(gone.lease).ok());
    const auto here = blocks_of(20, 8), there = blocks_of(30, 8);
    client::Load loads[] = {{good.lease, 0, here}, {gone.lease, 0, there}};
    if (first) std::swap(loads[0], loads[1]);
    Layers layers(*one);
    client::RestoreOptions how;
    how.layer_events = layers.events();
    client::OperationHandle handle;
    one->wipe();
    const auto started = one->client().start_restore(one->registration(), loads, how, handle);
    EXPECT_EQ(started.ok(), !first) << started.message;
    if (started.ok()) {
      EXPECT_NE(one->client().wait_enqueued(handle, kDoneWithinMs).action, client::Action::kRetry);
      const auto status = one->client().wait(handle, kDoneWithinMs);
      EXPECT_TRUE(status.done && !status.success);
      EXPECT_TRUE(layers.fire_within(kDoneWithinMs));
      EXPECT_EQ(wrong(*one, 20, 1, 8), 0u);
    } else {
      EXPECT_FALSE(layers.fired());
      EXPECT_EQ(one->client().health().open_operations, 0u);
      ASSERT_TRUE(one->client().release(good.lease).ok());
    }
    layers.disarm();
  }
  EXPECT_EQ(manager_.settle("pool.leased", 0), 0u);
}

// Whoever closes gets his thread back; the copies go on on mappings that stay.
TEST_F(GpuFailures, ACloseIsBoundedByAStreamThatNeverEnds) {
  const std::uint32_t before = fake_gpu().registrations();
  for (const bool manager_dies : {false, true}) {
    SCOPED_TRACE(manager_dies);
    auto one = engine(options(1, kSoon));
    const HeldStream held;
    const auto stream = held.get();
    client::OperationHandle handle;
    const std::uint64_t hash = manager_dies ? 200 : 100;
    for (std::uint32_t i = 0; i < 8; ++i) one->compute(i, hash_of(hash + i));
    ASSERT_EQ(one->start_save(blocks_of(0, 8), hashes_of(hash, 8), handle, {stream}).message, "");
    ASSERT_EQ(one->client().wait_enqueued(handle, kDoneWithinMs).message, "");
    if (manager_dies) {
      manager_.process().signal(SIGKILL);
      ASSERT_TRUE(manager_.process().ended_within());
    }
    auto closed = std::async(std::launch::async, [&] { one->client().close(); });
    const bool bounded = closed.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    EXPECT_TRUE(bounded) << "close() waits for the stream";
    const auto status = one->client().poll(handle);
    EXPECT_FALSE(status.done && bounded) << "its pages are still lent: " << status.message;
    client::OperationHandle refused;
    EXPECT_EQ(one->start_save(blocks_of(0, 1), hashes_of(900, 1), refused).action,
              client::Action::kReconnect);
    if (bounded) {
      auto gone = std::async(std::launch::async, [&] { one.reset(); });
      EXPECT_EQ(gone.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    }
    let_go(stream);
    closed.wait();
    if (manager_dies) manager_.start();
    EXPECT_TRUE(registered_within(before)) << "the closed client's slabs are never let go of";
    auto next = engine();
    expect_works(*next, 5000);
    EXPECT_EQ(manager_.settle("pool.quarantined", 0), 0u);
    next.reset();
  }
}

// Two registrations of one client, and two clients of one process, on one device.
TEST_F(GpuFailures, SeveralRanksAndClientsOnOneDevice) {
  auto one = engine(options(1)), two = engine(options(2));
  Engine rank(options(1));
  client::Registration second = rank.description();
  second.instance = instance_of(3);
  client::RegistrationHandle handle;
  ASSERT_EQ(one->client().register_rank(second, handle).message, "");
  const auto work = [](Engine& engine, std::uint64_t hash) {
    for (std::uint64_t i = 0; i < 30; ++i) {
      const auto saved = engine.save(0, hash + 100 * i, 8);
      EXPECT_TRUE(saved.success) << saved.message;
      const auto restored = engine.restore(16, hash + 100 * i, 8);
      EXPECT_EQ(restored.wrong, 0u);
    }
  };
  auto first = std::async(std::launch::async, [&] { work(*one, 10'000); });
  auto other = std::async(std::launch::async, [&] { work(*two, 20'000); });
  for (std::uint64_t i = 0; i < 30; ++i) {
    for (std::uint32_t b = 0; b < 8; ++b) rank.compute(b, hash_of(30'000 + 100 * i + b));
    const auto blocks = blocks_of(0, 8);
    const auto hashes = hashes_of(30'000 + 100 * i, 8);
    const client::SaveGroup group{0, blocks, hashes};
    client::OperationHandle save;
    ASSERT_EQ(one->client().start_save(handle, {&group, 1}, {}, save).message, "");
    EXPECT_TRUE(one->client().wait(save, kDoneWithinMs).success);
  }
  EXPECT_EQ(one->client().unregister(handle).message, "");
  first.get();
  other.get();
  two.reset();  // its device and slabs go, the other's stay
  expect_works(*one, 90'000);
  for (std::uint64_t i = 0; i < 30; ++i) EXPECT_EQ(one->restore(32, 30'000 + 100 * i, 8).wrong, 0u);
}

TEST_F(GpuFailures, UnregisteringWaitsForPendingLayers) {
  auto one = engine(options(1, kSoon));
  publish(*one, 0, 1, 8);
  client::Ready ready;
  ASSERT_TRUE(one->lease(1, 8, ready).ok());
  Layers layers(*one);
  const HeldStream held;
  const auto stream = held.get();
  client::RestoreOptions how;
  how.ready_stream = stream;
  how.layer_events = layers.events();
  client::OperationHandle handle;
  ASSERT_EQ(start_restore(*one, ready.lease, blocks_of(20, 8), how, handle).message, "");
  ASSERT_EQ(one->client().wait_enqueued(handle, kDoneWithinMs).message, "");
  EXPECT_EQ(one->client().unregister(one->registration()).action, client::Action::kRetry);
  EXPECT_FALSE(layers.fired());
  let_go(stream);
  EXPECT_EQ(one->client().unregister(one->registration()).message, "");
  EXPECT_TRUE(layers.fired()) << "the pages were given back before the last layer";
  EXPECT_TRUE(one->client().poll(handle).success);
  EXPECT_EQ(wrong(*one, 20, 1, 8), 0u);
  layers.disarm();
}

// The slab's registration takes for ever: copies go through the buffer, before and after a
// restart of the Manager, whose slabs are let go of once their registration has ended.
TEST_F(GpuFailures, SlabsThatAreNotRegisteredYet) {
  const std::uint32_t before = fake_gpu().registrations();
  std::atomic<bool> block{true};
  fake_gpu().before("cuMemHostRegister", [&] {
    while (block) ::usleep(500);
  });
  waits_for_slabs_ = false;
  auto one = engine(options(1, kSoon));
  const std::shared_ptr<void> unblocked(nullptr, [&](void*) { block = false; });
  for (std::uint64_t hash : {100u, 200u}) expect_works(*one, hash);
  EXPECT_EQ(fake_gpu().registrations(), before);
  // Behind a fence nothing can be promised, and the wait says so in time.
  client::Ready ready;
  ASSERT_TRUE(one->lease(100, 4, ready).ok());
  Layers layers(*one);
  const HeldStream held;
  const auto stream = held.get();
  client::RestoreOptions how;
  how.ready_stream = stream;
  how.layer_events = layers.events();
  client::OperationHandle handle;
  ASSERT_EQ(start_restore(*one, ready.lease, blocks_of(20, 4), how, handle).message, "");
  (void)one->client().wait_enqueued(handle, kSoon);
  EXPECT_FALSE(layers.fired());
  const auto incarnation = one->client().health().incarnation;
  manager_.process().signal(SIGKILL);
  ASSERT_TRUE(manager_.process().ended_within());
  let_go(stream);
  EXPECT_EQ(one->client().wait_enqueued(handle, kDoneWithinMs).message, "");
  EXPECT_TRUE(one->client().wait(handle, kDoneWithinMs).success);
  EXPECT_TRUE(layers.fire_within(kDoneWithinMs));
  EXPECT_EQ(wrong(*one, 20, 100, 4), 0u);
  manager_.start();
  block = false;
  ASSERT_TRUE(attached_again(*one, incarnation)) << one->client().health().message;
  EXPECT_TRUE(registered_within(before + 1));
  expect_works(*one, 300);
  layers.disarm();
}

}  // namespace
}  // namespace orbitkv::test
