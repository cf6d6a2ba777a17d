// The conformance suite of the I/O seam. Every implementation instantiates it:
//   INSTANTIATE_TEST_SUITE_P(Real, IoSuite, ValuesIn(implementations), test_name);
// Include it in one source of a test. Tests only.
#pragma once

#include <poll.h>

#include <algorithm>

#include "ssd/io_rig.h"

namespace orbitkv::ssd::suite {

inline std::string test_name(const testing::TestParamInfo<Implementation>& info) {
  return info.param.name;
}

class IoSuite : public testing::TestWithParam<Implementation> {
 protected:
  static constexpr std::size_t kStep = 4096;  // a multiple of every alignment
  static constexpr ByteCount kFile = 4 * kMiB;

  void SetUp() override {
    bed_ = GetParam().make();
    if (const std::string why = bed_->missing(); !why.empty()) GTEST_SKIP() << why;
  }
  Rig rig(const IoOptions& options = {}, ByteCount bytes = kFile) { return {*bed_, options, bytes}; }
  static bool readable(const Io& io, int milliseconds) {
    pollfd ready{io.completion_fd(), POLLIN, 0};
    return ::poll(&ready, 1, milliseconds) == 1;
  }

  std::unique_ptr<Bed> bed_;
};

TEST_P(IoSuite, OpensMakesGrowsAndKeepsWhatIsThere) {
  Memory memory(kStep);
  fill(memory.all(), 1);
  {
    Rig made = rig({}, {});
    const std::string path = bed_->path("other");
    auto opened = made.io().open(path, {});
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    EXPECT_TRUE(opened->made);
    EXPECT_EQ(opened->bytes, 0u);
    EXPECT_GE(opened->alignment.memory, 1u);
    ASSERT_TRUE(made.io().grow(made.file(), ByteCount(8 * kStep)).ok());
    EXPECT_EQ(made.write(7 * kStep, memory.all()), 0);
    EXPECT_GT(made.io().free_space(path), ByteCount{});
    EXPECT_FALSE(made.io().grow(made.file(), ByteCount(std::uint64_t{1} << 61)).ok());
  }
  Rig again = rig({}, ByteCount(16 * kStep));
  const auto third = again.io().open(bed_->path("other"), {});
  ASSERT_TRUE(third.ok());
  EXPECT_FALSE(third->made);
  Memory back(kStep);
  EXPECT_EQ(again.read(7 * kStep, back.all()), 0);
  EXPECT_TRUE(holds(back.all(), 1));
  EXPECT_EQ(again.read(15 * kStep, back.all()), 0);
  EXPECT_TRUE(
      std::all_of(back.all().begin(), back.all().end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST_P(IoSuite, OnePathHasOneUser) {
  Rig first = rig();
  auto second = bed_->make({});
  const auto refused = second->open(first.path(), {});
  ASSERT_FALSE(refused.ok());
  // Who it is may end; then the path is free.
  EXPECT_EQ(refused.error().code(), Code::kBusy);
  EXPECT_NE(refused.error().message().find("in use"), std::string::npos) << refused.error().message();
  EXPECT_NE(refused.error().message().find(first.path()), std::string::npos) << refused.error().message();
  first.end();
  EXPECT_TRUE(second->open(first.path(), {}).ok());
}

TEST_P(IoSuite, FilesAreBounded) {
  auto io = bed_->make({});
  for (std::size_t i = 0; i < kIoFiles; ++i)
    ASSERT_TRUE(io->open(bed_->path("f" + std::to_string(i)), {}).ok());
  const auto refused = io->open(bed_->path("one_more"), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kBusy);
}

// Regions of the file by turns written and read, in pieces, from registered memory and other.
TEST_P(IoSuite, RandomRequestsKeepEveryByte) {
  constexpr std::size_t kRegions = 24, kRegion = 40 * kStep, kRequests = 600;
  Rig it = rig({.depth = 9}, ByteCount(kRegions * kRegion));
  Memory memory(kRegions * kRegion);
  it.io().add_memory(memory.at(0, memory.all().size() / 2));
  std::mt19937_64 random(7);
  std::vector<std::uint64_t> seed(kRegions, 0);
  std::vector<bool> busy(kRegions), reading(kRegions);
  std::size_t sent = 0, ended = 0;
  while (ended < kRequests) {
    const std::size_t region = random() % kRegions;
    if (sent < kRequests && !busy[region]) {
      const auto at = memory.at(region * kRegion, kRegion);
      reading[region] = seed[region] != 0 && random() % 2 == 0;
      if (reading[region])
        std::fill(at.begin(), at.end(), std::byte{0});
      else
        fill(at, seed[region] = random());
      Pieces pieces;
      for (std::size_t offset = 0, bytes; offset < kRegion; offset += bytes) {
        bytes = std::min<std::size_t>(kStep * (1 + random() % 12), kRegion - offset);
        pieces.push_back(at.subspan(offset, bytes));
      }
      const auto request =
          it.request(reading[region] ? IoOp::kRead : IoOp::kWrite, region, region * kRegion, pieces);
      ASSERT_EQ(it.io().submit({&request, 1}), 1u);
      busy[region] = true;
      ++sent;
      if (random() % 3 != 0) continue;
    }
    if (sent == ended) continue;
    for (const auto& [tag, result] : it.reap(1)) {
      EXPECT_EQ(result.error, 0) << std::strerror(result.error);
      if (reading[tag]) {
        EXPECT_TRUE(holds(memory.at(tag * kRegion, kRegion), seed[tag])) << "request " << ended;
      }
      busy[tag] = false;
      ++ended;
    }
  }
  const IoStats stats = it.io().stats();
  EXPECT_EQ(stats.reads + stats.writes, kRequests);
  EXPECT_EQ(stats.read + stats.written, ByteCount(kRequests * kRegion));
  EXPECT_EQ(stats.errors, 0u);
}

TEST_P(IoSuite, WhatBreaksTheRulesEndsInEinval) {
  Rig it = rig();
  Memory memory(128 * kStep);
  Pieces many;
  for (std::size_t i = 0; i <= kPieces; ++i) many.push_back(memory.at(i * kStep, kStep));
  IoRequest elsewhere = it.request(IoOp::kRead, 0, 0, {memory.at(0, kStep)});
  elsewhere.file = FileIndex(40);
  const std::vector<std::pair<const char*, IoRequest>> wrong = {
      {"offset", it.request(IoOp::kRead, 1, 100, {memory.at(0, kStep)})},
      {"length", it.request(IoOp::kWrite, 2, 0, {memory.at(0, 100)})},
      {"address", it.request(IoOp::kRead, 3, 0, {memory.at(8, kStep)})},
      {"no pieces", it.request(IoOp::kWrite, 4, 0, {})},
      {"an empty piece", it.request(IoOp::kRead, 5, 0, {memory.at(0, kStep), memory.at(0, 0)})},
      {"too many pieces", it.request(IoOp::kRead, 6, 0, many)},
      {"a sync with pieces", it.request(IoOp::kSync, 7, 0, {memory.at(0, kStep)})},
      {"offset far out", it.request(IoOp::kRead, 8, std::uint64_t{1} << 63, {memory.at(0, kStep)})},
      {"no such file", elsewhere}};
  for (const auto& [what, request] : wrong) EXPECT_EQ(it.run(request), EINVAL) << what;
  EXPECT_EQ(it.io().stats().errors, wrong.size());
  EXPECT_EQ(it.read(0, memory.at(0, kStep)), 0) << "after refusals";
}

TEST_P(IoSuite, BoundsOfReadsAndWritesAreTheirOwn) {
  Script script;
  Rig it = rig({.depth = 2, .queue = 4, .faults = &script});
  Memory memory(16 * kStep);
  std::vector<IoRequest> reads, writes;
  for (std::uint64_t i = 0; i < 6; ++i) {
    reads.push_back(it.request(IoOp::kRead, i, 0, {memory.at(i * kStep, kStep)}));
    writes.push_back(it.request(i == 0 ? IoOp::kSync : IoOp::kWrite, 10 + i, (1 + i) * kStep,
                                i == 0 ? Pieces{} : Pieces{memory.at((8 + i) * kStep, kStep)}));
  }
  EXPECT_EQ(it.io().submit(reads), 4u);
  EXPECT_EQ(it.io().submit(reads), 0u) << "results that were not reaped count";
  EXPECT_EQ(it.io().submit(writes), 4u);
  EXPECT_EQ(it.io().submit(std::span(writes).subspan(4)), 0u);
  EXPECT_EQ(it.reap(8).size(), 8u);
  EXPECT_EQ(it.io().submit(std::span(reads).subspan(4)), 2u);
  EXPECT_EQ(it.reap(2).size(), 2u);
}

TEST_P(IoSuite, ReadsOvertakeWritesWhichKeepAQuarterOfTheTurns) {
  constexpr std::size_t kWrites = 8, kReads = 18;
  Script script;
  if (bed_->has_threads()) script.shut();
  Rig it = rig({.depth = 1, .threads = 1, .faults = &script});
  Memory memory(kStep * (1 + kWrites + kReads));
  std::vector<IoRequest> requests;
  const auto add = [&](IoOp op, std::uint64_t tag) {
    const std::size_t at = requests.size() * kStep;
    requests.push_back(it.request(op, tag, at, {memory.at(at, kStep)}));
  };
  add(IoOp::kWrite, 99);  // holds the device until all are queued
  for (std::size_t i = 0; i < kWrites; ++i) add(IoOp::kWrite, 100 + i);
  for (std::size_t i = 0; i < kReads; ++i) add(IoOp::kRead, i);
  // Without threads the first has its turn with the rest.
  if (bed_->has_threads()) {
    ASSERT_EQ(it.io().submit(std::span(requests).first(1)), 1u);
    while (script.order().empty()) ::usleep(100);
    ASSERT_EQ(it.io().submit(std::span(requests).subspan(1)), requests.size() - 1);
  } else {
    ASSERT_EQ(it.io().submit(requests), requests.size());
  }
  script.open();
  it.reap(requests.size());
  std::vector<std::uint64_t> order = script.order();
  ASSERT_EQ(order.size(), requests.size());
  if (bed_->has_threads()) order.erase(order.begin());
  const auto is_write = [](std::uint64_t tag) { return tag >= 99; };
  for (std::size_t i = 0; i + 4 <= order.size(); i += 4)
    EXPECT_GE(std::count_if(order.begin() + i, order.begin() + i + 4, is_write), 1) << "turns from " << i;
  // While both wait, three of four turns are reads.
  EXPECT_EQ(std::count_if(order.begin(), order.begin() + 20, is_write), 5);
  std::erase_if(order, is_write);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end())) << "reads overtook each other";
}

TEST_P(IoSuite, ASyncEndsAfterTheWritesThatWereReaped) {
  Rig it = rig();
  Memory memory(8 * kStep);
  fill(memory.all(), 3);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(it.write(i * kStep, memory.at(i * kStep, kStep)), 0);
  EXPECT_EQ(it.run(it.sync(50)), 0);
  EXPECT_EQ(it.io().stats().syncs, 1u);
  EXPECT_EQ(it.io().stats().writes, 8u);
}

TEST_P(IoSuite, ShortTransfersGoOn) {
  Script script;
  script.always(short_fault(kStep));
  Rig it = rig({.faults = &script});
  Memory memory(16 * kStep), back(16 * kStep);
  fill(memory.all(), 5);
  // Pieces that no short transfer ends at.
  const Pieces pieces = {memory.at(0, 3 * kStep), memory.at(3 * kStep, 5 * kStep),
                         memory.at(8 * kStep, 8 * kStep)};
  EXPECT_EQ(it.run(it.request(IoOp::kWrite, 1, 2 * kStep, pieces)), 0);
  EXPECT_EQ(it.run(it.request(IoOp::kRead, 2, 2 * kStep, {back.all()})), 0);
  EXPECT_TRUE(holds(back.all(), 5));
  EXPECT_EQ(it.io().stats().continued, 30u);
  EXPECT_EQ(script.order().size(), 32u) << "faults are asked for every submission";
}

TEST_P(IoSuite, EagainIsTriedAgainButNotForEver) {
  Script script;
  for (int i = 0; i < 5; ++i) script.add(1, short_fault(0));
  Rig it = rig({.faults = &script});
  Memory memory(kStep);
  EXPECT_EQ(it.run(it.request(IoOp::kWrite, 1, 0, {memory.all()})), 0);
  EXPECT_EQ(it.io().stats().continued, 5u);
  script.always(short_fault(0));
  EXPECT_EQ(it.read(0, memory.all()), EAGAIN);
}

TEST_P(IoSuite, ErrorsReachTheirRequestOnly) {
  Script script;
  Rig it = rig({.faults = &script});
  Memory memory(16 * kStep);
  const std::pair<IoOp, int> cases[] = {{IoOp::kRead, EIO},
                                        {IoOp::kWrite, EIO},
                                        {IoOp::kWrite, ENOSPC},
                                        {IoOp::kWrite, EROFS},
                                        {IoOp::kSync, EIO}};
  std::vector<IoRequest> requests;
  std::uint64_t tag = 0;
  for (const auto& [op, error] : cases) {
    script.add(tag, error_fault(error, op == IoOp::kSync ? 0 : kStep));
    const Pieces pieces = op == IoOp::kSync ? Pieces{} : Pieces{memory.at(2 * tag * kStep, 2 * kStep)};
    requests.push_back(it.request(op, tag, 2 * tag * kStep, pieces));
    ++tag;
  }
  requests.push_back(it.request(IoOp::kRead, tag, 2 * tag * kStep, {memory.at(2 * tag * kStep, kStep)}));
  ASSERT_EQ(it.io().submit(requests), requests.size());
  const auto results = it.reap(requests.size());
  for (std::size_t i = 0; i < std::size(cases); ++i) EXPECT_EQ(results.at(i).error, cases[i].second) << i;
  EXPECT_EQ(results.at(tag).error, 0);
  EXPECT_EQ(it.io().stats().errors, std::size(cases));
  EXPECT_EQ(it.io().stats().reads, 1u);
}

TEST_P(IoSuite, AFailedWriteMayHaveMovedItsFirstBytes) {
  Script script;
  Rig it = rig({.faults = &script});
  Memory memory(4 * kStep), back(4 * kStep);
  fill(memory.all(), 11);
  script.add(1, error_fault(EIO, 3 * kStep));
  EXPECT_EQ(it.run(it.request(IoOp::kWrite, 1, 0, {memory.all()})), EIO);
  EXPECT_EQ(it.read(0, back.all()), 0);
  EXPECT_TRUE(std::ranges::equal(back.at(0, 3 * kStep), memory.at(0, 3 * kStep)));
  EXPECT_FALSE(std::ranges::equal(back.at(3 * kStep, kStep), memory.at(3 * kStep, kStep)));
}

TEST_P(IoSuite, ADelayIsPartOfTheTimeThatItTook) {
  Script script;
  script.add(1, delay_fault(milliseconds(30)));
  Rig it = rig({.faults = &script});
  Memory memory(kStep);
  const auto request = it.request(IoOp::kRead, 1, 0, {memory.all()});
  ASSERT_EQ(it.io().submit({&request, 1}), 1u);
  IoResult result;
  EXPECT_EQ(it.io().reap({&result, 1}, {}), 0u);
  EXPECT_GE(it.reap(1).at(1).took, milliseconds(30));
  EXPECT_EQ(it.io().stats().continued, 0u);
}

TEST_P(IoSuite, AReadBeyondTheEndIsEio) {
  Rig it = rig({}, ByteCount(8 * kStep));
  Memory memory(8 * kStep);
  EXPECT_EQ(it.read(6 * kStep, memory.at(0, 2 * kStep)), 0);
  EXPECT_EQ(it.read(8 * kStep, memory.at(0, kStep)), EIO);
  EXPECT_EQ(it.read(6 * kStep, memory.at(0, 4 * kStep)), EIO);
  bed_->resize(it.path(), ByteCount(3 * kStep + 1000));  // the end is off the grid
  EXPECT_EQ(it.read(0, memory.at(0, 3 * kStep)), 0);
  EXPECT_EQ(it.read(2 * kStep, memory.at(0, 2 * kStep)), EIO);
  EXPECT_EQ(it.read(3 * kStep, memory.at(0, kStep)), EIO);
  EXPECT_EQ(it.write(5 * kStep, memory.at(0, kStep)), 0);
  EXPECT_EQ(it.read(5 * kStep, memory.at(0, kStep)), 0);
}

TEST_P(IoSuite, TheEndWaitsForWhatWasAccepted) {
  constexpr std::size_t kWrites = 40;
  Memory memory(kWrites * kStep), back(kWrites * kStep);
  fill(memory.all(), 21);
  Script script;
  {
    Rig it = rig({.depth = 4, .faults = &script});
    std::vector<IoRequest> writes;
    for (std::size_t i = 0; i < kWrites; ++i) {
      if (i % 8 == 0) script.add(i, delay_fault(milliseconds(5)));
      writes.push_back(it.request(IoOp::kWrite, i, i * kStep, {memory.at(i * kStep, kStep)}));
    }
    ASSERT_EQ(it.io().submit(writes), kWrites);
    it.end();
  }
  EXPECT_EQ(script.order().size(), kWrites);
  Rig again = rig();
  EXPECT_EQ(again.read(0, back.all()), 0);
  EXPECT_TRUE(holds(back.all(), 21));
}

// Memory whose frames change is removed and added; what is removed can be used all the same.
TEST_P(IoSuite, MemoryComesAndGoes) {
  Rig it = rig();
  Memory memory(16 * kStep);
  fill(memory.all(), 31);
  it.io().add_memory(memory.all());
  EXPECT_EQ(it.write(0, memory.all()), 0);
  if (bed_->registers()) {
    EXPECT_EQ(it.io().stats().registered, ByteCount(memory.all().size()));
  }
  for (int round = 0; round < 3; ++round) {
    it.io().remove_memory(memory.all());
    memory.renew();
    if (round != 1) it.io().add_memory(memory.all());
    EXPECT_EQ(it.read(0, memory.all()), 0);
    EXPECT_TRUE(holds(memory.all(), 31)) << "round " << round << ": bytes went to frames that are gone";
    if (!bed_->registers() || round == 1) {
      EXPECT_EQ(it.io().stats().registered, ByteCount{});
    }
  }
}

TEST_P(IoSuite, TheDescriptorIsReadableWhileResultsWait) {
  Rig it = rig();
  Memory memory(2 * kStep);
  EXPECT_FALSE(readable(it.io(), 0));
  const IoRequest requests[] = {it.request(IoOp::kRead, 1, 0, {memory.at(0, kStep)}),
                                it.request(IoOp::kRead, 2, 1, {memory.at(kStep, kStep)})};  // EINVAL
  ASSERT_EQ(it.io().submit(requests), 2u);
  IoResult result;
  std::size_t got = it.io().reap({&result, 1}, Rig::kPatience);
  EXPECT_EQ(got, 1u);
  // The second comes without a wait, but for memory's time, which only a reap moves.
  if (bed_->real_time()) {
    EXPECT_TRUE(readable(it.io(), 60'000));
  }
  got = it.io().reap({&result, 1}, Rig::kPatience);
  EXPECT_EQ(got, 1u);
  EXPECT_FALSE(readable(it.io(), 0)) << "reaped to empty";
  EXPECT_EQ(it.io().reap({&result, 1}, seconds(1)), 0u) << "nothing is on its way, so it does not wait";
}

// An edge-triggered watcher that reaps to empty at every event loses no result.
TEST_P(IoSuite, EveryDrainedDescriptorTellsOfTheNextResult) {
  Rig it = rig();
  Memory memory(4 * kStep);
  for (std::uint64_t i = 0; i < 200; ++i) {
    const auto request = it.request(IoOp::kRead, i, (i % 4) * kStep, {memory.at((i % 4) * kStep, kStep)});
    ASSERT_EQ(it.io().submit({&request, 1}), 1u);
    if (bed_->real_time()) {
      ASSERT_TRUE(readable(it.io(), 60'000)) << "result " << i;
    }
    ASSERT_EQ(it.reap(1).size(), 1u);
  }
  EXPECT_EQ(it.io().stats().reads, 200u);
  EXPECT_EQ(it.io().stats().in_flight, 0u);
}

TEST_P(IoSuite, StatsNameTheBounds) {
  Rig it = rig({.depth = 5, .tune_depth = false});
  EXPECT_EQ(it.io().stats().depth, 5u);
  EXPECT_STRNE(it.io().name(), "");
}

}  // namespace orbitkv::ssd::suite
