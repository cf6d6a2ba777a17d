// In which order the end of a copy is told: first to whoever waits for it.
#include "client/copy_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "client/fake_device_suite.h"
#include "client/fake_manager_suite.h"

namespace orbitkv::client {
namespace {

class CopyQueueTest : public testing::Test {
 protected:
  void SetUp() override {
    link = manager.attach();
    ASSERT_NE(link, nullptr);
    manager.offer(*link, SlabId(4));
    entry = std::move(*make_entry(one_layer(pages), 1, gpu));
    entry->registration.store(9);
    entry->open_transfers.fetch_add(1);
    transfer.entry = entry.get();
    transfer.link = link.get();
    transfer.kind = model::PlanKind::kRestore;
    transfer.deadline = monotonic_now() + seconds(60);
    transfer.handle = operations.open(1);
    Part part;
    part.entry = entry.get();
    part.kind = transfer.kind;
    part.group_id = GroupId(0);
    part.group = &entry->groups[0];
    part.ref = link->reserve(1)->front();
    part.blocks = {1};
    transfer.parts.push_back(std::move(part));
    (void)manager.channel().rung();
  }
  void grant() {
    const Part& part = transfer.parts[0];
    model::Plan plan{part.kind,
                     part.ref.operation,
                     RegistrationId(9),
                     GroupId(0),
                     ShardId(0),
                     model::Encoding::kRaw,
                     part.group->layout.slot_bytes,
                     {}};
    plan.entries.push_back({SlabId(4), 1, 0, AllocationId(100), 55, 0});
    manager.grant(part.ref, plan);
  }
  bool announced() const {
    pollfd fd{operations.completion_fd(), POLLIN, 0};
    return ::poll(&fd, 1, 0) == 1;
  }

  FakeManager manager;
  FakeDevice gpu;
  std::vector<std::byte> pages = std::vector<std::byte>(8 * 512);
  std::unique_ptr<Attachment> link;
  std::unique_ptr<Entry> entry;
  OperationTable operations;
  CopyQueue queue{std::move(*gpu.new_copier({})), operations, nullptr};
  Transfer transfer;
};

TEST_F(CopyQueueTest, TheReceiptStandsAndTheHandleIsToldBeforeAnyBellRings) {
  grant();
  EXPECT_FALSE(queue.advance(transfer));
  gpu.script->end(0);
  queue.try_poll();  // a thread that waits for the operation
  EXPECT_TRUE(operations.poll(transfer.handle).success);
  EXPECT_EQ(manager.state(transfer.parts[0].ref), shm::RecordState::kDrained);
  EXPECT_FALSE(manager.channel().rung());
  EXPECT_FALSE(announced());
  EXPECT_EQ(entry->open_transfers.load(), 0u);
  const CopyQueue::Round round = queue.poll();
  EXPECT_EQ(round.ended, 1u) << "the executor must not sleep on what another thread ended";
  EXPECT_EQ(queue.poll().ended, 0u);
  EXPECT_TRUE(queue.advance(transfer));
  EXPECT_TRUE(manager.channel().rung());
  EXPECT_TRUE(announced());
}

TEST_F(CopyQueueTest, ARegistrationStaysUntilItsTraceIsWritten) {
  auto trace = Trace::open("/dev/null");
  ASSERT_TRUE(trace.ok());
  CopyQueue traced(std::move(*gpu.new_copier({})), operations, trace->get());
  transfer.called = monotonic_now();
  grant();
  EXPECT_FALSE(traced.advance(transfer));
  gpu.script->end(0);
  traced.try_poll();
  EXPECT_TRUE(operations.poll(transfer.handle).done);
  EXPECT_EQ(entry->open_transfers.load(), 1u);
  EXPECT_TRUE(traced.advance(transfer));
  EXPECT_EQ(entry->open_transfers.load(), 0u);
}

// Inside one call of the caller's thread there is no later.
TEST_F(CopyQueueTest, ACopyThatEndsAtOnceIsToldAtOnce) {
  grant();
  gpu.script->end_all();
  EXPECT_TRUE(queue.advance_first(transfer));
  EXPECT_TRUE(manager.channel().rung());
  EXPECT_TRUE(announced());
  EXPECT_EQ(entry->open_transfers.load(), 0u);
}

// No receipt, no bell: the completion all the same.
TEST_F(CopyQueueTest, WhatWasNeverGrantedRingsNoBell) {
  link->lose();
  EXPECT_TRUE(queue.advance(transfer));
  EXPECT_FALSE(operations.poll(transfer.handle).success);
  EXPECT_FALSE(manager.channel().rung());
  EXPECT_TRUE(announced());
  EXPECT_EQ(entry->open_transfers.load(), 0u);
}

}  // namespace
}  // namespace orbitkv::client
