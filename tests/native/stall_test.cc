// Engines that stand still: what they had not claimed goes back, what they had is kept and
// shown until they go on or end, and nobody is taken for stalled who is not.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/geometry.h"
#include "tests/native/engine.h"
#include "tests/native/processes.h"
#include "tests/native/raw_session.h"

namespace orbitkv::test {
namespace {

constexpr std::uint64_t kSlotBytes = 128 + 4 * 4096;  // of shape 0
const std::vector<std::string> kWatched{"--stall-after", "3"};

std::uint64_t settled(const Manager& manager, const std::string& path, std::uint64_t value) {
  std::uint64_t last = manager.settle(path, value);
  for (int i = 0; i < 3 && last != value; ++i) last = manager.settle(path, value);
  return last;
}

Process start_engine(const Manager& manager, const std::string& fault, const std::string& instance = "1") {
  auto engine = start_helper({"engine", "socket=" + manager.socket(), "instance=" + instance}, fault);
  EXPECT_EQ(engine.line(), "ready ");
  return engine;
}

std::string answer_of(Process& engine) {
  return engine.line().value_or("nothing");
}

// By hand, without a beat: one grant that is not claimed, one that is.
TEST(Stall, RevokesWhatIsUnclaimedKeepsWhatIsClaimedAndAnswersBusyUntilASign) {
  Manager manager(kWatched);
  auto raw = RawSession::open(manager.socket()).value();
  const RegistrationId registration = raw->register_rank(small_rank(7)).value();
  ASSERT_TRUE(raw->publish(registration, RecordIndex(0), 1, 4).ok());
  ASSERT_TRUE(raw->publish(registration, RecordIndex(1), 101, 4).ok());
  ASSERT_TRUE(raw->wait_state(RecordIndex(0), shm::RecordState::kGranted));
  ASSERT_TRUE(raw->wait_state(RecordIndex(1), shm::RecordState::kGranted));
  raw->claim(RecordIndex(1));
  const std::uint64_t lent = manager.status()["pool.used"];
  ASSERT_EQ(settled(manager, "stalls", 1), 1u);
  EXPECT_EQ(raw->state(RecordIndex(0)), shm::RecordState::kRevoked);
  EXPECT_EQ(raw->channel().read_failure(RecordIndex(0)).code, Code::kBusy);
  EXPECT_EQ(raw->state(RecordIndex(1)), shm::RecordState::kActive);
  EXPECT_EQ(manager.status()["sessions.0.operations"], 1u);
  EXPECT_EQ(manager.status()["pool.used"], lent / 2);
  const auto refused = raw->publish(registration, RecordIndex(2), 201, 4);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kBusy);
  ASSERT_EQ(settled(manager, "revivals", 1), 1u) << "the command was a sign of life";
  ASSERT_TRUE(raw->publish(registration, RecordIndex(3), 301, 4).ok());
  ASSERT_TRUE(raw->wait_state(RecordIndex(3), shm::RecordState::kGranted));
  raw->drain(RecordIndex(1), model::PlanKind::kSave);
  raw->claim(RecordIndex(3));
  raw->drain(RecordIndex(3), model::PlanKind::kSave);
  EXPECT_EQ(manager.settle("blocks", 8), 8u) << "a receipt counts, however late";
}

TEST(Stall, AnEngineThatGoesOnKeepsWhatItClaimedAndLosesWhatItDidNot) {
  Manager manager(kWatched);
  Engine witness({.socket = manager.socket(), .shape = {}, .instance = 9});
  ASSERT_EQ(witness.connect().message, "");
  auto claimed = start_engine(manager, "client_claimed:stop:1");
  auto granted = start_engine(manager, "client_granted:stop:1", "2");
  claimed.say("save 0 1 12");
  granted.say("save 0 1001 12");
  ASSERT_TRUE(claimed.stopped_within());
  ASSERT_TRUE(granted.stopped_within());
  ASSERT_EQ(settled(manager, "stalls", 2), 2u);
  EXPECT_EQ(manager.status()["operations"], 1u);
  EXPECT_EQ(manager.status()["pool.used"], 12 * kSlotBytes);
  // What it lost can be published by others, and others are served.
  const auto others = witness.save(0, 1001, 12);
  EXPECT_TRUE(others.success) << others.message;
  claimed.signal(SIGCONT);
  granted.signal(SIGCONT);
  EXPECT_EQ(answer_of(claimed), "saved 1 12 0 0 ");
  EXPECT_NE(answer_of(granted).find("no sign of life"), std::string::npos);
  ASSERT_EQ(settled(manager, "revivals", 2), 2u);
  EXPECT_EQ(witness.restore(20, 1, 12).hits, 12u);
  EXPECT_EQ(witness.restore(20, 1, 12).wrong, 0u);
  EXPECT_EQ(witness.restore(40, 1001, 12).wrong, 0u);
  for (Process* engine : {&claimed, &granted}) {
    engine->say("save 30 2001 3");
    EXPECT_EQ(answer_of(*engine).substr(0, 8), "saved 1 ");
  }
  EXPECT_EQ(manager.status()["stalls"], 2u) << "nobody else was";
  EXPECT_EQ(manager.status()["pool.quarantined"], 0u);
}

TEST(Stall, KillEndsWhoHoldsClaimsAndNobodyElse) {
  Manager manager({"--stall-after", "3", "--stalled-engine", "kill"});
  auto holder = start_engine(manager, "client_mid_copy:stop:1");
  auto idle = start_engine(manager, "", "2");
  holder.say("save 0 1 12");
  ASSERT_TRUE(holder.stopped_within());
  idle.signal(SIGSTOP);
  ASSERT_TRUE(idle.stopped_within());
  ASSERT_EQ(settled(manager, "stalled_killed", 1), 1u);
  const auto end = holder.ended_within();
  ASSERT_TRUE(end && WIFSIGNALED(*end) && WTERMSIG(*end) == SIGKILL);
  ASSERT_EQ(manager.settle_sessions(1), 1u);
  EXPECT_EQ(manager.status()["quarantined_extents"], 12u);
  EXPECT_EQ(manager.status()["stalls"], 2u);
  idle.signal(SIGCONT);
  ASSERT_EQ(settled(manager, "revivals", 1), 1u);
  idle.say("save 0 1 12");
  EXPECT_EQ(answer_of(idle), "saved 1 12 0 0 ");
  EXPECT_EQ(manager.status()["stalled_killed"], 1u);
}

// As when a virtual machine is paused: on waking the Manager must not judge by its own sleep.
TEST(Stall, AManagerThatStoodStillItselfJudgesNobody) {
  Manager manager({"--stall-after", "3", "--stalled-engine", "kill"});
  auto engine = start_engine(manager, "client_mid_copy:stop:1");
  engine.say("save 0 1 12");
  ASSERT_TRUE(engine.stopped_within());
  manager.process().signal(SIGSTOP);
  ASSERT_TRUE(manager.process().stopped_within());
  ::sleep(5);
  manager.process().signal(SIGCONT);
  engine.signal(SIGCONT);
  EXPECT_EQ(answer_of(engine), "saved 1 12 0 0 ");
  EXPECT_EQ(manager.status()["stalls"], 0u);
}

}  // namespace
}  // namespace orbitkv::test
