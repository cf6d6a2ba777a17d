#include "sim/config.h"

#include "base/limits.h"
#include "sim/favourites.h"

namespace orbitkv::sim {
namespace {

constexpr ByteCount kPage{4096};
// Slabs retire without them, where claims are not waited for so long.
constexpr DurationRange kSlowCopies{milliseconds(1), milliseconds(50)};

DurationRange range_us(std::int64_t least, std::int64_t most) {
  return {microseconds(least), microseconds(most)};
}

GroupPlan draw_group(Random& random, std::uint16_t id) {
  GroupPlan group;
  group.id = GroupId(id);
  group.replicated = random.percent(25);
  group.layers = static_cast<std::uint16_t>(random.between(1, 3));
  group.components = static_cast<std::uint16_t>(random.between(1, 2));
  group.rows = static_cast<std::uint32_t>(random.between(1, 3));
  group.row_bytes = 8 * random.between(2, 12);
  group.interleaved = random.percent(40);
  if (id == 0 || random.percent(30)) return group;
  group.rule = random.percent(50) ? RecoveryRule::kWindow : RecoveryRule::kCheckpoint;
  if (group.rule == RecoveryRule::kWindow)
    group.window_tokens = static_cast<std::uint32_t>(random.between(1, 4 * kBlockTokens));
  return group;
}

void draw_spaces(Random& random, Config& config) {
  const std::uint64_t count = random.between(1, 2);
  for (std::uint32_t i = 0; i < count; ++i) {
    SpacePlan space;
    space.index = i;
    space.name = "model-" + std::to_string(i);
    space.world = static_cast<std::uint16_t>(random.percent(50) ? 1 : random.between(2, 4));
    const auto groups = static_cast<std::uint16_t>(random.between(1, 3));
    for (std::uint16_t g = 0; g < groups; ++g) space.groups.push_back(draw_group(random, g));
    config.spaces.push_back(std::move(space));
  }
}

void draw_engines(Random& random, Config& config) {
  const std::uint64_t count = random.between(1, 4);
  for (std::uint32_t i = 0; i < count; ++i) {
    EnginePlan engine;
    engine.index = i;
    engine.space = static_cast<std::uint32_t>(random.below(config.spaces.size()));
    engine.pages = static_cast<std::uint32_t>(random.between(16, 64));
    engine.one_process = config.spaces[engine.space].world == 1 && random.percent(50);
    engine.early = random.percent(60);
    config.engines.push_back(engine);
  }
}

void draw_limits(Random& random, Config& config) {
  // From a handful of blocks to more than the chains have.
  config.pool = ByteCount(random.one_of<std::uint64_t>({16, 32, 64, 128, 256, 1024}) * 1024);
  config.core.max_blocks = random.percent(20) ? 64 : 4096;
  config.core.lease_ttl = random.percent(30) ? milliseconds(200) : seconds(5);
  config.core.load_wait = random.percent(30) ? milliseconds(20) : seconds(1);
  config.core.publish_wait = random.percent(50) ? milliseconds(50) : seconds(1);
  config.core.incomplete_ttl = seconds(2);
  config.core.protected_percent = random.one_of<std::uint32_t>({0, 20, 60});
  config.core.eviction_batch = ByteCount(random.one_of<std::uint64_t>({1, 4096, 16384}));
  config.call_timeout = milliseconds(static_cast<std::int64_t>(random.between(20, 500)));
  config.grant_wait = random.percent(30) ? milliseconds(300) : seconds(5);
}

void draw_crowding(Random& random, Config& config) {
  config.bank_bytes =
      random.percent(45) ? random.one_of<std::uint32_t>({1024, 1536, 4096}) : limits::kPlanBankBytes;
  config.core.reply_ttl = random.percent(20) ? milliseconds(100) : seconds(5);
  config.core.turn_hashes = random.one_of<std::uint32_t>({1, 1, 3, limits::kLookUpsPerTurn});
  config.core.retire_looks = random.one_of<std::uint32_t>({1, 2, 4, limits::kRetireLooks});
  if (config.core.turn_hashes < limits::kLookUpsPerTurn) config.core.turn_unpins = config.core.turn_hashes;
}

// Often less than the pool, at times less than one list.
void draw_budgets(Random& random, Config& config) {
  if (random.percent(60)) {
    config.core.query_budget = ByteCount(config.pool.value * random.between(1, 8) / 8);
    if (random.percent(50))
      config.core.query_instance_budget =
          ByteCount(config.core.query_budget.value * random.between(1, 4) / 4);
  }
  config.core.interest_idle = random.percent(30) ? milliseconds(500) : seconds(5);
  config.core.prepare_ttl = random.percent(50) ? milliseconds(20) : seconds(1);
  config.core.full_prefix_wait = random.percent(50) ? milliseconds(100) : seconds(2);
}

// One slab, or a few; with a single one a death takes all of the pool out of use.
void draw_slabs(Random& random, Config& config) {
  const std::uint64_t count = random.between(1, 4);
  const std::uint64_t bytes = config.pool.value / count / kPage.value * kPage.value;
  config.slab = ByteCount(std::max<std::uint64_t>(bytes, 4 * kPage.value));
  config.slabs.retire_after =
      random.percent(25) ? kNever : milliseconds(static_cast<std::int64_t>(random.between(10, 1000)));
  config.slabs.least = random.percent(50) ? config.slab : ByteCount();
  config.slabs.headroom = random.percent(30) ? kPage : ByteCount();
  config.core.retire_store_wait = random.percent(50) ? milliseconds(5) : milliseconds(500);
  config.core.retire_claim_wait = random.percent(50) ? milliseconds(1) : milliseconds(500);
}

void draw_stalls(Random& random, Config& config) {
  if (random.percent(60)) return;
  config.stalls.after = milliseconds(static_cast<std::int64_t>(random.between(1500, 3000)));
  config.stalls.kill = random.percent(50);
}

void draw_ssd(Random& random, Config& config) {
  config.ssd.on = random.percent(60);
  config.ssd.paths = static_cast<std::uint32_t>(random.between(1, 2));
  config.ssd.segments = static_cast<std::uint32_t>(random.between(13, 20));
  config.ssd.segment = limits::kSegmentBytesLeast;
  config.ssd.latency = random.percent(60) ? range_us(20, 300) : range_us(100, 20'000);
  config.ssd.depth = static_cast<std::uint32_t>(random.between(1, 16));
  config.ssd.policy = static_cast<std::uint32_t>(random.below(3));
  config.ssd.flush = milliseconds(static_cast<std::int64_t>(random.between(2, 500)));
  config.ssd.reads =
      random.percent(40) ? static_cast<std::uint32_t>(random.between(1, 3)) : limits::kStoreReads;
}

// Lives follow each other more often where one leaves something to the next.
void draw_keep(Random& random, Config& config) {
  config.keep.on = random.percent(40);
  config.keep.letter = random.percent(50) ? range_us(1, 100) : range_us(100, 20'000);
  config.restart = range_us(1000, 400'000);
  if (!config.keep.on) return;
  config.restart = range_us(1000, random.one_of<std::int64_t>({2'000, 20'000, 400'000}));
  config.keep.deaths = random.one_of<std::uint32_t>({1, 3, 10});
  if (random.percent(80) && config.slabs.retire_after == kNever)
    config.slabs.retire_after = milliseconds(200);
}

void draw_times(Random& random, Config& config) {
  config.gap = random.percent(50) ? range_us(5, 100) : range_us(20, 1000);
  config.pause = range_us(500, random.one_of<std::int64_t>({2'000, 20'000, 100'000}));
  config.burst = static_cast<std::uint32_t>(random.one_of<std::uint64_t>({5, 20, 100}));
  config.wake = range_us(1, 30);
  config.turn = range_us(1, 20);
  config.copy = random.percent(70) ? range_us(1, 20) : range_us(10, 500);
  if (random.percent(15)) config.copy = kSlowCopies;
  config.frame = range_us(5, 200);
  config.sleeps = random.percent(70);
}

// Some seeds have no faults, some have few kinds of them, some all, some many.
void draw_weights(Random& random, Config& config) {
  const std::uint64_t mood = random.below(10);
  for (std::size_t i = 0; i < kActionKinds; ++i) {
    const ActionInfo& info = info_of(static_cast<ActionKind>(i));
    std::uint32_t weight = info.weight;
    if (info.fault && mood < 2) weight = 0;
    if (info.fault && mood < 6 && random.percent(70)) weight = 0;
    if (info.fault && mood == 9 && !info.kept) weight *= 4;
    if (!info.fault && random.percent(15)) weight *= 3;
    const auto kind = static_cast<ActionKind>(i);
    if (kind == ActionKind::kStopEngine && config.stalls.after.ns > 0) weight *= 3;
    if (kind == ActionKind::kPoolDrain && config.copy.most == kSlowCopies.most) weight *= 4;
    if (info.kept && !config.keep.on) weight = 0;
    if ((kind == ActionKind::kKillManager || kind == ActionKind::kKillManagerAt) && config.keep.on)
      weight *= config.keep.deaths;
    config.weights[i] = weight;
  }
}

}  // namespace

Config draw_config(std::uint64_t seed) {
  Config config;
  config.seed = seed;
  Random random(seed, 0xC04Fu);
  draw_spaces(random, config);
  draw_engines(random, config);
  draw_limits(random, config);
  draw_crowding(random, config);
  draw_slabs(random, config);
  draw_stalls(random, config);
  draw_ssd(random, config);
  draw_keep(random, config);
  draw_times(random, config);
  config.chains = static_cast<std::uint32_t>(random.between(1, 12));
  config.chain_blocks = static_cast<std::uint32_t>(random.between(2, 16));
  draw_weights(random, config);
  draw_budgets(random, config);
  draw_favourite(config);
  return config;
}

}  // namespace orbitkv::sim
