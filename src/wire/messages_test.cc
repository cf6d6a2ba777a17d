#include "wire/messages.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/limits.h"
#include "wire/decoders_suite.h"

namespace orbitkv::wire {
namespace {

using suite::encoded;
using suite::kBlocks;
using suite::kHashes;
using suite::kInstance;
using suite::kLease;

std::vector<BlockHash> many_hashes(std::uint32_t n) {
  std::vector<BlockHash> hashes(n);
  for (std::uint32_t i = 0; i < n; ++i) std::memcpy(hashes[i].bytes.data(), &i, 4);
  return hashes;
}

TEST(Messages, QueryKeepsEveryField) {
  const Buffer frame =
      encoded(QueryRequest{kInstance, GroupId(3), QueryMode::kDiscover, "request", 10, 12, kHashes});
  const auto m = decode_query_request(frame);
  ASSERT_TRUE(m.ok()) << m.error().message();
  EXPECT_EQ(m->instance, kInstance);
  EXPECT_EQ(m->group, GroupId(3));
  EXPECT_EQ(m->mode, QueryMode::kDiscover);
  EXPECT_EQ(m->request_id, "request");
  EXPECT_EQ(m->first, 10u);
  EXPECT_EQ(m->total, 12u);
  ASSERT_EQ(m->hashes.size(), 2u);
  EXPECT_EQ(m->hashes[1], kHashes[1]);
}

TEST(Messages, ViewsLieInsideTheFrame) {
  const Buffer frame = encoded(QueryRequest{kInstance, GroupId(0), QueryMode::kRead, "id", 0, 2, kHashes});
  const auto m = decode_query_request(frame);
  ASSERT_TRUE(m.ok());
  const auto* begin = reinterpret_cast<const char*>(frame.data());
  EXPECT_EQ(m->request_id.data() + m->request_id.size(), begin + frame.size());
  EXPECT_EQ(static_cast<const void*>(m->hashes.data()), begin + kFrameHeaderBytes + 48);
}

TEST(Messages, DecodersNeedNoAlignment) {
  for (const suite::DecoderCase& c : suite::slot_cases())
    for (std::size_t shift = 0; shift < 8; ++shift) {
      Buffer moved(shift);
      moved.insert(moved.end(), c.sample.begin(), c.sample.end());
      EXPECT_EQ(c.probe(std::span(moved).subspan(shift)), suite::Verdict::kAccepted) << c.name << shift;
    }
}

TEST(Messages, EncodersAppend) {
  Buffer out = encoded(RestoreReply{1});
  const std::size_t first = out.size();
  encode(RestoreReply{2}, out);
  EXPECT_EQ(decode_restore_reply(std::span(out).subspan(first))->blocks, 2u);
  EXPECT_EQ(decode_restore_reply(std::span(out).first(first))->blocks, 1u);
}

TEST(Messages, InPlaceQueryIsTheSameFrame) {
  const QueryRequest m{kInstance, GroupId(1), QueryMode::kRead, "request", 0, 2, kHashes};
  std::vector<std::byte> slot(limits::kDescriptorSlotBytes, std::byte{0xEE});
  const std::size_t bytes = encode_into(m, slot);
  EXPECT_EQ(bytes, query_frame_bytes(m));
  EXPECT_TRUE(std::ranges::equal(std::span(slot).first(bytes), encoded(m)));
  EXPECT_EQ(slot[bytes], std::byte{0xEE});
}

TEST(Messages, ReplyBitmapsHaveOneBitAHash) {
  const Buffer frame = encoded(QueryReply{100, 65, 101, Revision(7), kLease, {0x8000000000000001, 1}});
  const auto m = decode_query_reply(frame);
  ASSERT_TRUE(m.ok());
  EXPECT_EQ(m->resident, (std::vector<std::uint64_t>{0x8000000000000001, 1}));
  EXPECT_EQ(m->hit_blocks, 101u);
  EXPECT_EQ(m->revision, Revision(7));
  EXPECT_EQ(m->lease, kLease);
}

TEST(Messages, AQueryMayAskForAnEarlyLease) {
  QueryRequest asked{kInstance, GroupId(0), QueryMode::kRead, "id", 0, 2, kHashes};
  EXPECT_FALSE(decode_query_request(encoded(asked))->early_lease);
  asked.early_lease = true;
  EXPECT_TRUE(decode_query_request(encoded(asked))->early_lease);
}

TEST(Messages, AReadIsForNowOrAheadOfNeed) {
  QueryRequest asked{kInstance, GroupId(0), QueryMode::kRead, "id", 0, 2, kHashes};
  asked.full_prefix = asked.early_lease = true;
  auto read = decode_query_request(encoded(asked));
  EXPECT_TRUE(read->full_prefix && read->early_lease && !read->prepare);
  asked.full_prefix = asked.early_lease = false;
  asked.prepare = true;
  read = decode_query_request(encoded(asked));
  EXPECT_TRUE(!read->full_prefix && !read->early_lease && read->prepare);
  RecoveryRequest set{kInstance, "id", 0, 64, 0, 2, kHashes};
  EXPECT_FALSE(decode_recovery_request(encoded(set))->prepare);
  set.prepare = true;
  EXPECT_TRUE(decode_recovery_request(encoded(set))->prepare);
}

TEST(Messages, ALeaseSaysWhetherItWasToldBefore) {
  QueryReply reply{0, 1, 1, Revision(7), kLease, {1}};
  EXPECT_FALSE(decode_query_reply(encoded(reply))->again);
  reply.again = true;
  EXPECT_TRUE(decode_query_reply(encoded(reply))->again);
  reply.lease = {};
  EXPECT_EQ(decode_query_reply(encoded(reply)).error().message(), "query reply: no lease was told before");
  QueryReply waits{0, 1, 1, Revision(7), {}, {1}, {}, true};
  waits.admitted = false;
  EXPECT_FALSE(decode_query_reply(encoded(waits))->admitted);
  TicketReply ticket{TicketState::kReady, Missing::kNone,           {}, true, 1,
                     Revision(7),         {{GroupId(0), 1, kLease}}};
  EXPECT_FALSE(decode_ticket_reply(encoded(ticket))->again);
  ticket.again = true;
  EXPECT_TRUE(decode_ticket_reply(encoded(ticket))->again);
  ticket.state = TicketState::kLoading;
  ticket.leases.clear();
  EXPECT_FALSE(decode_ticket_reply(encoded(ticket)).ok());
}

TEST(Messages, AHintFillsOneFrame) {
  const std::vector<BlockHash> hashes(warm_hashes_per_frame(3));
  EXPECT_GE(hashes.size(), 2000u);
  const Buffer frame = encoded(WarmRequest{kInstance, GroupId(1), "abc", 5, 6, 7, 100, hashes});
  EXPECT_LE(frame.size(), limits::kDescriptorSlotBytes);
  const auto m = decode_warm_request(frame);
  ASSERT_TRUE(m.ok()) << m.error().message();
  EXPECT_EQ(m->hashes.size(), hashes.size());
  EXPECT_EQ(m->request_id, "abc");
  EXPECT_EQ(m->first_use_ms, 5u);
  EXPECT_EQ(m->max_wait_ms, 6u);
  EXPECT_EQ(m->priority, 7u);
  EXPECT_EQ(m->confidence, 100u);
}

TEST(Messages, AReplySaysWhatIsStoredAndWhatLoads) {
  const Buffer frame = encoded(QueryReply{0, 65, 3, Revision(7), {}, {1, 0}, {0x8000000000000000, 1}, true});
  const auto m = decode_query_reply(frame);
  ASSERT_TRUE(m.ok());
  EXPECT_TRUE(m->loading);
  EXPECT_EQ(m->stored, (std::vector<std::uint64_t>{0x8000000000000000, 1}));
  const auto plain = decode_query_reply(encoded(QueryReply{0, 65, 3, Revision(7), kLease, {1, 0}}));
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE(plain->loading);
  EXPECT_TRUE(plain->stored.empty());
}

TEST(Messages, PublishAndRestoreKeepBlocks) {
  const auto blocks = std::as_bytes(std::span(kBlocks));
  const Buffer publish =
      encoded(PublishRequest{RegistrationId(1), GroupId(2), OperationId(3), RecordIndex(4), blocks, kHashes});
  const auto p = decode_publish_request(publish);
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->count(), 2u);
  EXPECT_EQ(p->block_id(0), kBlocks[0]);
  EXPECT_EQ(p->block_id(1), kBlocks[1]);
  EXPECT_EQ(p->registration, RegistrationId(1));
  EXPECT_EQ(p->operation, OperationId(3));
  EXPECT_EQ(p->record, RecordIndex(4));

