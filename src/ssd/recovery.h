// The second half of open(): from what the scan finds to index, spaces, tombstones and
// segment states; then seals what the last life left unsealed. Waits for the device. Of two
// records of a key the higher sequence wins; drops of namespaces and tombstones are applied
// before anybody can look. Never appends to a segment that it found.
#pragma once

#include "ssd/store_state.h"
#include "ssd/tombstones.h"

namespace orbitkv::ssd {

// `drops`: of open_paths(). kBusy: stop_fd of the configuration became readable.
Status recover(StoreState& state, Tombstones& tombstones, Io& io, const std::vector<SpaceDrop>& drops);

}  // namespace orbitkv::ssd
