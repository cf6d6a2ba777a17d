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

TEST(OperationTable, AHandleIsDoneWithItsLastPart) {
  OperationTable table;
  const auto handle = table.open(3);
  table.finish_part(handle, {true, 4, {}});
  table.finish_part(handle, {true, 2, {}});
  EXPECT_FALSE(table.poll(handle).done);
  EXPECT_FALSE(readable(table.completion_fd()));
  EXPECT_EQ(table.open_count(), 1u);
  table.finish_part(handle, {true, 1, {}});
  const auto status = table.poll(handle);
  EXPECT_TRUE(status.done && status.success);
  EXPECT_EQ(status.blocks, 7u);
  EXPECT_TRUE(readable(table.completion_fd()));
  EXPECT_EQ(table.open_count(), 0u);
}

TEST(OperationTable, OneFailedPartFailsTheWholeAndTheFirstTextStays) {
  OperationTable table;
  const auto handle = table.open(3);
  table.finish_part(handle, {true, 4, {}});
  table.finish_part(handle, {false, 0, "first"});
  table.finish_part(handle, {false, 0, "second"});
  const auto status = table.poll(handle);
  EXPECT_TRUE(status.done);
  EXPECT_FALSE(status.success);
  EXPECT_EQ(status.blocks, 4u);
  EXPECT_EQ(status.message, "first");
}

TEST(OperationTable, CompletionsAreTakenOnce) {
  OperationTable table;
  const auto one = table.open(1), nothing = table.open(0);
  table.finish_part(one, {});
  const auto taken = table.take_completed();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].value, nothing.value);  // nothing to do: done when it was opened
  EXPECT_EQ(taken[1].value, one.value);
  EXPECT_TRUE(table.take_completed().empty());
  EXPECT_FALSE(readable(table.completion_fd()));
  EXPECT_TRUE(table.poll(one).success);  // taken is not forgotten
}

TEST(OperationTable, ADroppedOpenHandleGoesOnAndIsToldToNobody) {
  OperationTable table;
  const auto handle = table.open(2);
  table.drop(handle);
  table.finish_part(handle, {});
  EXPECT_EQ(table.open_count(), 1u);
  table.finish_part(handle, {});
  EXPECT_EQ(table.open_count(), 0u);
  EXPECT_TRUE(table.take_completed().empty());
  EXPECT_NE(table.poll(handle).message.find("unknown"), std::string::npos);
}

TEST(OperationTable, ADroppedFinishedHandleIsForgotten) {
  OperationTable table;
  const auto handle = table.open(1);
  table.finish_part(handle, {});
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
  std::thread other([&] { table.finish_part(handle, {true, 5, {}}); });
  EXPECT_EQ(table.wait(handle, 10'000).blocks, 5u);
  other.join();
  EXPECT_TRUE(table.wait_all(10'000));
}

}  // namespace
}  // namespace orbitkv::client