  const Buffer restore =
      encoded(RestoreRequest{RegistrationId(1), OperationId(3), RecordIndex(4), kLease, 9, blocks});
  const auto r = decode_restore_request(restore);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->count(), 2u);
  EXPECT_EQ(r->target(1), kBlocks[1]);
  EXPECT_EQ(r->first, 9u);
  EXPECT_EQ(r->lease, kLease);
  EXPECT_DEATH(r->target(2), "index beyond");
}

// ---- sizes at the limits ----

TEST(Messages, AFullQueryPartFillsASlotAndNoMore) {
  for (const std::size_t id_bytes : {0u, 1u, 36u, 256u}) {
    const std::string id(id_bytes, 'r');
    const auto hashes = many_hashes(query_hashes_per_frame(id_bytes));
    const auto total = static_cast<std::uint32_t>(hashes.size());
    const Buffer frame = encoded(QueryRequest{kInstance, GroupId(0), QueryMode::kRead, id, 0, total, hashes});
    EXPECT_LE(frame.size(), limits::kDescriptorSlotBytes);
    EXPECT_GT(frame.size() + sizeof(BlockHash), limits::kDescriptorSlotBytes);
    EXPECT_TRUE(decode_query_request(frame).ok());
    const QueryReply reply{0, total, 0, {}, {}, std::vector<std::uint64_t>((total + 63) / 64)};
    EXPECT_TRUE(decode_query_reply(encoded(reply)).ok()) << "a reply fits every part";
  }
}

