// What MemoryIo and MemoryDisk promise beyond the suite: virtual time, seeded order, and
// what a loss of power leaves.
#include "ssd/memory_io.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ssd/io_rig.h"

namespace orbitkv::ssd::suite {
namespace {

constexpr std::size_t kStep = 4096;

class MemoryDiskTest : public testing::Test {
 protected:
  std::unique_ptr<MemoryIo> io(const IoOptions& options = {}, Latency latency = {}) {
    auto made = std::make_unique<MemoryIo>(disk_, options, std::move(latency));
    const auto opened = made->open("file", ByteCount(64 * kStep));
    EXPECT_TRUE(opened.ok());
    file_ = opened->file;
    return made;
  }
  // A page of `value` at page `at`; not reaped.
  void submit_write(Io& io, std::uint64_t at, int value) {
    const Memory& memory = memory_.emplace_back(kStep);
    std::ranges::fill(memory.all(), static_cast<std::byte>(value));
    const auto& pieces = pieces_.emplace_back(Pieces{memory.all()});
    const IoRequest request{IoTag(++tag_), IoOp::kWrite, file_, at * kStep, pieces};
    ASSERT_EQ(io.submit({&request, 1}), 1u);
  }
  void submit_sync(Io& io) {
    const IoRequest request{IoTag(++tag_), IoOp::kSync, file_, 0, {}};
    ASSERT_EQ(io.submit({&request, 1}), 1u);
  }
  void reap(Io& io, std::size_t count) {
    IoResult result;
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(io.reap({&result, 1}, seconds(100)), 1u);
  }
  static std::vector<std::byte> page(const MemoryDisk& disk, std::uint64_t at) {
    std::vector<std::byte> out(kStep);
    disk.peek("file", at * kStep, out);
    return out;
  }
  static bool is(const MemoryDisk& disk, std::uint64_t at, int value) {
    return page(disk, at) == std::vector<std::byte>(kStep, static_cast<std::byte>(value));
  }

  MemoryDisk disk_;
  FileIndex file_;
  std::uint64_t tag_ = 0;
  std::deque<Memory> memory_;
  std::deque<Pieces> pieces_;
};

TEST_F(MemoryDiskTest, WhatASyncCoversSurvivesEveryCrash) {
  auto it = io();
  submit_write(*it, 1, 0x11);
  reap(*it, 1);
  submit_sync(*it);
  reap(*it, 1);
  submit_write(*it, 2, 0x22);
  reap(*it, 1);
  std::size_t lost = 0, whole = 0, torn = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const MemoryDisk after = disk_.after_crash({.seed = seed});
    EXPECT_TRUE(is(after, 1, 0x11));
    lost += is(after, 2, 0);
    whole += is(after, 2, 0x22);
    torn += !is(after, 2, 0) && !is(after, 2, 0x22);
  }
  EXPECT_GT(lost, 50u);
  EXPECT_GT(whole, 50u);
  EXPECT_GT(torn, 5u);
}

// Sync says nothing about writes that were on their way when it was submitted.
TEST_F(MemoryDiskTest, ASyncCoversOnlyWhatWasReapedBefore) {
  auto it = io();
  submit_write(*it, 1, 0x11);
  submit_sync(*it);
  reap(*it, 2);
  EXPECT_TRUE(is(disk_.after_crash({.lost_percent = 100}), 1, 0));
  submit_sync(*it);
  EXPECT_TRUE(is(disk_.after_crash({.lost_percent = 100}), 1, 0)) << "the sync was not reaped";
  reap(*it, 1);
  EXPECT_TRUE(is(disk_.after_crash({.lost_percent = 100}), 1, 0x11));
}

TEST_F(MemoryDiskTest, TornWritesKeepWholeSectors) {
  auto it = io();
  submit_write(*it, 3, 0x33);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const MemoryDisk after =
        disk_.after_crash({.seed = seed, .lost_percent = 0, .torn_percent = 100, .sector = ByteCount(1024)});
    const std::vector<std::byte> bytes = page(after, 3);
    for (std::size_t at = 0; at < kStep; at += 1024) {
      const auto sector = std::span(bytes).subspan(at, 1024);
      EXPECT_TRUE(std::ranges::all_of(sector, [&](std::byte b) { return b == sector[0]; })) << at;
    }
  }
}

TEST_F(MemoryDiskTest, ACrashCanStandBehindEveryEvent) {
  auto it = io();
  for (int i = 1; i <= 5; ++i) {
    submit_write(*it, 7, i);
    reap(*it, 1);
    submit_sync(*it);
    reap(*it, 1);
  }
  EXPECT_EQ(disk_.events(), 20u);
  EXPECT_EQ(disk_.logged(), ByteCount(5 * kStep));
  for (std::size_t events = 0; events <= 20; events += 4)
    EXPECT_TRUE(is(disk_.after_crash({.lost_percent = 100}, events), 7, static_cast<int>(events / 4)));
}

