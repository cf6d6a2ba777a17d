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

struct Entry {
  std::uint64_t handle = 0;
  model::RankRegistration rank;
  std::vector<RegisteredGroup> groups;
  // Place of every layer name in the engine's consuming order, over all groups.
  std::map<std::string, std::uint16_t, std::less<>> turns;
  std::atomic<std::uint64_t> registration{0};  // of the living session; 0: none
  std::atomic<std::uint32_t> open_parts{0};
  bool closing = false;

  const RegisteredGroup* group(GroupId id) const;
};

// Turns a Registration into an entry: groups the layers, checks every address range
// against the allocation that the caller named, validates both halves. kReject names
// the layer and the rule.
Result<std::unique_ptr<Entry>> make_entry(const Registration& registration, std::uint64_t handle);

}  // namespace orbitkv::client
