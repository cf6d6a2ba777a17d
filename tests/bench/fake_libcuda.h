// The driver behind the fake libcuda.so.1, for programs that are linked with it: what an
// engine does beside our calls, faults, and what was seen. One a process. Tests only.
#pragma once

#include "tests/cuda/fake_driver.h"

namespace orbitkv::device::cuda::fake {

FakeDriver& of_this_process();

}  // namespace orbitkv::device::cuda::fake
