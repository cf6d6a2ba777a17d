// Random batches against what build_launches() promises, counted fragment by fragment:
// every byte exactly once, in the engine's order, within what a launch may hold.
#include "device/cuda/plan_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

namespace orbitkv::device::cuda {
namespace {

struct Made {
  GroupGeometry geometry;
  model::SlotLayout layout;
};

// The oracle's view of one batch.
struct Case {
  std::vector<Made> groups;
  std::vector<PlanGroup> plans;
  PlanRules rules;
};

class Maker {
 public:
  explicit Maker(std::uint64_t seed) : random_(seed) {}

  std::uint32_t upto(std::uint32_t most) { return static_cast<std::uint32_t>(random_() % (most + 1)); }
  bool coin() { return upto(1) == 1; }

  Case make() {
    Case made;
    made.groups.resize(1 + upto(3));
    std::uint64_t address = std::uint64_t{1} << 40;
    for (Made& group : made.groups) fill(group, address);
    for (Made& group : made.groups) {
      PlanGroup plan{&group.geometry, &group.layout, {}, {}};
      const std::uint32_t slots = coin() ? upto(3) : upto(60);
      for (std::uint32_t i = 0; i < slots; ++i) {
        plan.images.push_back((std::uint64_t{1} << 44) + random_() % 4096 * 128);
        plan.blocks.push_back(upto(group.geometry.num_blocks - 1));
      }
      made.plans.push_back(plan);
    }
    made.rules.stage_bytes = 16u << upto(8);
    made.rules.max_slots = coin() ? kMaxSlotsPerLaunch : 1 + upto(20);
    made.rules.max_fragments = coin() ? kMaxFragmentsPerLaunch : 1 + upto(6);
    // The largest fragment alone needs so many.
    made.rules.max_sums = 20000 / made.rules.stage_bytes + 1 + upto(coin() ? 4000 : 10);
    if (coin()) made.rules.max_bytes = 1 + upto(100000);
    if (coin()) made.rules.max_runs = 1 + upto(200);
    made.rules.has_bulk = coin();
    made.rules.one_turn_a_launch = upto(3) == 0;
    return made;
  }

 private:
  void fill(Made& group, std::uint64_t& address) {
    group.geometry.num_blocks = 1 + upto(100);
    const std::uint32_t fragments = 1 + upto(11);
    std::uint64_t offset = 128 * (1 + upto(3));
    for (std::uint32_t f = 0; f < fragments; ++f) {
      FragmentGeometry g;
      const std::uint32_t unit = 1u << upto(6);
      g.layer = static_cast<std::uint16_t>(f / 2);
      g.turn = static_cast<std::uint16_t>(upto(7));
      g.rows = coin() ? 1 : 1 + upto(4);
      g.row_bytes = unit * (1 + upto(coin() ? 3 : 60));
      g.row_stride = g.row_bytes + unit * upto(2);
      g.base = reinterpret_cast<std::byte*>(address + unit * upto(5));
      g.block_stride = g.rows * g.row_stride + unit * upto(3);
      address += g.block_stride * group.geometry.num_blocks + (1 << 20);
      group.layout.fragment_offsets.push_back(offset);
      offset += (g.bytes() + 127) / 128 * 128;
      group.geometry.fragments.push_back(g);
    }
    group.layout.slot_bytes = offset;
  }

