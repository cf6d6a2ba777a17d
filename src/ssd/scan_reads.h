// A bounded number of reads on their way, each into a buffer of its own, for the scan. One
// thread; the Io is its alone. Never lets its buffers go while the device may write them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/mapped_array.h"
#include "base/result.h"
#include "ssd/format.h"
#include "ssd/io.h"

namespace orbitkv::ssd {

using ReadSlot = Id<struct ReadSlotTag, std::uint32_t>;

class ScanReads {
 public:
  static constexpr std::uint32_t kSlotPages = 64;
  static constexpr std::uint32_t kLeastSlots = 4;

  ScanReads(Io& io, int stop_fd, std::uint32_t slots);
  ~ScanReads() { drain(); }
  ScanReads(const ScanReads&) = delete;
  ScanReads& operator=(const ScanReads&) = delete;

  std::uint32_t slots() const { return static_cast<std::uint32_t>(slots_.size()); }
  std::uint32_t in_flight() const { return in_flight_; }
  std::span<std::byte> buffer(ReadSlot slot);
  // Into the first bytes of the slot's buffer, or into `memory`. The slot is idle.
  void start(ReadSlot slot, FileIndex file, std::uint64_t offset, std::uint32_t pages);
  void start(ReadSlot slot, FileIndex file, std::uint64_t offset, std::span<std::byte> memory);
  struct Done {
    ReadSlot slot;
    int error = 0;
  };
  // The next one that ended; something is on its way. kBusy: stop_fd is readable.
  Result<Done> wait();
  void drain();  // waits for what is on its way and forgets it
  // Reads all of `memory`, a multiple of kPageBytes, through idle slots. kRecompute: the
  // device did not; kBusy as wait(). Nothing is on its way before and after.
  Status read_all(FileIndex file, std::uint64_t offset, std::span<std::byte> memory);
  ByteCount read() const { return read_; }

 private:
  struct Slot {
    std::span<std::byte> piece;
    IoRequest request;
  };

  bool stopped() const;
  void submit();

  Io& io_;
  const int stop_fd_;
  MappedBytes memory_;
  std::vector<Slot> slots_;
  std::deque<std::uint32_t> waiting_;  // not yet taken by the Io
  std::uint32_t in_flight_ = 0;        // waiting ones included
  std::array<IoResult, 64> results_;
  std::size_t result_ = 0, result_count_ = 0;
  ByteCount read_;
};

}  // namespace orbitkv::ssd
