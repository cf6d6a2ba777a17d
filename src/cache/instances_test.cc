#include "cache/instances.h"

#include "base/limits.h"
#include "cache/core_world_test.h"

namespace orbitkv::cache {
namespace {

using testing::code_of;
using testing::rank_of;

struct Fixture {
  Namespaces namespaces;
  Instances instances{namespaces};
  Result<RegistrationId> add(std::uint32_t session, const testing::RankOptions& o) {
    return instances.add(SessionId(session), rank_of(o));
  }
};

TEST(Instances, CompleteWhenAllRanksAreThere) {
  Fixture f;
  const auto r0 = f.add(0, {.rank = 0, .world = 2, .shards = 2});
  ASSERT_TRUE(r0.ok());
  EXPECT_FALSE(f.instances.find_instance(testing::instance_id(1))->complete());
  const auto r1 = f.add(1, {.rank = 1, .world = 2, .shards = 2});
  ASSERT_TRUE(r1.ok());
  EXPECT_TRUE(f.instances.find_instance(testing::instance_id(1))->complete());
  EXPECT_FALSE(f.instances.remove(*r0));
  EXPECT_FALSE(f.instances.find_instance(testing::instance_id(1))->complete());
  EXPECT_TRUE(f.instances.remove(*r1));
  EXPECT_EQ(f.instances.find_instance(testing::instance_id(1)), nullptr);
}

TEST(Instances, RegistrationIdsAreNeverReused) {
  Fixture f;
  const auto first = f.add(0, {});
  f.instances.remove(*first);
  const auto second = f.add(0, {});
  EXPECT_GT(second->value, first->value);
  EXPECT_EQ(f.instances.find(*first), nullptr);
}

TEST(Instances, DisagreementNamesBothSides) {
  Fixture f;
  ASSERT_TRUE(f.add(0, {.rank = 0, .world = 2}).ok());
  const auto world = f.add(1, {.rank = 1, .world = 3});
  EXPECT_EQ(code_of(world), Code::kReject);
  EXPECT_NE(world.error().message().find("world size 3"), std::string::npos);
  EXPECT_NE(world.error().message().find("say 2"), std::string::npos);
  const auto name = f.add(1, {.rank = 1, .world = 2, .name_space = "model-b"});
  EXPECT_EQ(code_of(name), Code::kReject);
  const std::string mine =
      short_hex(model::namespace_digest(rank_of({.rank = 1, .world = 2, .name_space = "model-b"})).bytes);
  EXPECT_NE(name.error().message().find(mine), std::string::npos);
  const auto shapes = f.add(1, {.rank = 1, .world = 2, .fragment_bytes = 8192});
  EXPECT_EQ(code_of(shapes), Code::kReject);
  EXPECT_EQ(f.namespaces.uses(NamespaceIndex(0)), 1u) << "refused ranks hold nothing";
}

TEST(Instances, ARankHeldByAnotherSessionIsBusyAndByItsOwnIsRefused) {
  Fixture f;
  ASSERT_TRUE(f.add(0, {}).ok());
  EXPECT_EQ(code_of(f.add(1, {})), Code::kBusy);
  EXPECT_EQ(code_of(f.add(0, {})), Code::kReject);
}

TEST(Instances, UnwrittenShardIsRefusedWithTheLastRank) {
  Fixture f;
  ASSERT_TRUE(f.add(0, {.rank = 0, .world = 2, .shards = 3}).ok());
  const auto last = f.add(1, {.rank = 1, .world = 2, .shards = 3});
  EXPECT_EQ(code_of(last), Code::kReject);
  EXPECT_NE(last.error().message().find("3 shards"), std::string::npos);
}

TEST(Instances, SlotLargerThanASlabIsRefused) {
  Namespaces namespaces;
  Instances instances(namespaces);
  instances.set_largest_slab(ByteCount(8192));
  const auto r = instances.add(SessionId(0), rank_of({}));
  EXPECT_EQ(code_of(r), Code::kReject);
  EXPECT_NE(r.error().message().find("--pool-size"), std::string::npos);
}

TEST(Instances, InstanceLimitIsAnAnswer) {
  Fixture f;
  for (std::uint32_t i = 0; i < limits::kInstances; ++i) {
    ASSERT_TRUE(f.add(i, {.instance = static_cast<int>(i)}).ok());
  }
  EXPECT_EQ(code_of(f.add(0, {.instance = 200})), Code::kBusy);
}

TEST(Namespaces, UnusedEntriesServeOthersAndFullIsAnAnswer) {
  Namespaces n;
  const auto digest = [](std::uint32_t i) {
    model::NamespaceDigest d;
    std::memcpy(d.bytes.data(), &i, sizeof i);
    return d;
  };
  for (std::uint32_t i = 0; i < limits::kNamespaces; ++i) ASSERT_TRUE(n.intern(digest(i)).has_value());
  EXPECT_FALSE(n.intern(digest(5000)).has_value());
  EXPECT_EQ(n.intern(digest(7)), NamespaceIndex(7));
  n.release(NamespaceIndex(7));
  n.release(NamespaceIndex(7));
  EXPECT_EQ(n.intern(digest(5000)), NamespaceIndex(7));
  EXPECT_EQ(n.digest(NamespaceIndex(7)), digest(5000));
}

TEST(Devices, RestoresAreCountedByNameAcrossRegistrations) {
  Devices devices;
  const DeviceIndex a = devices.intern("cpu:0");
  EXPECT_EQ(devices.intern("cpu:0"), a);
  const DeviceIndex b = devices.intern("cpu:1");
  for (std::uint32_t i = 0; i < limits::kRestoresPerDevice; ++i) ASSERT_TRUE(devices.admit_restore(a));
  EXPECT_FALSE(devices.admit_restore(a));
  EXPECT_TRUE(devices.admit_restore(b));
  devices.forget(a);
  devices.forget(a);
  // Its restores are still open: the name keeps its count.
  EXPECT_EQ(devices.intern("cpu:0"), a);
  EXPECT_FALSE(devices.admit_restore(a));
  devices.end_restore(a);
  EXPECT_TRUE(devices.admit_restore(a));
}

}  // namespace
}  // namespace orbitkv::cache
