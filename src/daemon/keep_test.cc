// One life of the Manager after the other over a store of descriptors.
#include "daemon/keep.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "base/log.h"

namespace orbitkv::daemon {
namespace {

// Keeps descriptors in this process; removals wait until they are let happen.
struct Shelves {
  std::map<std::string, UniqueFd> held;
  std::set<std::string> removing;
  bool slow = false;
  void remove_all() {
    for (const std::string& name : removing) held.erase(name);
    removing.clear();
  }
  std::size_t count(std::string_view kind) const {
    std::size_t n = 0;
    for (const auto& [name, fd] : held) n += name.starts_with(kind) ? 1 : 0;
    return n;
  }
};

class TestStore final : public FdStore {
 public:
  explicit TestStore(Shelves& shelves) : shelves_(shelves) {}
  const char* kind() const override { return "test"; }
  Result<std::vector<Named>> take() override {
    std::vector<Named> out;
    for (const auto& [name, fd] : shelves_.held)
      out.push_back({name, UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0))});
    return out;
  }
  Status put(const std::string& name, const UniqueFd& fd) override {
    EXPECT_FALSE(shelves_.held.contains(name)) << name;
    shelves_.held[name] = UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
    return ok_status();
  }
  Ticket remove(const std::string& name) override {
    shelves_.removing.insert(name);
    if (!shelves_.slow) shelves_.remove_all();
    names_[++last_] = name;
    return Ticket(last_);
  }
  void forget(const std::string& name) override { shelves_.held.erase(name); }
  bool removed(Ticket ticket) override { return !shelves_.removing.contains(names_[ticket.value]); }
  void poll() override {}
  std::vector<std::string> refused() override { return {}; }
  int fd() const override { return -1; }
  bool alive() const override { return true; }
  void ready() override {}
  Status succeed(const std::string&) override { return ok_status(); }

 private:
  Shelves& shelves_;
  std::map<std::uint64_t, std::string> names_;
  std::uint64_t last_ = 0;
};

class NoPorts final : public cache::Ports {
 public:
  Grant grant(const cache::OperationKey&, const model::Plan&) override { return Grant::kGranted; }
  Revoke revoke(const cache::OperationKey&, const Error&) override { return Revoke::kRevoked; }
  void fail(const cache::OperationKey&, const Error&) override {}
  void reap(const cache::OperationKey&) override {}
};

struct Life {
  explicit Life(Shelves& shelves, std::uint32_t unit = 64) : keep(std::make_unique<TestStore>(shelves)) {
    set_log_level(LogLevel::kOff);
    keep.find(unit);
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
    keep.adopt(*core);
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
  bool cold = false;
};

TEST(Keep, TheNextLifeHasTheSameSlabsAndOneTable) {
  Shelves shelves;
  std::uint64_t id = 0;
  for (int life = 0; life < 4; ++life) {
    SCOPED_TRACE(life);
    Life one(shelves);
    EXPECT_EQ(one.cold, life == 0);
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

TEST(Keep, ExtentsOfASmallerUnitStartCold) {
  Shelves shelves;
  {
    Life first(shelves, 64);
  }
  Life next(shelves, 4096);
  EXPECT_TRUE(next.cold);
}

TEST(Keep, ASlabIsAbandonedWhenItsReceiptIsThere) {
  Shelves shelves;
  Life life(shelves);
  shelves.slow = true;
  EXPECT_FALSE(life.keep.let_go(SlabId(0)));
  EXPECT_FALSE(life.keep.let_go(SlabId(0)));
  shelves.remove_all();
  EXPECT_TRUE(life.keep.let_go(SlabId(0)));
  EXPECT_TRUE(life.keep.let_go(SlabId(9))) << "one that was never kept";
}

TEST(Keep, ARetiringSlabIsNotTakenOver) {
  Shelves shelves;
  {
    Life first(shelves);
    ASSERT_TRUE(first.core->retire_slab(SlabSlot(0), TimePoint{1}).ok());
  }
  Life next(shelves);
  EXPECT_TRUE(next.cold) << "it was the only one";
  EXPECT_EQ(shelves.count("slab-"), 1u);
}

TEST(Keep, SessionsComeAndGo) {
  Shelves shelves;
  Life life(shelves);
  auto memory = shm::SessionMemory::create(SessionId(5), Epoch(0xABC));
  life.keep.open_session(SessionId(5), Epoch(0xABC), *memory,
                         UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)));
  EXPECT_TRUE(shelves.held.contains("session-5-abc"));
  EXPECT_TRUE(shelves.held.contains("process-abc"));
  life.keep.close_session(Epoch(0xABC));
  EXPECT_EQ(shelves.count("session-") + shelves.count("process-"), 0u);
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
