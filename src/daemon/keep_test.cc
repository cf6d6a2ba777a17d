// One life of the Manager after the other over a store of descriptors.
#include "daemon/keep.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <utility>

#include "base/log.h"
#include "daemon/keep_store_test.h"

namespace orbitkv::daemon {
namespace {

using testing::Shelves;
using testing::TestStore;

class NoPorts final : public cache::Ports {
 public:
  Grant grant(const cache::OperationKey&, const model::Plan&) override { return Grant::kGranted; }
  Revoke revoke(const cache::OperationKey&, const Error&) override { return Revoke::kRevoked; }
  void fail(const cache::OperationKey&, const Error&) override {}
  void reap(const cache::OperationKey&) override {}
  void drop(const cache::OperationKey&, const Dropped&) override {}
};

struct Life {
  explicit Life(Shelves& shelves, std::uint32_t unit = 64, mem::DeviceFiles files = {}, bool serves = true)
      : keep(std::make_unique<TestStore>(shelves)) {
    set_log_level(LogLevel::kOff);
    found = keep.find(unit, files).value();
    cold = keep.pool() == nullptr;
    mem::PoolConfig config;
    config.bytes = 2 * kMiB;
    config.prefault = false;
    config.numa = false;
    config.unit = unit;
    config.kept = keep.pool();
    pool = mem::Pool::create(config).value();
    cache::CoreConfig core_config;
    core_config.max_blocks = 100;
    core_config.kept = keep.make_table(*pool, 100, unit).value();
    core = std::make_unique<cache::Core>(core_config, *pool, ports);
    keep.adopt(*core,
               [](const UniqueFd& fd) { return OldProcess{ProcessId(::fcntl(fd.get(), F_GETFD) >= 0), 77}; });
    if (serves) keep.ready();
    for (const mem::SlabInfo& slab : pool->collect_offered()) keep.offer(slab, pool->slab_memory(slab.slot));
  }
  // As a kill: nothing is taken down.
  ~Life() {
    keep.stop();
    core.reset();
  }
  Keep keep;
  NoPorts ports;
  std::unique_ptr<mem::Pool> pool;
  std::unique_ptr<cache::Core> core;
  Keep::Found found = Keep::Found::kNothing;
  bool cold = false;
};

TEST(Keep, TheNextLifeHasTheSameSlabsAndOneTable) {
  Shelves shelves;
  std::uint64_t id = 0;
  for (int life = 0; life < 4; ++life) {
    SCOPED_TRACE(life);
    Life one(shelves);
    EXPECT_EQ(one.cold, life == 0);
    EXPECT_EQ(one.found, life == 0 ? Keep::Found::kNothing : Keep::Found::kKept);
    if (life == 0) id = one.pool->id();
    EXPECT_EQ(one.pool->id(), id);
    EXPECT_EQ(one.pool->slabs().size(), 1u);
    EXPECT_EQ(shelves.count("slab-"), 1u);
    EXPECT_EQ(shelves.count("table-"), 1u);
  }
}

TEST(Keep, ATableThatIsNotCompleteWasNeverGoneOnWith) {
  Shelves shelves;
  {
    Life first(shelves);
  }
  auto half = mem::KeptTable::create({1, 64, 8, 8, 8});
  shelves.held["table-ff"] = UniqueFd(::fcntl(half->memory().get(), F_DUPFD_CLOEXEC, 0));
  Life next(shelves);
  EXPECT_FALSE(next.cold);
  EXPECT_EQ(shelves.count("table-"), 1u);
  EXPECT_TRUE(shelves.held.contains("table-100"));
}

// Its life may have lent what the older one still holds.
TEST(Keep, ANewerTableThatCannotBeReadLetsNoOlderOneCount) {
  Shelves shelves;
  {
    Life first(shelves);
  }
  shelves.held["table-ff"] = UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  Life next(shelves);
  EXPECT_TRUE(next.cold);
}

// Whatever the store makes of what it is told.
TEST(Keep, WhatALifeHasTakenOverCountsForNoOther) {
  Shelves shelves;
  {
    Life first(shelves);
  }
  UniqueFd old(::fcntl(shelves.held.at("table-1").get(), F_DUPFD_CLOEXEC, 0));
  {
    Life second(shelves);
    EXPECT_FALSE(second.cold);
  }
  shelves.held.erase("table-2");
  shelves.held["table-1"] = std::move(old);
  Life third(shelves);
  EXPECT_TRUE(third.cold);
}

// It may yet fail, and its table may never have come to the store.
TEST(Keep, WhatWasTakenOverCountsUntilTheNextLifeServes) {
  Shelves shelves;
  {
    Life first(shelves);
  }
  {
    Life second(shelves, 64, {}, false);
    EXPECT_FALSE(second.cold);
    EXPECT_EQ(shelves.count("table-"), 2u);
  }
  shelves.held.erase("table-2");
  {
    Life third(shelves);
    EXPECT_FALSE(third.cold);
  }
  EXPECT_EQ(shelves.count("table-"), 1u);
}

TEST(Keep, WithoutAnySlabInTheStoreASuccessorWouldStartCold) {
  Shelves shelves;
  shelves.refuses = "slab-";
  {
    Life first(shelves);
    EXPECT_EQ(shelves.count("table-"), 1u);
    EXPECT_FALSE(first.keep.view().stored);
    EXPECT_FALSE(first.keep.may_succeed().ok());
  }
  shelves.refuses.clear();
  Life second(shelves);
  EXPECT_TRUE(second.cold);
  EXPECT_TRUE(second.keep.view().stored);
  EXPECT_TRUE(second.keep.may_succeed().ok());
}

// Its bytes are what the next life goes on with.
TEST(Keep, WhereTheLastSlabIsGoneNothingIsMissing) {
  for (const char* refuses : {"", "slab-"}) {
    Shelves shelves;
    shelves.refuses = refuses;
    Life life(shelves);
    EXPECT_EQ(life.keep.view().stored, *refuses == 0);
    life.keep.abandon({SlabId(0), 2 * kMiB});
    EXPECT_TRUE(life.keep.view().stored) << refuses;
    EXPECT_TRUE(life.keep.may_succeed().ok()) << refuses;
  }
}

TEST(Keep, AColdStartLetsGoOfEverything) {
  Shelves shelves;
  {
    Life first(shelves);
  }
  shelves.held.erase("table-1");
  shelves.held["session-3-abc"] = UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  shelves.held["process-abc"] = UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  shelves.held["stored"] = UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  Life next(shelves);
  EXPECT_TRUE(next.cold);
  EXPECT_EQ(shelves.count("slab-"), 1u);  // its own
  EXPECT_EQ(shelves.held.size(), 2u);
}

// Another one could go on with it.
TEST(Keep, ASuccessorThatCannotGoOnLetsGoOfNothing) {
  Shelves shelves;
  {
    Life first(shelves, 64);
  }
  const std::size_t held = shelves.held.size();
  for (int i = 0; i < 2; ++i) {
    Keep successor(std::make_unique<TestStore>(shelves));
    const auto found = successor.find(4096, {}, Keep::Start::kSuccessor);
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.error().code(), Code::kRecompute);
    EXPECT_NE(found.error().message(), "");
    EXPECT_EQ(shelves.held.size(), held);
  }
  Life again(shelves, 64);
  EXPECT_FALSE(again.cold);
}

TEST(Keep, ASuccessorMayFindNothing) {
  Shelves shelves;
  Keep first(std::make_unique<TestStore>(shelves));
  EXPECT_EQ(first.find(64, {}, Keep::Start::kSuccessor).value(), Keep::Found::kNothing);
}

// Beside what it holds a cold start would need twice the memory, and names that are taken.
TEST(Keep, AStoreThatDoesNotSayWhatItHoldsIsNoColdStart) {
  Shelves shelves;
  {
    Life first(shelves);
  }
  const std::size_t held = shelves.held.size();
  shelves.deaf = true;
  for (const auto start : {Keep::Start::kAny, Keep::Start::kSuccessor}) {
    Keep keep(std::make_unique<TestStore>(shelves));
    const auto found = keep.find(64, {}, start);
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.error().code(), Code::kReconnect);
  }
  EXPECT_EQ(shelves.held.size(), held);
}

