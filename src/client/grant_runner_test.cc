// What a grant may make a client do: never more than it asked for, never outside what
// it registered and mapped, and always ended by a receipt once it was claimed.
#include "client/grant_runner.h"

#include <gtest/gtest.h>

#include <functional>

#include "client/fake_manager_suite.h"
#include "device/host/host_copier.h"

namespace orbitkv::client {
namespace {
using shm::RecordState;

class Grant : public testing::Test {
 protected:
  void SetUp() override {
    link = manager.attach();
    ASSERT_NE(link, nullptr);
    manager.offer(*link, SlabId(4));
    entry = std::move(*make_entry(one_layer(pages), 1, *host));
    entry->registration.store(9);
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::byte>(i * 7);
    part.entry = entry.get();
    part.group = &entry->groups[0];
    part.blocks = {1, kHole, 3, 5};
    part.ref = link->reserve(1)->front();
  }
  std::uint64_t slot_bytes() const { return part.group->layout.slot_bytes; }
  model::Plan plan_of(model::PlanKind kind) {
    part.kind = kind;
    model::Plan plan{kind,       part.ref.operation,    RegistrationId(9), GroupId(0),
                     ShardId(0), model::Encoding::kRaw, slot_bytes(),      {}};
    for (std::uint32_t i = 0; i < 3; ++i)
      plan.entries.push_back({SlabId(4), 1 + 2 * i, i * slot_bytes(), AllocationId(100 + i), 55, 0});
    return plan;
  }
  // Looks, and carries out what is granted, until the part has ended or nothing changes.
  std::optional<TransferOutcome> step() {
    part.state = PartState::kAsked;
    runner.look(*link, part);
    if (part.state == PartState::kGranted && runner.claim(*link, part)) {
      device::CopyBatch batch;
      batch.direction =
          part.kind == model::PlanKind::kSave ? device::Direction::kSave : device::Direction::kRestore;
      batch.groups.push_back({&part.group->geometry, part.slots});
      auto ticket = copier->submit(std::move(batch));
      runner.finish(*link, part, ticket.ok() ? copier->drain(*ticket).status : Status(ticket.error()));
    }
    if (part.state == PartState::kEnded) return part.outcome;
    return std::nullopt;
  }
  shm::ManagerChannel::ClientResult receipt() {
    return manager.channel().read_client_result(part.ref.record);
  }

  FakeManager manager;
  std::vector<std::byte> pages = std::vector<std::byte>(8 * 512);
  std::unique_ptr<Attachment> link;
  std::unique_ptr<Entry> entry;
  std::unique_ptr<device::Device> host = device::make_host_device();
  std::unique_ptr<device::Copier> copier = device::make_host_copier();
  GrantRunner runner{milliseconds(20)};
  Part part;
};

TEST_F(Grant, IsNotThereYet) {
  EXPECT_FALSE(step());
}

TEST_F(Grant, SavesAndRestoresWhatItNames) {
  auto plan = plan_of(model::PlanKind::kSave);
  manager.grant(part.ref, plan);
  auto outcome = step();
  ASSERT_TRUE(outcome && outcome->success) << outcome->message;
  EXPECT_EQ(outcome->blocks, 3u);
  EXPECT_EQ(manager.state(part.ref), RecordState::kDrained);
  wire::Buffer bytes;
  manager.channel().copy_bank(64 * 1024, receipt().result_bytes, bytes);
  const auto result = wire::decode_publish_result(bytes);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->digests.size(), 3u);

