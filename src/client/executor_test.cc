// How operations become batches of a device that runs on: merged, side by side, bounded,
// and ended by receipts and by layer events whatever happens in between.
#include "client/executor.h"

#include <gtest/gtest.h>

#include "client/fake_device_suite.h"
#include "client/fake_manager_suite.h"

namespace orbitkv::client {
namespace {
using shm::RecordState;

class ExecutorTest : public testing::Test {
 protected:
  void SetUp() override {
    link = manager.attach();
    ASSERT_NE(link, nullptr);
    manager.offer(*link, SlabId(4));
    Registration registration;
    registration.instance.bytes.fill(std::byte{1});
    registration.name_space = "test";
    registration.num_blocks = 64;
    registration.block_tokens = 16;
    for (std::uint16_t group = 0; group < 2; ++group) {
      registration.groups.push_back({group, 0, 1, true});
      Layer layer;
      layer.name = group == 0 ? "a" : "b";
      layer.group = group;
      layer.base = pages.data() + group * 64 * 512;
      layer.bytes = 64 * 512;
      layer.block_stride = layer.row_bytes = 512;
      registration.layers.push_back(layer);
    }
    entry = std::move(*make_entry(registration, 1, gpu));
    entry->registration.store(9);
    start();
  }
  void start() {
    executor = std::make_unique<Executor>(Executor::Copiers{std::move(*gpu.new_copier({})), nullptr},
                                          operations, nullptr);
    entry->executor = executor.get();
  }
  void TearDown() override {
    script().end_all();
    if (link) link->lose();
    executor->wait_empty();
    executor.reset();
    EXPECT_EQ(entry->open_transfers.load(), 0u);
    EXPECT_EQ(operations.open_count(), 0u);
    EXPECT_EQ(gpu.fences, 0);
  }
  FakeScript& script() { return *gpu.script; }

  // One part a group number; every part asks for block `block` and the next.
  std::unique_ptr<Transfer> transfer(model::PlanKind kind, std::vector<std::uint16_t> groups,
                                     std::uint32_t block = 1) {
    auto made = std::make_unique<Transfer>();
    made->entry = entry.get();
    made->link = link.get();
    made->kind = kind;
    made->deadline = monotonic_now() + seconds(60);
    made->ready = std::move(*gpu.fence({7}));
    for (const std::uint16_t group : groups) {
      Part part;
      part.entry = entry.get();
      part.kind = kind;
      part.group_id = GroupId(group);
      part.group = entry->group(part.group_id);
      part.ref = link->reserve(1)->front();
      part.blocks = {block, block + 1};
      made->parts.push_back(std::move(part));
    }
    made->handle = operations.open(1, executor.get());
    entry->open_transfers.fetch_add(1);
    executor->enter(1);
    return made;
  }
  std::unique_ptr<Transfer> restore_with_events(std::vector<std::uint16_t> groups) {
    auto made = transfer(model::PlanKind::kRestore, std::move(groups));
    made->events = {{0, {100}}, {1, {101}}};
    return made;
  }
  // What was asked for, beside the part that will be granted.
  static Part asked(const Part& part) {
    Part copy;
    copy.entry = part.entry;
    copy.group_id = part.group_id;
    copy.group = part.group;
    copy.kind = part.kind;
    copy.ref = part.ref;
    copy.blocks = part.blocks;
    return copy;
  }
  void grant(const Part& part) {
    const std::uint64_t slot_bytes = part.group->layout.slot_bytes;
    model::Plan plan{part.kind,  part.ref.operation,    RegistrationId(9), part.group_id,
                     ShardId(0), model::Encoding::kRaw, slot_bytes,        {}};
    for (std::uint32_t i = 0; i < 2; ++i)
      plan.entries.push_back(
          {SlabId(4), part.blocks[i], (2 * grants + i) * slot_bytes, AllocationId(100 + i), 55, 0});
    manager.grant_at(grants++, part.ref, plan);
    manager.channel().ring_client();
  }
  void revoke(const Part& part) {
    const shm::RecordWord reserved{part.ref.operation, RecordState::kReserved};
    const shm::RecordWord preparing{part.ref.operation, RecordState::kPreparing};
    manager.channel().exchange(part.ref.record, reserved, preparing);
    manager.channel().write_failure(part.ref.record, Code::kRecompute, "revoked");
    manager.channel().exchange(part.ref.record, preparing, {part.ref.operation, RecordState::kFailed});
    manager.channel().ring_client();
  }
  RecordState state(const RecordRef& ref) { return manager.state(ref); }
  bool reaches(const RecordRef& ref, RecordState wanted) {
    const TimePoint end = monotonic_now() + seconds(10);
    while (state(ref) != wanted && monotonic_now() < end) std::this_thread::yield();
    return state(ref) == wanted;
  }