  std::mt19937_64 random_;
};

bool fits(const PlanFragment& f, std::uint64_t width) {
  const std::uint64_t row = f.row_bytes == f.bytes ? 0 : f.row_stride;
  return (f.base | f.block_stride | f.row_bytes | row | f.image_offset) % width == 0;
}
std::uint64_t width_bytes(Width width) {
  return width == Width::k1 ? 1 : width == Width::k8 ? 8 : 16;
}

void expect_entry(const Case& made, const LaunchPlan& launch, std::size_t e) {
  const PlanFragment& f = launch.fragments[e];
  const FragmentRef& ref = launch.refs[e];
  const PlanGroup& group = made.plans[ref.group];
  const FragmentGeometry& g = group.geometry->fragments[ref.fragment];
  EXPECT_EQ(f.base, reinterpret_cast<std::uint64_t>(g.base));
  EXPECT_EQ(f.block_stride, g.block_stride);
  EXPECT_EQ(f.bytes, g.bytes());
  EXPECT_EQ(f.image_offset, group.layout->fragment_offsets[ref.fragment]);
  EXPECT_TRUE((f.row_bytes == g.row_bytes && f.row_stride == g.row_stride) ||
              (f.row_bytes == f.bytes && (g.rows == 1 || g.row_stride == g.row_bytes)));
  EXPECT_TRUE(fits(f, width_bytes(launch.width)));
  EXPECT_TRUE(made.rules.has_bulk || launch.width != Width::kBulk);
  EXPECT_EQ(launch.turns.at(f.signal), g.turn);
  EXPECT_GE(f.slots, 1u);
  ASSERT_LE(f.first_slot + f.slots, launch.slots.size());
  ASSERT_LE(ref.first_slot + f.slots, group.images.size());
  for (std::uint32_t i = 0; i < f.slots; ++i) {
    EXPECT_EQ(launch.slots[f.first_slot + i].image, group.images[ref.first_slot + i]);
    EXPECT_EQ(launch.slots[f.first_slot + i].block, group.blocks[ref.first_slot + i]);
  }
  // Units: whole fragments in a stage, or chunks of which none is empty.
  EXPECT_GE(std::uint64_t{f.chunks} * launch.stage_bytes, f.bytes);
  EXPECT_TRUE(f.chunks == 1 || (f.chunks - 1) * std::uint64_t{launch.stage_bytes} < f.bytes);
  EXPECT_TRUE(f.pack >= 1 && f.pack <= kMaxPack && (f.pack == 1 || f.chunks == 1));
  EXPECT_LE(std::uint64_t{f.pack} * (f.chunks == 1 ? f.bytes : launch.stage_bytes), launch.stage_bytes);
}

void expect_launch(const Case& made, const LaunchPlan& launch) {
  ASSERT_FALSE(launch.fragments.empty());
  ASSERT_EQ(launch.refs.size(), launch.fragments.size());
  EXPECT_LE(launch.fragments.size(), made.rules.max_fragments);
  EXPECT_LE(launch.slots.size(), made.rules.max_slots);
  EXPECT_LE(launch.sums, made.rules.max_sums);
  EXPECT_EQ(launch.stage_bytes, made.rules.stage_bytes);
  EXPECT_TRUE(!made.rules.one_turn_a_launch || launch.turns.size() == 1);
  EXPECT_TRUE(std::is_sorted(launch.turns.begin(), launch.turns.end(), std::less_equal<>()));
  std::uint32_t units = 0, sums = 0, signal = 0;
  std::uint64_t bytes = 0, runs = 0;
  for (std::size_t e = 0; e < launch.fragments.size(); ++e) {
    const PlanFragment& f = launch.fragments[e];
    expect_entry(made, launch, e);
    EXPECT_EQ(f.first_unit, units);
    EXPECT_EQ(f.first_sum, sums);
    EXPECT_GE(f.signal, signal);
    EXPECT_LE(f.signal, signal + (e > 0 ? 1 : 0)) << "a signal that nobody raises";
    units += f.chunks > 1 ? f.slots * f.chunks : (f.slots + f.pack - 1) / f.pack;
    sums += f.slots * f.chunks;
    signal = f.signal;
    EXPECT_LT(bytes, made.rules.max_bytes) << "full before the last fragment";
    bytes += std::uint64_t{f.bytes} * f.slots;
    runs += std::uint64_t{f.bytes / f.row_bytes} * f.slots;
  }
  EXPECT_EQ(signal + 1, launch.turns.size());
  EXPECT_EQ(launch.units, units);
  EXPECT_EQ(launch.sums, sums);
  EXPECT_EQ(launch.bytes, bytes);
  EXPECT_EQ(launch.runs, runs);
  const bool one_slot = launch.fragments.size() == 1 && launch.fragments[0].slots == 1;
  EXPECT_TRUE(runs <= made.rules.max_runs || one_slot) << runs;
}

void expect_right(const Case& made) {
  const std::vector<LaunchPlan> launches = build_launches(made.plans, made.rules);
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, int> copied;  // group, fragment, slot
  for (std::size_t i = 0; i < launches.size(); ++i) {
    const LaunchPlan& launch = launches[i];
    expect_launch(made, launch);
    if (testing::Test::HasFailure()) return;
    for (std::size_t e = 0; e < launch.fragments.size(); ++e) {
      const FragmentRef& ref = launch.refs[e];
      for (std::uint32_t s = 0; s < launch.fragments[e].slots; ++s)
        ++copied[{ref.group, ref.fragment, ref.first_slot + s}];
    }
    const bool last = i + 1 == launches.size();
    if (!last) {
      EXPECT_LE(launch.turns.back(), launches[i + 1].turns.front());
    }
    EXPECT_EQ(launch.last_turn_goes_on, !last && launch.turns.back() == launches[i + 1].turns.front());
  }
  std::size_t all = 0;
  for (const PlanGroup& group : made.plans) all += group.geometry->fragments.size() * group.images.size();
  EXPECT_EQ(copied.size(), all) << "something is not copied";
  for (const auto& [which, times] : copied) EXPECT_EQ(times, 1);
}

TEST(PlanBuilder, CopiesEveryByteOnceInTheOrderOfTheTurns) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_right(Maker(seed).make());
    if (HasFailure()) return;
  }
}