TEST(Keep, ExtentsOfASmallerUnitStartCold) {
  Shelves shelves;
  {
    Life first(shelves, 64);
  }
  Life next(shelves, 4096);
  EXPECT_TRUE(next.cold);
  EXPECT_EQ(next.found, Keep::Found::kLetGo);
}

// Until then the next life counts it.
TEST(Keep, ASlabIsForgottenWhenItsReceiptIsThere) {
  Shelves shelves;
  {
    Life life(shelves);
    shelves.slow = true;
    life.keep.abandon({SlabId(0), 2 * kMiB});
    EXPECT_FALSE(life.keep.let_go(SlabId(0)));
    EXPECT_FALSE(life.keep.let_go(SlabId(0)));
    ASSERT_TRUE(life.core->retire_slab(SlabSlot(0), TimePoint{1}).ok());
    ASSERT_TRUE(life.pool->add(kMiB).ok());
    for (const mem::SlabInfo& slab : life.pool->collect_offered())
      life.keep.offer(slab, life.pool->slab_memory(slab.slot));
  }
  {
    Life next(shelves);
    EXPECT_FALSE(next.cold);
    ASSERT_EQ(next.keep.mappings().retired.size(), 1u);
    EXPECT_EQ(next.keep.mappings().retired[0].name, SlabId(0));
    shelves.remove_all();
    EXPECT_TRUE(next.keep.let_go(SlabId(0)));
    EXPECT_TRUE(next.keep.let_go(SlabId(9))) << "one that was never kept";
  }
  EXPECT_TRUE(Life(shelves).keep.mappings().retired.empty());
}

