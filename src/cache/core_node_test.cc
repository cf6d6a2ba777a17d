// Where the core puts the images of engines whose devices hang on different NUMA nodes.
#include "cache/core_tier_test.h"

namespace orbitkv::cache {
namespace {

using namespace testing;

WorldOptions two_nodes() {
  WorldOptions options;
  options.pool = 4 * kGiB;
  options.topology = mem::Topology{{{NodeId(0), 64 * kGiB, {10, 21}}, {NodeId(1), 64 * kGiB, {21, 10}}}};
  return options;
}

// Two ranks, one shard each, on one node each.
struct Pair {
  TierWorld t{two_nodes()};
  SessionId scheduler = t->open();
  std::array<SessionId, 2> workers{t->open(), t->open()};
  std::array<RegistrationId, 2> ranks;
  explicit Pair(NodeId first = NodeId(1), NodeId second = NodeId(0)) {
    ranks[0] = t->join(workers[0], {.rank = 0, .world = 2, .shards = 2, .node = first});
    ranks[1] = t->join(workers[1], {.rank = 1, .world = 2, .shards = 2, .node = second});
  }
  NodeId node_of(SlabSlot slab) { return t->pool->slab(slab).node; }
  NodeId node_of(SlabId name) {
    for (const mem::SlabInfo& slab : t->pool->slabs())
      if (slab.id == name) return slab.node;
    return kAnyNode;
  }
};

TEST(CoreNodes, ASaveIsPlacedNearTheDeviceThatItComesFrom) {
  Pair p;
  for (const std::size_t rank : {0u, 1u}) {
    const OperationKey op = p.t->next_op(p.workers[rank]);
    ASSERT_TRUE(p.t->publish(op, p.ranks[rank], hashes(0, 8)).ok());
    for (const model::PlanEntry& entry : p.t->ports.granted.at(op).entries)
      EXPECT_EQ(p.node_of(entry.slab), NodeId(rank == 0 ? 1 : 0));
    p.t->commit(op);
  }
  EXPECT_EQ(p.t->pool->stats().local, 16u);
  EXPECT_EQ(p.t->pool->stats().remote, 0u);
}

TEST(CoreNodes, ALoadIsPlacedShardByShardNearTheDevicesOfWhoAsks) {
  Pair p;
  for (std::uint64_t n = 0; n < 4; ++n) p.t.tier.put(n, 2);
  EXPECT_TRUE(p.t->read(p.scheduler, hashes(0, 4), "r").loading);
  ASSERT_EQ(p.t.tier.under_way.size(), 4u);
  for (const auto& [id, transfer] : p.t.tier.under_way) {
    EXPECT_EQ(p.node_of(transfer.extents[0].slab), NodeId(1));
    EXPECT_EQ(p.node_of(transfer.extents[1].slab), NodeId(0));
  }
  p.t.all_loaded();
}

TEST(CoreNodes, AnotherInstanceHasItsOwnNodes) {
  Pair p;
  const SessionId other = p.t->open();
  p.t->join(other, {.instance = 2, .rank = 0, .world = 2, .shards = 2, .node = NodeId(0)});
  p.t->join(other, {.instance = 2, .rank = 1, .world = 2, .shards = 2, .node = NodeId(0)});
  p.t.tier.put(0, 2);
  EXPECT_TRUE(p.t->read(other, hashes(0, 1), "r", 2).loading);
  for (const auto& extent : p.t.tier.under_way.begin()->second.extents)
    EXPECT_EQ(p.node_of(extent.slab), NodeId(0));
  p.t.all_loaded();
}

TEST(CoreNodes, AReplicatedShardIsNearItsWriter) {
  TierWorld t(two_nodes());
  const SessionId session = t->open();
  t->join(session, {.rank = 1, .world = 2, .node = NodeId(0)});
  t->join(session, {.rank = 0, .world = 2, .node = NodeId(1)});  // it writes
  t.tier.put(0);
  EXPECT_TRUE(t->read(session, hashes(0, 1), "r").loading);
  const SlabSlot slab = t.tier.under_way.begin()->second.extents[0].slab;
  EXPECT_EQ(t->pool->slabs()[slab.value].node, NodeId(1));
  t.all_loaded();
}

TEST(CoreNodes, WhoDoesNotKnowItsNodeIsNeitherNearNorFar) {
  Pair p(kAnyNode, kAnyNode);
  p.t->store(p.workers[0], p.ranks[0], hashes(0, 4));
  EXPECT_EQ(p.t->pool->stats().local + p.t->pool->stats().remote, 0u);
}

}  // namespace
}  // namespace orbitkv::cache