// The shape of the issue: its plan is small, however many bytes it moves.
TEST(PlanBuilder, PlanIsAffine) {
  Made model;
  std::uint64_t offset = 128;
  for (std::uint16_t layer = 0; layer < 36; ++layer) {
    for (std::uint16_t component = 0; component < 2; ++component) {
      model.geometry.fragments.push_back({.layer = layer,
                                          .component = component,
                                          .turn = layer,
                                          .base = reinterpret_cast<std::byte*>((1ull << 40) + offset * 4096),
                                          .block_stride = 2048,
                                          .row_bytes = 2048});
      model.layout.fragment_offsets.push_back(offset);
      offset += 2048;
    }
  }
  model.layout.slot_bytes = offset;
  PlanGroup group{&model.geometry, &model.layout, {}, {}};
  for (std::uint32_t i = 0; i < 128; ++i) {
    group.images.push_back((1ull << 44) + i * offset);
    group.blocks.push_back(127 - i);
  }
  const auto launches = build_launches({&group, 1}, {});
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_LT(launches[0].upload_bytes(), 8192u);
  EXPECT_EQ(launches[0].turns.size(), 36u);
  EXPECT_EQ(launches[0].width, Width::kBulk);
}

TEST(PlanBuilder, NothingIsNoLaunch) {
  Made model;
  model.geometry.fragments.push_back({.base = reinterpret_cast<std::byte*>(4096), .row_bytes = 64});
  model.layout.fragment_offsets.push_back(128);
  PlanGroup group{&model.geometry, &model.layout, {}, {}};
  EXPECT_TRUE(build_launches({&group, 1}, {}).empty());
  EXPECT_TRUE(build_launches({}, {}).empty());
}

// The largest launch fits the shared memory of every kind of part.
TEST(PlanBuilder, TheLargestPlanFitsSharedMemory) {
  for (const std::uint32_t shared : {99u * 1024, 163u * 1024, 227u * 1024}) {
    PlanLaunch plan{};
    plan.fragment_count = kMaxFragmentsPerLaunch;
    plan.slot_count = slots_that_fit(shared);
    EXPECT_GE(plan.slot_count, 16u);
    EXPECT_LE(any_shared_bytes(plan), shared);
    plan.stage_bytes = 16 * 1024;
    plan.loads = plan.stores = 2;
    EXPECT_LE(bulk_shared_bytes(plan), shared);
  }
}

TEST(WidthOf, IsTheWidestThatEverythingAllows) {
  const auto at = [](std::uint64_t base) { return reinterpret_cast<std::byte*>(base); };
  FragmentGeometry g{.base = at(4096), .block_stride = 4096, .row_bytes = 4096};
  EXPECT_EQ(width_of(g, 128), Width::kBulk);
  g.base = at(4096 + 8);
  EXPECT_EQ(width_of(g, 128), Width::k8);
  g.base = at(4096 + 2);
  EXPECT_EQ(width_of(g, 128), Width::k1);
  g = {.base = at(4096), .block_stride = 4096 + 8, .row_bytes = 4096};
  EXPECT_EQ(width_of(g, 128), Width::k8);
  g = {.base = at(4096), .block_stride = 4096, .rows = 4, .row_bytes = 64, .row_stride = 72};
  EXPECT_EQ(width_of(g, 128), Width::k8);
  g = {.base = at(4096), .block_stride = 4096, .rows = 4, .row_bytes = 24, .row_stride = 24};
  EXPECT_EQ(width_of(g, 128), Width::kBulk) << "rows without gaps are one run of 96 bytes";
  g = {.base = at(4096), .block_stride = 4096, .rows = 4, .row_bytes = 32, .row_stride = 64};
  EXPECT_EQ(width_of(g, 128), Width::k16) << "rows too short for bulk copies";
}

}  // namespace
}  // namespace orbitkv::device::cuda
