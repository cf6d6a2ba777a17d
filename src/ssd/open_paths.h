// The first half of open(): locks, checks, makes or grows every path and begins a new epoch
// on all of them. Waits for the device. Never writes to what is not empty and not a store of
// this set, and to nothing before every path has been checked. After an error files that it made are
// gone again, but for those of which another path of the store may know already.
#pragma once

#include <vector>

#include "ssd/store_state.h"

namespace orbitkv::ssd {

struct OpenedPaths {
  std::vector<Path> paths;  // their superblocks are durable
  StoreUuid uuid{};
  StoreEpoch epoch;
  ByteCount segment;
  std::vector<SpaceDrop> drops;  // of all paths together
  std::uint32_t unit = 512;
  std::uint32_t max_records = 0;
  bool all_made = false;  // of its files none was there before
  std::string missing;    // that paths were not given which the last start had; empty: none
};
// Of a new store.
Status check_segment_size(ByteCount segment);
// Errors name the path and the remedy.
Result<OpenedPaths> open_paths(const StoreConfig& config, Io& io);

}  // namespace orbitkv::ssd