TEST(Keep, ARetiringSlabIsNotTakenOver) {
  Shelves shelves;
  {
    Life first(shelves);
    ASSERT_TRUE(first.core->retire_slab(SlabSlot(0), TimePoint{1}).ok());
  }
  // It was the only one; its bytes count until nobody maps it, in one life after the other.
  for (int life = 0; life < 2; ++life) {
    Life next(shelves);
    EXPECT_FALSE(next.cold);
    EXPECT_EQ(shelves.count("slab-"), 0u);
    ASSERT_EQ(next.keep.mappings().retired.size(), 1u);
    EXPECT_EQ(next.keep.mappings().retired[0].name, SlabId(0));
  }
}

TEST(Keep, SessionsComeAndGo) {
  Shelves shelves;
  Life life(shelves);
  auto memory = shm::SessionMemory::create(SessionId(5), Epoch(0xABC));
  life.keep.open_session({SessionId(5), Epoch(0xABC), ProcessId(1)}, *memory,
                         UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)));
  EXPECT_TRUE(shelves.held.contains("session-5-abc"));
  EXPECT_TRUE(shelves.held.contains("process-abc"));
  life.keep.close_session(Epoch(0xABC));
  EXPECT_EQ(shelves.count("session-"), 0u);
  life.keep.forget_processes([](ProcessId process) { return process == ProcessId(1); });
  EXPECT_EQ(shelves.count("process-"), 1u) << "it may map slabs";
  life.keep.forget_processes([](ProcessId) { return false; });
  EXPECT_EQ(shelves.count("process-"), 0u);
}

