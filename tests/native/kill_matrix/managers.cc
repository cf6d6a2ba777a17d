// Managers that die under the load of two engines, with a keeper and without, and keepers that die.
// Engines attach to the next life by themselves; a third one compares what it gives back.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "tests/native/engine.h"
#include "tests/native/kill_matrix/rows.h"
#include "tests/native/kill_matrix/tally.h"
#include "tests/native/kill_matrix/witness.h"

namespace orbitkv::test::kills {
namespace {

constexpr std::uint32_t kRun = 10;  // kills of one bed that is killed from outside
constexpr std::uint64_t kQuietHash = 1'000'000;
constexpr std::uint32_t kQuietBlocks = 48;
constexpr std::uint32_t kAttachMs = 20'000;

// Saves and restores until it is told to stop.
class Load {
 public:
  Load(Engine& engine, std::uint64_t hash)
      : thread_([this, &engine, hash] {
          for (std::uint64_t round = 0; !stop_; ++round) {
            (void)engine.save(0, hash + round % 20 * 16, 16);
            wrong_ += restore_loaded(engine, 32, hash + (round + 7) % 20 * 16, 16).wrong;
          }
        }) {}
  ~Load() { end(); }
  std::uint64_t end() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return wrong_;
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> wrong_{0};
  std::thread thread_;
};

class Bed {
 public:
  Bed(const ManagerRow& row, Duration within, Tally& tally)
      : row_(row), tally_(tally), manager_(flags_of(row, directory_), environment_of(row)) {
    const StatusView status = manager_.status();
    const std::uint64_t pool = status["pool.configured"];
    limits_ = {within, ByteCount(std::max(pool / status["pool.slabs"], pool / 16))};
    for (std::uint8_t i = 1; i <= 3; ++i)
      engines_.push_back(std::make_unique<Engine>(
          EngineOptions{.socket = manager_.socket(), .shape = {}, .instance = i, .inline_copies = i != 3}));
  }
  ~Bed() {
    // One whose keeper has gone goes on by itself.
    const pid_t orphan = kept() && !manager_.process().running() ? pid() : 0;
    end_with_children(manager_.process());
    if (orphan > 0) ::kill(orphan, SIGKILL);
  }
  bool begin();
  bool kill_by_fault();
  bool kill_at(Duration moment);
  bool kill_keeper();
  void end_stopped();  // and with it all is back

 private:
  static std::vector<std::string> flags_of(const ManagerRow& row, const Directory& directory);
  static Environment environment_of(const ManagerRow& row) {
    if (row.fault.empty()) return {};
    return {{"ORBITKV_FAULT", std::string(row.fault) + ":kill:" + std::to_string(row.hit)}};
  }
  bool kept() const { return row_.life != Life::kBare; }
  bool quiet_blocks() const { return row_.fault.empty() && kept(); }
  pid_t pid() const {
    const auto text = manager_.try_status(2000);
    return text.ok() ? static_cast<pid_t>(StatusView(*text)["pid"]) : 0;
  }
  std::uint32_t deaths() const;
  // Deaths that come before the fault: one that is in the next life's start needs a life before it.
  std::uint32_t ours() const { return row_.fault == "manager_adopted" ? 1 : 0; }
  void provoke();
  bool whole(TimePoint since);
  bool attached(Engine& engine, std::uint64_t before);
  Process starts_save(const char* instance, const char* fault, const char* hash = "77000") const;
  bool begin_stopped();
  void look_at_slabs();
  void compare();

