// What one rank of an engine registers: which groups of which layers, in how many
// bytes a block. Pure values; addresses and strides stay in the client, because
// nothing on the wire is a pointer. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "model/recovery.h"
#include "orbitkv/types.h"

namespace orbitkv::model {

// One fragment of a block: the bytes of one layer and component (K, V, or both).
struct FragmentShape {
  std::uint16_t layer = 0;      // position in the engine's consuming order
  std::uint16_t component = 0;  // 0 where K and V are one
  ByteCount bytes;              // of one block, > 0, multiple of 8
  friend bool operator==(const FragmentShape&, const FragmentShape&) = default;
};

struct GroupShape {
  GroupId group;
  RecoveryRule rule = RecoveryRule::kPrefix;
  std::uint32_t window_tokens = 0;       // of a window group, else 0
  ShardId shard;                         // the shard that this rank reads and writes
  std::uint16_t shards = 1;              // of the group; a block is visible when all have committed
  bool writer = true;                    // replicated groups: one declared writer
  std::vector<FragmentShape> fragments;  // ascending (layer, component), no duplicates
};

struct RankRegistration {
  InstanceId instance;
  std::string name_space;  // canonical text of everything that changes the meaning of
                           // bytes, equal on all ranks (docs/protocol.md, "Namespace")
  std::uint16_t rank = 0;
  std::uint16_t world_size = 1;  // queries are refused until all ranks have registered
  std::string device;            // "cpu:0", "GPU-<uuid>"
  NodeId node = kAnyNode;        // NUMA node that the device, or memory of the CPU, is nearest to
  std::uint32_t num_blocks = 0;  // engine blocks; destinations are below it
  std::uint32_t block_tokens = 0;
  std::vector<GroupShape> groups;  // ascending group ids; the first is 0, a prefix group
};

// Every bound and rule above, by name of the field that breaks it.
Status validate(const RankRegistration& rank);

// The rules of a registration's groups; of one that validate() accepts never an Error.
Result<RecoveryContract> recovery_contract(const RankRegistration& rank);

// Where the parts of one slot image lie. The header and each fragment start at
// multiples of 128 bytes (model/slot_image.h).
struct SlotLayout {
  std::uint64_t header_bytes = 0;
  std::uint64_t slot_bytes = 0;                 // header and payload, multiple of 128
  std::vector<std::uint64_t> fragment_offsets;  // from the start of the image
};
SlotLayout slot_layout(const GroupShape& group);

// SHA-256 over a versioned canonical form of the namespace text, block tokens and,
// group by group, rule, window, shard count and fragment shapes (not rank, shard or device):
// equal on all ranks of an instance and between instances that may share bytes.
struct NamespaceDigest {
  std::array<std::byte, 32> bytes{};
  friend auto operator<=>(const NamespaceDigest&, const NamespaceDigest&) = default;
};
NamespaceDigest namespace_digest(const RankRegistration& rank);

}  // namespace orbitkv::model
