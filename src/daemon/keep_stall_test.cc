// An engine that stands still over a restart, in the middle of a save: it is shown, and what it
// holds is given up when blocks cannot be kept for want of memory, not before.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/time.h"
#include "daemon/keep.h"
#include "daemon/keep_store_test.h"

namespace orbitkv::daemon {
namespace {

constexpr Epoch kEpoch{0xABC};
constexpr OperationId kOperation{9};
constexpr ByteCount kExtent = 256 * kKiB;
constexpr ByteCount kPool = 2 * kMiB;

class NoPorts final : public cache::Ports {
 public:
  Grant grant(const cache::OperationKey&, const model::Plan&) override { return Grant::kGranted; }
  Revoke revoke(const cache::OperationKey&, const Error&) override { return Revoke::kRevoked; }
  void fail(const cache::OperationKey&, const Error&) override {}
  void reap(const cache::OperationKey&) override {}
  void drop(const cache::OperationKey&, const Dropped&) override {}
};

class KeepStall : public ::testing::Test {
 protected:
  KeepStall() : memory_(shm::SessionMemory::create(SessionId(3), kEpoch).value()) {
    set_log_level(LogLevel::kOff);
    set_virtual_clock(&now_);
  }
  ~KeepStall() override {
    end();
    set_virtual_clock(nullptr);
  }
  void start() {
    keep_ = std::make_unique<Keep>(std::make_unique<testing::TestStore>(shelves_));
    keep_->watch_stalls({seconds(30), true});
    ASSERT_TRUE(keep_->find(64).ok());
    mem::PoolConfig config;
    config.bytes = kPool;
    config.prefault = false;
    config.numa = false;
    config.kept = keep_->pool();
    pool_ = mem::Pool::create(config).value();
    cache::CoreConfig core;
    core.max_blocks = 100;
    core.kept = keep_->make_table(*pool_, core.max_blocks, 64).value();
    core_ = std::make_unique<cache::Core>(core, *pool_, ports_);
    keep_->adopt(*core_, [](const UniqueFd&) { return OldProcess{ProcessId(1), 77}; });
    keep_->ready();
    for (const mem::SlabInfo& slab : pool_->collect_offered())
      keep_->offer(slab, pool_->slab_memory(slab.slot));
  }
  void end() {
    if (!keep_) return;
    keep_->stop();
    core_.reset();
    pool_.reset();
    keep_.reset();
  }
  void open(Epoch epoch) { keep_->open_session({SessionId(3), epoch, ProcessId(1)}, memory_, process_); }
  // The life in which the engine claimed a save of one block, and stopped.
  void first_life() {
    start();
    open(kEpoch);
    memory_.record(RecordIndex(0)).word = shm::pack({kOperation, shm::RecordState::kActive});
    auto table =
        mem::KeptTable::open(UniqueFd(::fcntl(shelves_.held.at("table-1").get(), F_DUPFD_CLOEXEC, 0)))
            .value();
    table.lend({mem::KeptRegion::kFirst, 0}, {{SlabId(0), 0, kExtent}, {kEpoch, RecordIndex(0), kOperation}});
    end();
  }
  void pass(int times) {
    for (int i = 0; i < times; ++i) {
      now_ = now_ + seconds(1);
      keep_->tick();
    }
  }
  // Saves of more than there is room for, and nothing of it can be evicted.
  void fill() {
    model::RankRegistration rank;
    rank.name_space = "test";
    rank.world_size = 1;
    rank.device = "cpu:0";
    rank.num_blocks = 100;
    rank.block_tokens = 16;
    model::GroupShape group;
    group.shards = 1;
    group.writer = true;
    group.fragments = {{0, 0, kExtent}};
    rank.groups = {group};
    core_->open_session(SessionId(0), now_);
    const RegistrationId registration = core_->register_rank(SessionId(0), rank, now_).value();
    std::vector<std::uint32_t> blocks;
    std::vector<BlockHash> hashes(10);
    for (std::uint32_t i = 0; i < hashes.size(); ++i) {
      blocks.push_back(i);
      hashes[i].bytes[0] = static_cast<std::byte>(i + 1);
    }
    ASSERT_TRUE(
        core_
            ->publish(
                {{SessionId(0), RecordIndex(0), OperationId(1)}, registration, GroupId(0), blocks, hashes},
                now_)
            .ok());
    ASSERT_GT(core_->stats().dropped, 0u);
  }

  TimePoint now_{1'000'000'000};
  testing::Shelves shelves_;
  shm::SessionMemory memory_;
  UniqueFd process_{::eventfd(0, EFD_CLOEXEC)};  // it lives
  NoPorts ports_;
  std::unique_ptr<Keep> keep_;
  std::unique_ptr<mem::Pool> pool_;
  std::unique_ptr<cache::Core> core_;
};

TEST_F(KeepStall, WhatAStoppedEngineHoldsIsGivenUpWhenItIsMissed) {
  first_life();
  start();
  fill();
  pass(29);
  ASSERT_EQ(keep_->view().old.size(), 1u);
  EXPECT_EQ(keep_->view().old[0].pid, 77);
  EXPECT_EQ(keep_->view().old[0].bytes, kExtent);
  EXPECT_FALSE(keep_->view().old[0].stalled);
  pass(5);
  EXPECT_TRUE(keep_->view().old[0].stalled);
  EXPECT_EQ(keep_->view().old_grants, 1u) << "what was missed before it stood still is past";
  core_->close_session(SessionId(0), now_);
  core_->process_ended(SessionId(0), now_);
  fill();
  pass(2);
  EXPECT_EQ(keep_->view().old_grants, 0u);
  EXPECT_GE(pool_->stats().quarantined, kExtent);
}

// Not an engine this time: whoever keeps descriptors has no place, and then has one.
TEST_F(KeepStall, ATableThatWasNotTakenIsPutAgainAndNobodySucceedsBefore) {
  shelves_.refuses = "table-";
  start();
  EXPECT_FALSE(keep_->view().stored);
  EXPECT_FALSE(keep_->succeed({}).ok());
  pass(10);
  EXPECT_FALSE(keep_->view().stored);
  shelves_.refuses.clear();
  pass(5);
  EXPECT_TRUE(keep_->view().stored);
  EXPECT_TRUE(keep_->succeed({}).ok());
  EXPECT_TRUE(shelves_.held.contains("table-1"));
}

TEST_F(KeepStall, ItsProcessIsEndedUnlessItHasASessionOfThisLife) {
  first_life();
  start();
  open(Epoch(0xDEF));
  pass(61);
  EXPECT_TRUE(keep_->take_condemned().empty());
  keep_->close_session(Epoch(0xDEF));
  const auto condemned = keep_->take_condemned();
  ASSERT_EQ(condemned.size(), 1u);
  EXPECT_EQ(condemned[0].pid, 77);
  EXPECT_TRUE(keep_->take_condemned().empty());
}

}  // namespace
}  // namespace orbitkv::daemon
