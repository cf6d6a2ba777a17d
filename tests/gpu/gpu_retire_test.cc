// A slab that a GPU writes to while its engine is killed retires, and the slab that takes its
// place keeps its bytes (docs/slabs.md), with a real Manager and engines in processes of
// their own, on a real GPU (ordinal 0) or on the fake libcuda:
//   gpu_retire_test
//   ORBITKV_RETIRE_ROUNDS=300 ORBITKV_RETIRE_SEED=7 ORBITKV_RETIRE_BYTES=536870912 gpu_retire_test
//   LD_LIBRARY_PATH=build/fake_driver ORBITKV_RETIRE_BYTES=16777216 build/bin/gpu_retire_test
// Needs `orbitkv` beside it, or in ORBITKV_BIN. Without a driver or a GPU it says what is
// missing, and succeeds.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>

#include "base/time.h"
#include "tests/gpu/gpu_engine.h"
#include "tests/native/processes.h"

namespace orbitkv::test {
namespace {

constexpr std::uint32_t kSlabs = 6;          // two of them hold one save
constexpr int kWholeWithinMs = 30'000;       // from the death until all capacity is back
constexpr int kLateMs = 500;                 // beyond the end of a process, for writes that come late
constexpr std::uint32_t kMomentUs = 30'000;  // the kill comes at any of the first ones
constexpr std::uint32_t kChunk = 16;         // blocks that the witness saves at once
constexpr std::uint32_t kMostTries = 4;      // a round, for deaths with nothing under way

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

enum class Order { kDrainFirst, kKillFirst, kByItself };
constexpr std::array kOrders = {"drained first", "killed first", "by itself"};
constexpr std::array kWays = {"dma", "kernel", "gentle"};

struct Slab {
  std::uint64_t name = 0, bytes = 0, used = 0;
};

// What was hit, so that nobody takes a round for one in which something ran.
struct Tally {
  std::array<std::uint32_t, 3> tried{}, hit{};  // by order; hit: claimed copies were with the device
  std::uint32_t waited = 0;                     // of those drained first: the slab still waited at the kill
  std::uint32_t outlived = 0;                   // whole again before the killed process had gone
  std::uint64_t slabs = 0, extents = 0, compared = 0, wrong = 0, victims = 0;
  std::uint64_t longest_ms = 0;

  std::uint32_t hits() const { return hit[0] + hit[1] + hit[2]; }
  std::string line() const {
    std::ostringstream out;
    out << "retire: " << hits() << " kills with copies in flight (";
    for (std::size_t i = 0; i < kOrders.size(); ++i)
      out << (i > 0 ? ", " : "") << kOrders[i] << ' ' << hit[i] << " of " << tried[i];
    out << "), " << waited << " while the drained slab waited, " << outlived << " outlived by the process; "
        << extents << " extents quarantined, " << slabs << " slabs retired, whole again within " << longest_ms
        << " ms; " << static_cast<double>(compared) / 1e9 << " GB compared, wrong bytes " << wrong
        << ", the victim's " << victims;
    return out.str();
  }
};

class GpuRetire : public testing::Test {
 protected:
  GpuRetire()
      : slab_(std::max<std::uint64_t>(number("ORBITKV_RETIRE_BYTES", 256ull << 20) / 2, 8 * kGpuBlock)),
        manager_({"--pool-size", std::to_string(slab_), "--retire-after", "10", "--retire-headroom",
                  std::to_string(kSlabs * slab_)}),
        random_(number("ORBITKV_RETIRE_SEED", 1)) {}

  void SetUp() override {
    pool({"add", std::to_string((kSlabs - 1) * slab_)});
    ASSERT_TRUE(within(kWholeWithinMs, [&] { return whole(manager_.status(), 0); }));
    witness_.emplace(start({"role=witness"}));
    ASSERT_EQ(witness_->line(), "ready ");
  }
  void TearDown() override {
    if (HasFailure()) std::printf("%s\n", manager_.log().c_str());
  }