  const auto before = pages;
  std::fill(pages.begin(), pages.end(), std::byte{0});
  part.ref = link->reserve(1)->front();
  plan = plan_of(model::PlanKind::kRestore);
  for (std::uint32_t i = 0; i < 3; ++i) plan.entries[i].digest = result->digests[i];
  manager.grant(part.ref, plan);
  outcome = step();
  ASSERT_TRUE(outcome && outcome->success) << outcome->message;
  for (std::uint32_t block = 0; block < 8; ++block) {
    const bool named = block == 1 || block == 3 || block == 5;
    for (std::size_t i = 0; i < 512; ++i)
      ASSERT_EQ(pages[block * 512 + i], named ? before[block * 512 + i] : std::byte{0}) << block << ' ' << i;
  }
}

TEST_F(Grant, WhatASaveDidNotCopyWasThereOrWasDropped) {
  const auto asked = static_cast<std::uint32_t>(part.blocks.size());
  wire::Buffer frame;
  wire::encode(plan_of(model::PlanKind::kSave), frame);
  const shm::GrantFields fields{0, static_cast<std::uint32_t>(frame.size()), 64 * 1024, 64 * 1024, 1, true};
  manager.grant(part.ref, plan_of(model::PlanKind::kSave), fields);
  auto outcome = step();
  ASSERT_TRUE(outcome && outcome->success) << outcome->message;
  ASSERT_GT(asked, 3u);
  EXPECT_EQ(outcome->blocks, 3u);
  EXPECT_EQ(outcome->dropped, 1u);
  EXPECT_TRUE(outcome->being_made);
  EXPECT_EQ(outcome->resident, asked - 4);

  // Nothing to copy, and more dropped than were asked for: what no honest Manager says.
  part.ref = link->reserve(1)->front();
  manager.reap(part.ref, 1000);
  outcome = step();
  ASSERT_TRUE(outcome && outcome->success);
  EXPECT_EQ(outcome->blocks + outcome->resident, 0u);
  EXPECT_EQ(outcome->dropped, asked);
}

TEST_F(Grant, AWrongImageIsNamedInTheReceipt) {
  auto plan = plan_of(model::PlanKind::kSave);
  manager.grant(part.ref, plan);
  ASSERT_TRUE(step()->success);
  wire::Buffer bytes;
  manager.channel().copy_bank(64 * 1024, receipt().result_bytes, bytes);
  const auto digests = wire::decode_publish_result(bytes)->digests;
  part.ref = link->reserve(1)->front();
  plan = plan_of(model::PlanKind::kRestore);
  for (std::uint32_t i = 0; i < 3; ++i) plan.entries[i].digest = digests[i];
  manager.slab()[1 * slot_bytes() + part.group->layout.header_bytes + 9] ^= std::byte{4};
  manager.grant(part.ref, plan);
  const auto outcome = step();
  ASSERT_TRUE(outcome);
  EXPECT_FALSE(outcome->success);
  EXPECT_EQ(outcome->blocks, 0u);
  manager.channel().copy_bank(64 * 1024, receipt().result_bytes, bytes);
  const auto result = wire::decode_restore_result(bytes);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->failed, std::vector<std::uint64_t>{2});
}

// A grant that cannot be right: refused whole, by a receipt that blames no image.
struct BadPlan {
  const char* name;
  std::function<void(model::Plan&, shm::GrantFields&)> change;
};
class BadGrant : public Grant, public testing::WithParamInterface<BadPlan> {};

TEST_P(BadGrant, TouchesNothing) {
  const std::vector<std::byte> slab(manager.slab(), manager.slab() + FakeManager::kSlabBytes);
  auto plan = plan_of(model::PlanKind::kSave);
  wire::Buffer frame;
  wire::encode(plan, frame);
  shm::GrantFields fields{0, static_cast<std::uint32_t>(frame.size()), 64 * 1024, 64 * 1024};
  GetParam().change(plan, fields);
  manager.grant(part.ref, plan, fields);
  auto outcome = step();
  for (int i = 0; i < 1000 && !outcome; ++i) {  // a slab may still come
    usleep(1000);
    outcome = step();
  }
  ASSERT_TRUE(outcome);
  EXPECT_FALSE(outcome->success);
  EXPECT_EQ(outcome->blocks, 0u);
  EXPECT_EQ(manager.state(part.ref), RecordState::kDrained);
  EXPECT_NE(receipt().code, 0);
  EXPECT_EQ(receipt().result_bytes, 0u);
  EXPECT_TRUE(std::equal(slab.begin(), slab.end(), manager.slab()));
}

constexpr std::uint64_t kEnd = FakeManager::kSlabBytes;
INSTANTIATE_TEST_SUITE_P(
    Plans, BadGrant,
    testing::Values(
        BadPlan{"BlockNotAskedFor", [](auto& p, auto&) { p.entries[1].block = 2; }},
        BadPlan{"BlocksOutOfOrder", [](auto& p, auto&) { std::swap(p.entries[0], p.entries[1]); }},
        BadPlan{"BlockTwice", [](auto& p, auto&) { p.entries[1].block = 1; }},
        BadPlan{"BeyondTheSlab", [](auto& p, auto&) { p.entries[2].offset = kEnd; }},
        BadPlan{"OverTheEndOfTheSlab", [](auto& p, auto&) { p.entries[2].offset = kEnd - 64; }},
        BadPlan{"UnknownSlab", [](auto& p, auto&) { p.entries[2].slab = SlabId(5); }},
        BadPlan{"OtherSlotBytes", [](auto& p, auto&) { p.slot_bytes += 128; }},
        BadPlan{"OtherRegistration", [](auto& p, auto&) { p.registration = RegistrationId(8); }},
        BadPlan{"OtherOperation", [](auto& p, auto&) { p.operation = OperationId(999); }},
        BadPlan{"OtherGroup", [](auto& p, auto&) { p.group = GroupId(1); }},
        BadPlan{"OtherShard", [](auto& p, auto&) { p.shard = ShardId(1); }},
        BadPlan{"OtherKind", [](auto& p, auto&) { p.kind = model::PlanKind::kRestore; }},
        BadPlan{"PlanOutOfTheBank", [](auto&, auto& f) { f.plan_offset = limits::kPlanBankBytes - 8; }},
        BadPlan{"ResultOutOfTheBank", [](auto&, auto& f) { f.result_offset = 0xFFFFFFF0; }},
        BadPlan{"ResultTooSmall", [](auto&, auto& f) { f.result_bytes = 8; }},
        BadPlan{"PlanCutShort", [](auto&, auto& f) { f.plan_bytes -= 8; }}),
    [](const auto& named) { return named.param.name; });

