// Io on a MemoryDisk, without threads, in virtual time: results come in the order and at
// the times that a test chooses, so that a run can be repeated from its seed. For tests
// and simulation. Time passes in advance(), and in a reap() that waits, which goes on to
// the next result at once. Poisons the memory of reads and checks that nobody touches that
// of writes while the device has it. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "ssd/io_front.h"
#include "ssd/memory_disk.h"
#include "ssd/turns.h"

namespace orbitkv::ssd {

// From the start on the device to the end of each submission.
using Latency = std::function<Duration(const IoRequest&)>;
// Evenly distributed; so requests overtake each other.
struct LatencyRange {
  Duration least, most;
};
Latency seeded_latency(std::uint64_t seed, LatencyRange range);

class MemoryIo final : public QueuedFront {
 public:
  // `disk` outlives it. IoOptions' depth, queue and faults hold; no latency: at once.
  MemoryIo(MemoryDisk& disk, const IoOptions& options, Latency latency = {});
  ~MemoryIo() override;

  const char* name() const override { return "memory"; }
  void add_memory(std::span<std::byte>) override {}
  void remove_memory(std::span<std::byte>) override {}
  Status grow(FileIndex file, ByteCount bytes) override;
  ByteCount free_space(const std::string&) const override { return disk_.free_space; }

  TimePoint now() const { return now_; }
  void advance(Duration time);  // results that are due can be reaped afterwards
  // When the next submission on the device ends; nullopt: none is there.
  std::optional<TimePoint> next_end() const {
    if (running_.empty()) return std::nullopt;
    return TimePoint{running_.begin()->first.first};
  }

 private:
  using Due = std::pair<std::int64_t, std::uint64_t>;  // time, then order of submission
  struct Running {
    Transfer transfer;
    Transfer::Step step;
  };

  Result<OpenFile> open_file(const std::string& path, ByteCount bytes) override;
  void hand_over(const Accepted& accepted) override;
  void handed_over() override;
  void wait_for_some(Duration wait) override;
  TimePoint time() const override { return now_; }
  void reaped(const Finished& finished) override;

  const std::string& path_of(const Accepted& accepted) const { return paths_[accepted.request.file.value]; }
  void start_what_may();
  void submit_step(Running running);
  void run_until(TimePoint end);
  bool end_first();  // the submission that is due first; true: a result came of it
  std::int64_t perform(const Running& running);
  std::int64_t read(const Running& running);
  std::int64_t write(const Running& running);

  MemoryDisk& disk_;
  std::vector<std::string> paths_;
  const Latency latency_;
  TimePoint now_{1'000'000'000};
  std::uint64_t submissions_ = 0;
  std::uint32_t in_flight_ = 0;
  Turns turns_;
  std::map<Due, Running> running_;
  std::map<std::uint64_t, MemoryDisk::Number> logged_;  // by Accepted::order, until reaped
};

}  // namespace orbitkv::ssd
