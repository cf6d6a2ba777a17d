#include "daemon/stall.h"

#include <gtest/gtest.h>

#include <string_view>

namespace orbitkv::daemon {
namespace {

using Verdict = StallWatch::Verdict;

TEST(Health, EveryCell) {
  // events: sign silent condemn; states: H healthy, S stalled, C condemned; - illegal
  constexpr std::string_view kNames = "HSC", kRows[] = {"HS-", "HSC", "CCC"};
  for (std::size_t s = 0; s < 3; ++s) {
    for (std::size_t e = 0; e < 3; ++e) {
      const std::size_t at = kNames.find(kRows[s][e]);
      const Health expected = at == std::string_view::npos ? Health::kIllegal : static_cast<Health>(at);
      EXPECT_EQ(next(static_cast<Health>(s), static_cast<HealthEvent>(e)), expected) << s << " " << e;
    }
  }
}

class Stall : public testing::Test {
 protected:
  // One look; whether it came `step` after the last.
  Verdict look(std::uint64_t signs, bool claims = false, Duration step = milliseconds(250)) {
    now_ = now_ + step;
    watch_.begin_look(now_);
    return watch_.look(kSession, signs, claims);
  }
  // Looks at an engine that stands still; the verdict that came, and none else may.
  Verdict stand(Duration length, bool claims = false) {
    Verdict said = Verdict::kNone;
    for (std::int64_t ms = 0; ms < length.ns / 1'000'000; ms += 250) {
      const Verdict verdict = look(7, claims);
      if (verdict == Verdict::kNone) continue;
      EXPECT_EQ(said, Verdict::kNone);
      said = verdict;
    }
    return said;
  }
  static constexpr SessionId kSession{3};
  TimePoint now_{5'000'000'000};
  StallWatch watch_{{seconds(10), true}};
};

TEST_F(Stall, WhoBeatsIsHealthyHoweverLong) {
  for (std::uint64_t beat = 0; beat < 1000; ++beat) {
    ASSERT_EQ(look(beat), Verdict::kNone);
    for (int i = 0; i < 30; ++i) ASSERT_EQ(look(beat), Verdict::kNone);
  }
}

TEST_F(Stall, SilenceIsSaidOnceAndASignRevives) {
  look(7);
  EXPECT_EQ(stand(milliseconds(9750)), Verdict::kNone);
  EXPECT_EQ(look(7), Verdict::kStalled);
  EXPECT_EQ(stand(seconds(100)), Verdict::kNone);
  EXPECT_EQ(watch_.health(kSession), Health::kStalled);
  EXPECT_EQ(watch_.silent(kSession), seconds(110));
  EXPECT_EQ(look(6), Verdict::kRevived) << "whatever it says, it has changed";
  EXPECT_EQ(watch_.silent(kSession), seconds(0));
  EXPECT_EQ(watch_.stats().stalls, 1u);
  EXPECT_EQ(watch_.stats().revivals, 1u);
}

TEST_F(Stall, OnlyWhoHoldsClaimsIsCondemnedAndOnlyAfterTwiceTheTime) {
  look(7);
  EXPECT_EQ(stand(milliseconds(19'750)), Verdict::kStalled);
  EXPECT_EQ(look(7, false), Verdict::kNone);
  EXPECT_EQ(look(7, true), Verdict::kCondemned);
  EXPECT_EQ(look(8, true), Verdict::kNone) << "too late";
  EXPECT_EQ(stand(seconds(100), true), Verdict::kNone) << "said once";
  EXPECT_EQ(watch_.health(kSession), Health::kCondemned);
  watch_.reset(kSession);
  EXPECT_EQ(watch_.health(kSession), Health::kHealthy);
  EXPECT_EQ(stand(seconds(5), true), Verdict::kNone);
}

TEST_F(Stall, AStepThatTheManagerDidNotRunCountsForNobody) {
  look(7);
  stand(seconds(9));
  EXPECT_EQ(look(7, true, seconds(3600)), Verdict::kNone) << "suspended, stopped, or a paused machine";
  EXPECT_EQ(look(7), Verdict::kNone);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(look(7, true, seconds(2)), Verdict::kNone) << "it hardly runs";
  EXPECT_EQ(stand(seconds(1)), Verdict::kStalled);
}

TEST_F(Stall, ReportsOnlyUnlessToldToKill) {
  StallWatch report({seconds(10), false});
  for (int i = 0; i < 1000; ++i) {
    now_ = now_ + milliseconds(250);
    report.begin_look(now_);
    EXPECT_NE(report.look(kSession, 1, true), Verdict::kCondemned);
  }
  EXPECT_EQ(report.stats().stalls, 1u);
  EXPECT_EQ(report.stats().condemned, 0u);
}

TEST_F(Stall, SessionsAreJudgedOneByOne) {
  for (std::uint64_t i = 0; i < 50; ++i) {
    now_ = now_ + milliseconds(250);
    watch_.begin_look(now_);
    watch_.look(SessionId(0), 1, false);
    watch_.look(SessionId(63), i, false);
  }
  EXPECT_EQ(watch_.health(SessionId(0)), Health::kStalled);
  EXPECT_EQ(watch_.health(SessionId(63)), Health::kHealthy);
}

}  // namespace
}  // namespace orbitkv::daemon
