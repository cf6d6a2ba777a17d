// The NUMA node that a GPU hangs on, by its PCI address in /sys: where memory is nearest to
// it. A hint for placement; whatever cannot be told is kAnyNode, never an error. Any thread.
#pragma once

#include <string>

#include "base/ids.h"
#include "device/cuda/driver.h"

namespace orbitkv::device::cuda {

// `root` is put before the path; tests make a tree of their own.
NodeId numa_node_of(const Driver& driver, CuDevice device, const std::string& root = "");

}  // namespace orbitkv::device::cuda
