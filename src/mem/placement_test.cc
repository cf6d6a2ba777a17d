#include "mem/placement.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/limits.h"
#include "mem/node_allocator.h"
#include "mem/pool.h"
#include "mem/slab.h"

namespace orbitkv::mem {
namespace {

using Ids = std::vector<std::int32_t>;

// A machine as its /sys and /proc describe it.
class Machine {
 public:
  Machine()
      : root_(std::filesystem::temp_directory_path() / ("orbitkv-nodes-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(root_);
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void online(const std::string& list) const { write("sys/devices/system/node/online", list + "\n"); }
  void allow(const std::string& list) const {
    write("proc/self/status", "Name:\torbitkv\nMems_allowed:\t1\nMems_allowed_list:\t" + list + "\n");
  }
  void node(int number, std::uint64_t free_mib, const std::string& distances) const {
    const std::string at = "sys/devices/system/node/node" + std::to_string(number);
    const std::string name = "Node " + std::to_string(number) + " ";
    const std::string kilobytes = std::to_string(free_mib * 1024) + " kB\n";
    write(at + "/meminfo", name + "MemTotal:  999999 kB\n" + name + "MemFree: " + kilobytes + name +
                               "Inactive:  77 kB\n" + name + "Inactive(file):  1024 kB\n");
    write(at + "/distance", distances + "\n");
  }
  Topology read() const { return read_topology(root_.string()); }

 private:
  std::filesystem::path root_;
};

Topology two_nodes(ByteCount first = 64 * kGiB, ByteCount second = 64 * kGiB) {
  return {{{NodeId(0), first, {10, 21}}, {NodeId(1), second, {21, 10}}}};
}

// Two packages of two nodes each.
Topology four_nodes() {
  return {{{NodeId(0), 64 * kGiB, {10, 12, 32, 32}},
           {NodeId(1), 64 * kGiB, {12, 10, 32, 32}},
           {NodeId(2), 64 * kGiB, {32, 32, 10, 12}},
           {NodeId(3), 64 * kGiB, {32, 32, 12, 10}}}};
}

Ids order(const NodePolicy& policy, std::int32_t from) {
  Ids out;
  for (const NodeId node : policy.nearest(NodeId(from))) out.push_back(node.value);
  return out;
}

std::map<std::int32_t, int> spread(NodePolicy& policy, int slabs, std::vector<NodeId> devices = {}) {
  std::map<std::int32_t, int> out;
  for (int i = 0; i < slabs; ++i) ++out[policy.place(kGiB, devices).value];
  return out;
}

TEST(Topology, IsReadWithHolesInTheNumberingAndNodesWithoutMemory) {
  const Machine machine;
  machine.online("0-1,8");
  machine.node(0, 1000, "10 21 40");
  machine.node(1, 0, "21 10 40");
  machine.write("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 0 kB\nNode 1 MemFree: 0 kB\n");
  machine.node(8, 2000, "40 40 10");
  const Topology topology = machine.read();
  ASSERT_EQ(topology.nodes.size(), 3u);
  EXPECT_EQ(topology.nodes[0].free, 1001 * kMiB);  // file pages that make way included
  EXPECT_EQ(topology.nodes[1].free, ByteCount(0));
  EXPECT_EQ(topology.nodes[2].id, NodeId(8));
  EXPECT_EQ(topology.nodes[2].distances, (std::vector<std::uint32_t>{40, 40, 10}));
}

TEST(Topology, NodesOutsideTheCpusetHaveNothingForUs) {
  const Machine machine;
  machine.online("0-3");
  for (int i = 0; i < 4; ++i) machine.node(i, 100, "10 20 20 20");
  machine.allow("1,3");
  const Topology topology = machine.read();
  ASSERT_EQ(topology.nodes.size(), 4u);
  for (const Topology::Node& node : topology.nodes) EXPECT_EQ(node.free.value > 0, node.id.value % 2 == 1);
}

TEST(Topology, WithoutSysOrWithNonsenseThereAreNoNodes) {
  const Machine machine;
  EXPECT_TRUE(machine.read().nodes.empty());
  machine.online("zero");
  EXPECT_TRUE(machine.read().nodes.empty());
  machine.online("3-1");
  EXPECT_TRUE(machine.read().nodes.empty());
}

TEST(Topology, NoMoreNodesThanTheLimit) {
  const Machine machine;
  machine.online("0-4000000000");
  EXPECT_EQ(machine.read().nodes.size(), limits::kMemoryNodes);
}

TEST(NodePolicy, OneMemoryNodeIsNoPolicy) {
  NodePolicy policy({{{NodeId(0), kGiB, {10, 20}}, {NodeId(1), ByteCount(0), {20, 10}}}});
  EXPECT_FALSE(policy.active());
  EXPECT_EQ(policy.place(kMiB), kAnyNode);
  EXPECT_TRUE(policy.nearest(NodeId(0)).empty());
}

TEST(NodePolicy, SlabsAreSpreadEvenly) {
  NodePolicy two(two_nodes());
  EXPECT_EQ(spread(two, 10), (std::map<std::int32_t, int>{{0, 5}, {1, 5}}));
  NodePolicy four(four_nodes());
  EXPECT_EQ(spread(four, 8), (std::map<std::int32_t, int>{{0, 2}, {1, 2}, {2, 2}, {3, 2}}));
}

TEST(NodePolicy, ANodeThatIsFullGetsNoMoreAndTheRoomiestOneTheRest) {
  NodePolicy policy(two_nodes(3 * kGiB, 9 * kGiB));
  EXPECT_EQ(spread(policy, 12), (std::map<std::int32_t, int>{{0, 3}, {1, 9}}));
  NodePolicy tight(two_nodes(kGiB - kMiB, kGiB - 2 * kMiB));
  EXPECT_EQ(tight.place(kGiB), NodeId(0));  // none has room
}

TEST(NodePolicy, NodesOfTheDevicesComeFirstOrTheNearestThatHaveMemory) {
  NodePolicy policy(four_nodes());
  EXPECT_EQ(spread(policy, 6, {NodeId(2), NodeId(3)}), (std::map<std::int32_t, int>{{2, 3}, {3, 3}}));
  EXPECT_EQ(policy.place(kGiB, std::vector<NodeId>{NodeId(17), kAnyNode}), NodeId(0));  // unknown: all
  Topology memoryless = four_nodes();
  memoryless.nodes[3].free = ByteCount(0);
  NodePolicy near(memoryless);
  EXPECT_EQ(spread(near, 4, {NodeId(3)}), (std::map<std::int32_t, int>{{2, 4}}));
}

TEST(NodePolicy, WhatCameToLieElsewhereOrIsGoneCountsThere) {
  NodePolicy policy(two_nodes());
  EXPECT_EQ(policy.place(kGiB), NodeId(0));
  policy.move(kGiB, NodeId(0), NodeId(1));
  EXPECT_EQ(policy.place(kGiB), NodeId(0));
  EXPECT_EQ(policy.place(kGiB), NodeId(0));
  policy.move(kGiB, NodeId(1), kAnyNode);
  EXPECT_EQ(policy.place(kGiB), NodeId(1));
}

TEST(NodePolicy, TheOrderIsSeenFromWhoAsksAlsoWithHolesAndOneWayDistances) {
  const NodePolicy four(four_nodes());
  EXPECT_EQ(order(four, 0), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(order(four, 3), (Ids{3, 2, 0, 1}));
  // 0 reaches 9 faster than 4; 9 and 4 both call 0 the farthest.
  const NodePolicy uneven(
      {{{NodeId(0), kGiB, {10, 30, 20}}, {NodeId(4), kGiB, {40, 10, 15}}, {NodeId(9), kGiB, {50, 12, 10}}}});
  EXPECT_EQ(order(uneven, 0), (Ids{0, 9, 4}));
  EXPECT_EQ(order(uneven, 4), (Ids{4, 9, 0}));
  EXPECT_EQ(order(uneven, 9), (Ids{9, 4, 0}));
  EXPECT_TRUE(order(uneven, 5).empty());
  // A node without memory has devices: it asks its neighbours.
  const NodePolicy bare({{{NodeId(0), kGiB, {10, 20, 30}},
                          {NodeId(1), ByteCount(0), {30, 10, 20}},
                          {NodeId(2), kGiB, {30, 20, 10}}}});
  EXPECT_EQ(order(bare, 1), (Ids{2, 0}));
  // The kernel gave no distances.
  const NodePolicy flat({{{NodeId(0), kGiB, {}}, {NodeId(1), kGiB, {}}}});
  EXPECT_EQ(order(flat, 1), (Ids{1, 0}));
}

class Nodes : public testing::Test {
 protected:
  std::int32_t node_of(const std::optional<NodeAllocator::Place>& place) const {
    return place ? static_cast<std::int32_t>(place->slab.value) : -1;  // slab n is on node n
  }
  NodePolicy policy_{four_nodes()};
  NodeAllocator nodes_{policy_};
};

TEST_F(Nodes, AnExtentComesFromTheNearestNodeThatHasRoom) {
  for (const std::uint32_t i : {0u, 1u, 2u, 3u})
    nodes_.add_slab({SlabSlot(i), 8 * kMiB, NodeId(static_cast<std::int32_t>(i))});
  Ids found;
  for (int i = 0; i < 5; ++i) found.push_back(node_of(nodes_.allocate(8 * kMiB, NodeId(2))));
  EXPECT_EQ(found, (Ids{2, 3, 0, 1, -1}));
  EXPECT_EQ(nodes_.local(), 1u);
  EXPECT_EQ(nodes_.remote(), 3u);
  nodes_.release({SlabSlot(0), 0}, 8 * kMiB);
  nodes_.release({SlabSlot(2), 0}, 8 * kMiB);
  EXPECT_EQ(node_of(nodes_.allocate(8 * kMiB, NodeId(3))), 2);
  EXPECT_EQ(nodes_.largest(), 8 * kMiB);
}

TEST_F(Nodes, WhoIsNowhereTakesWhereMostIsFree) {
  nodes_.add_slab({SlabSlot(0), 8 * kMiB, NodeId(0)});
  nodes_.add_slab({SlabSlot(1), 16 * kMiB, NodeId(1)});
  EXPECT_EQ(node_of(nodes_.allocate(12 * kMiB, kAnyNode)), 1);
  EXPECT_EQ(node_of(nodes_.allocate(4 * kMiB, NodeId(99))), 0);
  EXPECT_EQ(node_of(nodes_.allocate(8 * kMiB, kAnyNode)), -1);
  EXPECT_EQ(nodes_.local() + nodes_.remote(), 0u);
}

TEST_F(Nodes, SlabsOfNoKnownNodeAreTheLastResort) {
  nodes_.add_slab({SlabSlot(0), 8 * kMiB, kAnyNode});
  nodes_.add_slab({SlabSlot(1), 4 * kMiB, NodeId(1)});
  EXPECT_EQ(node_of(nodes_.allocate(4 * kMiB, NodeId(2))), 1);
  EXPECT_EQ(node_of(nodes_.allocate(4 * kMiB, NodeId(2))), 0);
  EXPECT_EQ(nodes_.remote(), 2u);
  const auto stats = nodes_.stats();
  ASSERT_EQ(stats.size(), 2u);
  EXPECT_EQ(stats[0].node, kAnyNode);
  EXPECT_EQ(stats[0].used, 4 * kMiB);
  EXPECT_EQ(stats[1].capacity, 4 * kMiB);
}

TEST(BindMemory, TheFileKeepsThePolicyAndTouchedPagesTellTheirNode) {
  const Topology here = read_topology();
  if (here.nodes.empty()) GTEST_SKIP() << "this kernel knows no NUMA nodes";
  const NodeId node = here.nodes.front().id;
  const UniqueFd memory = make_slab_memory(SlabId(0), 4 * kMiB, PageSource::kShared).value();
  const Status bound = bind_memory(memory, 4 * kMiB, node);
  if (!bound.ok()) GTEST_SKIP() << bound.error().message();
  void* const base = ::mmap(nullptr, 4 * kMiB.value, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  ASSERT_NE(base, MAP_FAILED);
  int mode = -1;
  unsigned long mask[limits::kNodeNumbers / 64] = {};
  ASSERT_EQ(::syscall(SYS_get_mempolicy, &mode, mask, limits::kNodeNumbers, base, MPOL_F_ADDR), 0);
  EXPECT_EQ(mode, MPOL_PREFERRED);
  EXPECT_EQ(mask[node.value / 64], 1ul << node.value % 64);
  const std::span<std::byte> pages(static_cast<std::byte*>(base), 4 * kMiB.value);
  EXPECT_EQ(node_of_pages(pages), kAnyNode);  // nothing is there, and looking brings nothing
  pages[2 * kMiB.value] = std::byte{1};
  EXPECT_NE(node_of_pages(pages), kAnyNode);
  ::munmap(base, 4 * kMiB.value);
}

TEST(BindMemory, ANodeThatCannotBeIsRefused) {
  const UniqueFd memory = make_slab_memory(SlabId(0), kMiB, PageSource::kShared).value();
  EXPECT_FALSE(bind_memory(memory, kMiB, kAnyNode).ok());
  EXPECT_FALSE(bind_memory(memory, kMiB, NodeId(limits::kNodeNumbers)).ok());
}

TEST(Pool, LendsFromTheNodeThatIsAskedForAndThenFromTheOther) {
  PoolConfig config;
  config.bytes = 4 * kGiB;
  config.prefault = false;
  config.topology = two_nodes();
  const auto pool = Pool::create(config).value();
  pool->collect_offered();
  std::vector<Extent> extents;
  Ids found;
  while (auto extent = pool->allocate(256 * kMiB, NodeId(1))) {
    found.push_back(pool->slabs()[extent->slab().value].node.value);
    extents.push_back(std::move(*extent));
  }
  ASSERT_EQ(found.size(), 16u);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], i < 8 ? 1 : 0);
  const PoolStats stats = pool->stats();
  EXPECT_EQ(stats.local, 8u);
  EXPECT_EQ(stats.remote, 8u);
  ASSERT_EQ(stats.nodes.size(), 2u);
  EXPECT_EQ(stats.nodes[1].capacity, 2 * kGiB);
  EXPECT_EQ(stats.nodes[1].used, 2 * kGiB);
  for (Extent& extent : extents) pool->release(std::move(extent));
  EXPECT_EQ(pool->stats().nodes[0].used, ByteCount(0));
}

TEST(Pool, WithoutNumaNoSlabHasANode) {
  PoolConfig config;
  config.bytes = 2 * kGiB;
  config.prefault = false;
  config.numa = false;
  config.topology = two_nodes();
  const auto pool = Pool::create(config).value();
  for (const SlabInfo& slab : pool->collect_offered()) EXPECT_EQ(slab.node, kAnyNode);
  EXPECT_EQ(pool->stats().nodes.size(), 1u);
}

}  // namespace
}  // namespace orbitkv::mem
