#include "daemon/ssd_tier.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace orbitkv::daemon {
namespace {

constexpr ByteCount kBlock = 64 * kKiB;

model::RankRegistration rank_of(const std::string& name_space) {
  model::RankRegistration rank;
  rank.name_space = name_space;
  rank.world_size = 1;
  model::GroupShape group;
  group.shards = 1;
  group.fragments.push_back({0, 0, kBlock});
  rank.groups.push_back(group);
  return rank;
}

class SsdTierTest : public testing::Test {
 protected:
  SsdTierTest() {
    mem::PoolConfig config;
    config.bytes = 4 * kMiB;
    config.unit = 4096;
    config.prefault = false;
    pool_ = mem::Pool::create(config).value();
  }
  ~SsdTierTest() override { ::unlink(path_.c_str()); }

  std::unique_ptr<SsdTier> open(ByteCount daily_budget = {}) {
    auto tier = begin_open(daily_budget);
    std::vector<ssd::StoreEvent> events;
    while (!tier->ready()) tier->store().poll(monotonic_now(), events);
    return tier;
  }
  std::unique_ptr<SsdTier> begin_open(ByteCount daily_budget = {}) {
    SsdTier::Options options;
    options.io = ssd::IoKind::kThreads;
    options.store.segment = kMiB;
    options.store.paths.push_back({path_, 16 * kMiB});
    options.admission.policy = ssd::WritePolicy::kAll;
    options.admission.daily_budget = daily_budget;
    auto tier = SsdTier::open(options);
    EXPECT_TRUE(tier.ok()) << tier.error().message();
    (*tier)->use_pool(*pool_);
    return *std::move(tier);
  }

  const std::string path_ = testing::TempDir() + "ssd_tier_test." + std::to_string(::getpid());
  std::unique_ptr<mem::Pool> pool_;
};

TEST_F(SsdTierTest, SaysWhatItOpened) {
  const std::string text = open(3 * kMiB)->opened_text();
  EXPECT_NE(text.find(path_ + ", 15 MiB"), std::string::npos) << text;
  for (const char* part : {"policy all", "3 MiB a day", "by threads", "15 segments are read"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(SsdTierTest, KnowsWhetherAnEngineHasRegistered) {
  const auto tier = open();
  EXPECT_FALSE(tier->asked_for_any());
  EXPECT_NE(tier->open_space(rank_of("{\"v\":1}"), GroupId(0)), cache::kNoTierSpace);
  EXPECT_TRUE(tier->asked_for_any());
}

// Whoever has locked the same files knows that nothing of a life before is under way.
TEST_F(SsdTierTest, ItsFilesAreOneNumberFromLifeToLife) {
  const mem::DeviceFiles first = open()->files();
  EXPECT_NE(first, mem::DeviceFiles());
  EXPECT_EQ(open()->files(), first);
  ASSERT_EQ(::rename(path_.c_str(), (path_ + ".old").c_str()), 0);
  EXPECT_NE(open()->files(), first) << "another file of the same name";
  ::unlink((path_ + ".old").c_str());
}

TEST_F(SsdTierTest, ASpaceThatWasFoundCanBeUsedBeforeAnybodyAsksForIt) {
  const model::RankRegistration rank = rank_of("{\"v\":1}");
  const ByteCount bytes(model::slot_layout(rank.groups[0]).slot_bytes);
  const auto extent = pool_->allocate(bytes)->dissolve();
  cache::Tier::Kind kind{model::namespace_digest(rank), GroupId(0), 1, {}};
  {
    const auto tier = open();
    tier->add_slab(pool_->collect_offered().at(0));
    kind.bytes = ByteCount((bytes.value + tier->unit() - 1) / tier->unit() * tier->unit());
    EXPECT_EQ(tier->reopen_space(kind), cache::kNoTierSpace) << "nothing is known of it";
    const cache::TierSpace space = tier->open_space(rank, GroupId(0));
    const cache::SlotWords image{extent, 1, AllocationId(1)};
    ASSERT_TRUE(tier->store({space, BlockHash{}}, {&image, 1}).ok());
    std::vector<ssd::StoreEvent> events;
    while (events.empty()) tier->store().poll(monotonic_now(), events);
    EXPECT_TRUE(events[0].ok);
    tier->close_space(space);
    tier->store().begin_close();
    while (!tier->store().closed()) tier->store().poll(monotonic_now(), events);
  }
  const auto tier = open();
  const cache::TierSpace space = tier->reopen_space(kind);
  ASSERT_NE(space, cache::kNoTierSpace);
  EXPECT_FALSE(tier->store().spaces().at(0).asked);
  EXPECT_FALSE(tier->asked_for_any());
  cache::TierRef found;
  tier->find(space, {std::array<BlockHash, 1>{}}, {&found, 1});
  EXPECT_TRUE(found);
  kind.bytes += ByteCount(4096);
  EXPECT_EQ(tier->reopen_space(kind), cache::kNoTierSpace) << "images of another size";
  EXPECT_EQ(tier->open_space(rank, GroupId(0)), space);
  EXPECT_TRUE(tier->store().spaces().at(0).asked);
  tier->close_space(space);
  tier->close_space(space);
  pool_->release(mem::Extent::restore(extent));
}

TEST_F(SsdTierTest, WhatIsLookedForBeforeItIsReadIsMissedAndCounted) {
  const auto tier = begin_open();
  ASSERT_FALSE(tier->ready());
  EXPECT_NE(tier->opening_text().find("0 of 15 segments"), std::string::npos) << tier->opening_text();
  const cache::TierSpace space = tier->open_space(rank_of("{\"v\":1}"), GroupId(0));
  ASSERT_NE(space, cache::kNoTierSpace);
  std::array<cache::TierRef, 2> found{cache::TierRef{1, 1}, cache::TierRef{1, 1}};
  tier->find(space, std::array<BlockHash, 2>{}, found);
  EXPECT_FALSE(found[0] || found[1]);
  EXPECT_EQ(tier->missed_unready(), 2u);
  std::vector<ssd::StoreEvent> events;
  while (!tier->ready()) tier->store().poll(monotonic_now(), events);
  tier->find(space, std::array<BlockHash, 2>{}, found);
  EXPECT_EQ(tier->missed_unready(), 2u);
  tier->close_space(space);
}

// No address space for it, say: its blocks stay in memory, and the Manager goes on.
TEST_F(SsdTierTest, ASlabThatCannotBeMappedIsNoEnd) {
  const auto tier = open();
  mem::SlabInfo slab = pool_->collect_offered().at(0);
  slab.bytes += ByteCount(4096);  // no slab of the pool has so many
  tier->add_slab(slab);
  tier->map_waiting();
  const cache::TierSpace space = tier->open_space(rank_of("{\"v\":1}"), GroupId(0));
  auto extent = pool_->allocate(kBlock);
  ASSERT_TRUE(extent);
  const mem::Extent::Words words = extent->dissolve();
  const cache::SlotWords image{words, 1, AllocationId(1)};
  EXPECT_EQ(tier->store({space, BlockHash{}}, {&image, 1}).error().code(), Code::kBusy);
  EXPECT_EQ(tier->admission_stats().refused, 0u) << "nobody asked about it";
  cache::LoadedSlot loaded;
  EXPECT_EQ(tier->load({space, BlockHash{}}, {}, {&words, 1}, {&loaded, 1}).error().code(), Code::kRecompute);
  pool_->release(mem::Extent::restore(words));
}

}  // namespace
}  // namespace orbitkv::daemon
