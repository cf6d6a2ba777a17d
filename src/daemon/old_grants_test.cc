#include "daemon/old_grants.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "shm/record_state.h"
#include "wire/messages.h"

namespace orbitkv::daemon {
namespace {

using shm::RecordState;

constexpr Epoch kEpoch{77};
constexpr OperationId kOperation{9};
constexpr ByteCount kBytes(4096);

// A child that sleeps, and its pidfd.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) ::pause();
    }
  }
  ~Child() { end(); }
  UniqueFd pidfd() const { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))); }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

// A pool of one slab in which an earlier life had lent `extents` extents, one behind the other,
// for the records 0, 1, ... of a session.
class Bed {
 public:
  explicit Bed(std::uint32_t extents, std::uint32_t room = 64, bool session = true)
      : memory_(shm::SessionMemory::create(SessionId(3), kEpoch).value()) {
    mem::KeptPool kept;
    auto& slab = kept.slabs.emplace_back();
    slab.name = SlabId(5);
    slab.bytes = kMiB;
    slab.memory = mem::make_slab_memory(slab.name, slab.bytes, mem::PageSource::kShared).value();
    kept.id = 1;
    kept.next_name = 6;
    for (std::uint32_t i = 0; i < extents; ++i) {
      slab.used.push_back({i * 64, 64});
      kept.lent.push_back(
          {{{SlabId(5), i * kBytes.value, kBytes}, {kEpoch, RecordIndex(i), kOperation}}, SlabSlot(0)});
    }
    lent_ = kept.lent;
    mem::PoolConfig config;
    config.bytes = kMiB;
    config.prefault = false;
    config.numa = false;
    config.kept = &kept;
    pool = mem::Pool::create(config).value();
    pool->collect_offered();
    table.emplace(mem::KeptTable::create({1, 64, 8, 8, room}).value());
    pool->keep_in(*table);
    table->put_slab(SlabSlot(0), {SlabId(5), kMiB, {}, kAnyNode, mem::KeptSlabState::kLive});
    grants.emplace(*pool, *table, StallWatch::Options{seconds(30), true});
    if (session) {
      auto same = shm::SessionMemory::attach(UniqueFd(::fcntl(memory_.fd(), F_DUPFD_CLOEXEC, 0)),
                                             SessionId(3), kEpoch);
      same_.emplace(std::move(same).value());
    }
  }
  void set(std::uint32_t record, RecordState state, OperationId operation = kOperation) {
    memory_.record(RecordIndex(record)).word.store(shm::pack({operation, state}));
  }
  RecordState state(std::uint32_t record) {
    return shm::unpack(memory_.record(RecordIndex(record)).word.load())->state;
  }
  void start(OldGrants::Device device = OldGrants::Device::kUnknown) {
    if (same_)
      grants->add_session(kEpoch, std::move(*same_), {known ? child.pidfd() : UniqueFd(), known ? pid : 0});
    grants->adopt(lent_, device);
  }
  // What the next look finds, so much later.
  void pass(Duration d) {
    now = now + d;
    grants->settle(now);
  }
  // The engine has claimed an operation with this plan.
  void claim(std::uint32_t record, const model::Plan& plan, std::uint32_t offset = 0) {
    std::vector<std::byte> frame;
    wire::encode(plan, frame);
    ASSERT_LE(offset + frame.size(), limits::kPlanBankBytes);
    std::memcpy(memory_.plan_bank() + offset, frame.data(), frame.size());
    shm::ManagerLines& lines = memory_.record(RecordIndex(record)).manager;
    lines.plan_offset = offset;
    lines.plan_bytes = static_cast<std::uint32_t>(frame.size());
    set(record, RecordState::kActive, plan.operation);
  }
  shm::SessionMemory& memory() { return memory_; }
  bool tainted() const { return table->slab(SlabSlot(0)).state == mem::KeptSlabState::kTainted; }
  mem::KeptTable::Found stands(std::uint32_t n) const {
    mem::KeptLent lent;
    mem::KeptImage image;
    return table->read({mem::KeptRegion::kPending, n}, lent, image);
  }

