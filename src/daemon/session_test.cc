// The shadow of the grant records: what the daemon believes of a client's words.
#include "daemon/session.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>

#include "wire/messages.h"

namespace orbitkv::daemon {
namespace {
using shm::RecordState;
using Grant = cache::Ports::Grant;
using Revoke = cache::Ports::Revoke;

constexpr SessionId kId{2};
constexpr RecordIndex kRecord{17};

class SessionTest : public testing::Test {
 protected:
  SessionTest() {
    auto memory = std::move(*shm::SessionMemory::create(kId, Epoch(5)));
    const auto again = [&] { return UniqueFd(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0)); };
    client = std::make_unique<shm::ClientChannel>(
        std::move(*shm::SessionMemory::attach(again(), kId, Epoch(5))), std::move(*shm::make_bell()));
    raw =
        std::make_unique<shm::SessionMemory>(std::move(*shm::SessionMemory::attach(again(), kId, Epoch(5))));
    session = std::make_unique<Session>(
        Session::Parts{kId, Epoch(5), "test", ::getpid(),
                       shm::ManagerChannel(std::move(memory), std::move(*shm::make_bell()))});
  }
  static cache::OperationKey key(std::uint64_t operation, RecordIndex record = kRecord) {
    return {kId, record, OperationId(operation)};
  }
  void reserve(std::uint64_t operation, RecordIndex record = kRecord) {
    raw->record(record).word.store(operation << 8 | static_cast<std::uint64_t>(RecordState::kReserved));
  }
  void set(std::uint64_t operation, unsigned state) {
    raw->record(kRecord).word.store(operation << 8 | state);
  }
  void set(std::uint64_t operation, RecordState state) { set(operation, static_cast<unsigned>(state)); }
  RecordState state(RecordIndex record = kRecord) const {
    return shm::unpack(client->load_word(record))->state;
  }
  static model::Plan plan_of(std::uint64_t operation, std::uint32_t entries,
                             model::PlanKind kind = model::PlanKind::kSave) {
    model::Plan plan{
        kind, OperationId(operation), RegistrationId(1), GroupId(0), ShardId(0), model::Encoding::kRaw, 128,
        {}};
    for (std::uint32_t i = 0; i < entries; ++i)
      plan.entries.push_back({SlabId(0), i, i * 128, AllocationId(i + 1), 1, 0});
    return plan;
  }
  // {operation, Granted}
  void granted(std::uint64_t operation, std::uint32_t entries = 3,
               model::PlanKind kind = model::PlanKind::kSave) {
    reserve(operation);
    ASSERT_TRUE(session->begin(kRecord, OperationId(operation)).ok());
    ASSERT_EQ(session->grant(key(operation), plan_of(operation, entries, kind)), Grant::kGranted);
  }
  // The client's half, with any result frame.
  void drain(std::uint64_t operation, std::span<const std::byte> result, Code code = Code::kOk) {
    const auto grant = client->read_grant(kRecord);
    client->write_bank(grant.result_offset, result);
    client->write_client_result(kRecord, code, static_cast<std::uint32_t>(result.size()), "text");
    set(operation, RecordState::kDrained);
    client->mark_dirty(kRecord);
  }
  std::vector<Session::Receipt> follow(bool all = false) {
    std::vector<Session::Receipt> receipts;
    session->follow(all, receipts);
    return receipts;
  }

  std::unique_ptr<shm::ClientChannel> client;
  std::unique_ptr<shm::SessionMemory> raw;
  std::unique_ptr<Session> session;
};

TEST_F(SessionTest, BeginsOnlyWhatTheRecordHolds) {
  EXPECT_FALSE(session->begin(kRecord, OperationId(1)).ok());  // still free
  reserve(2);
  EXPECT_FALSE(session->begin(kRecord, OperationId(1)).ok());  // another operation
  EXPECT_EQ(state(), RecordState::kReserved);
  EXPECT_EQ(session->open_operations(), 0u);
  EXPECT_FALSE(session->poisoned());  // a command that lost a race with its withdrawal
  EXPECT_TRUE(session->begin(kRecord, OperationId(2)).ok());
  EXPECT_EQ(state(), RecordState::kPreparing);
  EXPECT_TRUE(session->preparing(kRecord, OperationId(2)));
  EXPECT_EQ(session->open_operations(), 1u);
  reserve(3);
  EXPECT_FALSE(session->begin(kRecord, OperationId(3)).ok());  // in use
}

TEST_F(SessionTest, OperationIdsRise) {
  reserve(5);
  ASSERT_TRUE(session->begin(kRecord, OperationId(5)).ok());
  session->fail(key(5), busy("no"));
  EXPECT_EQ(state(), RecordState::kFailed);
  EXPECT_EQ(client->read_failure(kRecord).text, "no");
  for (const std::uint64_t operation : {4, 5}) {
    reserve(operation);
    EXPECT_FALSE(session->begin(kRecord, OperationId(operation)).ok());
  }
  reserve(6);
  EXPECT_TRUE(session->begin(kRecord, OperationId(6)).ok());
}

TEST_F(SessionTest, AGrantIsWhatTheClientReads) {
  granted(1, 40);
  const auto grant = client->read_grant(kRecord);
  wire::Buffer frame;
  client->copy_bank(grant.plan_offset, grant.plan_bytes, frame);
  const auto plan = wire::decode_plan(frame);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->entries, plan_of(1, 40).entries);
  EXPECT_GE(grant.result_bytes, wire::result_frame_bytes(model::PlanKind::kSave, 40));
}

