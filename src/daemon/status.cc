// The status object. Field names are part of the interface (docs/protocol.md).
#include <unistd.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "base/version.h"
#include "daemon/manager.h"

namespace orbitkv::daemon {
namespace {
using nlohmann::json;

const char* state_name(Session::Life life, Health health) {
  switch (life) {
    case Session::Life::kOpen: return health == Health::kHealthy ? "open" : "stalled";
    case Session::Life::kClosed: return "closed, draining";
    case Session::Life::kEnded: return "ended";
  }
  return "?";
}

constexpr std::array kRefusals = {"none",         "queue_full",    "no_space", "index_full",
                                  "device_error", "write_stopped", "dropped",  "opening"};
constexpr std::array kOpenStates = {"reading", "settling", "ready", "giving_up", "given_up"};
constexpr std::array kLosses = {"none",     "reclaimed",    "corrupt", "namespace",
                                "replaced", "device_error", "unused"};
static_assert(kRefusals.size() == static_cast<std::size_t>(ssd::Refusal::kCount));
static_assert(kOpenStates.size() == ssd::kOpenStates);
static_assert(kLosses.size() == static_cast<std::size_t>(ssd::Loss::kCount));

template <std::size_t N>
json counts_json(const std::array<const char*, N>& names, const std::array<std::uint64_t, N>& counts) {
  json out = json::object();
  for (std::size_t i = 1; i < N; ++i) out[names[i]] = counts[i];
  return out;
}

constexpr std::size_t kPathShown = 512;  // of each text, so that all paths fit a frame

json paths_json(const ssd::Store& store) {
  json paths = json::array();
  for (const ssd::PathStatus& path : store.paths())
    paths.push_back({{"path", path.path.substr(0, kPathShown)},
                     {"state", path.state == ssd::PathState::kOk ? "ok" : "writes stopped"},
                     {"why", path.why.substr(0, kPathShown)},
                     {"note", path.note.substr(0, kPathShown)},
                     {"capacity", path.capacity.value},
                     {"used", path.used.value},
                     {"records", path.records},
                     {"segments", path.segments},
                     {"free_segments", path.free_segments}});
  return paths;
}

json ssd_json(const SsdTier& tier) {
  const ssd::StoreStats store = tier.store().stats();
  const ssd::AdmissionStats admission = tier.admission_stats();
  const ssd::OpenProgress opening = tier.store().opening();
  return {{"io", tier.io_name()},
          {"state", kOpenStates[static_cast<std::size_t>(opening.state)]},
          {"opening",
           {{"ready", tier.ready()},
            {"segments", opening.segments},
            {"segments_read", opening.segments_read},
            {"seconds_left", tier.ready() ? 0.0 : opening.seconds_left},
            {"missed", tier.missed_unready()}}},
          {"paths", paths_json(tier.store())},
          {"records", store.records},
          {"recovered", store.recovered},
          {"recovery_s", store.recovery_seconds},
          {"damaged_batches", store.damaged_batches},
          {"capacity", store.capacity.value},
          {"live_bytes", store.live.value},
          {"index_bytes", store.index.value},
          {"reads", store.reads},
          {"read_bytes", store.read.value},
          {"writes", store.writes},
          {"written_bytes", store.written.value},
          {"device_written_bytes", store.device_written.value},
          {"reinserted_bytes", store.reinserted.value},
          {"queued_bytes", store.queued.value},
          {"refused", counts_json(kRefusals, store.refused)},
          {"lost", counts_json(kLosses, store.lost)},
          {"scrubbed", store.scrubbed},
          {"scrub_errors", store.scrub_errors},
          {"admission",
           {{"admitted", admission.admitted},
            {"unlikely", admission.unlikely},
            {"over_budget", admission.over_budget},
            {"refused", admission.refused},
            {"returned", admission.returned},
            {"lost", admission.lost}}}};
}

// Blocks between memory and SSD, as the core counts them.
json loads_json(const cache::CoreStats& core) {
  return {{"begun", core.loads},
          {"loaded", core.loaded},
          {"loaded_bytes", core.loaded_bytes},
          {"failed", core.load_failures},
          {"gone", core.loads_gone},
          {"given_up", core.loads_given_up},
          {"shared", core.shared_loads},
          {"refused_memory", core.loads_refused_memory},
          {"refused_bounds", core.loads_refused_bounds},
          {"timeouts", core.load_timeouts},
          {"now", core.loading},
          {"now_bytes", core.loading_bytes.value},
          {"spilled", core.spilled},
          {"spilled_bytes", core.spilled_bytes},
          {"spill_failures", core.spill_failures},
          {"spills_refused", core.spills_refused},
          {"spilling", core.spilling}};
}

// What may be evicted, in the order in which it goes.
json eviction_json(const cache::CoreStats& core) {
  const auto of = [](const cache::CoreStats::OfClass& one) {
    return json({{"blocks", one.blocks}, {"bytes", one.bytes.value}, {"evicted", one.evicted}});
  };
  return {{"reclaimable", of(core.reclaimable)},
          {"probationary", of(core.probationary)},
          {"retained", of(core.retained)},
          {"protected_bytes", core.protected_share.value}};
}

json publishes_json(const std::optional<cache::PublishActivity>& of) {
  if (!of) return json::object();
  return {{"open", of->open},
          {"waiting", of->waiting},
          {"lent_bytes", of->lent.value},
          {"dropped", of->dropped},
          {"oldest_s", static_cast<double>(of->oldest.ns) / 1e9}};
}

json interests_json(const cache::InterestStats& i) {
  return {{"open", i.interests},
          {"operations", i.operations},
          {"claims", i.claims},
          {"lost", i.lost},
          {"stale", i.stale}};
}

json budgets_json(const cache::BudgetStats& b) {
  return {{"limit", b.limit.value},
          {"instance_limit", b.instance_limit.value},
          {"used", b.used.value},
          {"peak", b.peak.value},
          {"speculative", b.speculative.value},
          {"draining", b.draining.value},
          {"waiting", b.waiting},
          {"waits", b.waits},
          {"ended", b.ended},
          {"cut", b.cut},
          {"bypassed", b.bypassed},
          {"publisher_waits", b.publisher_waits},
          {"prepared", b.prepared},
          {"prepares", b.prepares},
          {"claimed", b.claimed},
          {"unclaimed", b.unclaimed},
          {"gave_way", b.gave_way},
          {"warms", b.warms},
          {"hints", b.hints},
          {"warmed", b.warmed},
          {"warms_expired", b.warms_expired}};
}

json nodes_json(const mem::PoolStats& pool) {
  json nodes = json::array();
  for (const mem::NodeStats& node : pool.nodes)
    nodes.push_back(
        {{"node", node.node.value}, {"capacity", node.capacity.value}, {"used", node.used.value}});
  return nodes;
}

json pool_json(const mem::PoolStats& pool, const cache::CoreStats& core, const Slabs& slabs) {
  return {{"capacity", pool.capacity.value},
          {"configured", pool.configured.value},
          {"used", pool.used.value},
          {"leased", core.leased.value},
          {"quarantined", pool.quarantined.value},
          {"largest_free", pool.largest_free.value},
          {"huge", pool.huge.value},
          {"nodes", nodes_json(pool)},
          {"local", pool.local},
          {"remote", pool.remote},
          {"slabs", slabs.offered()},
          {"wanted_slabs", slabs.wanted()},
          {"building", pool.building.value},
          {"retiring", pool.retiring.value},
          {"retired", slabs.retired_bytes().value},
          {"retired_slabs", slabs.retired()},
          {"limit", slabs.limit().value}};
}

json kept_json(const Keep::View& view, const ServeOptions& options) {
  json old = json::array();
  for (const OldGrants::View& each : view.old) {
    if (old.size() == limits::kSessions) break;
    old.push_back({{"pid", each.pid},
                   {"extents", each.extents},
                   {"bytes", each.bytes.value},
                   {"restores", each.restores},
                   {"silent_s", each.silent.ns / 1'000'000'000},
                   {"stalled", each.stalled}});
  }
  json kept = {{"by", view.kind},       {"alive", view.alive},      {"format", mem::kKeptFormat},
               {"stored", view.stored}, {"blocks", view.blocks},    {"old_grants", view.old_grants},
               {"old_sessions", old},   {"not_kept", view.not_kept}};
  if (options.keeping != ServeOptions::Keeping::kKeeper) return kept;
  // The keeper's pid; left out where it is in another PID namespace, and has none here.
  if (!view.alive || options.keeper > 0) kept["keeper"] = view.alive ? options.keeper : 0;
  kept["came"] = options.came;
  kept["why"] = options.why_came;
  kept["hung_starts"] = options.hung;
  return kept;
}
}  // namespace

std::string Manager::status_json() const {
  const cache::CoreStats core = host_->core().stats();
  const TimePoint now = monotonic_now();
  json sessions = json::array();
  for (SessionId id : host_->live()) {
    const Session& session = host_->session(id);
    sessions.push_back({{"id", id.value},
                        {"name", session.name()},
                        {"pid", session.pid()},
                        {"state", state_name(session.life, host_->stalls().health(id))},
                        {"operations", session.open_operations()},
                        {"silent_s", host_->stalls().silent(id).ns / 1'000'000'000}});
  }
  json instances = json::array();
  for (const cache::InstanceStats& instance : host_->core().instances())
    instances.push_back({{"id", hex_text(instance.id.bytes)},
                         {"ranks", instance.ranks},
                         {"world_size", instance.world_size},
                         {"leases", instance.leases},
                         {"charged", instance.charged.value},
                         {"waiting", instance.waiting},
                         {"publishes", publishes_json(host_->core().publish_activity(instance.id, now))}});
  json status = {{"version", kVersion},
                 {"incarnation", format_text("%016llx", static_cast<unsigned long long>(incarnation_.value))},
                 {"uptime_s", static_cast<double>((now - started_).ns) / 1e9},
                 {"pid", ::getpid()},
                 {"socket", options_.socket},
                 {"draining", draining_},
                 {"sessions", sessions},
                 {"instances", instances},
                 {"pool", pool_json(pool_->stats(), core, host_->slabs())},
                 {"eviction", eviction_json(core)},
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
                 {"undelivered", core.undelivered},
                 {"tickets", core.tickets},
                 {"interests", interests_json(core.interests)},
                 {"recoveries", core.recoveries},
                 {"recoveries_missed", core.recoveries_missed},
                 {"recovery_waits", core.recovery_waits},
                 {"budgets", budgets_json(core.budgets)},
                 {"quarantined_extents", core.quarantined_extents},
                 {"stalls", host_->stalls().stats().stalls},
                 {"revivals", host_->stalls().stats().revivals},
                 {"stalled_killed", host_->stalls().stats().condemned}};
  if (keep_) status["kept"] = kept_json(keep_->view(), options_);
  if (ssd_) status["loads"] = loads_json(core);
  if (ssd_) status["ssd"] = ssd_json(*ssd_);
  return status.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace orbitkv::daemon
