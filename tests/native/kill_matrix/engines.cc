// Engines that die, up to eight at a time, beside a witness: an engine of this process that goes on
// saving and restoring, takes over what the dead had begun, and compares every byte.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <sstream>

#include "tests/native/engine.h"
#include "tests/native/gpu_bed.h"
#include "tests/native/kill_matrix/rows.h"
#include "tests/native/kill_matrix/tally.h"
#include "tests/native/kill_matrix/witness.h"

namespace orbitkv::test::kills {
namespace {

constexpr std::size_t kAtOnce = 8;
constexpr std::uint64_t kCommon = 1;  // first of the blocks that victims restore
constexpr std::uint32_t kCommonBlocks = 12;
constexpr std::uint32_t kLines = 8;  // operations that a victim is given
constexpr std::uint32_t kMomentLines = 200;
constexpr std::uint64_t kHashes = 10'000;   // of one victim: more than it can save
constexpr std::uint64_t kStored = 500'000;  // first of the blocks that lie on SSD
constexpr std::uint32_t kStoredBlocks = 2400, kStoredRun = 24;
constexpr std::uint8_t kFirstInstance = 10;

std::vector<std::string> flags_of(Blocks blocks) {
  std::vector<std::string> flags = {"--retire-after", "50", "--pool-size"};
  if (blocks == Blocks::kInMemory) {
    flags.push_back("64MiB");
    return flags;
  }
  flags.insert(flags.end(), {"32MiB", "--ssd-size", "256MiB", "--ssd-segment-size", "4MiB",
                             "--ssd-write-policy", "all", "--ssd-path"});
  return flags;
}

struct Victim {
  const EngineRow* row = nullptr;
  std::unique_ptr<Process> process;
  std::uint64_t hash = 0;  // first of its own
  std::uint32_t batch = 0;
  std::uint32_t done = 0;  // blocks that it said are saved
};

class Bed {
 public:
  Bed(Blocks blocks, const Order& order, std::uint64_t seed, Tally& tally)
      : blocks_(blocks), lies_(order.lies ? "lies=1" : "lies=0"), tally_(tally), random_(seed) {
    limits_.within = order.within;
    auto flags = flags_of(blocks);
    if (blocks == Blocks::kOnSsd) flags.push_back(directory_.path() + "/store");
    manager_ = std::make_unique<Manager>(flags);
    const StatusView status = manager_->status();
    const std::uint64_t pool = status["pool.configured"];
    limits_.headroom = ByteCount(std::max(pool / status["pool.slabs"], pool / 16));
    witness_ =
        std::make_unique<Engine>(EngineOptions{.socket = manager_->socket(), .shape = {}, .instance = 2});
  }
  bool begin();
  // False: capacity is not back, and the Manager is of no more use.
  bool round(const std::vector<const EngineRow*>& rows);

 private:
  Victim start(const EngineRow& row, std::size_t place);
  std::string fault_of(const EngineRow& row);
  void drive(Victim& victim);
  void drive_save(Victim& victim);
  void wait_for_stopped(Victim& victim);
  void end(Victim& victim);
  void read_reports(Victim& victim);
  void beside();
  void look_at(Victim& victim);
  void take_over(Victim& victim);
  void check(std::string_view row, std::uint64_t hash, std::uint32_t count, std::uint32_t least);
  void save(std::string_view row, std::uint64_t hash, std::uint32_t count);
  std::uint32_t any(std::uint32_t first, std::uint32_t last) {
    return std::uniform_int_distribution<std::uint32_t>(first, last)(random_);
  }

