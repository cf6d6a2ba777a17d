#include "daemon/old_grants.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "shm/record_state.h"

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
    grants.emplace(*pool, *table);
    if (session) {
      auto same = shm::SessionMemory::attach(UniqueFd(::fcntl(memory_.fd(), F_DUPFD_CLOEXEC, 0)),
                                             SessionId(3), kEpoch);
      grants->add_session(kEpoch, std::move(same).value(), child.pidfd());
    }
  }
  void set(std::uint32_t record, RecordState state, OperationId operation = kOperation) {
    memory_.record(RecordIndex(record)).word.store(shm::pack({operation, state}));
  }
  RecordState state(std::uint32_t record) {
    return shm::unpack(memory_.record(RecordIndex(record)).word.load())->state;
  }
  void start() { grants->adopt(lent_); }
  bool tainted() const { return table->slab(SlabSlot(0)).state == mem::KeptSlabState::kTainted; }
  mem::KeptTable::Found stands(std::uint32_t n) const {
    mem::KeptLent lent;
    mem::KeptImage image;
    return table->read({mem::KeptRegion::kPending, n}, lent, image);
  }

  Child child;
  std::unique_ptr<mem::Pool> pool;
  std::optional<mem::KeptTable> table;
  std::optional<OldGrants> grants;

 private:
  shm::SessionMemory memory_;
  std::vector<mem::KeptPool::Lent> lent_;
};

TEST(OldGrants, WhatNobodyClaimedIsTakenBackAndWhatEndedIsFree) {
  const RecordState states[] = {RecordState::kReserved, RecordState::kPreparing,   RecordState::kGranted,
                                RecordState::kDrained,  RecordState::kReaped,      RecordState::kFailed,
                                RecordState::kRevoked,  RecordState::kAcknowledged};
  Bed bed(std::size(states));
  for (std::uint32_t i = 0; i < std::size(states); ++i) bed.set(i, states[i]);
  bed.start();
  bed.grants->settle();
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
  for (int i = 0; i < 10; ++i) bed.grants->settle();
  EXPECT_EQ(bed.grants->pending(), 2u);
  EXPECT_EQ(bed.pool->stats().used, 2 * kBytes);
  EXPECT_EQ(bed.stands(0), mem::KeptTable::Found::kLent) << "the life after this one must know, too";
  EXPECT_TRUE(bed.grants->take_ended().empty());
  bed.set(0, RecordState::kDrained);
  bed.grants->settle();
  EXPECT_EQ(bed.grants->pending(), 1u);
  EXPECT_EQ(bed.pool->stats().used, kBytes);
  EXPECT_EQ(bed.stands(0), mem::KeptTable::Found::kFree);
  bed.set(1, RecordState::kDrained);
  bed.grants->settle();
  EXPECT_EQ(bed.grants->pending(), 0u);
}

TEST(OldGrants, AnEngineThatEndedInACopyCostsItsSlab) {
  Bed bed(2);
  bed.set(0, RecordState::kActive);
  bed.set(1, RecordState::kDrained);
  bed.start();
  bed.child.end();
  bed.grants->settle();
  EXPECT_EQ(bed.grants->pending(), 0u);
  EXPECT_EQ(bed.pool->stats().quarantined, kBytes);
  EXPECT_EQ(bed.grants->counts().released, 1u) << "what it wrote before its end counts";
  EXPECT_TRUE(bed.tainted());
}

TEST(OldGrants, WhoCannotBeAskedCostsTheSlab) {
  Bed bed(1, 64, false);
  bed.start();
  bed.grants->settle();
  EXPECT_EQ(bed.pool->stats().quarantined, kBytes);
  EXPECT_TRUE(bed.tainted());
}

TEST(OldGrants, ImpossibleWordsCostTheSlabAndALaterOperationIsAnEnd) {
  {
    Bed bed(1);
    bed.set(0, RecordState::kReserved, OperationId(kOperation.value + 1));
    bed.start();
    bed.grants->settle();
    EXPECT_EQ(bed.grants->counts().released, 1u);
  }
  for (const std::uint64_t word :
       {std::uint64_t{0}, shm::pack({OperationId(kOperation.value - 1), RecordState::kDrained}),
        kOperation.value << 8 | 0xEE}) {
    Bed bed(1);
    bed.set(0, RecordState::kFree, OperationId(0));
    if (word != 0) bed.set(0, static_cast<RecordState>(word & 0xFF), OperationId(word >> 8));
    bed.start();
    bed.grants->settle();
    EXPECT_EQ(bed.grants->counts().quarantined, 1u) << word;
  }
}

TEST(OldGrants, ASlabThatRetiresTakesItsExtentsAlong) {
  Bed bed(1);
  bed.set(0, RecordState::kActive);
  bed.start();
  bed.pool->begin_retire(SlabSlot(0));
  bed.grants->settle();
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

TEST(OldGrants, AtAStopWhatIsLeftIsQuarantined) {
  Bed bed(1);
  bed.set(0, RecordState::kActive);
  bed.start();
  bed.grants.reset();
  EXPECT_EQ(bed.pool->stats().quarantined, kBytes);
}

}  // namespace
}  // namespace orbitkv::daemon
