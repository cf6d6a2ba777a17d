#include "client/submit.h"

#include <gtest/gtest.h>

namespace orbitkv::client {
namespace {

// No Manager: what is refused before anything could be sent, and what that leaves behind.
class Submit : public testing::Test {
 protected:
  Submit() {
    Registration registration;
    registration.instance.bytes.fill(std::byte{1});
    registration.name_space = "test";
    registration.num_blocks = 8;
    registration.block_tokens = 16;
    registration.groups = {Group{}};
    Layer layer;
    layer.name = "only";
    layer.base = pages.data();
    layer.bytes = pages.size();
    layer.block_stride = layer.row_bytes = 512;
    registration.layers = {layer};
    registry.entries.emplace(1, std::move(*make_entry(registration, 1)));
  }
  Code save(std::uint64_t handle, const SaveGroup& group) {
    const Status status = submitter.save({handle}, {&group, 1}, out);
    return status.ok() ? Code::kOk : status.error().code();
  }
  void expect_nothing_left() {
    EXPECT_EQ(registry.entries.at(1)->open_parts.load(), 0u);
    EXPECT_EQ(operations.open_count(), 0u);
  }

  std::vector<std::byte> pages = std::vector<std::byte>(8 * 512);
  std::vector<std::uint32_t> blocks = {1, 2};
  std::vector<BlockHash> hashes = std::vector<BlockHash>(2);
  Options options;
  Link link;
  OperationTable operations;
  Registry registry;
  Executor executor{link, operations, true};
  Submitter submitter{link, operations, executor, registry, options};
  OperationHandle out;
};

TEST_F(Submit, WithoutAManagerNothingIsLent) {
  EXPECT_EQ(save(1, {0, blocks, hashes}), Code::kReconnect);
  expect_nothing_left();
}

TEST_F(Submit, CountsThatDifferAreRefused) {
  EXPECT_EQ(save(1, {0, blocks, std::span(hashes).first(1)}), Code::kReject);
  expect_nothing_left();
}

TEST_F(Submit, UnknownAndClosingRegistrationsAreRefused) {
  EXPECT_EQ(save(2, {0, blocks, hashes}), Code::kReject);
  registry.entries.at(1)->closing = true;
  EXPECT_EQ(save(1, {0, blocks, hashes}), Code::kReject);
  expect_nothing_left();
}

TEST_F(Submit, ALoadNeedsALease) {
  const Load load{{}, 0, blocks};
  const Status status = submitter.restore({1}, {&load, 1}, out);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::kReject);
  expect_nothing_left();
}

TEST_F(Submit, AClosedClientTakesNothing) {
  submitter.close();
  EXPECT_EQ(save(1, {0, blocks, hashes}), Code::kReconnect);
  expect_nothing_left();
}

TEST_F(Submit, PartsOfASessionThatIsGoneEndWithoutIt) {
  const auto handle = operations.open(1);
  auto part = std::make_unique<Part>();
  part->handle = handle;
  part->entry = registry.entries.at(1).get();
  part->entry->open_parts = 1;
  part->session = Epoch(12);
  executor.add(std::move(part));
  const auto status = operations.wait(handle, 10'000);
  EXPECT_TRUE(status.done);
  EXPECT_FALSE(status.success);
  executor.wait_empty();
  expect_nothing_left();
}

}  // namespace
}  // namespace orbitkv::client
