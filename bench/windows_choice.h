// Which copy windows a bench uses. Main thread.
#pragma once

#include <string>

#include "bench/gpu.h"
#include "device/cuda/windows.h"

namespace orbitkv::bench {

// "tuned" (or nothing): those that were kept for this machine, else measured now; "default";
// or "ctas,stage KiB,loads,stores" for everything. kReject: none of these.
Result<device::cuda::Windows> choose_windows(const std::string& text, const Gpu& gpu);

}  // namespace orbitkv::bench