TEST_F(SessionTest, WhatASaveLeftOutIsToldWithItsGrantAndWithoutOne) {
  reserve(1);
  ASSERT_TRUE(session->begin(kRecord, OperationId(1)).ok());
  session->drop(key(1), {7, true});
  ASSERT_EQ(session->grant(key(1), plan_of(1, 3)), Grant::kGranted);
  EXPECT_EQ(client->read_grant(kRecord).dropped, 7u);
  EXPECT_TRUE(client->read_grant(kRecord).being_made);
  EXPECT_EQ(session->revoke(key(1), busy("no")), Revoke::kRevoked);
  // Nothing of it is left for the next one.
  reserve(2);
  ASSERT_TRUE(session->begin(kRecord, OperationId(2)).ok());
  session->reap(key(2));
  EXPECT_EQ(client->read_grant(kRecord), shm::GrantFields());
  reserve(3);
  ASSERT_TRUE(session->begin(kRecord, OperationId(3)).ok());
  session->drop(key(3), {9, false});
  session->reap(key(3));
  EXPECT_EQ(client->read_grant(kRecord).dropped, 9u);
}

TEST_F(SessionTest, AReceiptEndsAClaimOnce) {
  granted(1);
  EXPECT_TRUE(follow().empty());
  set(1, RecordState::kActive);
  client->mark_dirty(kRecord);
  EXPECT_TRUE(follow().empty());  // a claim alone is no news
  wire::Buffer result;
  wire::encode(wire::PublishResult{OperationId(1), {7, 8, 9}}, result);
  drain(1, result);
  const auto receipts = follow();
  ASSERT_EQ(receipts.size(), 1u);
  EXPECT_TRUE(receipts[0].success);
  EXPECT_EQ(receipts[0].op, key(1));
  EXPECT_EQ(receipts[0].words, (std::vector<std::uint64_t>{7, 8, 9}));
  client->mark_dirty(kRecord);
  EXPECT_TRUE(follow(true).empty());
  EXPECT_FALSE(session->take_bank_freed());
  session->reap(key(1));
  EXPECT_EQ(state(), RecordState::kReaped);
  EXPECT_TRUE(session->take_bank_freed());
  EXPECT_EQ(session->open_operations(), 0u);
}

TEST_F(SessionTest, AReceiptWithoutItsDirtyBitIsFoundByLookingAtAll) {
  granted(1);
  wire::Buffer result;
  wire::encode(wire::PublishResult{OperationId(1), {7, 8, 9}}, result);
  drain(1, result);
  raw->dirty(0).store(0);
  EXPECT_TRUE(follow().empty());
  EXPECT_EQ(follow(true).size(), 1u);
}

TEST_F(SessionTest, ResultsThatDoNotFitAreFailures) {
  const auto save_of = [](std::uint64_t operation, std::size_t digests) {
    wire::Buffer out;
    wire::encode(wire::PublishResult{OperationId(operation), std::vector<std::uint64_t>(digests, 1)}, out);
    return out;
  };
  std::uint64_t operation = 0;
  for (const wire::Buffer& result :
       {wire::Buffer{}, wire::Buffer(40, std::byte{7}), save_of(99, 3), save_of(4, 2), wire::Buffer(4000)}) {
    granted(++operation);
    drain(operation, result);
    const auto receipts = follow();
    ASSERT_EQ(receipts.size(), 1u) << operation;
    EXPECT_FALSE(receipts[0].success) << operation;
    EXPECT_TRUE(receipts[0].words.empty()) << operation;
    session->reap(key(operation));
  }
  EXPECT_FALSE(session->poisoned());
}