  FakeManager manager;
  FakeDevice gpu;
  std::vector<std::byte> pages = std::vector<std::byte>(2 * 64 * 512);
  std::unique_ptr<Attachment> link;
  std::unique_ptr<Entry> entry;
  OperationTable operations;
  std::unique_ptr<Executor> executor;
  std::uint32_t grants = 0;
};

TEST_F(ExecutorTest, ThePartsOfAnOperationAreOneBatch) {
  auto one = restore_with_events({0, 1});
  const auto handle = one->handle;
  const RecordRef refs[] = {one->parts[0].ref, one->parts[1].ref};
  for (const Part& part : one->parts) grant(part);
  executor->add(std::move(one));
  ASSERT_TRUE(script().wait_for(1));
  const FakeBatch batch = script().batch(0);
  EXPECT_EQ(batch.direction, device::Direction::kRestore);
  EXPECT_EQ(batch.blocks, (std::vector<std::vector<std::uint32_t>>{{1, 2}, {1, 2}}));
  EXPECT_EQ(batch.events.size(), 2u);
  EXPECT_TRUE(batch.fenced);
  EXPECT_EQ(state(refs[1]), RecordState::kActive);
  EXPECT_EQ(operations.wait_enqueued(handle, 20).action, Action::kRetry);
  script().enqueue(0);
  EXPECT_TRUE(operations.wait_enqueued(handle, 10'000).ok());
  EXPECT_FALSE(operations.poll(handle).done);
  script().end(0);
  const auto status = operations.wait(handle, 10'000);
  EXPECT_TRUE(status.done && status.success) << status.message;
  EXPECT_EQ(status.blocks, 4u);
  for (const RecordRef& ref : refs) EXPECT_EQ(state(ref), RecordState::kDrained);
  EXPECT_EQ(script().count(), 1u);
}

// Or two publishers that hold one grant each, and wait for the other's, would stand still.
TEST_F(ExecutorTest, AGrantedPartDoesNotWaitForEver) {
  auto one = restore_with_events({0, 1});
  const auto handle = one->handle;
  const Part late = asked(one->parts[1]);
  grant(one->parts[0]);
  executor->add(std::move(one));
  ASSERT_TRUE(script().wait_for(1));
  EXPECT_TRUE(script().batch(0).fenced);
  EXPECT_TRUE(script().batch(0).events.empty()) << "bytes of the layers are still to come";
  script().enqueue(0);
  grant(late);
  EXPECT_EQ(operations.wait_enqueued(handle, 20).action, Action::kRetry);
  EXPECT_EQ(script().count(), 1u) << "nothing says that the fence was passed";
  script().end(0);
  ASSERT_TRUE(script().wait_for(2));
  EXPECT_FALSE(script().batch(1).fenced);
  EXPECT_EQ(script().batch(1).events.size(), 2u);
  script().enqueue(1);
  EXPECT_TRUE(operations.wait_enqueued(handle, 10'000).ok());
  script().end(1);
  EXPECT_EQ(operations.wait(handle, 10'000).blocks, 4u);
}

TEST_F(ExecutorTest, APartThatFailsLeavesTheOthersAndTheEvents) {
  auto one = restore_with_events({0, 1});
  const auto handle = one->handle;
  revoke(one->parts[0]);
  grant(one->parts[1]);
  executor->add(std::move(one));
  ASSERT_TRUE(script().wait_for(1));
  EXPECT_EQ(script().batch(0).blocks.size(), 1u);
  EXPECT_EQ(script().batch(0).events.size(), 2u);
  script().enqueue(0);
  script().end(0);
  const auto status = operations.wait(handle, 10'000);
  EXPECT_TRUE(status.done);
  EXPECT_FALSE(status.success);
  EXPECT_EQ(status.blocks, 2u);
  EXPECT_EQ(status.message, "revoked");
  EXPECT_EQ(operations.wait_enqueued(handle, 0).action, Action::kRecompute);
}

TEST_F(ExecutorTest, EventsAreRecordedWhenNothingIsGranted) {
  auto one = restore_with_events({0});
  const auto handle = one->handle;
  revoke(one->parts[0]);
  executor->add(std::move(one));
  ASSERT_TRUE(script().wait_for(1));
  EXPECT_TRUE(script().batch(0).blocks.empty());
  EXPECT_EQ(script().batch(0).events.size(), 2u);
  script().enqueue(0);
  EXPECT_EQ(operations.wait_enqueued(handle, 20).action, Action::kRetry) << "it has failed already";
  EXPECT_FALSE(operations.poll(handle).done) << "the events are in use";
  script().end(0);
  EXPECT_EQ(operations.wait_enqueued(handle, 10'000).action, Action::kRecompute);
}

TEST_F(ExecutorTest, WithoutLoadsEventsAreRecordedAllTheSame) {
  auto one = restore_with_events({});
  const auto handle = one->handle;
  executor->start_here(std::move(one));
  ASSERT_EQ(script().count(), 1u);
  EXPECT_EQ(script().batch(0).events.size(), 2u);
  script().end(0);
  EXPECT_TRUE(operations.wait(handle, 10'000).success);
}

TEST_F(ExecutorTest, ASilentManagerIsGivenUpAtTheDeadline) {
  auto one = restore_with_events({0, 1});
  const auto handle = one->handle;
  const Part late = asked(one->parts[1]);
  const shm::RecordWord reserved{late.ref.operation, RecordState::kReserved};
  const shm::RecordWord preparing{late.ref.operation, RecordState::kPreparing};
  manager.channel().exchange(late.ref.record, reserved, preparing);
  one->deadline = monotonic_now() + milliseconds(20);
  executor->add(std::move(one));
  ASSERT_TRUE(script().wait_for(1));
  EXPECT_TRUE(script().batch(0).blocks.empty());
  script().end(0);
  const auto status = operations.wait(handle, 10'000);
  EXPECT_TRUE(status.done);
  EXPECT_NE(status.message.find("no grant in time"), std::string::npos) << status.message;
  EXPECT_EQ(entry->open_transfers.load(), 0u) << "its pages are free";
  // The grant that still comes is declined: nothing is copied for it.
  grant(late);
  EXPECT_TRUE(reaches(late.ref, RecordState::kDrained));
  EXPECT_NE(manager.channel().read_client_result(late.ref.record).code, 0);
  executor->wait_empty();
  EXPECT_EQ(script().count(), 1u);
}

TEST_F(ExecutorTest, ASubmitThatFailsEndsByReceiptAndRecordsEvents) {
  auto one = restore_with_events({0});
  const auto handle = one->handle;
  const RecordRef ref = one->parts[0].ref;
  grant(one->parts[0]);
  script().refuse(1);
  executor->add(std::move(one));
  ASSERT_TRUE(script().wait_for(1));
  EXPECT_TRUE(script().batch(0).blocks.empty());
  EXPECT_EQ(script().batch(0).events.size(), 2u);
  EXPECT_EQ(state(ref), RecordState::kDrained);
  EXPECT_NE(manager.channel().read_client_result(ref.record).code, 0);
  script().end(0);
  EXPECT_EQ(operations.wait(handle, 10'000).message, "the fake device broke");
}

TEST_F(ExecutorTest, ADeviceThatTakesNothingEndsTheOperation) {
  auto one = restore_with_events({0});
  const auto handle = one->handle;
  grant(one->parts[0]);
  script().refuse(2);
  executor->add(std::move(one));
  EXPECT_EQ(operations.wait_enqueued(handle, 10'000).action, Action::kRecompute);
  EXPECT_TRUE(operations.poll(handle).done);
  EXPECT_EQ(script().count(), 0u);
}

TEST_F(ExecutorTest, ABatchThatBreaksRecordsEventsOnlyIfItHasNot) {
  for (const bool enqueued : {false, true}) {
    const std::size_t before = script().count();
    auto one = restore_with_events({0});
    const auto handle = one->handle;
    grant(one->parts[0]);
    executor->add(std::move(one));
    ASSERT_TRUE(script().wait_for(before + 1));
    if (enqueued) {
      script().enqueue(before);
      ASSERT_TRUE(operations.wait_enqueued(handle, 10'000).ok());
    }
    script().end(before, recompute("an illegal address"));
    if (!enqueued) {
      ASSERT_TRUE(script().wait_for(before + 2));
      EXPECT_TRUE(script().batch(before + 1).blocks.empty());
      script().end(before + 1);
    }
    EXPECT_EQ(operations.wait(handle, 10'000).message, "an illegal address");
    EXPECT_EQ(script().count(), before + (enqueued ? 1 : 2));
  }
}

TEST_F(ExecutorTest, BatchesOfBothDirectionsRunSideBySideAndAreBounded) {
  std::vector<OperationHandle> handles;
  for (std::uint32_t i = 0; i < limits::kCopyBatches + 1; ++i) {
    auto one = transfer(i % 2 ? model::PlanKind::kSave : model::PlanKind::kRestore, {0}, 2 * i);
    handles.push_back(one->handle);
    grant(one->parts[0]);
    executor->add(std::move(one));
  }
  ASSERT_TRUE(script().wait_for(limits::kCopyBatches));
  EXPECT_FALSE(operations.wait(handles[3], 20).done);
  EXPECT_EQ(script().count(), limits::kCopyBatches);
  script().end(3);
  EXPECT_TRUE(operations.wait(handles[3], 10'000).success);
  ASSERT_TRUE(script().wait_for(limits::kCopyBatches + 1));
  script().end_all();
  for (const OperationHandle handle : handles) EXPECT_TRUE(operations.wait(handle, 10'000).success);
}

TEST_F(ExecutorTest, WhatIsGrantedStartsInTheCallersThread) {
  auto one = transfer(model::PlanKind::kRestore, {0});
  const auto handle = one->handle;
  grant(one->parts[0]);
  executor->start_here(std::move(one));
  ASSERT_EQ(script().count(), 1u);
  EXPECT_EQ(script().batch(0).submitter, std::this_thread::get_id());
  EXPECT_FALSE(operations.poll(handle).done);
  script().end(0);
  EXPECT_TRUE(operations.wait(handle, 10'000).success);
}

TEST_F(ExecutorTest, WhatIsNotGrantedYetGoesToTheExecutorsThread) {
  auto one = transfer(model::PlanKind::kSave, {0});
  const auto handle = one->handle;
  const Part part = asked(one->parts[0]);
  executor->start_here(std::move(one));
  EXPECT_EQ(script().count(), 0u);
  grant(part);
  ASSERT_TRUE(script().wait_for(1));
  EXPECT_NE(script().batch(0).submitter, std::this_thread::get_id());
  script().end(0);
  EXPECT_TRUE(operations.wait(handle, 10'000).success);
}

// The copies go on, and only then the session may go.
TEST_F(ExecutorTest, ALostManagersClaimedCopiesEnd) {
  auto restore = transfer(model::PlanKind::kRestore, {0}), save = transfer(model::PlanKind::kSave, {1}),
       waiting = transfer(model::PlanKind::kSave, {0}, 9);
  const OperationHandle handles[] = {restore->handle, save->handle, waiting->handle};
  const RecordRef claimed = restore->parts[0].ref, asked = waiting->parts[0].ref;
  grant(restore->parts[0]);
  grant(save->parts[0]);
  for (auto* one : {&restore, &save, &waiting}) executor->add(std::move(*one));
  ASSERT_TRUE(script().wait_for(2));
  link->lose();
  EXPECT_TRUE(operations.wait(handles[2], 10'000).done) << "unclaimed: nothing to wait for";
  EXPECT_EQ(state(asked), RecordState::kReserved);
  EXPECT_FALSE(operations.wait(handles[0], 20).done);
  script().end_all();
  executor->wait_empty();
  EXPECT_TRUE(operations.wait(handles[0], 10'000).success) << "the pages hold the bytes";
  EXPECT_FALSE(operations.wait(handles[1], 10'000).success) << "nobody keeps them";
  EXPECT_EQ(state(claimed), RecordState::kDrained);
}

TEST_F(ExecutorTest, ABoundedWaitEndsWhileCopiesRun) {
  auto save = transfer(model::PlanKind::kSave, {0});
  const OperationHandle handle = save->handle;
  grant(save->parts[0]);
  executor->add(std::move(save));
  ASSERT_TRUE(script().wait_for(1));
  EXPECT_EQ(executor->wait_empty_for(milliseconds(2)), Executor::Emptied::kNotYet);
  std::thread bounding([&] { executor->bound_waits(monotonic_now() + milliseconds(5)); });
  EXPECT_FALSE(executor->wait_empty());
  bounding.join();
  EXPECT_FALSE(executor->wait_empty());
  EXPECT_EQ(executor->wait_empty_for(seconds(10)), Executor::Emptied::kBounded);
  executor->bound_waits(std::nullopt);
  script().end_all();
  EXPECT_TRUE(executor->wait_empty());
  EXPECT_EQ(executor->wait_empty_for(milliseconds(1)), Executor::Emptied::kYes);
  EXPECT_TRUE(operations.poll(handle).success);
}

TEST_F(ExecutorTest, WaitEmptyWaitsForTheAnnounced) {
  executor->enter(2);
  std::atomic<bool> empty{false};
  std::thread waiter([&] {
    executor->wait_empty();
    empty = true;
  });
  executor->leave(1);
  usleep(5000);
  EXPECT_FALSE(empty);
  executor->leave(1);
  waiter.join();
  EXPECT_TRUE(empty);
}

TEST(Executors, OneADeviceAndOnlyTheHostCopiesInCallers) {
  OperationTable operations;
  Executors executors(operations, {}, nullptr);
  FakeDevice one("GPU-a"), two("GPU-b");
  const auto first = executors.on(one), second = executors.on(two), again = executors.on(one);
  ASSERT_TRUE(first.ok() && second.ok() && again.ok());
  EXPECT_EQ(*first, *again);
  EXPECT_NE(*first, *second);
  executors.wait_empty();
  executors.stop();
}

}  // namespace
}  // namespace orbitkv::client
