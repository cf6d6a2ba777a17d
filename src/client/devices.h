// The devices that this client's registrations lie on, by the names that engines give
// them, and the slabs that each of them can reach. Every device is given every slab
// that is mapped, also those that were mapped before it was opened, and lets go of it
// before it is unmapped. Devices stay open as long as this object. Any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "client/attachment.h"
#include "device/device.h"

namespace orbitkv::client {

class Devices final : public SlabUser {
 public:
  // Opens "cuda:<n>", "GPU-<uuid>" or "MIG-<uuid>".
  using OpenCuda = std::function<Result<std::shared_ptr<device::Device>>(const std::string& name)>;
  explicit Devices(OpenCuda open_cuda);

  // The same object for every name of one device. kReject: no such device, and why.
  Result<device::Device*> find(const std::string& name);
  static bool is_gpu(const device::Device& device) { return !device.identity().starts_with("cpu:"); }

  void add_slab(std::span<std::byte> slab) override;
  void remove_slab(std::span<std::byte> slab) override;

 private:
  Result<std::shared_ptr<device::Device>> open(const std::string& name);

  const OpenCuda open_cuda_;
  std::mutex opening_;  // may take a second; slabs come and go meanwhile
  std::map<std::string, device::Device*> by_name_;
  std::mutex mutex_;  // of the rest
  std::vector<std::shared_ptr<device::Device>> devices_;
  std::vector<std::span<std::byte>> slabs_;
};

}  // namespace orbitkv::client
