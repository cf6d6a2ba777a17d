// Starts that hang, that fail and that take long, at an upgrade and after a death: the keeper ends what does
// not go on, and nothing that is kept is lost by that.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <regex>
#include <thread>

#include "tests/native/upgrade.h"

namespace orbitkv::test {
namespace {

// A start gives a sign five times a second; a loaded machine may need seconds to give one.
const std::vector<std::string> kImpatient = {"--start-silence", "5"};
constexpr int kSlowSigns = 8;

// A program that tells its keeper for longer than kImpatient that it counts sheep, and serves then.
std::string slow(const Directory& directory) {
  return script(directory, std::string("exec ") + ORBITKV_SUCCESSOR + " " + std::to_string(kSlowSigns) +
                               " 1000 " + orbitkv_binary() + " \"$@\"");
}

std::vector<pid_t> pids_in(const std::string& path) {
  std::ifstream file(path);
  std::vector<pid_t> out;
  for (pid_t pid = 0; file >> pid;) out.push_back(pid);
  return out;
}

class Start : public Upgrade {
 protected:
  Start() : Upgrade(kImpatient) {}
  bool told(const std::string& text) const { return kept.said().find(text) != std::string::npos; }
  std::string file(const char* name) const { return directory.path() + "/" + name; }
  std::string answer_of(const std::vector<std::string>& words) {
    std::vector<std::string> command = {orbitkv_binary()};
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), {"--bootstrap-socket", kept.manager().socket()});
    command.insert(command.begin(), {"/bin/sh", "-c", "exec \"$@\" >&2", "sh"});
    Process asks(command, {{}, file("answer"), 0});
    EXPECT_TRUE(asks.ended_within(kUpgradedWithinMs));
    std::ifstream in(file("answer"));
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(Start, ASuccessorThatHangsIsEndedAndTheOneBeforeServes) {
  // A shell, a child of it, and one that has left its process group.
  const std::string pids = file("pids");
  const std::string hangs =
      script(directory, "echo $$ >> " + pids + "; setsid sh -c 'echo $$ >> " + pids +
                            "; exec sleep 600' & sleep 600 & echo $! >> " + pids + "; wait");
  EXPECT_EQ(kept.upgrade({"--binary", hangs}), 1);
  EXPECT_TRUE(told("does not serve (it hung: no sign of progress for 5 s): back to")) << kept.said();
  EXPECT_TRUE(told("serves again, with 48 blocks taken over")) << kept.said();
  EXPECT_TRUE(told("its log: ")) << kept.said();
  const auto started = pids_in(pids);
  EXPECT_EQ(started.size(), 3u);
  for (const pid_t each : started)
    EXPECT_NE(::kill(each, 0), 0) << "one of the last life runs beside the next";
  EXPECT_EQ(kept.manager().status()["kept.hung_starts"], 1u);
  expect_next_life(kBlocks);
}

// It has taken over what is kept, and has not said that it serves.
TEST_F(Start, ASuccessorThatStandsStillLosesNothing) {
  EXPECT_EQ(kept.upgrade({"--binary", script(directory, serve_with("manager_adopted:stop:1"))}), 1);
  EXPECT_TRUE(told("the last one: takes over the blocks that are kept")) << kept.said();
  expect_next_life(kBlocks);
}

TEST_F(Start, ASuccessorThatIsSlowAndGoesOnServes) {
  EXPECT_EQ(kept.upgrade({"--binary", slow(directory)}), 0) << kept.said();
  EXPECT_TRUE(told("counts sheep")) << "who waits is told what for: " << kept.said();
  EXPECT_EQ(kept.manager().status()["kept.hung_starts"], 0u);
  expect_next_life(kBlocks);
}

// The signs of that time lie in its socket, and its own sleep is nobody's silence.
TEST_F(Start, AKeeperThatStoodStillItselfEndsNobody) {
  std::thread upgrades([&] { EXPECT_EQ(kept.upgrade({"--binary", slow(directory)}), 0) << kept.said(); });
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  while (::kill(pid, 0) == 0 && monotonic_now() < deadline) ::usleep(1000);
  kept.keeper().signal(SIGSTOP);
  EXPECT_TRUE(kept.keeper().stopped_within());
  ::sleep(7);
  kept.keeper().signal(SIGCONT);
  upgrades.join();
  EXPECT_EQ(kept.manager().status()["kept.hung_starts"], 0u);
  expect_next_life(kBlocks);
}

TEST_F(Start, WhoAsksMeanwhileIsToldWhatTheStartDoes) {
  std::thread upgrades([&] { EXPECT_EQ(kept.upgrade({"--binary", slow(directory)}), 0) << kept.said(); });
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  std::string said;
  while (said.find("counts sheep") == said.npos && monotonic_now() < deadline) said = answer_of({"status"});
  EXPECT_NE(said.find("its keeper (pid " + std::to_string(kept.keeper().pid()) + ") starts "), said.npos)
      << said;
  EXPECT_NE(said.find("counts sheep; its log: /"), said.npos) << said;
  upgrades.join();
}

// A good one is there to go back to: nobody waits for what a successor waits for.
TEST_F(Start, ASuccessorThatSaysTryAgainIsGivenUpSoon) {
  const std::string tries = file("tries");
  EXPECT_EQ(kept.upgrade({"--binary", script(directory, "echo 1 >> " + tries + "; exit 75")}), 1);
  EXPECT_TRUE(told("does not serve (exit status 75): back to")) << kept.said();
  EXPECT_GT(pids_in(tries).size(), 1u) << "it may be over in a moment";
  EXPECT_LT(pids_in(tries).size(), 15u);
  expect_next_life(kBlocks);
}

TEST_F(Start, TheCauseOfAFailureIsWhatTheSuccessorSaidLast) {
  EXPECT_EQ(kept.upgrade({"--binary", script(directory, serve_with("manager_not_ready:fail:1"))}), 1);
  EXPECT_TRUE(told("(exit status 1: it does not start (ORBITKV_FAULT)): back to")) << kept.said();
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  while (answer_of({"status", "--json"}).find("\"stored\":true") == std::string::npos &&  // else it stays
         monotonic_now() < deadline)
    ::usleep(5000);
  EXPECT_EQ(kept.upgrade({"--binary", script(directory, "kill -SEGV $$", "/crashes")}), 1);
  EXPECT_TRUE(told("does not serve (signal 11): back to")) << kept.said();
}

// No interpreter: it is executable, and cannot be run.
TEST_F(Start, OneThatCannotBeRunSaysWhy) {
  const std::string path = file("unrunnable");
  std::ofstream(path) << "#!/no/such/interpreter\n";
  ::chmod(path.c_str(), 0700);
  EXPECT_EQ(kept.upgrade({"--cold", "--binary", path}), 1);
  EXPECT_TRUE(told("(exit status 127: it cannot be run: No such file or directory): back to")) << kept.said();
  expect_next_life(kBlocks);
}

TEST_F(Start, ARestartThatHangsIsEndedAndTriedAgain) {
  const std::string hang = file("hang");
  const std::string program =
      script(directory, "if [ -e " + hang + " ]; then rm " + hang + "; exec sleep 600; fi\nexec " +
                            orbitkv_binary() + " \"$@\"");
  ASSERT_EQ(kept.upgrade({"--binary", program}), 0) << kept.said();
  ASSERT_TRUE(attached_again(engine, incarnation));
  incarnation = engine.client().health().incarnation;
  std::ofstream{hang};
  kept.kill();
  const TimePoint deadline = monotonic_now() + milliseconds(kUpgradedWithinMs);
  while (kept.manager_pid() == 0 && monotonic_now() < deadline) ::usleep(20'000);
  expect_next_life(kBlocks);
  EXPECT_FALSE(std::filesystem::exists(hang));
  EXPECT_TRUE(says(kept, "hung at its start and was ended (no sign of progress for 5 s)"));
  EXPECT_EQ(kept.manager().status()["kept.hung_starts"], 1u);
}

TEST_F(Start, AStopWhileTheStartHangsEndsBoth) {
  const std::string pids = file("pids");
  const std::string hangs =
      script(directory, "trap '' TERM; echo $$ > " + pids + "; while :; do sleep 1; done");
  std::thread upgrades([&] { EXPECT_EQ(kept.upgrade({"--binary", hangs}), 1); });
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  while (pids_in(pids).empty() && monotonic_now() < deadline) ::usleep(1000);
  kept.keeper().signal(SIGTERM);
  EXPECT_TRUE(kept.keeper().ended_within(60'000));
  for (const pid_t each : pids_in(pids)) EXPECT_NE(::kill(each, 0), 0);
  upgrades.join();
  EXPECT_TRUE(told("the keeper has ended: start orbitkv serve --keep again; its log: /")) << kept.said();
}

// ---- what commands say that cannot reach the keeper ----

TEST_F(Start, AKeeperThatIsStoppedIsNamedWithItsRemedy) {
  const std::string remedy = "kill -CONT " + std::to_string(kept.keeper().pid());
  kept.keeper().signal(SIGSTOP);
  ASSERT_TRUE(kept.keeper().stopped_within());
  EXPECT_EQ(kept.upgrade(), 1);
  EXPECT_TRUE(told("the keeper (pid " + std::to_string(kept.keeper().pid()) + ") does not answer; if it was"))
      << kept.said();
  EXPECT_TRUE(told(remedy)) << kept.said();
  ::kill(pid, SIGKILL);
  const std::string said = answer_of({"status"});
  EXPECT_NE(said.find("is stopped: " + remedy), said.npos) << said;
  kept.keeper().signal(SIGCONT);
  expect_next_life(kBlocks);
}

TEST_F(Start, WhereTheKeeperHasEndedThatIsTheCauseWhateverStandsAtThePath) {
  const std::string path = file("orbitkv");
  std::filesystem::copy_file(orbitkv_binary(), path);
  ASSERT_EQ(kept.upgrade({"--binary", path}), 0) << kept.said();
  std::filesystem::remove(path);
  kept.keeper().signal(SIGKILL);
  ASSERT_TRUE(kept.keeper().ended_within());
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  while (kept.manager().status()["kept.keeper"] != 0 && monotonic_now() < deadline) ::usleep(5000);
  EXPECT_EQ(kept.upgrade(), 1);
  EXPECT_TRUE(told("the keeper of the Manager (pid ")) << kept.said();
  EXPECT_FALSE(told("No such file")) << kept.said();
}

TEST_F(Start, WhatComesOfAHangupStandsInTheLogWithTimeAndLevel) {
  const std::string path = file("orbitkv");
  std::filesystem::copy_file(orbitkv_binary(), path);
  ASSERT_EQ(kept.upgrade({"--binary", path}), 0) << kept.said();
  std::filesystem::remove(path);
  kept.keeper().signal(SIGHUP);
  ASSERT_TRUE(says(kept, "cannot be run"));
  const std::regex line("\n[0-9-]+T[0-9:.]+Z W upgrade: '[^\n]*' cannot be run");
  EXPECT_TRUE(std::regex_search(kept.manager().log(), line)) << kept.manager().log();
  std::filesystem::copy_file(orbitkv_binary(), path);
  // One that comes before the last one's command has been reaped is told so, and is none.
  const auto told = [&] { return kept.manager().log().find("Z I upgrade: orbitkv ") != std::string::npos; };
  const TimePoint deadline = monotonic_now() + milliseconds(kDoneWithinMs);
  for (int i = 0; !told() && monotonic_now() < deadline; ::usleep(10'000))
    if (i++ % 100 == 0) kept.keeper().signal(SIGHUP);
  EXPECT_TRUE(told()) << kept.manager().log();
}

}  // namespace
}  // namespace orbitkv::test
