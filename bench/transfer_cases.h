// The operations that `orbitkv bench restore` and `publish` measure, on every device.
// Plain values and what both devices do with them.
#pragma once

#include <numeric>
#include <vector>

#include "bench/manager.h"

namespace orbitkv::bench {

struct TransferCase {
  const char* name;
  EngineShape shape;     // shape.blocks = distinct sets x blocks_per_operation
  std::uint32_t blocks;  // of one operation
  bool inline_copies;
  std::uint32_t samples;  // a run
  std::uint32_t sets() const { return shape.blocks / blocks; }
  std::uint64_t fragments() const { return std::uint64_t{blocks} * shape.layers * shape.components; }
};
// Enough distinct blocks that a set of large operations does not stay in the cache.
inline constexpr TransferCase kTransferCases[] = {
    {"4KiB", {1, 1, 64, 4 * kKiB.value}, 1, true, 2000},
    {"4KiB_executor", {1, 1, 64, 4 * kKiB.value}, 1, false, 500},
    {"64KiB", {1, 1, 64, 64 * kKiB.value}, 1, true, 1000},
    {"256KiB", {1, 1, 64, 256 * kKiB.value}, 1, true, 400},
    {"1MiB", {1, 1, 64, kMiB.value}, 1, true, 200},
    {"4MiB", {1, 1, 32, 4 * kMiB.value}, 1, true, 100},
    {"36x128x4KiB_split", {36, 2, 256, 2 * kKiB.value}, 128, true, 40},
};

inline std::vector<std::uint32_t> blocks_of_set(const TransferCase& what, std::uint32_t set) {
  std::vector<std::uint32_t> blocks(what.blocks);
  std::iota(blocks.begin(), blocks.end(), set * what.blocks);
  return blocks;
}

inline Status finish(client::Client& client, client::OperationHandle handle) {
  const auto status = client.wait(handle, 60'000);
  client.drop(handle);
  if (status.done && status.success) return ok_status();
  return bug("an operation of the bench failed: " + status.message);
}

}  // namespace orbitkv::bench
