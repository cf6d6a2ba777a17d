#include "model/geometry.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/limits.h"

namespace orbitkv::model {
namespace {

GroupShape group_of(std::uint16_t id, std::vector<FragmentShape> fragments) {
  return {GroupId(id), RecoveryRule::kPrefix, 0, ShardId(0), 1, true, std::move(fragments)};
}

RankRegistration good_rank() {
  RankRegistration rank;
  rank.name_space = "dtype=f32;model=tiny";
  rank.device = "cpu:0";
  rank.num_blocks = 100;
  rank.block_tokens = 16;
  rank.groups = {group_of(0, {{0, 0, ByteCount(4096)}, {0, 1, ByteCount(4096)}, {1, 0, ByteCount(8)}}),
                 group_of(3, {{2, 0, ByteCount(72)}})};
  return rank;
}

std::string digest_hex(const RankRegistration& rank) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const std::byte b : namespace_digest(rank).bytes) {
    out += kDigits[static_cast<unsigned>(b) >> 4];
    out += kDigits[static_cast<unsigned>(b) & 15];
  }
  return out;
}

// ---- validate ----

struct Case {
  std::string expected;  // part of the refusal
  std::function<void(RankRegistration&)> breakage;
};

const Case kCases[] = {
    {"length of name_space is 0", [](auto& r) { r.name_space.clear(); }},
    {"length of name_space is 513", [](auto& r) { r.name_space.assign(513, 'x'); }},
    {"name_space has a character", [](auto& r) { r.name_space = "dtype=f32\n"; }},
    {"length of device is 0", [](auto& r) { r.device.clear(); }},
    {"length of device is 65", [](auto& r) { r.device.assign(65, 'x'); }},
    {"device has a character", [](auto& r) { r.device = "cpu\x80"; }},
    {"world_size is 0", [](auto& r) { r.world_size = 0; }},
    {"world_size is 65; it must be 1..64", [](auto& r) { r.world_size = 65; }},
    {"rank is 1; it must be 0..0", [](auto& r) { r.rank = 1; }},
    {"num_blocks is 0", [](auto& r) { r.num_blocks = 0; }},
    {"block_tokens is 0", [](auto& r) { r.block_tokens = 0; }},
    {"node is -2", [](auto& r) { r.node = NodeId(-2); }},
    {"node is 1024", [](auto& r) { r.node = NodeId(1024); }},
    {"count of groups is 0", [](auto& r) { r.groups.clear(); }},
    {"count of groups is 17", [](auto& r) { r.groups.resize(17, r.groups[0]); }},
    {"groups[1].group is out of order", [](auto& r) { r.groups[1].group = GroupId(0); }},
    {"groups[0].group is 1; the first group must be 0", [](auto& r) { r.groups[0].group = GroupId(1); }},
    {"groups[0].rule is 9", [](auto& r) { r.groups[0].rule = static_cast<RecoveryRule>(9); }},
    {"groups[0].rule is checkpoint; group 0 must be a prefix group",
     [](auto& r) { r.groups[0].rule = RecoveryRule::kCheckpoint; }},
    {"groups[1].rule is 0; it must be 1 (prefix), 2 (window) or 3 (checkpoint)",
     [](auto& r) { r.groups[1].rule = static_cast<RecoveryRule>(0); }},
    {"groups[1].window_tokens is 0", [](auto& r) { r.groups[1].rule = RecoveryRule::kWindow; }},
    {"groups[1].window_tokens is 64; only a window group has one",
     [](auto& r) { r.groups[1].window_tokens = 64; }},
    {"groups[0].shards is 0", [](auto& r) { r.groups[0].shards = 0; }},
    {"groups[0].shards is 65", [](auto& r) { r.groups[0].shards = 65; }},
    {"groups[1].shard is 1", [](auto& r) { r.groups[1].shard = ShardId(1); }},
    {"count of groups[1].fragments is 0", [](auto& r) { r.groups[1].fragments.clear(); }},
    {"count of groups[0].fragments is 4097", [](auto& r) { r.groups[0].fragments.resize(4097); }},
    {"groups[0].fragments[2].layer is 1024", [](auto& r) { r.groups[0].fragments[2].layer = 1024; }},
    {"groups[0].fragments[1].bytes is 0", [](auto& r) { r.groups[0].fragments[1].bytes = ByteCount(0); }},
    {"groups[0].fragments[1].bytes is 4097; it must be a multiple of 8",
     [](auto& r) { r.groups[0].fragments[1].bytes = ByteCount(4097); }},
    {"groups[0].fragments[0].bytes is 18446744073709551608",
     [](auto& r) { r.groups[0].fragments[0].bytes = ByteCount(~std::uint64_t{7}); }},
    {"groups[0].fragments[1] is out of order", [](auto& r) { r.groups[0].fragments[1].component = 0; }},
    {"groups[0].fragments[2] is out of order", [](auto& r) { r.groups[0].fragments[2].layer = 0; }},
    {"image bytes of groups[1].fragments is 268435584",
     [](auto& r) { r.groups[1].fragments[0].bytes = limits::kSlotImageBytes; }},
};

