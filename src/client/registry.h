// What this process registered: geometry with addresses (which never leave it) and
// the values that go to the Manager. Entries outlive a session: a new one registers
// them again. Guarded by the client's registry lock; an Entry stays valid while an
// operation holds it open.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "device/copier.h"
#include "model/geometry.h"
#include "orbitkv/client.h"

namespace orbitkv::client {

struct RegisteredGroup {
  device::GroupGeometry geometry;
  model::SlotLayout layout;
};

class Executor;

struct Entry {
  std::uint64_t handle = 0;
  device::Device* device = nullptr;
  bool gpu = false;
  Executor* executor = nullptr;  // of the device; set by the client
  model::RankRegistration rank;
  std::vector<RegisteredGroup> groups;
  // Place of every layer name in the engine's consuming order, over all groups.
  std::map<std::string, std::uint16_t, std::less<>> turns;
  std::atomic<std::uint64_t> registration{0};  // of the living session; 0: none
  std::atomic<std::uint32_t> open_transfers{0};
  bool closing = false;

  const RegisteredGroup* group(GroupId id) const;
};

// Turns a Registration into an entry: groups the layers, checks every address range
// against the allocation that the caller named and that against the device, validates
// both halves. kReject names the layer and the rule.
Result<std::unique_ptr<Entry>> make_entry(const Registration& registration, std::uint64_t handle,
                                          device::Device& device);

// The events of a restore by turn, ascending. kReject: a layer that is not registered, a
// layer or an event that comes twice, a null event, or pages in CPU memory.
Result<std::vector<device::LayerEvent>> events_by_turn(const Entry& entry,
                                                       std::span<const LayerEvent> events);

}  // namespace orbitkv::client