  const ManagerRow& row_;
  Tally& tally_;
  Limits limits_;
  Directory directory_;
  Manager manager_;
  std::vector<std::unique_ptr<Engine>> engines_;  // two that load, one that compares
  std::uint64_t next_hash_ = 9'000'000;
  std::optional<Process> stopped_;
};

std::vector<std::string> Bed::flags_of(const ManagerRow& row, const Directory& directory) {
  std::vector<std::string> flags = {"--retire-after", "50"};
  if (row.life != Life::kBare) flags.insert(flags.end(), {"--keep", "--keep-with", "keeper"});
  // Small where a fault waits for evictions.
  if (!row.fault.empty()) flags.insert(flags.end(), {"--pool-size", "2MiB"});
  if (row.life == Life::kKeptOnSsd)
    flags.insert(flags.end(), {"--pool-size", "8MiB", "--ssd-size", "128MiB", "--ssd-segment-size", "1MiB",
                               "--ssd-write-policy", "all", "--ssd-path", directory.path() + "/store"});
  return flags;
}

bool Bed::begin() {
  for (auto& engine : engines_) {
    // A fault may strike before all have attached.
    const auto outcome = engine->connect(kAttachMs);
    if (outcome.ok() || !row_.fault.empty()) continue;
    tally_.other_failed(row_.name, outcome.message);
    return false;
  }
  if (!quiet_blocks()) return true;
  const bool saved = engines_[2]->save(0, kQuietHash, kQuietBlocks).success;
  manager_.settle("operations", 0);
  return saved && (row_.life != Life::kKeptBesideStopped || begin_stopped());
}

std::uint32_t Bed::deaths() const {
  const std::string log = manager_.log(), word = "the Manager ended by signal 9";
  std::uint32_t n = 0;
  for (std::size_t at = log.find(word); at != log.npos; at = log.find(word, at + 1)) ++n;
  return n;
}

bool Bed::attached(Engine& engine, std::uint64_t before) {
  const TimePoint deadline = monotonic_now() + milliseconds(kAttachMs);
  for (; monotonic_now() < deadline; ::usleep(2000)) {
    const auto health = engine.client().health();
    if (health.connected && health.incarnation != before) return true;
  }
  tally_.other_failed(row_.name,
                      "it does not attach to the next Manager: " + engine.client().health().message);
  return false;
}

// What a row needs beside load to come to its place.
void Bed::provoke() {
  if (row_.fault == "manager_adopted") {
    const pid_t now = pid();
    if (now > 0) ::kill(now, SIGKILL);
  }
  if (row_.fault != "manager_retire_marked") return;
  starts_save("instance=9", "client_mid_copy:kill:1").ended_within();
}

// A helper that dies or stands still in it.
Process Bed::starts_save(const char* instance, const char* fault, const char* hash) const {
  Process helper = start_helper({"engine", "socket=" + manager_.socket(), instance}, fault);
  if (helper.line()) helper.say(std::string("save 0 ") + hash + " 12");
  return helper;
}

// ---- beside an engine that stands still ----

// It maps the slab that whoever dies in a save there makes retire. The headroom is full from then on.
bool Bed::begin_stopped() {
  stopped_.emplace(starts_save("instance=8", "client_mid_copy:stop:5", "66000"));
  const bool stands = stopped_->stopped_within();
  starts_save("instance=9", "client_mid_copy:kill:1").ended_within();
  const std::uint64_t pool = manager_.status()["pool.configured"];
  if (stands && manager_.settle("pool.retired", pool) == pool &&
      manager_.settle("pool.capacity", pool) == pool)
    return true;
  tally_.other_failed(row_.name, "no slab retired beside an engine that stands still");
  return false;
}

// Its bytes count in each life, and all that there is of slabs is within the limit.
void Bed::look_at_slabs() {
  const std::vector<pid_t> all = {::getpid(), manager_.pid(), pid(), stopped_->pid()};
  const StatusView status = manager_.status();
  const std::uint64_t pool = status["pool.configured"];
  if (status["pool.retired"] < pool)
    tally_.other_failed(row_.name, "the slab that an engine which stands still maps does not count");
  tally_.memory(slab_memory(all), ByteCount(pool), limits_.headroom);
}

void Bed::end_stopped() {
  if (!stopped_) return;
  stopped_->signal(SIGKILL);
  stopped_->ended_within();
  whole(monotonic_now());
}

bool Bed::whole(TimePoint since) {
  const Watched watched{manager_, engines_.size(), {::getpid(), manager_.pid()}};
  return wait_whole(watched, limits_, row_.name, since, tally_);
}

void Bed::compare() {
  Engine& engine = *engines_[2];
  if (quiet_blocks()) {
    const auto kept = restore_loaded(engine, 0, kQuietHash, kQuietBlocks);
    tally_.wrong(row_.name, kept.wrong);
    if (kept.hits > 0 && !kept.status.success) tally_.other_failed(row_.name, kept.status.message);
    if (row_.life == Life::kKept && kept.hits * 100 < kQuietBlocks * 99)
      tally_.other_failed(row_.name, "of " + std::to_string(kQuietBlocks) + " kept blocks " +
                                         std::to_string(kept.hits) + " are there");
  }
  const auto saved = engine.save(0, next_hash_, 8);
  manager_.settle("operations", 0);
  const auto restored = restore_loaded(engine, 40, next_hash_, 8);
  next_hash_ += 100;
  tally_.wrong(row_.name, restored.wrong);
  if (!saved.success || restored.hits != 8 || !restored.status.success)
    tally_.other_failed(row_.name,
                        "after it, a save or restore failed: " + saved.message + restored.status.message);
}

// The fault strikes one life or two of a keeper's.
bool Bed::kill_by_fault() {
  std::uint64_t wrong = 0;
  std::uint32_t died = 0;  // of the fault
  TimePoint last = monotonic_now();
  {
    Load one(*engines_[0], 1000), two(*engines_[1], 1000);
    provoke();
    const bool once = ours() > 0 || row_.fault == "manager_retire_marked" || !kept();
    const std::uint32_t most = once ? 1 : 2;
    // The second has half a second; the first as long as it needs.
    for (TimePoint deadline = last + limits_.within; died < most && monotonic_now() < deadline;
         ::usleep(2000)) {
      const std::uint32_t all = kept() ? deaths() : (manager_.alive() ? 0 : 1);
      const std::uint32_t now = all - std::min(all, ours());
      if (now > died) last = monotonic_now(), deadline = last + milliseconds(500);
      died = std::max(died, now);
    }
    if (!kept() && died > 0) {
      manager_.set_environment({});
      manager_.start();
    }
    wrong = one.end() + two.end();
  }
  tally_.kill(row_.name, died);
  tally_.wrong(row_.name, wrong);
  if (died == 0) return false;
  for (auto& engine : engines_)
    if (!engine->client().wait_connected(kAttachMs).ok())
      tally_.other_failed(row_.name, "it does not attach again");
  if (!whole(last)) return false;
  compare();
  return false;  // a bed has one fault
}

bool Bed::kill_at(Duration moment) {
  std::uint64_t incarnations[3] = {}, wrong = 0;
  for (std::size_t i = 0; i < engines_.size(); ++i)
    incarnations[i] = engines_[i]->client().health().incarnation;
  bool again = true;
  TimePoint died;
  {
    Load one(*engines_[0], 1000), two(*engines_[1], 5000);
    ::usleep(static_cast<useconds_t>(moment.ns / 1000));
    const pid_t victim = kept() ? pid() : manager_.pid();
    if (victim <= 0) return false;
    ::kill(victim, SIGKILL);
    died = monotonic_now();
    if (!kept()) {
      manager_.process().ended_within();
      manager_.start();
    }
    tally_.kill(row_.name);
    for (std::size_t i = 0; i < engines_.size(); ++i)
      again = again && attached(*engines_[i], incarnations[i]);
    wrong = one.end() + two.end();
  }
  tally_.wrong(row_.name, wrong);
  if (stopped_ && again)
    look_at_slabs();
  else if (!again || !whole(died))
    return false;
  compare();
  return true;
}

bool Bed::kill_keeper() {
  Load one(*engines_[0], 1000), two(*engines_[1], 5000);
  const pid_t child = pid();
  ::usleep(5000);
  const TimePoint died = monotonic_now();
  manager_.process().signal(SIGKILL);
  manager_.process().ended_within();
  tally_.kill(row_.name);
  tally_.wrong(row_.name, one.end() + two.end());
  const Watched watched{manager_, engines_.size(), {::getpid()}};
  if (wait_whole(watched, limits_, row_.name, died, tally_)) compare();
  if (child > 0) ::kill(child, SIGKILL);
  return false;
}

}  // namespace

void kill_managers(const Order& order, Tally& tally) {
  std::mt19937_64 random(order.seed);
  std::uint32_t done[kManagerRows.size()] = {};
  const auto each = static_cast<std::uint32_t>((order.count + kManagerRows.size() - 1) / kManagerRows.size());
  for (std::uint32_t tries = 0; tries < 2 * each; ++tries) {
    for (std::size_t i = 0; i < kManagerRows.size(); ++i) {
      const ManagerRow& row = kManagerRows[i];
      if (done[i] >= each) continue;
      const std::uint32_t before = tally.kills();
      Bed bed(row, order.within, tally);
      if (!bed.begin()) continue;
      if (row.life == Life::kKeeperDies) {
        bed.kill_keeper();
      } else if (!row.fault.empty()) {
        bed.kill_by_fault();
      } else {
        for (std::uint32_t n = 0; n < std::min(kRun, each - done[i]); ++n)
          if (!bed.kill_at(microseconds(static_cast<std::int64_t>(random() % 40'000)))) break;
        bed.end_stopped();
      }
      done[i] += tally.kills() - before;
    }
  }
}

}  // namespace orbitkv::test::kills