TEST_F(SessionTest, AFailedRestoreNamesItsImages) {
  granted(1, 70, model::PlanKind::kRestore);
  wire::Buffer result;
  wire::encode(wire::RestoreResult{OperationId(1), 70, {4, 1}}, result);
  drain(1, result, Code::kRecompute);
  const auto receipts = follow();
  ASSERT_EQ(receipts.size(), 1u);
  EXPECT_FALSE(receipts[0].success);
  EXPECT_EQ(receipts[0].words, (std::vector<std::uint64_t>{4, 1}));
  EXPECT_EQ(receipts[0].text, "text");
}

TEST_F(SessionTest, RevokeRacesWithTheClaim) {
  granted(1);
  EXPECT_EQ(session->revoke(key(1), reconnect("closed")), Revoke::kRevoked);
  EXPECT_EQ(state(), RecordState::kRevoked);
  EXPECT_EQ(session->open_operations(), 0u);
  EXPECT_TRUE(session->take_bank_freed());
  granted(2);
  set(2, RecordState::kActive);
  const shm::GrantFields grant = client->read_grant(kRecord);
  EXPECT_GT(grant.plan_bytes, 0u);
  EXPECT_EQ(session->revoke(key(2), reconnect("closed")), Revoke::kAlreadyClaimed);
  EXPECT_EQ(client->read_grant(kRecord), grant) << "a claim keeps its plan";
  EXPECT_EQ(state(), RecordState::kActive);
  EXPECT_EQ(session->open_operations(), 1u);
}

TEST_F(SessionTest, AFullBankGrantsNothingAndLosesNothing) {
  std::uint32_t granted_records = 0;
  for (std::uint32_t r = 0; r < 40; ++r) {
    const RecordIndex record(r);
    reserve(1 + r, record);
    ASSERT_TRUE(session->begin(record, OperationId(1 + r)).ok());
    if (session->grant(key(1 + r, record), plan_of(1 + r, 1000)) == Grant::kBankFull) {
      EXPECT_EQ(state(record), RecordState::kPreparing);
      break;
    }
    ++granted_records;
  }
  ASSERT_GT(granted_records, 10u);
  ASSERT_LT(granted_records, 40u);
  const std::uint64_t waiting = 1 + granted_records;
  EXPECT_EQ(session->revoke(key(1, RecordIndex(0)), busy("")), Revoke::kRevoked);
  EXPECT_EQ(session->grant(key(waiting, RecordIndex(granted_records)), plan_of(waiting, 1000)),
            Grant::kGranted);
}

// Every word that a client may not have written from Granted.
class ImpossibleWord : public SessionTest, public testing::WithParamInterface<unsigned> {};
INSTANTIATE_TEST_SUITE_P(States, ImpossibleWord, testing::Values(0, 1, 2, 6, 7, 8, 9, 10, 200));

TEST_P(ImpossibleWord, Poisons) {
  granted(1);
  set(1, GetParam());
  client->mark_dirty(kRecord);
  EXPECT_TRUE(follow().empty());
  EXPECT_TRUE(session->poisoned());
}

TEST_F(SessionTest, AnotherOperationInAnOpenRecordPoisons) {
  granted(1);
  set(2, RecordState::kReserved);
  client->mark_dirty(kRecord);
  EXPECT_TRUE(follow().empty());
  EXPECT_TRUE(session->poisoned());
}

TEST_F(SessionTest, DirtyBitsOfRecordsThatAreNotOpenMeanNothing) {
  for (std::uint32_t w = 0; w < limits::kRecords / 64; ++w) raw->dirty(w).store(~std::uint64_t{0});
  set(77, RecordState::kDrained);
  EXPECT_TRUE(follow(true).empty());
  EXPECT_FALSE(session->poisoned());
}

TEST_F(SessionTest, APoisonedSessionStaysPoisonedAndIsNotRead) {
  granted(1);
  set(1, RecordState::kReaped);
  client->mark_dirty(kRecord);
  EXPECT_TRUE(follow().empty());
  EXPECT_TRUE(session->poisoned());
  wire::Buffer result;
  wire::encode(wire::PublishResult{OperationId(1), {7, 8, 9}}, result);
  drain(1, result);
  EXPECT_TRUE(follow(true).empty());
  EXPECT_EQ(session->revoke(key(1), reconnect("closed")), Revoke::kAlreadyClaimed);
}

}  // namespace
}  // namespace orbitkv::daemon