TEST(Messages, AFullPublishFillsASlotAndNoMore) {
  const auto hashes = many_hashes(publish_blocks_per_frame());
  const std::vector<std::uint32_t> blocks(hashes.size(), 5);
  const Buffer frame = encoded(PublishRequest{RegistrationId(1), GroupId(0), OperationId(1), RecordIndex(0),
                                              std::as_bytes(std::span(blocks)), hashes});
  EXPECT_LE(frame.size(), limits::kDescriptorSlotBytes);
  EXPECT_GT(frame.size() + 36, limits::kDescriptorSlotBytes);
  EXPECT_TRUE(decode_publish_request(frame).ok());
}

TEST(Messages, AFullRestoreIsAFullGrant) {
  EXPECT_EQ(restore_blocks_per_frame(), limits::kBlocksPerGrant);
  const std::vector<std::uint32_t> blocks(restore_blocks_per_frame(), kHole);
  const Buffer frame = encoded(RestoreRequest{RegistrationId(1), OperationId(1), RecordIndex(0), kLease, 0,
                                              std::as_bytes(std::span(blocks))});
  EXPECT_LE(frame.size(), limits::kDescriptorSlotBytes);
  EXPECT_TRUE(decode_restore_request(frame).ok());
}

Plan plan_of(std::uint32_t entries, PlanKind kind) {
  Plan plan;
  plan.kind = kind;
  plan.operation = OperationId(1);
  plan.slot_bytes = 128;
  for (std::uint32_t i = 0; i < entries; ++i)
    plan.entries.push_back({SlabId(i), i, 128ull * i, AllocationId(i), i, 0});
  return plan;
}

