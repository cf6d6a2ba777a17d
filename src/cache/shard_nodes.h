// The NUMA nodes that the ranks of an instance are near to, by the shard that they hold. A
// plain value: it outlives the instance in what waits for it. Any thread.
#pragma once

#include <array>
#include <cstdint>

#include "base/ids.h"
#include "base/limits.h"

namespace orbitkv::cache {

class ShardNodes {
 public:
  ShardNodes() { nodes_.fill(-1); }
  NodeId of(ShardId shard) const { return NodeId(nodes_.at(shard.value)); }
  void set(ShardId shard, NodeId node) { nodes_.at(shard.value) = static_cast<std::int16_t>(node.value); }

 private:
  static_assert(limits::kNodeNumbers <= 1u << 15);
  std::array<std::int16_t, limits::kShards> nodes_;
};

}  // namespace orbitkv::cache
