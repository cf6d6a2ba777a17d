// The disk of a run: a file system in memory that outlives the Manager, the Io of one life
// over it with latencies and faults, and the ledger's view of what the device writes into
// the pool. Owned by the ManagerNode; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/ledger.h"
#include "ssd/io.h"
#include "ssd/memory_disk.h"
#include "ssd/memory_io.h"

namespace orbitkv::sim {

class World;

class Disk final : private ssd::IoFaults {
 public:
  explicit Disk(World& world);
  ~Disk() override;

  // The Io of a new life; the store owns it.
  std::unique_ptr<ssd::Io> open(std::uint32_t life);
  // From now on add_memory() speaks of slabs of this pool, in the Manager's order.
  void slabs_follow(std::uint64_t pool) { pool_ = pool; }
  // Time has passed: results that are due can be reaped.
  void advance();
  // When the next result is due; far away: nothing runs.
  TimePoint next_result() const;
  std::size_t log() const { return disk_.events(); }
  // The life is over: what the disk holds now, as of an entry of its log. Before the store goes.
  void crash(std::uint64_t word, std::optional<std::size_t> log);
  void after_crash();                 // the store has gone
  std::vector<Place> writes() const;  // into the pool, under way

  enum class Fault : std::uint8_t { kNone, kError, kShort, kDelay, kFull, kFlip };
  // Of whatever is asked next, or of the next reads alone.
  void fault_next(Fault fault, std::uint64_t word);
  Duration delay_next(std::uint64_t word);
  std::uint64_t completions() const { return completions_; }

 private:
  class WatchedIo;
  ssd::IoFault next(const ssd::IoRequest& request) override;

  World& world_;
  ssd::MemoryDisk disk_;
  std::optional<ssd::MemoryDisk> kept_;
  WatchedIo* io_ = nullptr;
  std::uint64_t pool_ = 0;  // 0: slabs do not follow yet
  bool deaf_ = false;       // planted
  bool suspect_ = false;    // it may hold blocks whose bytes are others: only who restores them finds out
  bool crashed_ = false;    // what runs is waited for as a kernel does, and nobody hears of it
  Fault fault_ = Fault::kNone;
  std::uint64_t fault_word_ = 0, completions_ = 0;
  std::uint32_t faults_left_ = 0;  // requests that it hits
  bool of_reads_ = false;
};

}  // namespace orbitkv::sim
