#include "wire/lifecycle.h"

#include <gtest/gtest.h>

#include "base/limits.h"
#include "wire/decoders_suite.h"

namespace orbitkv::wire {
namespace {

using suite::encoded;

// The same frame as a peer of another version would have sent it.
Buffer with_abi(Buffer frame, std::uint16_t abi) {
  std::memcpy(frame.data() + 4, &abi, 2);
  suite::repair_crc(frame, false);
  return frame;
}

TEST(Lifecycle, HelloRoundTrip) {
  const auto m = decode_hello(encoded(Hello{kAbiVersion, PeerRole::kStatus, "orbitkv 0.1.0 (status)"}));
  ASSERT_TRUE(m.ok()) << m.error().message();
  EXPECT_EQ(m->abi, kAbiVersion);
  EXPECT_EQ(m->role, PeerRole::kStatus);
  EXPECT_EQ(m->client, "orbitkv 0.1.0 (status)");
}

TEST(Lifecycle, AHelloOfAnotherVersionDecodesToItsVersion) {
  // Its body is of a form that this version cannot know.
  Buffer body(100, std::byte{0xAB}), frame;
  append_frame(FrameType::kHello, body, frame);
  const auto m = decode_hello(with_abi(frame, kAbiVersion + 1));
  ASSERT_TRUE(m.ok()) << m.error().message();
  EXPECT_EQ(m->abi, kAbiVersion + 1);
  EXPECT_EQ(m->client, "");
  EXPECT_FALSE(decode_hello(frame).ok()) << "the same body under our version";
  EXPECT_EQ(encoded(Hello{7, PeerRole::kEngine, "x"}),
            with_abi(encoded(Hello{kAbiVersion, PeerRole::kEngine, "x"}), 7));
}

TEST(Lifecycle, ASocketErrorOfAnotherVersionIsReadable) {
  const Buffer frame = encoded(SocketError{0, Code::kReject, "upgrade the engine's orbitkv"});
  for (const std::uint16_t abi : std::initializer_list<std::uint16_t>{0, 1, 2, 0xFFFF}) {
    const auto m = decode_socket_error(with_abi(frame, abi));
    ASSERT_TRUE(m.ok()) << abi;
    EXPECT_EQ(m->text, "upgrade the engine's orbitkv");
    EXPECT_EQ(m->code, Code::kReject);
  }
}

TEST(Lifecycle, EverythingElseNeedsOurVersionAndSaysSo) {
  for (const suite::DecoderCase& c : suite::socket_cases()) {
    if (c.name == "hello" || c.name == "socket_error") continue;
    EXPECT_EQ(c.probe(with_abi(c.sample, 1)), suite::Verdict::kRefused) << c.name;
  }
  const auto m = decode_bye(with_abi(encoded(Bye{}), 1));
  ASSERT_FALSE(m.ok());
  EXPECT_NE(m.error().message().find("ABI version 1, this side speaks 2; bring"), std::string::npos)
      << m.error().message();
}

TEST(Lifecycle, HelloReplyRoundTrip) {
  const auto m = decode_hello_reply(
      encoded(HelloReply{SessionId(3), Epoch(1ull << 60), Incarnation(8), 12345, "orbitkv 0.1.0"}));
  ASSERT_TRUE(m.ok()) << m.error().message();
  EXPECT_EQ(m->session, SessionId(3));
  EXPECT_EQ(m->epoch, Epoch(1ull << 60));
  EXPECT_EQ(m->incarnation, Incarnation(8));
  EXPECT_EQ(m->session_bytes, 12345u);
  EXPECT_EQ(m->server, "orbitkv 0.1.0");
}

TEST(Lifecycle, RegisterKeepsEveryField) {
  const auto rank = suite::sample_rank();
  const auto m = decode_register(encoded(Register{5, rank}));
  ASSERT_TRUE(m.ok()) << m.error().message();
  EXPECT_EQ(m->request, 5u);
  EXPECT_EQ(m->rank.instance, rank.instance);
  EXPECT_EQ(m->rank.name_space, rank.name_space);
  EXPECT_EQ(m->rank.rank, rank.rank);
  EXPECT_EQ(m->rank.world_size, rank.world_size);
  EXPECT_EQ(m->rank.device, rank.device);
  EXPECT_EQ(m->rank.node, rank.node);
  EXPECT_EQ(m->rank.num_blocks, rank.num_blocks);
  EXPECT_EQ(m->rank.block_tokens, rank.block_tokens);
  ASSERT_EQ(m->rank.groups.size(), rank.groups.size());
  for (std::size_t i = 0; i < rank.groups.size(); ++i) {
    EXPECT_EQ(m->rank.groups[i].group, rank.groups[i].group);
    EXPECT_EQ(m->rank.groups[i].rule, rank.groups[i].rule);
    EXPECT_EQ(m->rank.groups[i].window_tokens, rank.groups[i].window_tokens);
    EXPECT_EQ(m->rank.groups[i].shard, rank.groups[i].shard);
    EXPECT_EQ(m->rank.groups[i].shards, rank.groups[i].shards);
    EXPECT_EQ(m->rank.groups[i].writer, rank.groups[i].writer);
    EXPECT_EQ(m->rank.groups[i].fragments, rank.groups[i].fragments);
  }
}

TEST(Lifecycle, TheLargestRegistrationFitsOneFrame) {
  model::RankRegistration rank = suite::sample_rank();
  rank.name_space.assign(limits::kNamespaceBytes, 'n');
  rank.device.assign(limits::kDeviceNameBytes, 'd');
  rank.groups.clear();
  for (std::uint16_t g = 0; g < limits::kGroups; ++g) {
    model::GroupShape group{GroupId(g), model::RecoveryRule::kPrefix, 0, ShardId(0), 1, true, {}};
    const std::uint32_t each = limits::kFragmentsPerRegistration / limits::kGroups;
    for (std::uint16_t i = 0; i < each; ++i) group.fragments.push_back({i, 0, ByteCount(64)});
    rank.groups.push_back(std::move(group));
  }
  ASSERT_TRUE(model::validate(rank).ok()) << model::validate(rank).error().message();
  const Buffer frame = encoded(Register{1, rank});
  EXPECT_LE(frame.size(), limits::kSocketFrameBytes);
  EXPECT_TRUE(decode_register(frame).ok());
}

TEST(Lifecycle, AnInvalidRegistrationIsRefusedByFieldAndNeverEncoded) {
  model::RankRegistration rank = suite::sample_rank();
  rank.num_blocks = 0;
  EXPECT_DEATH(encoded(Register{1, rank}), "validate\\(\\) it first");
}

TEST(Lifecycle, OfferKeepsSlabs) {
  SlabOffer offer{9, {}};
  for (std::uint32_t i = 0; i < limits::kFdsPerMessage; ++i)
    offer.slabs.push_back({SlabId(i), ByteCount(kMiB.value * (i + 1)), i % 2 == 0});
  const auto m = decode_slab_offer(encoded(offer));
  ASSERT_TRUE(m.ok()) << m.error().message();
  EXPECT_EQ(m->pool, 9u);
  ASSERT_EQ(m->slabs.size(), offer.slabs.size());
  EXPECT_EQ(m->slabs[5].id, SlabId(5));
  EXPECT_EQ(m->slabs[5].bytes, 6 * kMiB);
  EXPECT_FALSE(m->slabs[5].huge);
  EXPECT_TRUE(m->slabs[6].huge);
}

TEST(Lifecycle, TheLargestStatusFitsOneFrame) {
  const StatusReply status{4, std::string(limits::kSocketFrameBytes - kFrameHeaderBytes - 16, ' ')};
  const Buffer frame = encoded(status);
  EXPECT_EQ(frame.size(), limits::kSocketFrameBytes);
  EXPECT_EQ(decode_status_reply(frame)->json, status.json);
}

TEST(Lifecycle, LongErrorTextIsCut) {
  const auto m = decode_socket_error(encoded(SocketError{4, Code::kBusy, std::string(3000, 'e')}));
  ASSERT_TRUE(m.ok());
  EXPECT_EQ(m->text.size(), limits::kSocketErrorBytes);
  EXPECT_EQ(m->request, 4u);
}

}  // namespace
}  // namespace orbitkv::wire
