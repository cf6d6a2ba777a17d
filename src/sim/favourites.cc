#include "sim/favourites.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "sim/cells.h"
#include "sim/random.h"

namespace orbitkv::sim {
namespace {

std::uint32_t& weight_of(Config& config, ActionKind kind) {
  return config.weights[static_cast<std::size_t>(kind)];
}
void at_least(Config& config, ActionKind kind, std::uint32_t weight) {
  weight_of(config, kind) = std::max(weight_of(config, kind), weight);
}

// ---- what makes states frequent ----

// Blocks leave memory and come back from a disk that takes its time.
void read_much(Config& config) {
  config.ssd.on = true;
  config.ssd.latency = {microseconds(200), milliseconds(20)};
  config.ssd.depth = std::max(config.ssd.depth, 4u);
  config.ssd.policy = 0;  // all is written
  config.chain_blocks = std::max(config.chain_blocks, 10u);
  config.core.load_wait = config.core.lease_ttl = seconds(5);
  config.core.query_budget = config.core.query_instance_budget = {};
  config.pool = std::max(config.pool, ByteCount(64 * 1024));
  config.slab = std::max(config.slab, ByteCount(config.pool.value / 2));
  for (EnginePlan& engine : config.engines) engine.early = true;
  // What is saved anew is not read from there.
  weight_of(config, ActionKind::kPublish) = std::min(weight_of(config, ActionKind::kPublish), 100u);
  at_least(config, ActionKind::kEvict, 150);
  at_least(config, ActionKind::kRead, 500);
}
void queue_reads(Config& config) {
  read_much(config);
  config.ssd.reads = config.ssd.depth = 1;
}
void fail_reads(Config& config) {
  read_much(config);
  config.ssd.reads = 64;
  at_least(config, ActionKind::kIoError, 40);
  at_least(config, ActionKind::kIoDelay, 30);
  at_least(config, ActionKind::kKillManager, 10);
  config.chain_blocks = 16;
}
void die_taking_back(Config& config) {
  if (!config.keep.on) return;
  at_least(config, ActionKind::kKillManagerAt, 8);
  config.restart = {milliseconds(1), milliseconds(200)};
}
void fill_banks(Config& config) {
  config.bank_bytes = 1024;
  config.copy = {milliseconds(1), milliseconds(20)};
  config.pool = std::max(config.pool, ByteCount(128 * 1024));
  config.slab = std::max(config.slab, ByteCount(config.pool.value / 4));
  config.chain_blocks = std::max(config.chain_blocks, 8u);
  die_taking_back(config);
}
void hold_claims(Config& config) {
  config.copy = {milliseconds(1), milliseconds(50)};
  at_least(config, ActionKind::kFailCopy, 20);
}
// One slab after the other, while copies go on.
void retire_much(Config& config) {
  config.slab = ByteCount(std::max<std::uint64_t>(config.pool.value / 4 / 4096 * 4096, 16 * 1024));
  config.slabs.retire_after = milliseconds(10);
  config.core.retire_looks = 1;
  at_least(config, ActionKind::kPoolAdd, 40);
  at_least(config, ActionKind::kPoolDrain, 40);
  die_taking_back(config);
}
// One engine, which goes on for a while when the Manager has died, with records that it gave back:
// because the engine stood still, or because it ended the session.
void change_hands(Config& config) {
  if (!config.keep.on) return;
  config.restart = {milliseconds(50), milliseconds(200)};
  config.frame = {microseconds(5), milliseconds(100)};
  config.wake = {microseconds(1), milliseconds(5)};
  config.gap = {microseconds(5), microseconds(100)};
  config.engines.resize(1);
  config.engines[0].pages = 64;
  config.pool = std::max(config.pool, ByteCount(128 * 1024));
  config.slab = std::max(config.slab, ByteCount(config.pool.value / 2));
  config.chain_blocks = std::max(config.chain_blocks, 4u);
  config.stalls.after = milliseconds(1500);
  config.stalls.kill = false;
  at_least(config, ActionKind::kPublish, 800);
  at_least(config, ActionKind::kKillManagerAt, 20);
  at_least(config, ActionKind::kStopEngine, 20);
  at_least(config, ActionKind::kGarbleCommand, 20);
}
void lose_slabs(Config& config) {
  retire_much(config);
  hold_claims(config);
  config.core.retire_claim_wait = milliseconds(1);
  at_least(config, ActionKind::kSlowCopy, 30);
}
void stand_still(Config& config) {
  config.stalls.after = milliseconds(1500);
  config.stalls.kill = true;
  config.pause = {milliseconds(1), milliseconds(100)};
  config.burst = 5;
  hold_claims(config);
  at_least(config, ActionKind::kStopEngine, 15);
  at_least(config, ActionKind::kPublish, 600);
}
void look_up_slowly(Config& config) {
  config.core.turn_hashes = config.core.turn_unpins = 1;
  config.chain_blocks = std::max(config.chain_blocks, 12u);
  config.turn = {microseconds(50), microseconds(500)};
  at_least(config, ActionKind::kKillManagerAt, 12);
}
void run_short(Config& config) {
  config.core.query_budget = ByteCount(std::max<std::uint64_t>(config.pool.value / 8, 4096));
  config.core.query_instance_budget = ByteCount(config.core.query_budget.value / 2);
}
// Two engines at least, and not always a place.
void claim_much(Config& config) {
  if (config.engines.size() == 1) config.engines.push_back(config.engines[0]);
  const SpacePlan& space = config.spaces[config.engines[0].space];
  config.engines[1].index = 1;
  config.engines[1].space = space.index;
  config.engines[1].one_process = config.engines[1].one_process && space.world == 1;
  config.core.load_wait = milliseconds(20);
  at_least(config, ActionKind::kClaim, 200);
  at_least(config, ActionKind::kHogTickets, 12);
  at_least(config, ActionKind::kHogMetadata, 12);
}
void start_often(Config& config) {
  config.ssd.on = true;
  config.ssd.latency = {milliseconds(1), milliseconds(20)};
  config.restart = {milliseconds(1), milliseconds(20)};
  at_least(config, ActionKind::kKillManager, 10);
  at_least(config, ActionKind::kDrop, 20);
  if (config.keep.on) at_least(config, ActionKind::kUpgrade, 20);
}

struct Leaning {
  std::string_view states;  // these, or all of a machine
  void (*lean)(Config&);
};
constexpr Leaning kLeanings[] = {
    {"session.stalled", stand_still},  {"session.closing", hold_claims},    {"publish.reserved", fill_banks},
    {"publish.reserved", retire_much}, {"publish.orphaned", lose_slabs},    {"restore.awaiting", read_much},
    {"restore.pinned", fill_banks},    {"restore.orphaned", lose_slabs},    {"restore.claimed", hold_claims},
    {"restore.deceived", fail_reads},  {"image.loading", read_much},        {"image.load_failed", fail_reads},
    {"load.queued", queue_reads},      {"load.submitted", read_much},       {"lease.waiting", run_short},
    {"lease.loading", read_much},      {"recovery.loading", read_much},     {"recovery.waiting", run_short},
    {"lease.taking", look_up_slowly},  {"recovery.taking", look_up_slowly}, {"retire.", retire_much},
    {"retire.claims", hold_claims},    {"retire.device", queue_reads},      {"record.revoked", lose_slabs},
    {"record.revoked", change_hands},  {"publish.reserved", change_hands},  {"interest.", claim_much},
    {"interest.acquiring", read_much}, {"interest.collecting", run_short},  {"opening.", start_often},
};

// Few kinds of faults strike often; what ends a process does not do so all the time.
std::uint32_t weight_of_fault(ActionKind kind) {
  const std::uint32_t usual = info_of(kind).weight;
  if (kind == ActionKind::kKillAtPoint || kind == ActionKind::kKillManagerAt) return 3;
  if (kind == ActionKind::kKillStart || kind == ActionKind::kCrowdSessions) return 1;  // all attach anew
  return kind <= ActionKind::kKillManagerAt ? std::min(usual, 2u) : std::clamp(usual, 2u, 6u);
}

}  // namespace

void lean_towards(Config& config, std::size_t state) {
  config.favourite = state;
  Random random(config.seed, 0xFA71u, state);
  config.keep.on = config.keep.on || random.percent(40);
  if (config.slabs.retire_after == kNever && random.percent(80))
    config.slabs.retire_after = milliseconds(200);
  for (std::size_t i = 0; i < kActionKinds; ++i) {
    const auto kind = static_cast<ActionKind>(i);
    const ActionInfo& info = info_of(kind);
    if (!info.fault) continue;
    const bool strikes = random.percent(75) && (config.keep.on || !info.kept);
    config.weights[i] = strikes ? weight_of_fault(kind) : 0;
  }
  config.pause.most = std::max(config.pause.most, milliseconds(20));
  const std::string name = name_of_state(state);
  for (const Leaning& each : kLeanings)
    if (name == each.states || (each.states.ends_with('.') && name.starts_with(each.states)))
      each.lean(config);
  const std::uint32_t changes = random.percent(50) ? 20 : 60;  // of slabs
  at_least(config, ActionKind::kPoolAdd, changes);
  at_least(config, ActionKind::kPoolDrain, changes);
  if (config.keep.on) at_least(config, ActionKind::kUpgrade, info_of(ActionKind::kUpgrade).weight);
}

void draw_favourite(Config& config) {
  Random random(config.seed, 0xFA70u);
  if (random.percent(50)) lean_towards(config, state_to_meet(random.next()));
}

}  // namespace orbitkv::sim