  TimePoint now{1'000'000'000};
  int pid = 123;
  bool known = true;  // else the store has lost the process
  Child child;
  std::unique_ptr<mem::Pool> pool;
  std::optional<mem::KeptTable> table;
  std::optional<OldGrants> grants;

 private:
  shm::SessionMemory memory_;
  std::optional<shm::SessionMemory> same_;  // as the next life maps it
  std::vector<mem::KeptPool::Lent> lent_;
};

TEST(OldGrants, WhatNobodyClaimedIsTakenBackAndWhatEndedIsFree) {
  const RecordState states[] = {RecordState::kReserved, RecordState::kPreparing,   RecordState::kGranted,
                                RecordState::kDrained,  RecordState::kReaped,      RecordState::kFailed,
                                RecordState::kRevoked,  RecordState::kAcknowledged};
  Bed bed(std::size(states));
  for (std::uint32_t i = 0; i < std::size(states); ++i) bed.set(i, states[i]);
  bed.start();
  bed.grants->settle(bed.now);
  EXPECT_EQ(bed.grants->pending(), 0u);
  EXPECT_EQ(bed.grants->counts().released, std::size(states));
  EXPECT_EQ(bed.state(0), RecordState::kFailed);
  EXPECT_EQ(bed.state(1), RecordState::kFailed);
  EXPECT_EQ(bed.state(2), RecordState::kRevoked) << "its engine must not claim it any more";
  EXPECT_EQ(bed.pool->stats().used, ByteCount(0));
  EXPECT_FALSE(bed.tainted());
  EXPECT_EQ(bed.grants->take_ended(), std::vector{kEpoch});
}

TEST(OldGrants, ACopyIsWaitedForUntilItsReceipt) {
  Bed bed(2);
  bed.set(0, RecordState::kActive);
  bed.set(1, RecordState::kActive);
  bed.start();
  for (int i = 0; i < 10; ++i) bed.grants->settle(bed.now);
  EXPECT_EQ(bed.grants->pending(), 2u);
  EXPECT_EQ(bed.pool->stats().used, 2 * kBytes);
  EXPECT_EQ(bed.stands(0), mem::KeptTable::Found::kLent) << "the life after this one must know, too";
  EXPECT_TRUE(bed.grants->take_ended().empty());
  bed.set(0, RecordState::kDrained);
  bed.grants->settle(bed.now);
  EXPECT_EQ(bed.grants->pending(), 1u);
  EXPECT_EQ(bed.pool->stats().used, kBytes);
  EXPECT_EQ(bed.stands(0), mem::KeptTable::Found::kFree);
  bed.set(1, RecordState::kDrained);
  bed.grants->settle(bed.now);
  EXPECT_EQ(bed.grants->pending(), 0u);
}

TEST(OldGrants, AnEngineThatEndedInACopyCostsItsSlab) {
  Bed bed(2);
  bed.set(0, RecordState::kActive);
  bed.set(1, RecordState::kDrained);
  bed.start();
  bed.child.end();
  bed.grants->settle(bed.now);
  EXPECT_EQ(bed.grants->pending(), 0u);
  EXPECT_EQ(bed.pool->stats().quarantined, kBytes);
  EXPECT_EQ(bed.grants->counts().released, 1u) << "what it wrote before its end counts";
  EXPECT_TRUE(bed.tainted());
}

TEST(OldGrants, WhoCannotBeAskedCostsTheSlab) {
  Bed bed(1, 64, false);
  bed.start();
  bed.grants->settle(bed.now);
  EXPECT_EQ(bed.pool->stats().quarantined, kBytes);
  EXPECT_TRUE(bed.tainted());
}

TEST(OldGrants, ImpossibleWordsCostTheSlabAndALaterOperationIsAnEnd) {
  {
    Bed bed(1);
    bed.set(0, RecordState::kReserved, OperationId(kOperation.value + 1));
    bed.start();
    bed.grants->settle(bed.now);
    EXPECT_EQ(bed.grants->counts().released, 1u);
  }
  for (const std::uint64_t word :
       {std::uint64_t{0}, shm::pack({OperationId(kOperation.value - 1), RecordState::kDrained}),
        kOperation.value << 8 | 0xEE}) {
    Bed bed(1);
    bed.set(0, RecordState::kFree, OperationId(0));
    if (word != 0) bed.set(0, static_cast<RecordState>(word & 0xFF), OperationId(word >> 8));
    bed.start();
    bed.grants->settle(bed.now);
    EXPECT_EQ(bed.grants->counts().quarantined, 1u) << word;
  }
}

TEST(OldGrants, ASlabThatRetiresTakesItsExtentsAlong) {
  Bed bed(1);
  bed.set(0, RecordState::kActive);
  bed.start();
  bed.pool->begin_retire(SlabSlot(0));
  bed.grants->settle(bed.now);
  EXPECT_EQ(bed.grants->pending(), 0u);
  bed.pool->abandon(SlabSlot(0));
  EXPECT_EQ(bed.pool->stats().used, ByteCount(0));
}

TEST(OldGrants, MoreThanTheTableTakesCostTheirSlab) {
  Bed bed(5, 3);
  for (std::uint32_t i = 0; i < 5; ++i) bed.set(i, RecordState::kDrained);
  bed.start();
  EXPECT_EQ(bed.grants->pending(), 3u);
  EXPECT_EQ(bed.grants->counts().quarantined, 2u);
  EXPECT_TRUE(bed.tainted());
}

TEST(OldGrants, AnOperationsExtentsEndTogetherAndADeviceByItsLock) {
  Bed bed(2);
  bed.set(0, RecordState::kActive);
  bed.set(1, RecordState::kActive);
  bed.start(OldGrants::Device::kEnded);
  std::vector<mem::KeptPool::Lent> device;
  device.push_back({{{SlabId(5), 128 * 1024, kBytes}, {}}, SlabSlot(0)});
  bed.grants->adopt(device, OldGrants::Device::kEnded);
  bed.grants->settle(bed.now);
  EXPECT_EQ(bed.grants->counts().released, 1u);
  EXPECT_EQ(bed.grants->pending(), 2u);
  EXPECT_FALSE(bed.tainted());
}

// ---- restores ----

model::Plan plan_of(model::PlanKind kind, std::uint32_t entries) {
  model::Plan plan;
  plan.kind = kind;
  plan.operation = kOperation;
  plan.registration = RegistrationId(1);
  plan.slot_bytes = kBytes.value;
  for (std::uint32_t i = 0; i < entries; ++i)
    plan.entries.push_back({SlabId(5), i, i * kBytes.value, AllocationId(100 + i), 0,
                            kind == model::PlanKind::kRestore ? 7u : 0u});
  return plan;
}

TEST(OldGrants, WhatAClaimedRestoreReadsIsNamedUntilItsReceipt) {
  Bed bed(0);
  bed.claim(4, plan_of(model::PlanKind::kRestore, 3));
  bed.start();
  ASSERT_EQ(bed.grants->reads().size(), 3u);
  EXPECT_EQ(bed.grants->reads()[2].offset, 2 * kBytes.value);
  EXPECT_EQ(bed.grants->reads()[2].revision, AllocationId(102));
  const mem::KeptReader reader = bed.grants->reads()[0].reader;
  bed.pass({});
  bed.pass(seconds(1));
  EXPECT_TRUE(bed.grants->take_read().empty());
  EXPECT_TRUE(bed.grants->take_ended().empty()) << "its session is kept";
  bed.set(4, RecordState::kDrained);
  bed.pass(seconds(1));
  EXPECT_EQ(bed.grants->take_read(), std::vector{reader});
  EXPECT_EQ(bed.grants->take_ended(), std::vector{kEpoch});
}

TEST(OldGrants, ARestoreEndsWithItsProcessOrAfterAWhile) {
  for (const bool dies : {true, false}) {
    Bed bed(0);
    bed.claim(4, plan_of(model::PlanKind::kRestore, 1));
    bed.start();
    bed.pass({});
    if (dies) bed.child.end();
    for (int i = 0; i < 29 && !dies; ++i) bed.pass(seconds(1));
    if (!dies) EXPECT_TRUE(bed.grants->take_read().empty());
    bed.pass(seconds(1));
    EXPECT_EQ(bed.grants->take_read().size(), 1u) << dies;
  }
}

TEST(OldGrants, ARestoreOfAProcessThatNobodyKnowsIsNotCutShort) {
  Bed bed(1);
  bed.known = false;
  bed.set(0, RecordState::kActive);
  bed.claim(4, plan_of(model::PlanKind::kRestore, 1));
  bed.start();
  for (int i = 0; i < 29; ++i) bed.pass(seconds(1));
  EXPECT_TRUE(bed.tainted()) << "its save may go on for ever";
  EXPECT_TRUE(bed.grants->take_read().empty()) << "its restore goes on for a while";
  bed.pass(seconds(2));
  EXPECT_EQ(bed.grants->take_read().size(), 1u);
}

TEST(OldGrants, ARestoreThatWasNotClaimedIsTakenBack) {
  Bed bed(0);
  bed.claim(4, plan_of(model::PlanKind::kRestore, 1));
  bed.set(4, RecordState::kGranted);
  bed.start();
  EXPECT_EQ(bed.state(4), RecordState::kRevoked);
  EXPECT_TRUE(bed.grants->reads().empty());
}

TEST(OldGrants, APlanThatLiesNamesNothing) {
  const auto reads = [](auto&& change) {
    Bed bed(0);
    bed.claim(4, plan_of(model::PlanKind::kRestore, 2), 4096);
    change(bed);
    bed.start();
    return bed.grants->reads().size();
  };
  const auto lines = [](Bed& bed) -> shm::ManagerLines& {
    return bed.memory().record(RecordIndex(4)).manager;
  };
  EXPECT_EQ(reads([](Bed&) {}), 2u);
  EXPECT_EQ(reads([](Bed& bed) { bed.claim(4, plan_of(model::PlanKind::kSave, 2)); }), 0u);
  EXPECT_EQ(reads([&](Bed& bed) { lines(bed).plan_offset = limits::kPlanBankBytes - 8; }), 0u);
  EXPECT_EQ(reads([&](Bed& bed) { lines(bed).plan_bytes = ~0u; }), 0u);
  EXPECT_EQ(reads([&](Bed& bed) { lines(bed).plan_bytes -= 1; }), 0u);
  EXPECT_EQ(reads([](Bed& bed) { bed.memory().plan_bank()[4096 + 40] ^= std::byte{1}; }), 0u);
  EXPECT_EQ(reads([](Bed& bed) { bed.set(4, RecordState::kActive, OperationId(kOperation.value + 1)); }), 0u);
  // The same plan in each record: no more bytes are looked at than a plan bank has.
  EXPECT_LE(reads([](Bed& bed) {
              for (std::uint32_t i = 0; i < limits::kRecords; ++i)
                bed.claim(i, plan_of(model::PlanKind::kRestore, 1000), 4096);
            }),
            limits::kPlanBankBytes / 32);
}

// ---- engines that stand still ----

TEST(OldGrants, AStalledEngineIsSeenAndCostsItsSlabWhenRoomIsNeeded) {
  Bed bed(2);
  bed.set(0, RecordState::kActive);
  bed.set(1, RecordState::kActive);
  bed.start();
  bed.pass({});
  bed.grants->relieve();
  for (int i = 0; i < 29; ++i) bed.pass(seconds(1));
  EXPECT_FALSE(bed.grants->stalled()) << "nor was it, when room was needed";
  bed.memory().header().client_beat = 5;
  for (int i = 0; i < 30; ++i) bed.pass(seconds(1));
  EXPECT_FALSE(bed.grants->stalled()) << "it beat";
  bed.pass(seconds(100));
  EXPECT_FALSE(bed.grants->stalled()) << "we stood still ourselves";
  bed.pass(seconds(1));
  ASSERT_TRUE(bed.grants->stalled());
  ASSERT_EQ(bed.grants->view().size(), 1u);
  EXPECT_EQ(bed.grants->view()[0].pid, 123);
  EXPECT_EQ(bed.grants->view()[0].extents, 2u);
  EXPECT_EQ(bed.grants->view()[0].bytes, 2 * kBytes);
  EXPECT_TRUE(bed.grants->view()[0].stalled);
  bed.pass(seconds(1));
  EXPECT_EQ(bed.grants->pending(), 2u) << "nobody misses it";
  bed.grants->relieve();
  bed.pass(seconds(1));
  EXPECT_EQ(bed.grants->pending(), 0u);
  EXPECT_TRUE(bed.tainted());
  EXPECT_EQ(bed.pool->stats().quarantined, 2 * kBytes);
}

// A copy that hangs in an engine that beats is not a stall, over a restart as before.
TEST(OldGrants, WhoBeatsWhileItsCopyHangsIsNoStalledEngine) {
  Bed bed(1);
  bed.set(0, RecordState::kActive);
  bed.start();
  for (int i = 0; i < 200; ++i) {
    ++bed.memory().header().client_beat;
    bed.pass(seconds(1));
    bed.grants->relieve();
    ASSERT_FALSE(bed.grants->stalled());
    ASSERT_TRUE(bed.grants->take_condemned([](Epoch) { return false; }).empty());
  }
  EXPECT_EQ(bed.grants->pending(), 1u);
  EXPECT_FALSE(bed.tainted());
}

TEST(OldGrants, AStalledEngineIsCondemnedOnceUnlessItIsSpared) {
  Bed bed(1);
  bed.set(0, RecordState::kActive);
  bed.start();
  bed.pass({});
  for (int i = 0; i < 59; ++i) bed.pass(seconds(1));
  const auto condemned = [&](bool spared) {
    return bed.grants->take_condemned([=](Epoch epoch) { return spared && epoch == kEpoch; });
  };
  EXPECT_TRUE(condemned(false).empty()) << "too early";
  bed.pass(seconds(1));
  EXPECT_TRUE(condemned(true).empty());
  {
    Bed unknown(1);
    unknown.pid = 0;
    unknown.set(0, RecordState::kActive);
    unknown.start();
    unknown.pass({});
    for (int i = 0; i < 100; ++i) unknown.pass(seconds(1));
    EXPECT_TRUE(unknown.grants->stalled());
    EXPECT_TRUE(unknown.grants->take_condemned([](Epoch) { return false; }).empty());
  }
  const auto those = condemned(false);
  ASSERT_EQ(those.size(), 1u);
  EXPECT_EQ(those[0].pid, 123);
  EXPECT_TRUE(condemned(false).empty());
  EXPECT_EQ(::syscall(SYS_pidfd_send_signal, those[0].process, SIGKILL, nullptr, 0), 0);
  bed.child.end();
  bed.pass(seconds(1));
  EXPECT_EQ(bed.pool->stats().quarantined, kBytes);
}

TEST(OldGrants, AtAStopWhatIsLeftIsQuarantined) {
  Bed bed(1);
  bed.set(0, RecordState::kActive);
  bed.start();
  bed.grants.reset();
  EXPECT_EQ(bed.pool->stats().quarantined, kBytes);
}

}  // namespace
}  // namespace orbitkv::daemon
