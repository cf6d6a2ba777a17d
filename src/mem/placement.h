// On which NUMA node the memory of a slab is placed, and in which order the nodes are asked
// for an extent: a policy over a topology that is read from /sys or described by a test.
// Owned by Pool; core thread. Pages are bound before they are touched and never moved
// afterwards. On a machine with one memory node there is no policy and nothing is bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace orbitkv::mem {

struct Topology {
  struct Node {
    NodeId id;
    ByteCount free;                        // 0: it has no memory, or none that we may take
    std::vector<std::uint32_t> distances;  // to every node, in this order; 10 is itself
  };
  std::vector<Node> nodes;  // rising ids, which may have holes; at most limits::kMemoryNodes
};

// `root` is put before every path, as in read_host_memory(). Nodes outside the process'
// cpuset have no free bytes. No /sys: an empty topology.
Topology read_topology(const std::string& root = "");

class NodePolicy {
 public:
  NodePolicy() = default;  // none: every answer is kAnyNode
  explicit NodePolicy(const Topology& topology);

  // More than one node has memory.
  bool active() const { return memory_.size() > 1; }
  // For a new slab: of the memory nodes nearest to `devices` (empty: of all) the one that
  // has been given least and has room, else the one with the most room.
  NodeId place(ByteCount bytes, std::span<const NodeId> devices = {});
  // Its pages came to lie elsewhere, or it is gone (to: kAnyNode).
  void move(ByteCount bytes, NodeId from, NodeId to);
  // The memory nodes, nearest first as seen from `from`; empty where that is unknown.
  std::span<const NodeId> nearest(NodeId from) const;

 private:
  struct Memory {
    NodeId id;
    ByteCount free, given;
    ByteCount room() const { return free - std::min(free, given); }
  };
  struct Order {
    NodeId from;
    std::vector<NodeId> nodes;
  };
  Memory* find(NodeId id);
  static bool better(const Memory& a, const Memory& b, ByteCount bytes);

  std::vector<Memory> memory_;
  std::vector<Order> orders_;  // by every node, those without memory too
};

// From now on the pages of this memfd are taken from the node where it has free pages, else
// from others; what has been touched stays where it is. Outlives the call's own mapping.
Status bind_memory(const UniqueFd& memory, ByteCount bytes, NodeId node);

// Where most of these pages lie: one in 2 MiB is looked at (at most some
// thousand), and none is touched. kAnyNode:
// none is there yet, or the kernel does not tell.
NodeId node_of_pages(std::span<const std::byte> pages);

}  // namespace orbitkv::mem
