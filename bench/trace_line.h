// One line of a trace of transfers (client/trace.h), read back. Pure values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/copier.h"

namespace orbitkv::bench {

struct TracedFragment {
  std::uint16_t layer = 0, component = 0, turn = 0;
  std::int64_t base = 0;  // from the first fragment of the line
  std::uint64_t block_stride = 0;
  std::uint32_t rows = 1;
  std::uint64_t row_bytes = 0;
  std::uint64_t row_stride = 0;
};
struct TracedSlot {
  std::uint32_t block = 0;
  std::uint32_t slab = 0;
  std::uint64_t offset = 0;
};
struct TracedGroup {
  std::uint16_t group = 0;
  std::uint32_t num_blocks = 0;
  std::uint64_t slot_bytes = 0;
  std::vector<TracedFragment> fragments;
  std::vector<TracedSlot> slots;
};
struct TraceLine {
  std::uint64_t op = 0;
  device::Direction direction = device::Direction::kSave;
  std::string method;
  bool success = false;
  bool bounced = false;
  std::uint64_t bytes = 0, fragments = 0, plan_bytes = 0;
  std::uint32_t submissions = 0;
  std::vector<TracedGroup> groups;
  // Equal for lines that only differ in which blocks and images they moved.
  std::string shape_key;
};

struct TraceFile {
  std::vector<TraceLine> lines;
  bool full = false;  // the file ends where its bound was reached
};
// kReject names the line that cannot be read and why.
Result<TraceFile> read_trace(const std::string& path);
Result<TraceLine> parse_trace_line(const std::string& text);

}  // namespace orbitkv::bench