TEST_F(MemoryDiskTest, AKillLosesOnlyWhatWasNotReaped) {
  auto it = io({}, seeded_latency(1, {milliseconds(1), milliseconds(2)}));
  submit_write(*it, 1, 0x11);
  reap(*it, 1);
  submit_write(*it, 2, 0x22);
  const MemoryDisk after = disk_.after_crash({.lost_percent = 100, .killed_only = true});
  EXPECT_TRUE(is(after, 1, 0x11));
  EXPECT_TRUE(is(after, 2, 0));
}

TEST_F(MemoryDiskTest, ADiskAfterACrashCanBeUsedAndCrashAgain) {
  auto it = io();
  submit_write(*it, 1, 0x11);
  reap(*it, 1);
  submit_sync(*it);
  reap(*it, 1);
  MemoryDisk after = disk_.after_crash({.lost_percent = 100});
  EXPECT_EQ(after.events(), 0u);
  MemoryIo again(after, {});
  const auto opened = again.open("file", {});
  ASSERT_TRUE(opened.ok()) << "locks do not survive: " << opened.error().message();
  EXPECT_FALSE(opened->made);
  EXPECT_EQ(opened->bytes, 64 * kStep);
  file_ = opened->file;
  submit_write(again, 2, 0x22);
  reap(again, 1);
  const MemoryDisk twice = after.after_crash({.lost_percent = 100});
  EXPECT_TRUE(is(twice, 1, 0x11));
  EXPECT_TRUE(is(twice, 2, 0));
}

TEST_F(MemoryDiskTest, TheSameSeedCrashesTheSameWay) {
  auto it = io();
  for (int i = 0; i < 40; ++i) submit_write(*it, static_cast<std::uint64_t>(i), 0x40 + i);
  const auto image = [&](std::uint64_t seed) {
    const MemoryDisk after = disk_.after_crash({.seed = seed});
    std::vector<std::byte> out(40 * kStep);
    after.peek("file", 0, out);
    return out;
  };
  EXPECT_EQ(image(5), image(5));
  EXPECT_NE(image(5), image(6));
}

TEST_F(MemoryDiskTest, TimePassesOnlyWhenTold) {
  auto it = io({}, [](const IoRequest& request) { return milliseconds(request.offset == 0 ? 20 : 10); });
  submit_write(*it, 0, 1);
  submit_write(*it, 1, 2);
  IoResult result;
  EXPECT_EQ(it->reap({&result, 1}, {}), 0u);
  it->advance(milliseconds(9));
  EXPECT_EQ(it->reap({&result, 1}, {}), 0u);
  const TimePoint before = it->now();
  EXPECT_EQ(it->reap({&result, 1}, seconds(1)), 1u);
  EXPECT_EQ(result.tag, IoTag(2)) << "the faster overtakes";
  EXPECT_EQ(result.took, milliseconds(10));
  EXPECT_EQ(it->now() - before, milliseconds(1)) << "a wait goes on to the next result";
  it->advance(milliseconds(10));
  EXPECT_EQ(it->reap({&result, 1}, {}), 1u);
  EXPECT_EQ(result.tag, IoTag(1));
}

TEST_F(MemoryDiskTest, TheSameSeedGivesTheSameOrder) {
  const auto order = [&](std::uint64_t seed) {
    disk_ = {};
    auto it = io({}, seeded_latency(seed, {{}, milliseconds(5)}));
    tag_ = 0;
    for (int i = 0; i < 20; ++i) submit_write(*it, static_cast<std::uint64_t>(i), i);
    std::vector<std::uint64_t> out;
    IoResult result;
    while (it->reap({&result, 1}, seconds(1)) == 1) out.push_back(result.tag.value);
    return out;
  };
  EXPECT_EQ(order(3), order(3));
  EXPECT_NE(order(3), order(4));
}

TEST_F(MemoryDiskTest, ReadsPoisonTheirMemoryUntilTheResult) {
  auto it = io({}, seeded_latency(1, {milliseconds(1), milliseconds(1)}));
  const Memory memory(kStep);
  const Pieces pieces = {memory.all()};
  const IoRequest request{IoTag(1), IoOp::kRead, file_, 0, pieces};
  ASSERT_EQ(it->submit({&request, 1}), 1u);
  EXPECT_NE(memory.all()[0], std::byte{0});
  reap(*it, 1);
  EXPECT_EQ(memory.all()[0], std::byte{0});
}

TEST_F(MemoryDiskTest, ChangedMemoryOfAWriteIsFound) {
  auto it = io({}, seeded_latency(1, {milliseconds(1), milliseconds(1)}));
  submit_write(*it, 1, 0x11);
  EXPECT_DEATH(
      {
        memory_.back().all()[5] = std::byte{0x77};
        it->advance(milliseconds(2));
      },
      "changed while the device had it");
}

}  // namespace
}  // namespace orbitkv::ssd::suite
