// The Copier seam: moves slot images between slabs and the engine's KV memory and
// computes or verifies the fragment checksums on the way. One Copier serves one
// device of one registration, from one thread at a time. It copies only what a
// grant names; ranges are checked by the caller against slab and geometry.
// device/host is the CPU's; every implementation passes device/copier_suite.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "model/geometry.h"

namespace orbitkv::device {

// Where one fragment of every engine block lies. Block b, row r starts at
// base + b * block_stride + r * row_stride and holds row_bytes.
struct FragmentGeometry {
  std::uint16_t layer = 0;
  std::uint16_t component = 0;
  std::byte* base = nullptr;       // device address
  std::uint64_t block_stride = 0;  // bytes
  std::uint32_t rows = 1;
  std::uint64_t row_bytes = 0;
  std::uint64_t row_stride = 0;  // bytes; unused for one row
  std::uint64_t bytes() const { return rows * row_bytes; }
};

struct GroupGeometry {
  model::GroupShape shape;  // fragments in the same order
  std::vector<FragmentGeometry> fragments;
  std::uint32_t num_blocks = 0;
};
// Every extent of every block inside [base, base + bytes) of its allocation is the
// caller's promise; this checks shape against geometry, overlap of rows and of blocks,
// arithmetic overflow, and names what cannot be said in this form.
Status validate(const GroupGeometry& group);

// One image of a plan.
struct SlotCopy {
  std::byte* image = nullptr;  // in the slab, layout.slot_bytes
  std::uint32_t block = 0;     // engine block index
  AllocationId allocation;
  std::uint64_t seed = 0;
  std::uint64_t digest = 0;  // restore: expected; save: result
  bool verified = false;     // restore: result; false = at least one fragment is wrong
};

enum class Direction : std::uint8_t { kSave, kRestore };

struct CopyBatch {
  Direction direction = Direction::kSave;
  const GroupGeometry* group = nullptr;
  std::span<SlotCopy> slots;
  std::uint64_t ready_stream = 0;  // producer (save) or previous users (restore); 0 = none
};

class Copier {
 public:
  virtual ~Copier() = default;
  virtual std::string name() const = 0;  // "host avx512"
  // Starts a batch; `batch.slots` and the group stay valid until drain() returns. A batch
  // accepted in part is drained before an error is reported.
  // Save: fragments, then the header. Restore: the header is copied and checked against
  // the slot first; a wrong one copies nothing. A wrong slot leaves its pages undefined and
  // `verified` false, and is no error: the other slots go on.
  virtual Status submit(const CopyBatch& batch) = 0;
  // Blocks until everything submitted has ended; results stand in the slots. An error
  // means that no copy is running, and that the bytes of the batch are undefined.
  virtual Status drain() = 0;
};

// The CPU copier. `verify` false skips the comparison (tests of the tests only).
struct HostCopierOptions {
  bool verify = true;
};
std::unique_ptr<Copier> make_host_copier(HostCopierOptions options = {});

}  // namespace orbitkv::device
