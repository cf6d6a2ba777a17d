#include "client/operations.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "base/time.h"

namespace orbitkv::client {
namespace {

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST(OperationTable, AHandleIsDoneWithItsLastTransfer) {
  OperationTable table;
  const auto handle = table.open(3);
  table.finish(handle, {true, 4, {}});
  table.finish(handle, {true, 2, {}});
  EXPECT_FALSE(table.poll(handle).done);
  table.announce();
  EXPECT_FALSE(readable(table.completion_fd()));
  EXPECT_EQ(table.open_count(), 1u);
  table.finish(handle, {true, 1, {}});
  const auto status = table.poll(handle);
  EXPECT_TRUE(status.done && status.success);
  EXPECT_EQ(status.blocks, 7u);
  table.announce();
  EXPECT_TRUE(readable(table.completion_fd()));
  EXPECT_EQ(table.open_count(), 0u);
}

TEST(OperationTable, OneFailedTransferFailsTheWholeAndTheFirstTextStays) {
  OperationTable table;
  const auto handle = table.open(3);
  table.finish(handle, {true, 4, {}});
  table.finish(handle, {false, 0, "first"});
  table.finish(handle, {false, 0, "second"});
  const auto status = table.poll(handle);
  EXPECT_TRUE(status.done);
  EXPECT_FALSE(status.success);
  EXPECT_EQ(status.blocks, 4u);
  EXPECT_EQ(status.message, "first");
}

TEST(OperationTable, BlocksThatFoundNoMemoryAreCountedAndSaid) {
  OperationTable table;
  const auto full = table.open(2), early = table.open(1), none = table.open(1);
  table.finish(full, {true, 4, {}, 1, 2});
  table.finish(full, {true, 0, {}, 3, 1});
  const auto status = table.poll(full);
  EXPECT_TRUE(status.success);
  EXPECT_EQ(status.blocks, 4u);
  EXPECT_EQ(status.resident, 4u);
  EXPECT_EQ(status.dropped, 3u);
  EXPECT_NE(status.message.find("3 of 11 blocks were dropped"), std::string::npos) << status.message;
  for (const char* bound : {"pool", "--max-blocks", "65536 blocks were being saved at once", "smaller parts"})
    EXPECT_NE(status.message.find(bound), std::string::npos) << bound << ": " << status.message;
  table.finish(early, {true, 0, {}, 0, 5, true});
  EXPECT_NE(table.poll(early).message.find("being made"), std::string::npos);
  table.finish(none, {true, 2, {}, 3, 0});
  EXPECT_EQ(table.poll(none).message, "");
}

TEST(OperationTable, CompletionsAreTakenOnce) {
  OperationTable table;
  const auto one = table.open(1), nothing = table.open(0);
  table.finish(one, {});
  const auto taken = table.take_completed();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].value, nothing.value);  // nothing to do: done when it was opened
  EXPECT_EQ(taken[1].value, one.value);
  EXPECT_TRUE(table.take_completed().empty());
  table.announce();
  EXPECT_FALSE(readable(table.completion_fd())) << "it was taken before it was announced";
  EXPECT_TRUE(table.poll(one).success);  // taken is not forgotten
}

TEST(OperationTable, ADroppedOpenHandleGoesOnAndIsToldToNobody) {
  OperationTable table;
  const auto handle = table.open(2);
  table.drop(handle);
  table.finish(handle, {});
  EXPECT_EQ(table.open_count(), 1u);
  table.finish(handle, {});
  EXPECT_EQ(table.open_count(), 0u);
  EXPECT_TRUE(table.take_completed().empty());
  EXPECT_NE(table.poll(handle).message.find("unknown"), std::string::npos);
}

TEST(OperationTable, ADroppedFinishedHandleIsForgotten) {
  OperationTable table;
  const auto handle = table.open(1);
  table.finish(handle, {});
  table.drop(handle);
  table.drop(handle);
  EXPECT_TRUE(table.take_completed().empty());
  EXPECT_FALSE(table.poll(handle).success);
}