TEST(Geometry, AGoodRegistrationIsAccepted) {
  const Status status = validate(good_rank());
  EXPECT_TRUE(status.ok()) << status.error().message();
}

TEST(Geometry, EveryViolationIsNamed) {
  for (const Case& c : kCases) {
    RankRegistration rank = good_rank();
    c.breakage(rank);
    const Status status = validate(rank);
    ASSERT_FALSE(status.ok()) << c.expected;
    EXPECT_EQ(status.error().code(), Code::kReject);
    EXPECT_EQ(status.error().message().rfind(c.expected, 0), 0u) << status.error().message();
  }
}

TEST(Geometry, TheLimitsThemselvesAreAccepted) {
  RankRegistration rank = good_rank();
  rank.name_space.assign(limits::kNamespaceBytes, 'x');
  rank.device.assign(limits::kDeviceNameBytes, 'd');
  rank.world_size = limits::kShards;
  rank.rank = limits::kShards - 1;
  rank.num_blocks = kHole;  // so that kHole itself is never a block
  rank.node = NodeId(limits::kNodeNumbers - 1);
  rank.groups[0].shards = limits::kShards;
  rank.groups[0].shard = ShardId(limits::kShards - 1);
  rank.groups[1].fragments[0].bytes = limits::kSlotImageBytes - ByteCount(128);
  const Status status = validate(rank);
  EXPECT_TRUE(status.ok()) << status.error().message();
}

TEST(Geometry, FragmentsOfAllGroupsAreCounted) {
  RankRegistration rank = good_rank();
  rank.groups.clear();
  for (std::uint16_t g = 0; g < 3; ++g) {
    std::vector<FragmentShape> fragments;
    for (std::uint16_t i = 0; i < 3000; ++i)
      fragments.push_back(
          {static_cast<std::uint16_t>(i / 4), static_cast<std::uint16_t>(i % 4), ByteCount(64)});
    rank.groups.push_back(group_of(g, std::move(fragments)));
  }
  const Status status = validate(rank);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message(), "count of fragments over all groups is 9000; it must be 1..8192");
}

TEST(Geometry, TheContractOfARegistrationHasItsGroups) {
  RankRegistration rank = good_rank();
  rank.groups[1].rule = RecoveryRule::kWindow;
  rank.groups[1].window_tokens = 100;
  ASSERT_TRUE(validate(rank).ok()) << validate(rank).error().message();
  const auto contract = recovery_contract(rank);
  ASSERT_TRUE(contract.ok()) << contract.error().message();
  EXPECT_EQ(contract->name_space(), rank.name_space);
  EXPECT_EQ(contract->page_tokens(), rank.block_tokens);
  ASSERT_EQ(contract->groups().size(), 2u);
  EXPECT_EQ(contract->groups()[0], (GroupRule{GroupId(0), RecoveryRule::kPrefix, 0}));
  EXPECT_EQ(contract->groups()[1], (GroupRule{GroupId(3), RecoveryRule::kWindow, 100}));
}