TEST_F(Grant, AnUnmappedSlabIsWaitedForElsewhere) {
  auto plan = plan_of(model::PlanKind::kSave);
  plan.entries[0].slab = SlabId(6);
  manager.grant(part.ref, plan);
  EXPECT_FALSE(step());  // nobody waits for it here
  EXPECT_EQ(manager.state(part.ref), RecordState::kGranted);
}

TEST_F(Grant, ARevokedGrantIsNotClaimed) {
  manager.grant(part.ref, plan_of(model::PlanKind::kSave));
  manager.channel().write_failure(part.ref.record, Code::kReconnect, "closed");
  manager.channel().exchange(part.ref.record, {part.ref.operation, RecordState::kGranted},
                             {part.ref.operation, RecordState::kRevoked});
  const auto outcome = step();
  ASSERT_TRUE(outcome);
  EXPECT_FALSE(outcome->success);
  EXPECT_EQ(outcome->message, "closed");
  EXPECT_EQ(manager.state(part.ref), RecordState::kRevoked);
}

TEST_F(Grant, ALostManagersUnclaimedGrantIsLeftAlone) {
  manager.grant(part.ref, plan_of(model::PlanKind::kSave));
  link->lose();
  const auto outcome = step();
  ASSERT_TRUE(outcome);
  EXPECT_FALSE(outcome->success);
  EXPECT_EQ(manager.state(part.ref), RecordState::kGranted);
}

TEST_F(Grant, ARecordThatChangedUnderItsOperationEndsTheSession) {
  part.ref.operation = OperationId(part.ref.operation.value + 1);
  const auto outcome = step();
  ASSERT_TRUE(outcome);
  EXPECT_FALSE(outcome->success);
  EXPECT_TRUE(link->lost());
}

// Pointers into a slab are good until the part has ended, whatever the Manager says meanwhile.
TEST_F(Grant, HoldsItsSlabFromTheLookToTheReceipt) {
  const auto plan = plan_of(model::PlanKind::kSave);
  manager.grant(part.ref, plan);
  runner.look(*link, part);
  ASSERT_EQ(part.state, PartState::kGranted);
  link->slabs().retire(SlabId(4));
  EXPECT_TRUE(link->slabs().collect_released().empty());
  ASSERT_TRUE(runner.claim(*link, part));
  EXPECT_TRUE(link->slabs().collect_released().empty());
  part.slots[0].image[0] = std::byte{1};
  EXPECT_EQ(manager.slab()[0], std::byte{1});
  runner.finish(*link, part, recompute("scripted"));
  EXPECT_TRUE(part.slabs.empty());
  std::vector<SlabId> released;
  for (int i = 0; i < 1000 && released.empty(); ++i) {
    released = link->slabs().collect_released();
    ::usleep(1000);
  }
  EXPECT_EQ(released, std::vector{SlabId(4)});
}

TEST_F(Grant, OnASlabThatRetiresIsDeclinedAtOnce) {
  link->slabs().retire(SlabId(4));
  manager.grant(part.ref, plan_of(model::PlanKind::kSave));
  const auto outcome = step();
  ASSERT_TRUE(outcome);
  EXPECT_FALSE(outcome->success);
  EXPECT_NE(outcome->message.find("slab 4 retires"), std::string::npos) << outcome->message;
  EXPECT_EQ(manager.state(part.ref), RecordState::kDrained);
}

TEST_F(Grant, ThatIsRevokedLetsGoOfItsSlab) {
  manager.grant(part.ref, plan_of(model::PlanKind::kSave));
  runner.look(*link, part);
  ASSERT_EQ(part.slabs.size(), 1u);
  manager.channel().write_failure(part.ref.record, Code::kRecompute, "it retires");
  manager.channel().exchange(part.ref.record, {part.ref.operation, RecordState::kGranted},
                             {part.ref.operation, RecordState::kRevoked});
  EXPECT_FALSE(runner.claim(*link, part));
  EXPECT_TRUE(part.slabs.empty());
}

}  // namespace
}  // namespace orbitkv::client
