// The trace file of transfers: one JSON object a line, written when a transfer ends, with
// the geometry of what was copied, so that `orbitkv bench replay` can run it again.
// Bounded, a client, by limits::kTraceUnits fragments and slots; then {"full":true} and no
// more. A line is one write, so that processes may share the file; one that fails ends it.
//   op, kind ("save"|"restore"), device, method, success, bytes, fragments, submissions,
//   plan_bytes, bounced; stages_ns: {readiness, dispatched, dequeued, claimed, enqueued,
//   drained}, since the call, 0 = not reached; groups: [{group, num_blocks, slot_bytes,
//   header_bytes, fragments: [[layer, component, turn, base, block_stride, rows, row_bytes,
//   row_stride, image_offset]], slots: [[block, slab, offset]]}], base relative to the first
//   fragment of the line (may be negative), offset of the image in its slab.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"
#include "client/transfer.h"

namespace orbitkv::client {

class Trace {
 public:
  // Appends. kReject: the file cannot be opened.
  static Result<std::unique_ptr<Trace>> open(const std::string& path);
  void write(const Transfer& transfer, bool success);

 private:
  explicit Trace(UniqueFd file) : file_(std::move(file)) {}

  std::mutex mutex_;
  const UniqueFd file_;
  std::uint64_t units_ = 0;
  bool full_ = false;
};

}  // namespace orbitkv::client
