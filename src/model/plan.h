// A plan: which extents of which slabs go to or come from which engine blocks. The
// geometry was registered once, so a plan is O(blocks). No pointers. Pure values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace orbitkv::model {

enum class PlanKind : std::uint8_t { kSave = 1, kRestore = 2 };
enum class Encoding : std::uint8_t { kRaw = 0 };

// One block of a plan: the image [offset, offset + slot_bytes) of a slab and an engine
// block. The revision is bound into the image's checksums: the allocation that it was saved
// into, wherever it lies by now.
struct PlanEntry {
  SlabId slab;
  std::uint32_t block = 0;   // engine block index, below the registration's num_blocks
  std::uint64_t offset = 0;  // in the slab, multiple of 64
  AllocationId revision;
  std::uint64_t seed = 0;    // checksum seed of this image (model/slot_image.h)
  std::uint64_t digest = 0;  // restore: of the image header; save: 0
  friend bool operator==(const PlanEntry&, const PlanEntry&) = default;
};

struct Plan {
  PlanKind kind = PlanKind::kSave;
  OperationId operation;
  RegistrationId registration;
  GroupId group;
  ShardId shard;
  Encoding encoding = Encoding::kRaw;
  std::uint64_t slot_bytes = 0;    // header and payload of one image
  std::vector<PlanEntry> entries;  // <= limits::kBlocksPerGrant
};

}  // namespace orbitkv::model