  Process start(std::vector<std::string> words) const {
    words.insert(words.begin(), std::filesystem::read_symlink("/proc/self/exe"));
    words.push_back("socket=" + manager_.socket());
    return Process(words, {.environment = {{"XDG_CACHE_HOME", directory_.path()}}, .log = {}, .uid = 0});
  }
  // The output of `orbitkv ...`; nullopt: refused.
  std::optional<std::string> answer_to(std::vector<std::string> words) const {
    words.insert(words.begin(), orbitkv_binary());
    words.insert(words.end(), {"--json", "--bootstrap-socket", manager_.socket()});
    return Process(words, {}).line();
  }
  std::string command(const std::vector<std::string>& words) const {
    const auto text = answer_to(words);
    EXPECT_TRUE(text) << words[0] << (words.size() > 1 ? " " + words[1] : "");
    return text.value_or("{}");
  }
  std::string pool(std::vector<std::string> words) const {
    words.insert(words.begin(), "pool");
    return command(std::move(words));
  }
  // False: it retires by itself already, and another one takes its place.
  bool drain(std::uint64_t name) const {
    if (answer_to({"pool", "drain", std::to_string(name)})) return true;
    for (const Slab& slab : in_use()) EXPECT_NE(slab.name, name) << "a slab in use cannot be drained";
    return false;
  }
  std::vector<Slab> in_use() const {
    std::vector<Slab> out;
    const auto list = nlohmann::json::parse(pool({"list"}));
    for (const auto& each : list.at("slabs"))
      if (each.at("state") == "in use") out.push_back({each.at("slab"), each.at("bytes"), each.at("used")});
    return out;
  }
  template <class Done>
  bool within(int ms, Done done) const {
    const TimePoint deadline = monotonic_now() + milliseconds(ms);
    while (!done()) {
      if (monotonic_now() > deadline) return false;
      ::usleep(200);
    }
    return true;
  }
  // All capacity is there, and nothing left of sessions but so many.
  bool whole(const StatusView& status, std::uint64_t sessions) const {
    return status.sessions() == sessions && status["operations"] == 0 && status["pool.quarantined"] == 0 &&
           status["pool.retiring"] == 0 && status["pool.building"] == 0 &&
           status["pool.capacity"] == kSlabs * slab_;
  }
  std::uint32_t all_blocks() const {
    return static_cast<std::uint32_t>(kSlabs * (slab_ / (kGpuBlock + 256)));
  }
  void nap() { ::usleep(static_cast<useconds_t>(random_() % kMomentUs)); }