// ---- layout ----

TEST(Geometry, LayoutOfOneImage) {
  const SlotLayout layout = slot_layout(good_rank().groups[0]);
  EXPECT_EQ(layout.header_bytes, 128u);  // 32 + 3 x 8
  EXPECT_EQ(layout.fragment_offsets, (std::vector<std::uint64_t>{128, 4224, 8320}));
  EXPECT_EQ(layout.slot_bytes, 8448u);  // 8 bytes fill 128
}

TEST(Geometry, HeadersGrowByLines) {
  for (const auto& [fragments, bytes] :
       {std::pair{4u, 128u}, {12u, 128u}, {13u, 256u}, {28u, 256u}, {72u, 640u}}) {
    std::vector<FragmentShape> shapes(fragments, {0, 0, ByteCount(72)});
    const SlotLayout layout = slot_layout(group_of(0, shapes));
    EXPECT_EQ(layout.header_bytes, bytes) << fragments;
    for (std::size_t i = 0; i < fragments; ++i) EXPECT_EQ(layout.fragment_offsets[i], bytes + 128 * i);
    EXPECT_EQ(layout.slot_bytes, bytes + 128 * fragments);
  }
}

// ---- namespace ----

TEST(Geometry, DigestIsPinned) {
  EXPECT_EQ(digest_hex(good_rank()), "0c416960daa120018dc0ade6a144879c9e2926676e3d28a288681eb3e03feeb9");
}

TEST(Geometry, DigestIsEqualOnAllRanks) {
  RankRegistration other = good_rank();
  other.instance.bytes[0] = std::byte{1};
  other.rank = 1;
  other.world_size = 2;
  other.device = "cpu:1";
  other.num_blocks = 7;
  other.groups[0].writer = false;
  RankRegistration two_shards = good_rank();
  two_shards.groups[0].shards = 2;
  RankRegistration second = two_shards;
  second.groups[0].shard = ShardId(1);
  EXPECT_EQ(digest_hex(other), digest_hex(good_rank()));
  EXPECT_EQ(digest_hex(second), digest_hex(two_shards));
}

TEST(Geometry, DigestChangesWithTheMeaningOfBytes) {
  const std::function<void(RankRegistration&)> changes[] = {
      [](auto& r) { r.name_space += 'x'; }, [](auto& r) { r.block_tokens = 32; },
      [](auto& r) { r.groups.pop_back(); }, [](auto& r) { r.groups[1].group = GroupId(4); },
      [](auto& r) { r.groups[0].shards = 2; }, [](auto& r) { r.groups[1].rule = RecoveryRule::kCheckpoint; },
      [](auto& r) { r.groups[1].rule = RecoveryRule::kWindow; },
      [](auto& r) { r.groups[1].window_tokens = 64; },
      [](auto& r) { r.groups[0].fragments[0].bytes = ByteCount(2048); },
      [](auto& r) { r.groups[0].fragments[2].layer = 2; },
      [](auto& r) { r.groups[0].fragments[2].component = 1; },
      // The same fragments, cut differently between the groups.
      [](auto& r) {
        r.groups[1].fragments.insert(r.groups[1].fragments.begin(), r.groups[0].fragments.back());
        r.groups[0].fragments.pop_back();
      }};
  std::vector<std::string> digests = {digest_hex(good_rank())};
  for (const auto& change : changes) {
    RankRegistration rank = good_rank();
    change(rank);
    const std::string digest = digest_hex(rank);
    for (const std::string& earlier : digests) EXPECT_NE(digest, earlier) << digests.size();
    digests.push_back(digest);
  }
}

}  // namespace
}  // namespace orbitkv::model
