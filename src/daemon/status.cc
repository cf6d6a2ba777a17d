// The status object. Field names are part of the interface (docs/protocol.md).
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "base/version.h"
#include "daemon/manager.h"

namespace orbitkv::daemon {
namespace {
using nlohmann::json;

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (std::byte b : bytes) text += format_text("%02x", static_cast<unsigned>(b));
  return text;
}

const char* life_name(Session::Life life) {
  switch (life) {
    case Session::Life::kOpen: return "open";
    case Session::Life::kClosed: return "closed, draining";
    case Session::Life::kEnded: return "ended";
  }
  return "?";
}

json pool_json(const mem::PoolStats& pool, const cache::CoreStats& core, std::size_t slabs) {
  return {{"capacity", pool.capacity.value},
          {"configured", pool.configured.value},
          {"used", pool.used.value},
          {"leased", core.leased.value},
          {"quarantined", pool.quarantined.value},
          {"largest_free", pool.largest_free.value},
          {"huge", pool.huge.value},
          {"slabs", slabs}};
}
}  // namespace

std::string Manager::status_json() const {
  const cache::CoreStats core = core_->stats();
  json sessions = json::array();
  for (SessionId id : live_) {
    const Session& session = *sessions_[id.value];
    sessions.push_back({{"id", id.value},
                        {"name", session.name()},
                        {"pid", session.peer().pid},
                        {"state", life_name(session.life)},
                        {"operations", session.open_operations()}});
  }
  json instances = json::array();
  for (const cache::InstanceStats& instance : core_->instances())
    instances.push_back({{"id", hex(instance.id.bytes)},
                         {"ranks", instance.ranks},
                         {"world_size", instance.world_size},
                         {"leases", instance.leases}});
  json status = {{"version", kVersion},
                 {"incarnation", format_text("%016llx", static_cast<unsigned long long>(incarnation_.value))},
                 {"uptime_s", static_cast<double>((monotonic_now() - started_).ns) / 1e9},
                 {"socket", options_.socket},
                 {"draining", draining_},
                 {"sessions", sessions},
                 {"instances", instances},
                 {"pool", pool_json(pool_->stats(), core, offered_.size())},
                 {"blocks", core.blocks},
                 {"inflight_images", core.inflight_images},
                 {"leases", core.leases},
                 {"operations", core.operations},
                 {"hits", core.hits},
                 {"misses", core.misses},
                 {"published", core.published},
                 {"published_bytes", core.published_bytes},
                 {"filtered", core.filtered},
                 {"dropped", core.dropped},
                 {"restored", core.restored},
                 {"restored_bytes", core.restored_bytes},
                 {"evicted", core.evicted},
                 {"abandoned", core.abandoned},
                 {"failed_verifications", core.failed_verifications},
                 {"failed_restores", core.failed_restores},
                 {"waits", core.waits},
                 {"expired_leases", core.expired_leases},
                 {"quarantined_extents", core.quarantined_extents}};
  return status.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace orbitkv::daemon