  void round(Order order, const std::string& way);
  Process start_victim(const std::string& way);
  void kill(Order order, Process& victim);
  void save_until_whole(Process& victim);
  void save_more(std::uint32_t count);
  void fill(std::uint64_t last_name);
  std::uint32_t compare_saved();
  std::string ask(const std::string& line) {
    witness_->say(line);
    const auto answer = witness_->line(60'000);
    EXPECT_TRUE(answer) << line;
    return answer.value_or("");
  }
  // ok, blocks
  std::pair<bool, std::uint32_t> save_chunk(std::uint32_t count) {
    std::istringstream in(ask("save " + std::to_string(next_hash_) + ' ' + std::to_string(count)));
    std::pair<bool, std::uint32_t> out;
    in >> out.first >> out.second;
    saved_.push_back({next_hash_, count});
    next_hash_ += count;
    return out;
  }

  const std::uint64_t slab_;
  Directory directory_;
  Manager manager_;
  std::optional<Process> witness_;
  VictimProgress* progress_ = nullptr;
  std::mt19937_64 random_;
  Tally tally_;
  std::uint64_t next_hash_ = 1;
  struct Chunk {
    std::uint64_t hash = 0;
    std::uint32_t count = 0;
  };
  std::vector<Chunk> saved_;  // and not compared yet
};

// Copies are with the device when it returns.
Process GpuRetire::start_victim(const std::string& way) {
  const std::string path = directory_.path() + "/progress";
  std::filesystem::remove(path);
  progress_ = &map_progress(path);
  Process victim = start({"role=victim", "way=" + way, "progress=" + path, "slabs=" + std::to_string(kSlabs),
                          "blocks=" + std::to_string(2 * slab_ / kGpuBlock),
                          "hash=" + std::to_string((next_hash_ + (1ull << 20)) << 20)});
  EXPECT_EQ(victim.line(60'000), "ready ");
  victim.say("save");
  EXPECT_TRUE(within(kWholeWithinMs, [&] { return progress_->enqueued >= 2; }));
  return victim;
}

void GpuRetire::kill(Order order, Process& victim) {
  const auto slabs = in_use();
  ASSERT_EQ(slabs.size(), kSlabs);
  const std::uint64_t name = slabs[random_() % slabs.size()].name;
  bool drained = false;
  const std::uint64_t retired = manager_.status()["pool.retired_slabs"];
  nap();
  bool waits = false;
  if (order == Order::kDrainFirst) {
    drained = drain(name);
    EXPECT_TRUE(drained);
    EXPECT_TRUE(within(kWholeWithinMs, [&] {
      const auto status = manager_.status();
      waits = status["pool.retiring"] > 0;
      return status["pool.retired_slabs"] > retired;
    }));
    ::usleep(static_cast<useconds_t>(random_() % 2000));
    waits = waits && manager_.status()["pool.retiring"] > 0;
  }
  victim.signal(SIGKILL);
  tally_.waited += waits ? 1 : 0;
  if (order == Order::kKillFirst) drained = drain(name);
  if (!drained) return;
  // Only once the drain has been carried out: an earlier word of more slabs would take it back.
  ASSERT_TRUE(within(kWholeWithinMs, [&] { return in_use().size() < kSlabs; }));
  pool({"add", std::to_string(slab_)});
}

// From the death on, so that new slabs are written to as soon as they are there.
void GpuRetire::save_until_whole(Process& victim) {
  const TimePoint death = monotonic_now();
  bool is_whole = false;
  do {
    save_chunk(kChunk);
    is_whole = whole(manager_.status(), 1);
  } while (!is_whole && monotonic_now() - death < milliseconds(kWholeWithinMs));
  ASSERT_TRUE(is_whole) << pool({"list"});
  const auto ms = static_cast<std::uint64_t>((monotonic_now() - death).ns / 1'000'000);
  tally_.longest_ms = std::max(tally_.longest_ms, ms);
  tally_.outlived += victim.running() ? 1 : 0;
}

void GpuRetire::save_more(std::uint32_t count) {
  for (std::uint32_t n = 0; count > 0; count -= n) {
    n = std::min(count, kChunk);
    EXPECT_EQ(save_chunk(n), std::pair(true, n));
  }
  EXPECT_EQ(manager_.settle("operations", 0), 0u);
}

// As many blocks as there is room for, and what the last eviction took too many: nobody else's
// are left, and the slabs of this round are full.
void GpuRetire::fill(std::uint64_t last_name) {
  save_more(all_blocks());
  save_more(all_blocks() - static_cast<std::uint32_t>(manager_.status()["blocks"]));
  for (const Slab& slab : in_use()) {
    if (slab.name > last_name) {
      // An eviction takes a few blocks at once.
      EXPECT_GE(slab.used + kChunk * kGpuBlock, slab.bytes) << "slab " << slab.name;
    }
  }
}

// The blocks that were found; of others none has to be there.
std::uint32_t GpuRetire::compare_saved() {
  std::uint32_t found = 0;
  for (auto chunk = saved_.rbegin(); chunk != saved_.rend(); ++chunk) {
    std::istringstream in(ask("restore " + std::to_string(chunk->hash) + ' ' + std::to_string(chunk->count)));
    bool ok = false;
    std::uint32_t hits = 0;
    std::uint64_t wrong = 0, victims = 0;
    in >> ok >> hits >> wrong >> victims;
    EXPECT_TRUE(ok || hits == 0) << in.str();
    EXPECT_EQ(wrong, 0u) << in.str();
    found += hits;
    tally_.compared += hits * kGpuBlock;
    tally_.wrong += wrong;
    tally_.victims += victims;
  }
  saved_.clear();
  return found;
}

void GpuRetire::round(Order order, const std::string& way) {
  const auto before = manager_.status();
  std::uint64_t last_name = 0;
  for (const Slab& slab : in_use()) last_name = std::max(last_name, slab.name);
  Process victim = start_victim(way);
  if (HasFailure()) return;
  ASSERT_NO_FATAL_FAILURE(kill(order, victim));
  ASSERT_NO_FATAL_FAILURE(save_until_whole(victim));
  compare_saved();
  // What came back once would outlive what fills the pool now.
  command({"evict"});
  ASSERT_NO_FATAL_FAILURE(fill(last_name));
  ASSERT_TRUE(victim.ended_within(kWholeWithinMs));
  ::usleep(kLateMs * 1000);
  EXPECT_EQ(ask("synchronise"), "synchronise");
  // Of the oldest chunk the beginning may be gone.
  EXPECT_GE(compare_saved() + kChunk, all_blocks()) << "what lies in the pool is not the witness's";
  EXPECT_EQ(manager_.settle("pool.retired", 0), 0u) << "somebody has not let go";
  const auto after = manager_.status();
  EXPECT_TRUE(whole(after, 1));
  const std::uint64_t extents = after["quarantined_extents"] - before["quarantined_extents"];
  const bool hit = extents > 0 && progress_->enqueued > progress_->ended;
  tally_.tried[static_cast<std::size_t>(order)] += 1;
  tally_.hit[static_cast<std::size_t>(order)] += hit ? 1 : 0;
  tally_.extents += extents;
  const std::uint64_t retired = after["pool.retired_slabs"] - before["pool.retired_slabs"];
  tally_.slabs += retired;
  EXPECT_TRUE(!hit || retired > 0);
}

TEST_F(GpuRetire, WhatTakesItsPlaceKeepsItsBytes) {
  const auto rounds = static_cast<std::uint32_t>(number("ORBITKV_RETIRE_ROUNDS", 3));
  for (std::uint32_t i = 0; i < kMostTries * rounds && tally_.hits() < rounds && !HasFailure(); ++i) {
    const Order order{static_cast<int>(i % kOrders.size())};
    const std::string way = kWays[(i + i / kOrders.size()) % kWays.size()];
    SCOPED_TRACE("try " + std::to_string(i) + ", " + kOrders[i % kOrders.size()] + ", " + way);
    round(order, way);
  }
  std::printf("%s\n", tally_.line().c_str());
  EXPECT_GE(tally_.hits(), rounds) << "too few kills found copies in flight";
}

}  // namespace
}  // namespace orbitkv::test
