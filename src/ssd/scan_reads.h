// A bounded number of reads on their way, each into a buffer of its own, for the scan. One
// thread; never waits: results are there when the Dispatch has been pumped. A read that the
// device refuses is tried once more, for what it loses is lost for good. Who ends before its
// reads have ended drains the Dispatch first.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/mapped_array.h"
#include "ssd/dispatch.h"
#include "ssd/format.h"

namespace orbitkv::ssd {

using ReadSlot = Id<struct ReadSlotTag, std::uint32_t>;

class ScanReads {
 public:
  static constexpr std::uint32_t kSlotPages = 64;
  static constexpr std::uint32_t kLeastSlots = 4;

  ScanReads(Dispatch& io, std::uint32_t slots);
  ScanReads(const ScanReads&) = delete;
  ScanReads& operator=(const ScanReads&) = delete;

  std::uint32_t slots() const { return slots_; }
  std::uint32_t in_flight() const { return in_flight_; }  // those that nobody has taken included
  std::span<std::byte> buffer(ReadSlot slot);
  struct Place {
    FileIndex file;
    std::uint64_t offset = 0;
  };
  // Into the first pages of the slot's buffer, or into `memory`. The slot is idle.
  void start(ReadSlot slot, const Place& place, std::uint32_t pages);
  void start(ReadSlot slot, const Place& place, std::span<std::byte> memory);
  struct Done {
    ReadSlot slot;
    int error = 0;
  };
  std::optional<Done> next();  // one that ended
  bool any() const { return !done_.empty(); }
  ByteCount read() const { return read_; }

 private:
  struct Read {
    ReadSlot slot;
    Place place;
    std::span<std::byte> memory;
    bool again = false;
  };
  void submit(const Read& read);
  void ended(const Read& read, int error);

  Dispatch& io_;
  const std::uint32_t slots_;
  MappedBytes memory_;
  std::deque<Done> done_;
  std::uint32_t in_flight_ = 0;
  ByteCount read_;
};

}  // namespace orbitkv::ssd
