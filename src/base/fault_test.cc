#include "base/fault.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace orbitkv {
namespace {

class Fault : public testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(configure_faults("").ok()); }
  static std::string error_of(std::string_view spec) {
    const Status status = configure_faults(spec);
    return status.ok() ? "" : status.error().message();
  }
};

constexpr std::string_view kNames[] = {
    "client_submitted",      "client_granted",       "client_claimed",      "client_mid_copy",
    "client_before_drained", "client_after_drained", "client_digest",       "manager_before_grant",
    "manager_before_reap",   "manager_lent",         "manager_sealed",      "manager_unsealed",
    "manager_retire_marked", "manager_adopted",      "manager_kept_format", "manager_kept_open",
    "manager_not_ready",     "manager_no_memory",    "manager_opening"};

TEST_F(Fault, EveryPointHasItsName) {
  ASSERT_EQ(std::size(kNames), static_cast<std::size_t>(FaultPoint::kCount));
  for (std::size_t named = 0; named < std::size(kNames); ++named) {
    ASSERT_EQ(error_of(std::string(kNames[named]) + ":fail:*"), "");
    for (std::size_t hit = 0; hit < std::size(kNames); ++hit)
      EXPECT_EQ(fault_hit(static_cast<FaultPoint>(hit)), hit == named) << kNames[named];
  }
}

TEST_F(Fault, OffByDefaultAndAgain) {
  ASSERT_EQ(error_of(""), "");
  EXPECT_FALSE(fault_hit(FaultPoint::kClientClaimed));
  ASSERT_EQ(error_of("client_claimed:fail:*"), "");
  EXPECT_TRUE(fault_hit(FaultPoint::kClientClaimed));
  ASSERT_EQ(error_of(""), "");
  EXPECT_FALSE(fault_hit(FaultPoint::kClientClaimed));
}

TEST_F(Fault, TheNamedPassAloneTriggers) {
  ASSERT_EQ(error_of("client_mid_copy:flip:3,manager_before_reap:fail:1"), "");
  for (int pass = 1; pass <= 5; ++pass) EXPECT_EQ(fault_hit(FaultPoint::kClientMidCopy), pass == 3) << pass;
  for (int pass = 1; pass <= 3; ++pass) EXPECT_EQ(fault_hit(FaultPoint::kManagerBeforeReap), pass == 1);
}

FaultPoint g_seen = FaultPoint::kCount;
bool see(FaultPoint point) {
  g_seen = point;
  return point == FaultPoint::kClientDigest;
}

TEST_F(Fault, AHookIsToldOfEveryPassAndAnswersForIt) {
  ASSERT_EQ(error_of("client_claimed:fail:*"), "");
  set_fault_hook(&see);
  EXPECT_FALSE(fault_hit(FaultPoint::kClientClaimed));
  EXPECT_EQ(g_seen, FaultPoint::kClientClaimed);
  EXPECT_TRUE(fault_hit(FaultPoint::kClientDigest));
  set_fault_hook(nullptr);
  EXPECT_FALSE(fault_hit(FaultPoint::kClientDigest));
}

TEST_F(Fault, WhatCannotBeReadIsNamedAndNothingIsActive) {
  EXPECT_NE(error_of("client_claimed"), "");
  EXPECT_NE(error_of("client_claimed:fail"), "");
  EXPECT_NE(error_of("no_such_point:fail:1").find("names no fault point"), std::string::npos);
  EXPECT_NE(error_of("client_claimed:explode:1").find("has no action"), std::string::npos);
  EXPECT_NE(error_of("client_claimed::1").find("has no action"), std::string::npos);
  for (const char* hit : {"0", "-1", "x", "1x", "", "99999999999"})
    EXPECT_NE(error_of(std::string("client_claimed:fail:") + hit).find("has no hit"), std::string::npos)
        << hit;
  EXPECT_NE(error_of("client_claimed:fail:1,client_claimed:kill:2").find("named twice"), std::string::npos);
  EXPECT_NE(error_of("client_claimed:fail:*,nonsense"), "");
  EXPECT_FALSE(fault_hit(FaultPoint::kClientClaimed)) << "the part before the mistake is off too";
}

// The environment is read at the first pass of a process, so each of these re-executes
// the test (threadsafe style) and passes a point there for the first time.
class FaultEnvironment : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  [[noreturn]] static void pass_twice(const char* environment) {
    setenv("ORBITKV_FAULT", environment, 1);
    const int first = fault_hit(FaultPoint::kClientGranted);
    setenv("ORBITKV_FAULT", "", 1);  // too late
    _exit(10 * first + fault_hit(FaultPoint::kClientGranted));
  }
};

TEST_F(FaultEnvironment, IsReadOnceAndActs) {
  EXPECT_EXIT(pass_twice("client_granted:kill:1"), testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT(pass_twice("client_granted:fail:2"), testing::ExitedWithCode(1), "");
  EXPECT_EXIT(pass_twice("client_granted:flip:*"), testing::ExitedWithCode(11), "");
  EXPECT_EXIT(pass_twice(""), testing::ExitedWithCode(0), "");
}

// A test that misspells its fault must not pass for want of it.
TEST_F(FaultEnvironment, AMistakeStopsTheProcess) {
  EXPECT_EXIT(pass_twice("client_granted:fial:1"), testing::KilledBySignal(SIGABRT), "has no action");
}

TEST_F(Fault, StopStopsTheProcess) {
  const pid_t child = fork();
  if (child == 0) {
    (void)configure_faults("client_granted:stop:1");
    _exit(fault_hit(FaultPoint::kClientGranted));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP) << status;
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace orbitkv