// Whose mappings count is known from life to life, and not for more processes than are told of.
TEST(Keep, ProcessesThatMayMapSlabsAreTheNextLifesToo) {
  Shelves shelves;
  const UniqueFd process(::open("/dev/null", O_RDWR | O_CLOEXEC));
  {
    Life life(shelves);
    auto memory = shm::SessionMemory::create(SessionId(5), Epoch(0xABC));
    life.keep.open_session({SessionId(5), Epoch(0xABC), ProcessId(1)}, *memory, process);
  }
  for (int n = 0; n < 3; ++n) {
    Life next(shelves);
    ASSERT_EQ(next.keep.mappings().processes.size(), 1u);
    EXPECT_EQ(next.keep.mappings().processes[0].pid, 77);
    EXPECT_EQ(next.keep.mappings().slabs.front(), SlabId(0));
    EXPECT_EQ(next.keep.mappings().processes[0].below, SlabId(1)) << "nor of what was made since";
    ASSERT_TRUE(next.pool->add(kMiB).ok());
    for (const mem::SlabInfo& slab : next.pool->collect_offered())
      next.keep.offer(slab, next.pool->slab_memory(slab.slot));
    EXPECT_EQ(shelves.count("session-"), 0u) << "nothing of it is under way";
    EXPECT_EQ(shelves.count("process-"), 1u);
    next.keep.forget_processes([](ProcessId) { return true; });
  }
  Life last(shelves);
  last.keep.forget_processes([](ProcessId) { return false; });
  EXPECT_EQ(shelves.count("process-"), 0u);
  auto memory = shm::SessionMemory::create(SessionId(5), Epoch(1));
  for (std::uint32_t n = 0; n < limits::kKeptProcesses + 10; ++n) {
    last.keep.open_session({SessionId(5), Epoch(n), ProcessId(n)}, *memory, process);
    last.keep.close_session(Epoch(n));
  }
  EXPECT_EQ(shelves.count("process-"), limits::kKeptProcesses);
}

// The life that gave it its bound ended before the first name had gone.
TEST(Keep, AProcessUnderTwoNamesIsLetGoOfUnderBoth) {
  for (const bool cold : {true, false}) {
    Shelves shelves;
    {
      Life first(shelves);
    }
    if (cold) shelves.held.erase("table-1");
    for (const char* name : {"process-abc", "process-abc-1"})
      shelves.held[name] = UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
    Life next(shelves);
    EXPECT_EQ(next.cold, cold);
    next.keep.forget_processes([](ProcessId) { return false; });
    EXPECT_EQ(shelves.count("process-"), 0u) << cold;
  }
}

// The lock of the same files says that the reads of the life before have ended.
TEST(Keep, WhatADeviceWasReadingIntoIsFreeWhereItsFilesAreLocked) {
  constexpr mem::DeviceFiles kFiles{0x77}, kOthers{0x78}, kNone{};
  struct Case {
    mem::DeviceFiles before, now;
    bool free;
  };
  for (const Case& c : {Case{kFiles, kFiles, true}, Case{kFiles, kOthers, false}, Case{kFiles, kNone, false},
                        Case{kNone, kNone, false}}) {
    Shelves shelves;
    {
      Life first(shelves, 64, c.before);
      auto table =
          mem::KeptTable::open(UniqueFd(::fcntl(shelves.held.at("table-1").get(), F_DUPFD_CLOEXEC, 0)));
      table->lend({}, {{SlabId(0), 4096, ByteCount(4096)}, {}});
    }
    Life next(shelves, 64, c.now);
    EXPECT_FALSE(next.cold);
    EXPECT_EQ(next.pool->stats().quarantined, ByteCount(c.free ? 0 : 4096));
    EXPECT_EQ(next.pool->stats().used, next.pool->stats().quarantined);
  }
}

TEST(Keep, WhatTheOperatorWantedIsRememberedForTheSameConfiguration) {
  Shelves shelves;
  {
    Life first(shelves);
    EXPECT_FALSE(first.keep.wanted(4));
    first.keep.note_wanted(6, 4);
  }
  {
    Life next(shelves);
    EXPECT_EQ(next.keep.wanted(4), 6u);
    EXPECT_FALSE(next.keep.wanted(5)) << "the operator changed the size";
  }
  Life last(shelves);
  EXPECT_EQ(last.keep.wanted(4), 6u);
}

}  // namespace
}  // namespace orbitkv::daemon
