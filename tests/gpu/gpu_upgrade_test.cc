// A Manager that is upgraded, or killed, while a GPU copies: its next life has the blocks, engines
// keep their slabs and go on, and no byte is wrong. A real Manager under its keeper, engines in
// processes of their own, on a real GPU (ordinal 0) or on the fake libcuda:
//   gpu_upgrade_test
//   ORBITKV_UPGRADE_ROUNDS=30 ORBITKV_UPGRADE_BYTES=8589934592 gpu_upgrade_test
//   LD_LIBRARY_PATH=build/fake_driver ORBITKV_UPGRADE_BYTES=67108864 build/bin/gpu_upgrade_test
// Needs `orbitkv` beside it, or in ORBITKV_BIN. Without a driver or a GPU it says what is missing,
// and succeeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "tests/gpu/gpu_engine.h"
#include "tests/native/kept.h"

namespace orbitkv::test {
namespace {

constexpr std::uint32_t kChunk = 16;  // blocks that the witness saves and restores at once
constexpr std::uint32_t kShare = 8;   // of the pool, as its inverse: the witness's, less than is protected
constexpr std::uint32_t kMomentUs = 50'000;  // the end comes at any of the first ones
constexpr int kGoesOnWithinMs = 20'000;
constexpr std::array kWays = {"dma", "kernel", "gentle"};

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Tally {
  std::uint32_t upgrades = 0, kills = 0, under_copies = 0;
  std::uint64_t restores = 0, compared = 0, wrong = 0, missing = 0, held = 0;
  std::int64_t longest_ns = 0, restore_ns = 0;

  std::string line() const {
    std::ostringstream out;
    out << "upgrade: " << upgrades << " upgrades and " << kills << " kills of the Manager, " << under_copies
        << " with copies in flight over it; " << static_cast<double>(compared) / 1e9 << " GB in " << restores
        << " restores compared, wrong bytes " << wrong << ", blocks lost " << missing << " of " << held
        << "; the longest pause between two restores " << static_cast<double>(longest_ns) / 1e6
        << " ms (a restore takes " << static_cast<double>(restore_ns) / 1e6 << ")";
    return out.str();
  }
};

// `role=witness`, driven by lines; one thread at a time.
class Witness {
 public:
  explicit Witness(Process process) : process_(std::move(process)) {}
  bool ready() { return process_.line(60'000) == "ready "; }
  bool save(std::uint64_t hash) {
    std::istringstream in(ask("save", hash));
    bool ok = false;
    std::uint32_t blocks = 0;
    in >> ok >> blocks;
    return ok && blocks == kChunk;
  }
  struct Restored {
    bool ok = false;
    std::uint32_t hits = 0;
    std::uint64_t wrong = 0;
  };
  Restored restore(std::uint64_t hash) {
    std::istringstream in(ask("restore", hash));
    Restored out;
    in >> out.ok >> out.hits >> out.wrong;
    return out;
  }

 private:
  std::string ask(const char* verb, std::uint64_t hash) {
    process_.say(std::string(verb) + ' ' + std::to_string(hash) + ' ' + std::to_string(kChunk));
    return process_.line(60'000).value_or("");
  }
  Process process_;
};

class GpuUpgrade : public testing::Test {
 protected:
  GpuUpgrade()
      : pool_(number("ORBITKV_UPGRADE_BYTES", 1ull << 30)),
        kept_({}, {"--pool-size", std::to_string(pool_)}),
        random_(number("ORBITKV_UPGRADE_SEED", 1)) {}

  void SetUp() override {
    witness_.emplace(start({"role=witness"}));
    ASSERT_TRUE(witness_->ready());
    const std::uint64_t chunks = pool_ / kShare / (kChunk * kGpuBlock);
    for (std::uint64_t i = 0; i < chunks; ++i) {
      ASSERT_TRUE(witness_->save(1 + i * kChunk));
      hashes_.push_back(1 + i * kChunk);
    }
    // What was read once is not what a save evicts.
    for (const std::uint64_t hash : hashes_) ASSERT_EQ(witness_->restore(hash).hits, kChunk);
  }
  void TearDown() override {
    if (HasFailure()) std::printf("%s\n", kept_.manager().log().c_str());
  }
  Process start(std::vector<std::string> words) {
    words.insert(words.begin(), std::filesystem::read_symlink("/proc/self/exe"));
    words.push_back("socket=" + kept_.manager().socket());
    return Process(words, {.environment = {{"XDG_CACHE_HOME", directory_.path()}}, .log = {}, .uid = 0});
  }
  Process start_load(const std::string& way) {
    const std::string path = directory_.path() + "/progress";
    std::filesystem::remove(path);
    progress_ = &map_progress(path);
    const std::uint64_t blocks = std::max<std::uint64_t>(pool_ / 16 / kGpuBlock, 1);
    Process load = start({"role=victim", "way=" + way, "progress=" + path, "slabs=1",
                          "blocks=" + std::to_string(blocks), "hash=" + std::to_string(++loads_ << 40)});
    EXPECT_EQ(load.line(60'000), "ready ");
    load.say("save");
    EXPECT_TRUE(goes_on());
    return load;
  }
  template <class Done>
  static bool within_time(Done done) {
    const TimePoint deadline = monotonic_now() + milliseconds(kGoesOnWithinMs);
    while (!done()) {
      if (monotonic_now() > deadline) return false;
      ::usleep(500);
    }
    return true;
  }
  // Two saves that began after now have ended.
  bool goes_on() const {
    const std::uint64_t from = progress_->enqueued;
    return within_time([&] { return progress_->ended >= from + 2; });
  }
  void restore_until(const std::atomic<bool>& over);
  void compare_all();
  void end_a_life(bool upgrade);

  const std::uint64_t pool_;
  Directory directory_;
  Kept kept_;
  std::optional<Witness> witness_;
  std::vector<std::uint64_t> hashes_;
  VictimProgress* progress_ = nullptr;
  std::uint64_t loads_ = 0;
  std::mt19937_64 random_;
  Tally tally_;
};

// One after the other; while no Manager is there they bring nothing.
void GpuUpgrade::restore_until(const std::atomic<bool>& over) {
  TimePoint last = monotonic_now();
  for (std::uint64_t turn = 0; !over; ++turn) {
    const TimePoint begin = monotonic_now();
    const auto restored = witness_->restore(hashes_[turn % hashes_.size()]);
    tally_.wrong += restored.wrong;
    if (!restored.ok || restored.hits < kChunk) continue;
    const TimePoint now = monotonic_now();
    ++tally_.restores;
    tally_.compared += restored.hits * kGpuBlock;
    tally_.longest_ns = std::max(tally_.longest_ns, (now - last).ns);
    if (tally_.restore_ns == 0 || (now - begin).ns < tally_.restore_ns) tally_.restore_ns = (now - begin).ns;
    last = now;
  }
}

void GpuUpgrade::compare_all() {
  for (const std::uint64_t hash : hashes_) {
    const auto restored = witness_->restore(hash);
    tally_.wrong += restored.wrong;
    tally_.held += kChunk;
    tally_.missing += kChunk - restored.hits;
    tally_.compared += restored.hits * kGpuBlock;
    ++tally_.restores;
  }
}

void GpuUpgrade::end_a_life(bool upgrade) {
  const pid_t before = kept_.manager_pid();
  ::usleep(static_cast<useconds_t>(random_() % kMomentUs));
  if (progress_->enqueued > progress_->ended) ++tally_.under_copies;
  if (upgrade) {
    ++tally_.upgrades;
    EXPECT_EQ(kept_.upgrade(), 0) << kept_.said();
  } else {
    ++tally_.kills;
    kept_.kill();
  }
  EXPECT_TRUE(kept_.lives_again(before));
}

TEST_F(GpuUpgrade, NothingIsLostAndEnginesGoOn) {
  const auto rounds = static_cast<std::uint32_t>(number("ORBITKV_UPGRADE_ROUNDS", 3));
  for (std::uint32_t i = 0; i < rounds && !HasFailure(); ++i) {
    const bool upgrade = i % 2 == 0;
    const std::string way = kWays[i % kWays.size()];
    SCOPED_TRACE("round " + std::to_string(i) + ", " + (upgrade ? "upgrade, " : "kill, ") + way);
    Process load = start_load(way);
    std::atomic<bool> over = false;
    std::thread restores([&] { restore_until(over); });
    end_a_life(upgrade);
    // It rests, so that nothing is evicted before it is looked for.
    EXPECT_TRUE(within_time([&] { return progress_->lives > 0; }));
    over = true;
    restores.join();
    compare_all();
    progress_->go_on = 1;
    EXPECT_TRUE(goes_on()) << "the load stands still";
    progress_->enough = true;
    EXPECT_EQ(load.ended_within(), 0);
    EXPECT_EQ(kept_.manager().settle_sessions(1), 1u);
    EXPECT_EQ(kept_.manager().settle("kept.old_grants", 0), 0u);
    EXPECT_EQ(kept_.manager().settle("pool.quarantined", 0), 0u);
  }
  EXPECT_EQ(tally_.wrong, 0u);
  EXPECT_LE(tally_.missing * 100, tally_.held) << "more than one block of a hundred was lost";
  EXPECT_GT(tally_.under_copies, 0u);
  std::printf("%s\n", tally_.line().c_str());
}

}  // namespace
}  // namespace orbitkv::test
