// The Copier seam: moves slot images between slabs and the engine's KV memory and
// computes or verifies the fragment checksums on the way. One Copier serves one
// executor, from one thread at a time; batches of both directions may run at once.
// It copies only what a grant names; ranges are checked by the caller against slab
// and geometry. Every implementation passes device/copier_suite.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "device/device.h"
#include "model/geometry.h"

namespace orbitkv::device {

// Where one fragment of every engine block lies. Block b, row r starts at
// base + b * block_stride + r * row_stride and holds row_bytes.
struct FragmentGeometry {
  std::uint16_t layer = 0;  // of its group; names the fragment in its checksum
  std::uint16_t component = 0;
  std::uint16_t turn = 0;          // of its layer in the engine's consuming order, over all groups
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
  std::byte* image = nullptr;  // in a slab that the device was given; layout.slot_bytes
  std::uint32_t block = 0;     // engine block index
  AllocationId allocation;
  std::uint64_t seed = 0;
  std::uint64_t digest = 0;  // restore: expected; save: result
  bool verified = false;     // restore: result; false = at least one fragment is wrong
};

enum class Direction : std::uint8_t { kSave, kRestore };

struct GroupCopy {
  const GroupGeometry* group = nullptr;
  std::span<SlotCopy> slots;
};

// Recorded once the last byte of the layer (all groups and components) has been copied
// and summed; a layer without bytes gets a fresh record too.
struct LayerEvent {
  std::uint16_t turn = 0;
  EventHandle event;
};

// What every copier refuses before it touches a byte: no geometry, a block that is not
// registered, an image that is missing or not aligned.
Status validate(const GroupCopy& copy);
// And of a restore: two images into one block. Which bytes land would be anybody's guess,
// and both would sum right.
Status validate_destinations(std::span<const GroupCopy> groups);

// The check of one fragment of an image, from the raw sum of its bytes.
std::uint64_t fragment_check(const FragmentGeometry& fragment, const SlotCopy& slot, std::uint64_t raw);

// Geometry and slots stay valid until the batch has ended; the spans need not.
struct CopyBatch {
  Direction direction = Direction::kSave;
  std::vector<GroupCopy> groups;
  Fence ready;                     // producer (save), or earlier users of the pages (restore)
  std::vector<LayerEvent> events;  // restore; ascending turns, each turn and event once
};

struct CopyTicket {
  std::uint64_t value = 0;
};

// What a batch was, for traces and benchmarks.
struct CopyStats {
  std::uint64_t bytes = 0;  // payload
  std::uint64_t fragments = 0;
  std::uint32_t submissions = 0;  // kernel launches and DMA calls
  std::uint64_t plan_bytes = 0;   // uploaded beside the payload
  CopyMethod method = CopyMethod::kKernel;
  bool bounced = false;
};
struct CopyEnd {
  // An error means that nothing of the batch runs any more and that its bytes are undefined.
  Status status;
  CopyStats stats;
  // False: the device can no longer say what runs (the process is ending). No receipt then.
  bool proven = true;
};

class Copier {
 public:
  // Drains what still runs.
  virtual ~Copier() = default;
  virtual std::string name() const = 0;  // "host avx512", "cuda sm_90 bulk"
  // Starts a batch; never waits for the device. An error: nothing of it was accepted. What
  // fails later ends the ticket, after everything accepted has drained.
  // Save: fragments and header stand in the image when the batch has ended, in any order.
  // Restore: the header is copied once and checked against the slot, before the copy or beside
  // it; every fragment is summed on its way. A wrong slot leaves its pages undefined and
  // `verified` false, and is no error: the other slots go on, and events fire all the same.
  // kBusy: limits::kCopyBatches are running.
  virtual Result<CopyTicket> submit(CopyBatch batch) = 0;
  // True once every copy and every layer event of the batch stands on the device's queues.
  virtual bool enqueued(CopyTicket ticket) const = 0;
  // Never blocks; does the batch's pending host work (verification, next pieces). A value
  // comes once, and ends the ticket; results then stand in the slots.
  virtual std::optional<CopyEnd> poll(CopyTicket ticket) = 0;
  // Blocks until the batch has ended, or nobody can say any more (CopyEnd::proven).
  CopyEnd drain(CopyTicket ticket);
};

}  // namespace orbitkv::device
