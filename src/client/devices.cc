#include "client/devices.h"

#include <algorithm>

#include "device/host/host_copier.h"

namespace orbitkv::client {

Devices::Devices(OpenCuda open_cuda) : open_cuda_(std::move(open_cuda)) {}

Result<std::shared_ptr<device::Device>> Devices::open(const std::string& name) {
  if (name == "cpu:0") return std::shared_ptr<device::Device>(device::make_host_device());
  for (const char* prefix : {"cuda:", "GPU-", "MIG-"})
    if (name.starts_with(prefix)) return open_cuda_(name);
  return reject("no device is called '" + name +
                "'; use cpu:0, cuda:<number>, or the UUID that nvidia-smi -L shows (GPU-..., MIG-...)");
}

Result<device::Device*> Devices::find(const std::string& name) {
  std::lock_guard one(opening_);
  if (auto known = by_name_.find(name); known != by_name_.end()) return known->second;
  ORBITKV_ASSIGN_OR_RETURN(auto opened, open(name));
  std::lock_guard lock(mutex_);
  auto same = std::find_if(devices_.begin(), devices_.end(),
                           [&](const auto& other) { return other->identity() == opened->identity(); });
  if (same == devices_.end()) {
    for (const auto slab : slabs_) opened->add_slab(slab);
    same = devices_.insert(devices_.end(), std::move(opened));
  }
  by_name_.emplace(name, same->get());
  return same->get();
}

void Devices::add_slab(std::span<std::byte> slab) {
  std::lock_guard lock(mutex_);
  slabs_.push_back(slab);
  for (const auto& device : devices_) device->add_slab(slab);
}

// A device that is opened from here on does not get it; one that lets go of it may take its
// time, and others may be given slabs meanwhile.
void Devices::remove_slab(std::span<std::byte> slab) {
  std::unique_lock lock(mutex_);
  std::erase_if(slabs_, [&](const auto& known) { return known.data() == slab.data(); });
  const std::vector<std::shared_ptr<device::Device>> devices = devices_;
  lock.unlock();
  for (const auto& device : devices) device->remove_slab(slab);
}

}  // namespace orbitkv::client
