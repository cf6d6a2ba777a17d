#include "client/submit.h"

#include <gtest/gtest.h>

#include "client/fake_device_suite.h"
#include "client/fake_manager_suite.h"
#include "device/host/host_copier.h"

namespace orbitkv::client {
namespace {

// No Manager: what is refused before anything could be sent, and what that leaves behind.
class Submit : public testing::Test {
 protected:
  Submit() { add(1, *host), add(7, gpu); }
  void add(std::uint64_t handle, device::Device& device) {
    auto entry = std::move(*make_entry(one_layer(pages), handle, device));
    entry->executor = *executors.on(device);
    registry.entries.emplace(handle, std::move(entry));
  }
  Code save(std::uint64_t handle, const SaveGroup& group) {
    const Status status = submitter.save({handle}, {&group, 1}, {}, out);
    return status.ok() ? Code::kOk : status.error().code();
  }
  void expect_nothing_left() {
    for (const auto& [handle, entry] : registry.entries) EXPECT_EQ(entry->open_transfers.load(), 0u);
    EXPECT_EQ(gpu.fences, 0);
    executors.wait_empty();
    EXPECT_EQ(operations.open_count(), 0u);
  }

  std::vector<std::byte> pages = std::vector<std::byte>(8 * 512);
  std::vector<std::uint32_t> blocks = {1, 2};
  std::vector<BlockHash> hashes = std::vector<BlockHash>(2);
  Options options;
  Link link;
  OperationTable operations;
  Registry registry;
  FakeDevice gpu;
  std::unique_ptr<device::Device> host = device::make_host_device();
  Executors executors{operations, {}, nullptr};
  Submitter submitter{link, operations, registry, options};
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
  const Status status = submitter.restore({1}, {&load, 1}, {}, out);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::kReject);
  expect_nothing_left();
}

TEST_F(Submit, AClosedClientTakesNothing) {
  submitter.close();
  EXPECT_EQ(save(1, {0, blocks, hashes}), Code::kReconnect);
  expect_nothing_left();
}

TEST_F(Submit, WhatTheDeviceCannotDoIsRefusedBeforeAnythingIsSent) {
  const Load load{LeaseId{{std::byte{1}}}, 0, blocks};
  const auto restore = [&](std::uint64_t handle, const RestoreOptions& how) {
    const Status status = submitter.restore({handle}, {&load, 1}, how, out);
    return status.ok() ? Error(Code::kBug, "taken") : status.error();
  };
  const LayerEvent event{"only", 5}, unknown{"other", 5};
  EXPECT_EQ(restore(1, {0, {&event, 1}}).code(), Code::kReject) << "no streams";
  EXPECT_NE(restore(7, {0, {&unknown, 1}}).message().find("other"), std::string::npos);
  EXPECT_EQ(restore(7, {666, {&event, 1}}).message(), "not a stream of this device");
  EXPECT_EQ(restore(7, {0, {&event, 1}}).code(), Code::kReconnect) << "all of it is right";
  const std::vector<Load> many(limits::kRestoresPerDevice + 1, load);
  EXPECT_EQ(submitter.restore({7}, many, {0, {&event, 1}}, out).error().code(), Code::kReject);
  EXPECT_EQ(submitter.restore({7}, many, {}, out).error().code(), Code::kReconnect) << "several transfers";
  expect_nothing_left();
}

}  // namespace
}  // namespace orbitkv::client