TEST(OperationTable, WhatWasNeverSentLeavesNoTrace) {
  OperationTable table;
  table.forget(table.open(2));
  EXPECT_EQ(table.open_count(), 0u);
  EXPECT_TRUE(table.take_completed().empty());
  EXPECT_TRUE(table.wait_all(0));
}

TEST(OperationTable, WaitEndsWithTheOperationOrTheTime) {
  OperationTable table;
  const auto handle = table.open(1);
  const TimePoint start = monotonic_now();
  EXPECT_FALSE(table.wait(handle, 30).done);
  EXPECT_GE((monotonic_now() - start).ns, milliseconds(30).ns);
  EXPECT_FALSE(table.wait_all(1));
  std::thread other([&] { table.finish(handle, {true, 5, {}}); });
  EXPECT_EQ(table.wait(handle, 10'000).blocks, 5u);
  other.join();
  EXPECT_TRUE(table.wait_all(10'000));
}

TEST(OperationTable, EnqueuedIsToldWhenAllTransfersStand) {
  OperationTable table;
  const auto handle = table.open(2);
  EXPECT_EQ(table.wait_enqueued(handle, 0).action, Action::kRetry);
  table.mark_enqueued(handle);
  EXPECT_EQ(table.wait_enqueued(handle, 1).action, Action::kRetry);
  std::thread other([&] { table.mark_enqueued(handle); });
  EXPECT_TRUE(table.wait_enqueued(handle, 10'000).ok());
  other.join();
  EXPECT_FALSE(table.poll(handle).done);
}

TEST(OperationTable, AnEndWithoutEnqueueingSaysWhatToDo) {
  OperationTable table;
  const auto handle = table.open(1), good = table.open(1);
  std::thread other([&] { table.finish(handle, {false, 0, "revoked"}); });
  const Outcome outcome = table.wait_enqueued(handle, 10'000);
  other.join();
  EXPECT_EQ(outcome.action, Action::kRecompute);
  EXPECT_EQ(outcome.message, "revoked");
  table.finish(good, {});
  EXPECT_TRUE(table.wait_enqueued(good, 0).ok());
  EXPECT_EQ(table.wait_enqueued({999}, 0).action, Action::kRecompute);
}

// The copy that nobody else is awake for.
TEST(OperationTable, AWaitingThreadHelpsBeforeItSleeps) {
  struct Ends final : Helper {
    OperationTable* table = nullptr;
    OperationHandle handle;
    int calls = 0;
    void help() override {
      ++calls;
      if (calls == 2) table->mark_enqueued(handle);
      if (calls == 3) table->finish(handle, {true, 4, {}});
    }
  } helper;
  OperationTable table;
  helper.table = &table;
  helper.handle = table.open(1, &helper);
  EXPECT_TRUE(table.wait_enqueued(helper.handle, 10'000).ok());
  EXPECT_EQ(helper.calls, 2);
  EXPECT_EQ(table.wait(helper.handle, 10'000).blocks, 4u);
  EXPECT_EQ(helper.calls, 3);
}

TEST(OperationTable, AReportIsThereWhenATracedOperationHasEnded) {
  OperationTable table;
  OperationReport out;
  const auto traced = table.open(2), plain = table.open(1);
  OperationReport one, two;
  one.claimed_ns = 10, one.drained_ns = 50, one.bytes = 100, one.fragments = 2;
  two.claimed_ns = 20, two.drained_ns = 40, two.bytes = 11, two.fragments = 1, two.method = "host";
  table.finish(traced, {}, &one);
  EXPECT_EQ(table.report(traced, out).action, Action::kReject);
  table.finish(traced, {}, &two);
  ASSERT_TRUE(table.report(traced, out).ok());
  EXPECT_EQ(out.claimed_ns, 20u);
  EXPECT_EQ(out.drained_ns, 50u);
  EXPECT_EQ(out.bytes, 111u);
  EXPECT_EQ(out.fragments, 3u);
  EXPECT_EQ(out.method, "host");
  table.finish(plain, {});
  EXPECT_NE(table.report(plain, out).message.find("trace_file"), std::string::npos);
  EXPECT_EQ(table.report({77}, out).action, Action::kReject);
}

}  // namespace
}  // namespace orbitkv::client
