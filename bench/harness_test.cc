#include "bench/harness.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace orbitkv::bench {
namespace {

Run run_of(std::int64_t p50_us, double ceiling) {
  return {microseconds(p50_us), microseconds(2 * p50_us), std::nullopt, ceiling};
}

TEST(Harness, PercentilesAreNearestRanks) {
  Samples samples;
  EXPECT_EQ(samples.percentile(0.5), Duration{0});
  for (const std::int64_t ns : {50, 10, 40, 20, 30}) samples.add({ns});
  EXPECT_EQ(samples.percentile(0).ns, 10);
  EXPECT_EQ(samples.percentile(0.5).ns, 30);
  EXPECT_EQ(samples.percentile(0.99).ns, 50);
  EXPECT_EQ(samples.percentile(1).ns, 50);
}

TEST(Harness, MediansOfOddAndEvenCounts) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

TEST(Harness, ATimeIsComparedAsCeilingOverOurs) {
  const Case what{"channel",    "ping",       ByteCount(64),
                  std::nullopt, std::nullopt, Ceiling{"ring_ping", Ceiling::Unit::kMicroseconds}};
  EXPECT_EQ(format_line(what, {run_of(4, 1), run_of(2, 1), run_of(8, 1)}, true),
            R"({"bench":"channel","case":"ping","p50_us":4.000,"p99_us":8.000,"bytes":64,"runs":3,)"
            R"("ceiling":{"name":"ring_ping","us":1.000},"ratio":0.250})");
}

TEST(Harness, ARateIsComparedAsOursOverCeiling) {
  const Case what{"restore", "4MiB", ByteCount(4 << 20),
                  36,        1000,   Ceiling{"memcpy", Ceiling::Unit::kGigabytesPerSecond}};
  bench::Run run = run_of(1000, 50);
  run.gb_per_s = 45;
  EXPECT_EQ(format_line(what, {run}, true),
            R"({"bench":"restore","case":"4MiB","p50_us":1000.0,"p99_us":2000.0,"gb_per_s":45.000,)"
            R"("bytes":4194304,"fragments":36,"resident":1000,"runs":1,)"
            R"("ceiling":{"name":"memcpy","gb_per_s":50.000},"ratio":0.900})");
}

TEST(Harness, ALineForPeopleHoldsTheSame) {
  const Case what{"idle", "idle", std::nullopt, std::nullopt, std::nullopt, std::nullopt};
  EXPECT_EQ(format_line(what, {run_of(1, 0)}, false),
            "bench=idle  case=idle  p50_us=1.000  p99_us=2.000  runs=1");
}

TEST(Harness, AChildsResultComesBack) {
  auto child = ChildProcess::start([] { return 7; });
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->wait(), 7);
}

TEST(Harness, AChildThatIsForgottenIsKilled) {
  int pid = 0;
  {
    auto child = ChildProcess::start([] {
      for (;;) ::pause();
      return 0;
    });
    ASSERT_TRUE(child.ok());
    pid = child->pid();
    EXPECT_EQ(::kill(pid, 0), 0);
  }
  EXPECT_NE(::kill(pid, 0), 0) << "reaped too";
}

TEST(Harness, PinningDoesNotChangeTheUsableCores) {
  const std::size_t before = usable_cpus().size();
  auto child = ChildProcess::start([&] {
    pin_thread(usable_cpus().front());
    return usable_cpus().size() == before ? 0 : 1;
  });
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->wait(), 0);
}

}  // namespace
}  // namespace orbitkv::bench