  Blocks blocks_;
  std::string lies_;
  Tally& tally_;
  std::mt19937_64 random_;
  Limits limits_;
  Directory directory_;
  std::unique_ptr<Manager> manager_;
  std::unique_ptr<Engine> witness_;
  std::uint64_t next_hash_ = 1'000'000;
};

bool Bed::begin() {
  if (const auto outcome = witness_->connect(); !outcome.ok()) {
    tally_.other_failed("witness", outcome.message);
    return false;
  }
  for (std::uint32_t i = 0; blocks_ == Blocks::kOnSsd && i < kStoredBlocks; i += kStoredRun)
    save("witness", kStored + i, kStoredRun);
  return true;
}

// ---- the witness ----

void Bed::save(std::string_view row, std::uint64_t hash, std::uint32_t count) {
  const auto status = witness_->save(0, hash, count);
  if (!status.success) tally_.other_failed(row, "a save failed: " + status.message);
}

void Bed::check(std::string_view row, std::uint64_t hash, std::uint32_t count, std::uint32_t least) {
  const auto restored = restore_loaded(*witness_, 32, hash, count);
  tally_.wrong(row, restored.wrong);
  if (restored.hits > 0 && !restored.status.success)
    tally_.other_failed(row, "a restore failed: " + restored.status.message);
  if (restored.hits < least)
    tally_.other_failed(
        row, "of " + std::to_string(least) + " blocks " + std::to_string(restored.hits) + " are there");
}

// While others die: saves and restores end, with right bytes.
void Bed::beside() {
  const std::uint64_t hash = next_hash_;
  next_hash_ += 100;
  save("beside", hash, 8);
  check("beside", hash, 8, 0);
  if (blocks_ == Blocks::kOnSsd)
    check("beside", kStored + kStoredRun * any(0, 3), kStoredRun, 0);
  else
    check("beside", kCommon, kCommonBlocks, 0);
}

// What the dead one had reported is right, as long as it is there: its slab retires soon.
void Bed::look_at(Victim& victim) {
  check(victim.row->name, victim.hash, std::min(victim.done + victim.batch, 32u), 0);
}

// What it had begun is anybody's to save.
void Bed::take_over(Victim& victim) {
  const std::uint64_t first = victim.hash + victim.done;
  save(victim.row->name, first, victim.batch);
  check(victim.row->name, first, victim.batch, victim.batch);
}

// ---- the victims ----

std::string Bed::fault_of(const EngineRow& row) {
  if (row.fault.empty()) return {};
  const bool stops = row.deed == Deed::kStopped;
  return std::string(row.fault) + (stops ? ":stop:1" : ":kill:" + std::to_string(any(1, 4)));
}

Victim Bed::start(const EngineRow& row, std::size_t place) {
  Victim victim;
  victim.row = &row;
  victim.hash = next_hash_;
  victim.batch = row.fault == "client_mid_copy" || any(0, 1) == 1 ? 12 : 3;  // 3 run in the caller
  next_hash_ += kHashes;
  const std::string socket = "socket=" + manager_->socket();
  const std::string instance = "instance=" + std::to_string(kFirstInstance + place);
  if (row.deed == Deed::kGarble)
    victim.process = std::make_unique<Process>(
        start_helper({"hostile", socket, "seed=" + std::to_string(any(1, 1u << 30)), "forever"}));
  else if (row.deed == Deed::kGpu)
    victim.process =
        std::make_unique<Process>(start_gpu_helper({socket, instance, "early=1"}, fault_of(row)));
  else
    victim.process =
        std::make_unique<Process>(start_helper({"engine", socket, instance, lies_}, fault_of(row)));
  return victim;
}

void Bed::drive_save(Victim& victim) {
  const bool saves = victim.row->deed == Deed::kSave;
  std::stringstream lines;
  for (std::uint32_t i = 0; i < (victim.row->fault.empty() ? kMomentLines : kLines); ++i) {
    const std::uint64_t hash = saves ? victim.hash + i * victim.batch : kCommon;
    lines << (saves ? "save 0 " : "restore 0 ") << hash << " " << victim.batch << "\n";
  }
  std::string text = lines.str();
  text.pop_back();
  victim.process->say(text);
}

void Bed::drive(Victim& victim) {
  const std::string stored =
      std::to_string(kStored + kStoredRun * any(0, 3)) + " " + std::to_string(kStoredRun);
  Process& process = *victim.process;
  if (victim.row->deed != Deed::kGarble && !process.line())
    return tally_.other_failed(victim.row->name, "it did not come to stand ready");
  switch (victim.row->deed) {
    case Deed::kSave:
    case Deed::kRestore: return drive_save(victim);
    case Deed::kStopped: return process.say("save 0 " + std::to_string(victim.hash) + " 8");
    case Deed::kLease:
      process.say("hold 0 " + std::to_string(kCommon) + " " + std::to_string(kCommonBlocks));
      process.line();
      return;
    case Deed::kPrepare:
      process.say("prepare 0 " + stored);
      process.line();
      return;
    case Deed::kQuery: return process.say("hold 0 " + stored);
    case Deed::kGpu: return process.say("load " + std::to_string(victim.hash));
    case Deed::kGarble: return;
  }
}

// Others wait for the blocks of one that stands still; it dies, and they get them.
void Bed::wait_for_stopped(Victim& victim) {
  if (!victim.process->stopped_within()) return;
  const auto hashes = hashes_of(victim.hash, 8);
  const auto blocks = blocks_of(0, 8);
  for (std::uint32_t i = 0; i < 8; ++i) witness_->compute(i, hashes[i]);
  client::OperationHandle handle;
  const auto outcome = witness_->start_save(blocks, hashes, handle);
  victim.process->signal(SIGKILL);
  if (!outcome.ok()) return tally_.other_failed(victim.row->name, outcome.message);
  const auto status = witness_->client().wait(handle, kDoneWithinMs);
  witness_->client().drop(handle);
  if (!status.success) tally_.other_failed(victim.row->name, "who waited failed: " + status.message);
}

void Bed::end(Victim& victim) {
  Process& process = *victim.process;
  if (victim.row->deed == Deed::kStopped) wait_for_stopped(victim);
  if (victim.row->fault.empty()) {
    ::usleep(any(0, 8000));
    process.signal(SIGKILL);
  }
  const auto status = process.ended_within();
  if (!status) {  // its session would be missed as well
    process.signal(SIGKILL);
    process.ended_within();
  }
  read_reports(victim);
  if (!status || !WIFSIGNALED(*status) || WTERMSIG(*status) != SIGKILL)
    return tally_.other_failed(victim.row->name, "its fault never struck");
  tally_.kill(victim.row->name);
}

// It has ended: what it wrote is in the pipe, and then the pipe's end.
void Bed::read_reports(Victim& victim) {
  while (const auto line = victim.process->line(1000)) {
    std::stringstream in(*line);
    std::string verb;
    std::uint32_t good = 0, hits = 0, blocks = 0;
    std::uint64_t wrong = 0;
    if (!(in >> verb >> good >> blocks >> hits >> wrong)) continue;
    tally_.report();
    if (verb == "saved" && good == 1) victim.done += victim.batch;
    if (verb == "restored" && good == 1) tally_.wrong(victim.row->name, wrong);
  }
}

bool Bed::round(const std::vector<const EngineRow*>& rows) {
  save("witness", kCommon, kCommonBlocks);
  std::vector<Victim> victims;
  for (const EngineRow* row : rows) victims.push_back(start(*row, victims.size()));
  for (Victim& victim : victims) drive(victim);
  beside();
  for (Victim& victim : victims) end(victim);
  const TimePoint died = monotonic_now();
  const auto saved = [](const Victim& victim) { return victim.row->deed == Deed::kSave; };
  for (Victim& victim : victims)
    if (saved(victim)) look_at(victim);
  const Watched watched{*manager_, 1, {::getpid()}};
  if (!wait_whole(watched, limits_, victims.back().row->name, died, tally_)) return false;
  for (Victim& victim : victims)
    if (saved(victim)) take_over(victim);
  return manager_->alive();
}

}  // namespace

// Beds one after the other, so that no other Manager's slabs are mapped here.
void kill_engines(const Order& order, Tally& tally) {
  const Directory windows;
  keep_windows_in(windows.path());
  const auto rows = static_cast<std::uint32_t>(kEngineRows.size());
  const std::uint32_t each = (order.count + rows - 1) / rows;
  for (const Blocks blocks : {Blocks::kInMemory, Blocks::kOnSsd}) {
    std::vector<const EngineRow*> of_bed;
    for (const EngineRow& row : kEngineRows)
      if (row.blocks == blocks) of_bed.push_back(&row);
    std::unique_ptr<Bed> bed;
    std::size_t next = 0;
    for (std::size_t left = each * of_bed.size(); left > 0;) {
      if (!bed) {
        bed = std::make_unique<Bed>(blocks, order, order.seed + left, tally);
        if (!bed->begin()) return;
      }
      std::vector<const EngineRow*> round;
      const std::size_t many = std::min(left, std::min(kAtOnce, 4 * of_bed.size()));
      for (; round.size() < many; ++next) round.push_back(of_bed[next % of_bed.size()]);
      left -= many;
      if (!bed->round(round)) bed.reset();
    }
  }
  if (tally.reports() == 0) tally.other_failed("all", "none of the dead had said what it had done");
}

}  // namespace orbitkv::test::kills