TEST(Messages, SizeFunctionsAgreeWithEncodedFrames) {
  for (const std::uint32_t n : {1u, 2u, 63u, 64u, 65u, limits::kBlocksPerGrant}) {
    EXPECT_EQ(encoded(plan_of(n, PlanKind::kSave)).size(), plan_frame_bytes(n)) << n;
    const PublishResult save{OperationId(1), std::vector<std::uint64_t>(n, 9)};
    EXPECT_EQ(encoded(save).size(), result_frame_bytes(PlanKind::kSave, n)) << n;
    const RestoreResult restore{OperationId(1), n, std::vector<std::uint64_t>((n + 63) / 64)};
    EXPECT_EQ(encoded(restore).size(), result_frame_bytes(PlanKind::kRestore, n)) << n;
  }
}

TEST(Messages, TheLargestGrantFitsThePlanBank) {
  EXPECT_LE(plan_frame_bytes(limits::kBlocksPerGrant) +
                result_frame_bytes(PlanKind::kSave, limits::kBlocksPerGrant),
            limits::kPlanBankBytes);
}

TEST(Messages, PlanKeepsEveryEntry) {
  Plan plan = plan_of(300, PlanKind::kRestore);
  plan.entries[299].digest = 0xD1;
  plan.group = GroupId(3);
  plan.shard = ShardId(63);
  plan.registration = RegistrationId(12);
  const Buffer frame = encoded(plan);
  const auto m = decode_plan(frame);
  ASSERT_TRUE(m.ok()) << m.error().message();
  EXPECT_EQ(m->entries, plan.entries);
  EXPECT_EQ(m->kind, PlanKind::kRestore);
  EXPECT_EQ(m->group, GroupId(3));
  EXPECT_EQ(m->shard, ShardId(63));
  EXPECT_EQ(m->registration, RegistrationId(12));
  EXPECT_EQ(m->slot_bytes, 128u);
}

TEST(Messages, AnExtentMayEndWhereTheSlabEnds) {
  Plan plan = plan_of(1, PlanKind::kSave);
  plan.entries[0].offset = limits::kSlabBytes.value - plan.slot_bytes;
  EXPECT_TRUE(decode_plan(encoded(plan)).ok());
}

TEST(Messages, LongErrorTextIsCut) {
  const std::string text(5000, 'x');
  const Buffer frame = encoded(ErrorReply{Code::kBug, text});
  const auto m = decode_error_reply(frame);
  ASSERT_TRUE(m.ok());
  EXPECT_EQ(m->text.size(), limits::kSocketErrorBytes);
  EXPECT_EQ(m->code, Code::kBug);
}

TEST(Messages, AFrameOverItsSlotIsRefused) {
  const Buffer body(limits::kDescriptorSlotBytes - kFrameHeaderBytes + 1);
  Buffer frame;
  append_frame(FrameType::kReleaseRequest, body, frame);
  const auto m = decode_release_request(frame);
  ASSERT_FALSE(m.ok());
  EXPECT_EQ(m.error().message(), "release request: is longer than its limit");
}

TEST(Messages, EncodingOverALimitIsABug) {
  const std::string long_id(limits::kRequestIdBytes + 1, 'r');
  const CancelQueryRequest cancel{kInstance, GroupId(0), long_id, {}, TicketKind::kPrefix};
  EXPECT_DEATH(encoded(cancel), "request id over its limit");
  EXPECT_DEATH(encoded(plan_of(limits::kBlocksPerGrant + 1, PlanKind::kSave)), "plan over its limit");
  EXPECT_DEATH(encoded(PublishResult{OperationId(0), {1}}), "56 bits");
}

}  // namespace
}  // namespace orbitkv::wire
