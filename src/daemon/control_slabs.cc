// What the operator is told of the pool's slabs.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "daemon/control.h"

namespace orbitkv::daemon {
namespace {
using nlohmann::json;

constexpr std::size_t kListed = 256;  // slabs of one answer

const char* state_name(mem::SlabState state) {
  switch (state) {
    case mem::SlabState::kRaw:
    case mem::SlabState::kTouched:
    case mem::SlabState::kCollapsed: return "building";
    case mem::SlabState::kOffered: return "in use";
    case mem::SlabState::kRetiring: return "retiring";
    case mem::SlabState::kGone:
    case mem::SlabState::kCount: break;
  }
  return "gone";
}

// What a slab that retires waits for now.
const char* waits_for(cache::RetireState state) {
  switch (state) {
    case cache::RetireState::kImages:
    case cache::RetireState::kGrants: return "what it holds to be stored or dropped";
    case cache::RetireState::kClaims: return "copies that engines have begun";
    case cache::RetireState::kDevice: return "the SSD";
    case cache::RetireState::kIdle:
    case cache::RetireState::kDrained:
    case cache::RetireState::kIllegal: break;
  }
  return "nothing";
}

json slab_json(const mem::SlabInfo& slab) {
  return {{"slab", slab.id.value},   {"state", state_name(slab.state)},       {"bytes", slab.bytes.value},
          {"used", slab.used.value}, {"quarantined", slab.quarantined.value}, {"huge", slab.huge.value}};
}

}  // namespace

// In the order of names, from `after` on.
Result<std::string> Control::pool_list(std::uint64_t after) const {
  std::vector<json> all;
  const cache::RetireReport retiring = core_.retiring();
  for (const mem::SlabInfo& slab : pool_.slabs()) {
    if (slab.state == mem::SlabState::kGone || slab.id.value < after) continue;
    all.push_back(slab_json(slab));
    if (slab.state == mem::SlabState::kRetiring) all.back()["waits_for"] = waits_for(retiring.state);
  }
  for (const Slabs::Waiting& gone : slabs_.abandoned()) {
    if (gone.slab.value < after) continue;
    all.push_back(
        {{"slab", gone.slab.value},
         {"state", "retired"},
         {"bytes", gone.bytes.value},
         {"used", 0},
         {"quarantined", 0},
         {"huge", 0},
         {"waits_for", gone.processes.empty() ? "whoever keeps descriptors" : "processes"},
         {"processes", std::vector(gone.processes.begin(),
                                   gone.processes.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(
                                                                gone.processes.size(), 16)))}});
  }
  std::sort(all.begin(), all.end(), [](const json& a, const json& b) { return a.at("slab") < b.at("slab"); });
  const bool more = all.size() > kListed;
  if (more) all.resize(kListed);
  return json({{"slabs", all}, {"more", more}, {"wanted", slabs_.wanted()}, {"limit", slabs_.limit().value}})
      .dump();
}

Result<std::string> Control::pool_wanted(const Result<std::uint32_t>& wanted) const {
  if (!wanted.ok()) return wanted.error();
  return json({{"wanted", *wanted}, {"in_use", slabs_.offered()}}).dump();
}

}  // namespace orbitkv::daemon
