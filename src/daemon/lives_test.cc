#include "daemon/lives.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "daemon/exits.h"

namespace orbitkv::daemon {
namespace {

int exited(int code) {
  return code << 8;
}
constexpr int kSegv = SIGSEGV, kKilled = SIGKILL;

// One keeper's lives, each ended as a test says.
class Bed {
 public:
  Lives lives{"/bin/one", milliseconds(100)};
  TimePoint now{seconds(1000).ns};

  // A life that serves for ten seconds.
  Lives::Decision served(int status, bool oom = false) {
    lives.serves();
    now = now + seconds(10);
    return lives.ended({status, true, true, oom, seconds(10), now});
  }
  Lives::Decision started(int status, bool took = true) {
    now = now + milliseconds(10);
    return lives.ended({status, took, false, false, milliseconds(10), now});
  }
  void upgrade(std::string_view to, bool cold = false) {
    lives.serves();
    lives.succeed(to, cold);
    now = now + seconds(10);
    const auto next = lives.ended({exited(kExitMadePlace), true, true, false, seconds(10), now});
    EXPECT_EQ(next.next, Lives::Next::kStart);
    EXPECT_EQ(next.backoff, Duration{});
    EXPECT_FALSE(next.clear);
  }
};

TEST(Lives, NamesOfStarts) {
  for (const LifeStart start : {LifeStart::kAny, LifeStart::kSuccessor, LifeStart::kSmaller})
    EXPECT_EQ(life_start_of(life_start_name(start)), start);
  EXPECT_EQ(life_start_of("none"), LifeStart::kCount);
}

TEST(Lives, WhatNeverServedAndSaidWhyEndsTheKeeper) {
  for (const int code : {kExitFailed, kExitUsage, kExitTryAgain, kExitCannotRun, 0}) {
    Bed bed;
    const auto next = bed.started(exited(code));
    EXPECT_EQ(next.next, Lives::Next::kEnd);
    EXPECT_EQ(next.exit_code, code);
  }
}

TEST(Lives, AStopOfTheManagerAloneEndsBoth) {
  Bed bed;
  EXPECT_EQ(bed.served(exited(0)).next, Lives::Next::kEnd);
}

TEST(Lives, ADeathAfterServingIsStartedAgainAtOnce) {
  Bed bed;
  for (int i = 0; i < 50; ++i) {
    const auto next = bed.served(i % 2 == 0 ? kKilled : kSegv);
    EXPECT_EQ(next.next, Lives::Next::kStart);
    EXPECT_EQ(next.backoff, Duration{});
    EXPECT_FALSE(next.clear);
    EXPECT_EQ(bed.lives.begins_as(), LifeStart::kAny);
  }
}

TEST(Lives, ASuccessorIsToldThatItIsOne) {
  Bed bed;
  bed.upgrade("/bin/two");
  EXPECT_STREQ(bed.lives.program(), "/bin/two");
  EXPECT_EQ(bed.lives.begins_as(), LifeStart::kSuccessor);
  bed.upgrade("/bin/three", true);
  EXPECT_EQ(bed.lives.begins_as(), LifeStart::kAny) << "it may start cold";
  bed.upgrade("");
  EXPECT_STREQ(bed.lives.program(), "/bin/three") << "what stands at the path of the one before";
}

// The request of an upgrade that was not gone on with does not stay.
TEST(Lives, ASuccessionCountsOnlyIfPlaceWasMade) {
  Bed bed;
  bed.lives.serves();
  bed.lives.succeed("/bin/two", false);
  EXPECT_EQ(bed.served(exited(0)).next, Lives::Next::kEnd) << "a stop is a stop";
  Bed killed;
  killed.lives.serves();
  killed.lives.succeed("/bin/two", false);
  EXPECT_EQ(killed.served(kKilled).next, Lives::Next::kStart);
  EXPECT_STREQ(killed.lives.program(), "/bin/one");
  killed.upgrade("");
  EXPECT_STREQ(killed.lives.program(), "/bin/one");
}

TEST(Lives, ABinaryThatDoesNotServeIsGivenUpForTheOneBefore) {
  for (const int status :
       {exited(kExitFailed), exited(kExitUsage), exited(kExitCannotRun), kSegv, exited(0)}) {
    Bed bed;
    bed.upgrade("/bin/two");
    const auto next = bed.started(status);
    EXPECT_EQ(next.next, Lives::Next::kStart);
    EXPECT_FALSE(next.clear);
    EXPECT_STREQ(bed.lives.program(), "/bin/one");
    EXPECT_EQ(bed.lives.begins_as(), LifeStart::kAny);
    bed.upgrade("");
    EXPECT_STREQ(bed.lives.program(), "/bin/one") << "the bad one is not what is meant by the path";
  }
}

TEST(Lives, OneThatCannotKeepCostsNothing) {
  Bed bed;
  bed.upgrade("/bin/two");
  const auto next = bed.started(exited(kExitCannotKeep));
  EXPECT_EQ(next.next, Lives::Next::kStart);
  EXPECT_EQ(next.backoff, Duration{});
  EXPECT_FALSE(next.clear);
  EXPECT_STREQ(bed.lives.program(), "/bin/one");
  EXPECT_EQ(bed.lives.begins_as(), LifeStart::kAny);
}

// Who gave --cold is not told to.
TEST(Lives, TheRemedyIsNamedWhereItWasNotTaken) {
  for (const bool cold : {false, true}) {
    Bed bed;
    bed.upgrade("/bin/two", cold);
    const std::string why = bed.started(exited(kExitCannotKeep)).why;
    EXPECT_NE(why.find("back to /bin/one"), std::string::npos) << why;
    EXPECT_EQ(why.find("--cold") == std::string::npos, cold) << why;
  }
}

// What stands at the path by then is the one that cannot, so the one before has no path any more.
TEST(Lives, AnUpgradeInPlaceGoesBackToTheImageThatServed) {
  for (const std::string_view same : {"", "/bin/one"}) {
    for (const int status : {exited(kExitCannotKeep), exited(kExitFailed), kSegv}) {
      Bed bed;
      bed.upgrade(same);
      EXPECT_STREQ(bed.lives.program(), "/bin/one");
      const auto next = bed.started(status);
      EXPECT_EQ(next.next, Lives::Next::kStart);
      EXPECT_FALSE(next.clear);
      EXPECT_EQ(bed.lives.program(), Lives::kServedImage);
      bed.upgrade("");
      EXPECT_STREQ(bed.lives.program(), "/bin/one") << "the path is tried again when that is asked for";
    }
  }
}

// For whoever asked for an upgrade.
TEST(Lives, SaysHowEachLifeCameToBe) {
  Bed bed;
  EXPECT_EQ(bed.lives.came(), LifeCame::kFirst);
  bed.upgrade("/bin/two");
  EXPECT_EQ(bed.lives.came(), LifeCame::kSuccessor);
  bed.started(exited(kExitTryAgain));
  EXPECT_EQ(bed.lives.came(), LifeCame::kSuccessor) << "it has to wait, and is the successor yet";
  bed.started(exited(kExitFailed));
  EXPECT_EQ(bed.lives.came(), LifeCame::kBack);
  EXPECT_NE(bed.lives.why_came().find("/bin/two does not serve (exit status 1)"), std::string::npos);
  bed.started(kSegv);
  EXPECT_EQ(bed.lives.came(), LifeCame::kBack) << "nobody has served since";
  bed.served(kKilled);
  EXPECT_EQ(bed.lives.came(), LifeCame::kAgain);
  EXPECT_NE(bed.lives.why_came().find("signal 9"), std::string::npos);
  bed.upgrade("");
  bed.started(exited(kExitCannotKeep));
  EXPECT_EQ(bed.lives.came(), LifeCame::kBack);
}

TEST(Lives, OneThatNeverCanKeepIsGivenUp) {
  Bed bed;
  bed.upgrade("");
  Duration last;
  for (int i = 1; i < 10; ++i) {
    const auto next = bed.started(exited(kExitCannotKeep));
    ASSERT_EQ(next.next, Lives::Next::kStart) << i;
    ASSERT_TRUE(i == 1 || next.backoff > last || next.backoff == seconds(5)) << i;
    last = next.backoff;
  }
  EXPECT_EQ(bed.started(exited(kExitCannotKeep)).next, Lives::Next::kGiveUp);
}

// There is one that can serve.
TEST(Lives, ASuccessorThatCannotStartNowIsGivenUpSoon) {
  for (const std::string_view to : {"/bin/two", ""}) {
    Bed bed;
    bed.upgrade(to);
    const TimePoint begin = bed.now;
    while (bed.lives.came() == LifeCame::kSuccessor) {
      const auto next = bed.started(exited(kExitTryAgain));
      ASSERT_EQ(next.next, Lives::Next::kStart);
      ASSERT_FALSE(next.clear);
      bed.now = bed.now + next.backoff;
    }
    EXPECT_LT(bed.now - begin, seconds(15));
    EXPECT_GT(bed.now - begin, seconds(5)) << "it may be over in a moment";
    EXPECT_EQ(bed.lives.came(), LifeCame::kBack);
    EXPECT_EQ(bed.lives.begins_as(), LifeStart::kAny);
    // The one before is waited for as after any end.
    for (int i = 0; i < 40; ++i) {
      bed.started(exited(kExitTryAgain));
      bed.now = bed.now + seconds(5);
      ASSERT_EQ(bed.lives.came(), LifeCame::kBack);
    }
  }
}

// What it waits for itself is time in which nobody serves.
TEST(Lives, ASuccessorThatWaitedLongItselfIsNotTriedAgain) {
  Bed bed;
  bed.upgrade("/bin/two");
  bed.now = bed.now + seconds(30);
  bed.lives.ended({exited(kExitTryAgain), true, false, false, seconds(30), bed.now, false, "it is in use"});
  EXPECT_EQ(bed.lives.came(), LifeCame::kBack);
  EXPECT_NE(bed.lives.why_came().find("(exit status 75: it is in use): back to /bin/one"), std::string::npos)
      << bed.lives.why_came();
}

TEST(Lives, WhoeverNeverServedHasMadeNoPlace) {
  Bed first;
  EXPECT_EQ(first.started(exited(kExitMadePlace)).next, Lives::Next::kEnd);
  Bed bed;
  bed.upgrade("/bin/two");
  const auto next = bed.started(exited(kExitMadePlace));
  EXPECT_EQ(next.next, Lives::Next::kStart);
  EXPECT_EQ(bed.lives.came(), LifeCame::kBack);
  EXPECT_STREQ(bed.lives.program(), "/bin/one");
  EXPECT_GT(bed.started(exited(kExitMadePlace)).backoff, Duration{});
}

TEST(Lives, OneThatSaidThatItServesWhileItWasEndedHasNotServed) {
  Bed bed;
  bed.upgrade("/bin/two");
  bed.now = bed.now + seconds(30);
  bed.lives.ended({kKilled, true, true, false, seconds(30), bed.now, true, "no sign"});
  EXPECT_EQ(bed.lives.came(), LifeCame::kBack);
  EXPECT_STREQ(bed.lives.program(), "/bin/one");
}

TEST(Lives, OneThatHangsIsCountedAndTriedAgainOrGivenUpForTheOneBefore) {
  Bed bed;
  const auto hung = [&] {
    bed.now = bed.now + seconds(30);
    // The kernel killed others meanwhile: not this one.
    return bed.lives.ended({kKilled, true, false, true, seconds(30), bed.now, true, "no sign"});
  };
  auto next = hung();
  EXPECT_EQ(next.next, Lives::Next::kStart) << "it has said nothing, so the first one too";
  EXPECT_GT(next.backoff, Duration{});
  EXPECT_NE(next.why.find("the Manager hung at its start and was ended (no sign): it is started again"),
            std::string::npos)
      << next.why;
  bed.upgrade("/bin/two");
  next = hung();
  EXPECT_EQ(bed.lives.came(), LifeCame::kBack);
  EXPECT_STREQ(bed.lives.program(), "/bin/one");
  EXPECT_EQ(bed.lives.begins_as(), LifeStart::kAny);
  EXPECT_NE(next.why.find("/bin/two does not serve (it hung: no sign): back to /bin/one"), std::string::npos)
      << next.why;
  EXPECT_EQ(bed.lives.hung(), 2u);
  for (int i = 2; i < 10; ++i) {
    next = hung();
    ASSERT_EQ(next.next, Lives::Next::kStart) << i;
    EXPECT_EQ(next.clear, i == 5) << "what is kept may be the cause";
    const std::string count = "failed " + std::to_string(i) + " times";
    EXPECT_EQ(next.why.find(count) != std::string::npos, !next.clear) << next.why;
  }
  EXPECT_EQ(hung().next, Lives::Next::kGiveUp);
}

TEST(Lives, TryAgainIsNobodysFault) {
  Bed bed;
  bed.served(kKilled);
  for (int i = 0; i < 40; ++i) {
    const auto next = bed.started(exited(kExitTryAgain));
    ASSERT_EQ(next.next, Lives::Next::kStart);
    ASSERT_FALSE(next.clear);
    ASSERT_STREQ(bed.lives.program(), "/bin/one");
    ASSERT_GT(next.backoff, Duration{});
    ASSERT_LE(next.backoff, seconds(5));
    bed.now = bed.now + seconds(5);
  }
  bed.now = bed.now + seconds(300);
  for (int i = 1; i < 10; ++i) {
    ASSERT_EQ(bed.started(exited(kExitTryAgain)).next, Lives::Next::kStart);
    bed.started(exited(kExitTryAgain));
    bed.now = bed.now + seconds(301);
  }
  EXPECT_EQ(bed.started(exited(kExitTryAgain)).next, Lives::Next::kGiveUp) << "not for ever";
  Bed successor;
  successor.upgrade("/bin/two");
  successor.started(exited(kExitTryAgain));
  EXPECT_STREQ(successor.lives.program(), "/bin/two");
  EXPECT_EQ(successor.lives.begins_as(), LifeStart::kSuccessor) << "it might start cold";
  Bed smaller;
  smaller.served(kKilled, true);
  smaller.started(exited(kExitTryAgain), false);
  EXPECT_EQ(smaller.lives.begins_as(), LifeStart::kSmaller);
}

TEST(Lives, OnlyCrashesWithWhatIsKeptLetGoOfIt) {
  Bed errors, crashes, early;
  for (Bed* bed : {&errors, &crashes, &early}) bed->served(kKilled);
  for (int i = 1; i < 10; ++i) {
    EXPECT_FALSE(errors.started(exited(kExitFailed)).clear) << i;
    EXPECT_FALSE(early.started(kSegv, false).clear) << i;
    EXPECT_EQ(crashes.started(kSegv).clear, i == 5) << i;
  }
  for (Bed* bed : {&errors, &crashes, &early}) {
    const auto next = bed->started(kSegv);
    EXPECT_EQ(next.next, Lives::Next::kGiveUp);
    EXPECT_EQ(next.exit_code, kExitFailed);
  }
}

TEST(Lives, AReplacedBinaryIsTriedOnceThenTheImageThatServed) {
  Bed bed;
  bed.served(kSegv);
  bed.started(exited(kExitCannotRun));
  EXPECT_STREQ(bed.lives.program(), "/bin/one");
  bed.started(exited(kExitCannotRun));
  EXPECT_EQ(bed.lives.program(), Lives::kServedImage);
  bed.upgrade("");
  EXPECT_STREQ(bed.lives.program(), "/bin/one");
}

TEST(Lives, BackoffIsDoubledUpToFiveSeconds) {
  Bed bed;
  bed.served(kKilled);
  Duration last;
  for (int i = 0; i < 9; ++i) {
    const auto next = bed.started(kSegv);
    EXPECT_TRUE(next.backoff > last || next.backoff == seconds(5));
    last = next.backoff;
  }
  EXPECT_EQ(last, seconds(5));
}

// Memory in the keeper is not freed by the death of the Manager.
TEST(Lives, WantOfMemoryMakesTheNextSmallerAndThenCold) {
  Bed bed;
  auto next = bed.served(kKilled, true);
  EXPECT_EQ(bed.lives.begins_as(), LifeStart::kSmaller);
  EXPECT_GT(next.backoff, Duration{});
  EXPECT_FALSE(next.clear);
  next = bed.served(kKilled, true);
  EXPECT_TRUE(next.clear);
  EXPECT_EQ(bed.lives.begins_as(), LifeStart::kAny);
  bed.served(kKilled);
  bed.now = bed.now + seconds(301);
  next = bed.served(kKilled, true);
  EXPECT_EQ(bed.lives.begins_as(), LifeStart::kSmaller) << "long after: the first again";
  EXPECT_FALSE(next.clear);
  EXPECT_FALSE(bed.served(kSegv, true).clear) << "not whom the kernel killed";
}

TEST(Lives, WantOfMemoryNowAndThenEndsNobody) {
  Bed bed;
  for (int i = 0; i < 20; ++i) {
    bed.now = bed.now + seconds(301);
    const auto next = bed.served(kKilled, true);
    ASSERT_EQ(next.next, Lives::Next::kStart) << i;
    ASSERT_FALSE(next.clear) << i;
  }
}

TEST(Lives, WantOfMemoryIsNotTriedForEver) {
  Bed bed;
  bed.served(kKilled);
  int tries = 0;
  for (Lives::Decision next; next.next == Lives::Next::kStart && tries < 20; ++tries) {
    bed.lives.serves();
    next = bed.lives.ended({kKilled, true, true, true, milliseconds(10), bed.now});
  }
  EXPECT_EQ(tries, 10);
}

}  // namespace
}  // namespace orbitkv::daemon
