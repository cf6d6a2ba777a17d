#include "device/cuda/numa_node.h"

#include <fstream>

#include "base/limits.h"
#include "base/text.h"

namespace orbitkv::device::cuda {

NodeId numa_node_of(const Driver& driver, CuDevice device, const std::string& root) {
  int domain = 0, bus = 0, slot = 0;
  const auto get = [&](int attribute, int& value) {
    return driver.cuDeviceGetAttribute(&value, attribute, device) == kCuSuccess;
  };
  if (!get(kAttributePciDomain, domain) || !get(kAttributePciBus, bus) || !get(kAttributePciDevice, slot))
    return kAnyNode;
  const std::string address = format_text("%04x:%02x:%02x.0", static_cast<unsigned>(domain),
                                          static_cast<unsigned>(bus), static_cast<unsigned>(slot));
  std::ifstream file(root + "/sys/bus/pci/devices/" + address + "/numa_node");
  int node = -1;  // the kernel's word for a machine of one node, too
  if (!(file >> node) || node < 0 || node >= static_cast<int>(limits::kNodeNumbers)) return kAnyNode;
  return NodeId(node);
}

}  // namespace orbitkv::device::cuda
