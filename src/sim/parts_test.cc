// The parts around the production code: time, contents, the ledger, programs, cells.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <set>
#include <string>

#include "base/limits.h"
#include "base/time.h"
#include "cache/overtaken.h"
#include "cache/waiting.h"
#include "shm/channel.h"
#include "sim/cells.h"
#include "sim/checkers.h"
#include "sim/content.h"
#include "sim/events.h"
#include "sim/kept_memory.h"
#include "sim/ledger.h"
#include "sim/program.h"
#include "sim/session_memories.h"

namespace orbitkv::sim {
namespace {

TEST(Events, RunInTheOrderOfTimeAndThenOfAsking) {
  Events events;
  std::vector<int> ran;
  const TimePoint start = events.now();
  events.after(microseconds(5), [&] { ran.push_back(3); });
  events.after(microseconds(2), [&] { ran.push_back(1); });
  events.after(microseconds(2), [&] { ran.push_back(2); });
  while (events.step(start + microseconds(4))) {
  }
  EXPECT_EQ(ran, (std::vector{1, 2}));
  EXPECT_EQ(events.now(), start + microseconds(4));
  EXPECT_EQ(monotonic_now(), events.now());
}

TEST(Events, AJumpMakesLateWhatWasDue) {
  Events events;
  const TimePoint start = events.now();
  TimePoint ran;
  events.after(microseconds(5), [&] { ran = events.now(); });
  events.jump(seconds(3));
  EXPECT_TRUE(events.step(start + seconds(9)));
  EXPECT_EQ(ran, start + seconds(3));
}

TEST(SessionMemories, ARenewedOneIsFresh) {
  auto memory = shm::SessionMemory::create(SessionId(3), Epoch(49));
  ASSERT_TRUE(memory.ok());
  for (std::uint32_t i = 0; i <= 5; ++i) memory->record(RecordIndex(i)).word.store(99);
  memory->header().client_bell.store(3);
  renew(*memory, SessionId(4), Epoch(50));
  EXPECT_EQ(memory->record(RecordIndex(5)).word.load(), 0u);
  EXPECT_EQ(memory->header().client_bell.load(), 0u);
  const int copy = ::dup(memory->fd());
  EXPECT_TRUE(shm::SessionMemory::attach(UniqueFd(copy), SessionId(4), Epoch(50)).ok());
}

TEST(Content, BlocksOfChainsThatPartAreTheSameBefore) {
  for (std::uint32_t chain = 1; chain < 12; ++chain) {
    EXPECT_EQ(block_at(chain, 0), block_at(0, 0));
    EXPECT_NE(block_at(chain, 9), block_at(0, 9));
  }
  std::set<Content> contents;
  for (std::uint32_t space = 0; space < 2; ++space)
    for (std::uint16_t shard = 0; shard < 4; ++shard)
      for (std::uint32_t block = 0; block < 50; ++block)
        contents.insert(content_of({space, GroupId(1), block, ShardId(shard)}));
  EXPECT_EQ(contents.size(), 400u);
  EXPECT_TRUE(is_block(*contents.begin()));
}

TEST(Content, APageHoldsWhatItWasFilledWithAndNothingElse) {
  for (const bool interleaved : {false, true}) {
    SpacePlan space{
        0, "x", 2, {{GroupId(0), false, 2, 2, 3, 24, interleaved}, {GroupId(1), true, 1, 1, 1, 64, false}}};
    RankMemory memory(space, 1, 5);
    for (std::size_t g = 0; g < 2; ++g)
      for (std::uint32_t page = 0; page < 5; ++page) memory.fill(g, page, 100 * g + page);
    for (std::size_t g = 0; g < 2; ++g)
      for (std::uint32_t page = 0; page < 5; ++page) {
        EXPECT_TRUE(memory.holds(g, page, 100 * g + page));
        EXPECT_FALSE(memory.holds(g, page, 100 * g + page + 1));
      }
    memory.damage(0, 3);
    EXPECT_FALSE(memory.holds(0, 3, 3));
    EXPECT_TRUE(memory.holds(0, 2, 2));
    EXPECT_EQ(memory.groups()[1].shards, 1);
    EXPECT_FALSE(memory.groups()[1].writer);
  }
}

TEST(LedgerTest, WritersAreAloneAndReadersAreNot) {
  Ledger ledger;
  const Place place{1, SlabId(0), 4096, ByteCount(512)};
  EXPECT_FALSE(ledger.take(place, Use::kRead, "a"));
  EXPECT_FALSE(ledger.take(place, Use::kRead, "b"));
  EXPECT_TRUE(ledger.take(place, Use::kWrite, "c"));
  for (int i = 0; i < 2; ++i) ledger.leave(place, Use::kRead);
  ledger.leave(place, Use::kWrite);
  EXPECT_FALSE(ledger.take(place, Use::kWrite, "d"));
  const Place inside{1, SlabId(0), 4096 + 64, ByteCount(64)};
  EXPECT_TRUE(ledger.take(inside, Use::kRead, "e"));
  EXPECT_FALSE(ledger.take({2, SlabId(0), 4096, ByteCount(512)}, Use::kWrite, "another life"));
  EXPECT_FALSE(ledger.take({1, SlabId(1), 4096, ByteCount(512)}, Use::kWrite, "another slab"));
  EXPECT_FALSE(ledger.take({1, SlabId(0), 4096 + 512, ByteCount(64)}, Use::kWrite, "behind"));
}

TEST(LedgerTest, KnowsWhoWritesInAPoolAndWhatIsDamaged) {
  Ledger ledger;
  const Place place{7, SlabId(2), 4096, ByteCount(512)}, other{8, SlabId(2), 0, ByteCount(64)};
  EXPECT_FALSE(ledger.take(place, Use::kWrite, "a"));
  EXPECT_FALSE(ledger.take(other, Use::kWrite, "b"));
  EXPECT_FALSE(ledger.take({7, SlabId(3), 0, ByteCount(64)}, Use::kRead, "c"));
  const auto writers = ledger.writers(7);
  ASSERT_EQ(writers.size(), 1u);
  EXPECT_EQ(writers[0].slab, SlabId(2));
  EXPECT_EQ(writers[0].offset, 4096u);
  EXPECT_EQ(writers[0].bytes, ByteCount(512));
  ledger.leave(place, Use::kWrite);
  ledger.damage({7, SlabId(2), 4600, ByteCount(1)});
  EXPECT_TRUE(ledger.damaged(place));
  EXPECT_FALSE(ledger.damaged({7, SlabId(2), 4608, ByteCount(64)}));
  EXPECT_FALSE(ledger.take(place, Use::kWrite, "over it"));
  EXPECT_FALSE(ledger.damaged(place));
}

TEST(FrozenTest, FilesAreAsTheyWereAgain) {
  UniqueFd fd(::memfd_create("frozen", MFD_CLOEXEC));
  constexpr off_t kBytes = 1 << 20;
  ASSERT_EQ(::ftruncate(fd.get(), kBytes), 0);
  ASSERT_EQ(::pwrite(fd.get(), "kept", 4, 8192), 4);
  const Frozen frozen({fd.get()});
  ASSERT_EQ(::pwrite(fd.get(), "lost", 4, 8192), 4);
  ASSERT_EQ(::pwrite(fd.get(), "more", 4, kBytes / 2), 4);
  frozen.thaw();
  char bytes[4];
  ASSERT_EQ(::pread(fd.get(), bytes, 4, 8192), 4);
  EXPECT_EQ(std::string(bytes, 4), "kept");
  ASSERT_EQ(::pread(fd.get(), bytes, 4, kBytes / 2), 4);
  EXPECT_EQ(std::string(bytes, 4), std::string(4, '\0'));
}

TEST(FrozenTest, DamageIsOneBitOfAWordThatWasWritten) {
  constexpr const char* kWord = "k\0p\0memo";
  for (std::uint64_t word = 0; word < 50; ++word) {
    UniqueFd fd(::memfd_create("damaged", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(fd.get(), 65536), 0);
    ASSERT_EQ(::pwrite(fd.get(), kWord, 8, 8192), 8);
    damage_tables({fd.get()}, word * 0x9E3779B97F4A7C15u);
    std::array<char, 8> bytes{};
    ASSERT_EQ(::pread(fd.get(), bytes.data(), 8, 8192), 8);
    int flipped = 0;
    for (std::size_t i = 0; i < 8; ++i)
      flipped += std::popcount(static_cast<unsigned>(bytes[i] ^ kWord[i]) & 0xFF);
    EXPECT_EQ(flipped, 1);
  }
}

// Says of one waiter that all is full whenever others are to come first, and that its instance is when
// it would be reserved for: nobody may lie so, and then one starves.
class LyingAdmission final : public cache::Admitting {
 public:
  explicit LyingAdmission(bool lies) : lies_(lies) {}
  Attempt admit(const cache::Waiter& waiter, TimePoint) override {
    if (waiter.index == 0) {
      constexpr std::uint32_t kCandidate = 2 * limits::kPasses;  // twice a turn, it is looked at
      ++asked_;
      const bool full = !lies_ || asked_ < kCandidate || (asked_ > kCandidate && asked_ % 2 == 0);
      return {full ? Attempt::Outcome::kTotalFull : Attempt::Outcome::kInstanceFull, 1};
    }
    line->leave(places.at(waiter.index));
    return {Attempt::Outcome::kAdmitted, 1};
  }
  bool make_way(cache::AccountIndex, cache::Full) override { return false; }
  cache::WaitingLine* line = nullptr;
  std::map<std::uint32_t, cache::WaitingPlace> places;

 private:
  const bool lies_;
  std::uint32_t asked_ = 0;
};

TEST(CheckersTest, SeeThatOneStarves) {
  for (const bool lies : {false, true}) {
    LyingAdmission admission(lies);
    cache::WaitingLine line(admission);
    admission.line = &line;
    cache::most_overtaken() = 0;
    line.join({cache::Waiter::Kind::kPrefix, 0}, cache::AccountIndex(0));
    for (std::uint32_t i = 1; i < 1000; ++i) {
      admission.places[i] = line.join({cache::Waiter::Kind::kPrefix, i}, cache::AccountIndex(1));
      line.run(TimePoint{1});
    }
    const auto wrong = starves(cache::most_overtaken(), 2);
    EXPECT_EQ(wrong.has_value(), lies) << cache::most_overtaken();
    if (wrong) EXPECT_STREQ(wrong->checker, "starves");
  }
}

TEST(ProgramTest, FollowsFromItsSeedAndHasFaultsOnlyWhereTheyHaveWeight) {
  bool some_without_faults = false;
  for (std::uint64_t seed = 1; seed < 200; ++seed) {
    const Config config = draw_config(seed);
    const Program program = draw_program(config, 200), again = draw_program(draw_config(seed), 200);
    ASSERT_EQ(program.size(), 200u);
    bool faults = false;
    for (std::size_t i = 0; i < program.size(); ++i) {
      ASSERT_EQ(program[i].kind, again[i].kind);
      ASSERT_EQ(program[i].words, again[i].words);
      if (i > 0) {
        ASSERT_GE(program[i].time, program[i - 1].time);
      }
      ASSERT_GT(config.weights[static_cast<std::size_t>(program[i].kind)], 0u);
      faults |= info_of(program[i].kind).fault;
    }
    some_without_faults |= !faults;
  }
  EXPECT_TRUE(some_without_faults);
}

TEST(Cells, EveryCellHasAPlaceAndMarksReachIt) {
  std::vector<std::uint32_t> before(all_cells().size()), after(all_cells().size());
  count_reached(before.data());  // what other tests have reached
  cache::Census census;
  census.leases[static_cast<std::size_t>(cache::LeaseState::kReady)] = 1;
  Met ready, active;
  see(ready, census);
  see(active, shm::RecordState::kActive);
  mark_fault(ActionKind::kIoError, ready);
  mark_fault(ActionKind::kJump, active);
  count_reached(after.data());
  std::set<std::string> fresh, names;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const Cell& cell = all_cells()[i];
    const std::string name = cell.table + " " + cell.row + " " + cell.column;
    EXPECT_TRUE(names.insert(name).second) << name;
    if (after[i] > 0) fresh.insert(name);
  }
  count_reached(after.data());
  EXPECT_EQ(std::count(after.begin(), after.end(), 2u), 0) << "a mark counts once";
  EXPECT_EQ(fresh, (std::set<std::string>{"fault io_error lease.ready", "fault jump record.active"}));
  EXPECT_GT(names.size(), 500u);
}

// What is listed as unreachable is counted apart, and named once something reaches it.
TEST(Cells, AnUnreachableCellThatIsReachedIsNamed) {
  std::vector<std::uint32_t> reached(all_cells().size(), 1);
  std::size_t listed = 0;
  for (const Cell& cell : all_cells()) listed += cell.unreachable != nullptr ? 1 : 0;
  ASSERT_GT(listed, 0u);
  const Coverage all = coverage_of(reached.data());
  EXPECT_EQ(all.impossible.size(), listed);
  EXPECT_EQ(all.cells + listed, all_cells().size());
  EXPECT_EQ(all.reached.size(), all.cells);
  for (std::size_t i = 0; i < reached.size(); ++i)
    if (all_cells()[i].unreachable != nullptr) reached[i] = 0;
  EXPECT_TRUE(coverage_of(reached.data()).impossible.empty());
}

TEST(Cells, RetirementsMeetStates) {
  std::vector<std::uint32_t> before(all_cells().size()), after(all_cells().size());
  cache::Census census;
  census.recoveries[static_cast<std::size_t>(cache::RecoveryState::kWaiting)] = 1;
  count_reached(before.data());
  mark_retirement(cache::RetireState::kClaims, census);
  count_reached(after.data());
  for (std::size_t i = 0; i < after.size(); ++i) {
    const Cell& cell = all_cells()[i];
    const bool met = cell.table == "retirement" && cell.row == "claims" && cell.column == "recovery.waiting";
    EXPECT_EQ(after[i] > 0, met) << cell.table << " " << cell.row << " " << cell.column;
  }
}

}  // namespace
}  // namespace orbitkv::sim
