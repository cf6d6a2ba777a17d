// What one seed runs: sizes, limits, shapes, times and the rates of faults. Every seed
// draws its own; some have no faults, no SSD, one engine, a pool for a handful of blocks.
// Pure values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "cache/core.h"
#include "daemon/slabs.h"
#include "daemon/stall.h"
#include "sim/actions.h"
#include "sim/random.h"

namespace orbitkv::sim {

// Quarantine retires no slab.
inline constexpr Duration kNever = seconds(1'000'000'000);

inline constexpr std::uint32_t kBlockTokens = 16;

struct DurationRange {
  Duration least, most;
};

// One group of a namespace's layout.
struct GroupPlan {
  GroupId id;
  bool replicated = false;  // one shard, written by rank 0; else a shard a rank
  std::uint16_t layers = 1, components = 1;
  std::uint32_t rows = 1;
  std::uint64_t row_bytes = 64;
  bool interleaved = false;  // K and V row by row
  RecoveryRule rule = RecoveryRule::kPrefix;
  std::uint32_t window_tokens = 0;
};

// Engines of one space exchange blocks; those of different ones must not.
struct SpacePlan {
  std::uint32_t index = 0;  // in Config::spaces
  std::string name;
  std::uint16_t world = 1;
  std::vector<GroupPlan> groups;
};

struct EnginePlan {
  std::uint32_t index = 0;  // in Config::engines
  std::uint32_t space = 0;
  std::uint32_t pages = 0;   // of each group and rank
  bool one_process = false;  // scheduler and (only) worker
  bool early = false;        // is told of leases before all of their blocks have come
};

struct SsdPlan {
  bool on = false;
  std::uint32_t paths = 1, segments = 8;
  ByteCount segment;
  DurationRange latency;
  std::uint32_t depth = 8;
  std::uint32_t policy = 0;  // ssd::WritePolicy
  Duration flush;
  std::uint32_t reads = 0;  // at once
};

// What outlives the Manager: nothing, or what a store has.
struct KeepPlan {
  bool on = false;
  DurationRange letter;      // on its way to the store
  std::uint32_t deaths = 1;  // of the Manager, times as many as usual
};

struct Config {
  std::uint64_t seed = 0;
  ByteCount pool, slab;
  daemon::Slabs::Config slabs;
  daemon::StallWatch::Options stalls;
  cache::CoreConfig core;
  SsdPlan ssd;
  KeepPlan keep;
  std::vector<SpacePlan> spaces;
  std::vector<EnginePlan> engines;
  std::uint32_t chains = 4;        // of blocks, in a tree of shared prefixes
  std::uint32_t chain_blocks = 8;  // the longest
  DurationRange gap;               // between actions of a burst
  DurationRange pause;             // between bursts
  std::uint32_t burst = 20;        // actions, on average
  DurationRange wake;              // from a ring to who hears it
  DurationRange turn;              // of the Manager's loop
  DurationRange copy;              // of one image
  DurationRange frame;             // on a socket
  DurationRange restart;           // from a death of the Manager to its next life
  Duration call_timeout, grant_wait;
  std::uint32_t bank_bytes = 0;                       // of a session's plans: some hold one of them
  bool sleeps = true;                                 // the Manager's loop, where it has nothing to do
  std::array<std::uint32_t, kActionKinds> weights{};  // of the actions in the program
  // A state (sim/cells.h) that the seed leans towards (sim/favourites.h): most of its faults wait for it.
  std::optional<std::size_t> favourite;
};

Config draw_config(std::uint64_t seed);

}  // namespace orbitkv::sim
