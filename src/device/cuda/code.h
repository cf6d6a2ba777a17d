// The GPU code of this build: a fatbin with machine code of the architectures that the
// build names and PTX for later ones, and the kernels' source. Where the driver takes
// neither (an older driver, an unknown architecture, a build without nvcc), the source is
// compiled by the NVRTC that the engine's process has. Any thread with a current context.
#pragma once

#include <vector>

#include "base/result.h"
#include "device/cuda/driver.h"

namespace orbitkv::device::cuda {

// kReject says what was tried: the fatbin, and NVRTC with its log.
Result<CuModule> load_module(const Driver& driver, int major, int minor);

// Machine code of the copy kernels for sm_<major><minor>, by NVRTC; needs no driver.
Result<std::vector<char>> compile_kernels(int major, int minor);

}  // namespace orbitkv::device::cuda
