// Host memory that a GPU reaches: the pool's slabs, registered with the driver in the
// background, slab by slab. A registration belongs to the process (two GPUs share it), a
// use of a slab to a batch; a slab is let go of only when nobody uses it. While the driver
// registers, every CUDA call of the process waits: pages are made present before, copies
// go first, and a slab is registered in pieces so small that no launch comes late, with the
// driver left alone in between. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "base/time.h"
#include "device/cuda/context.h"
#include "device/cuda/presence.h"

namespace orbitkv::device::cuda {

// Slabs are registered in pieces that end at multiples of this address: a millisecond or two
// each. No DMA call may cross from one into the next.
inline constexpr std::uint64_t kRegisterPiece = limits::kRegisterPiece.value;
constexpr std::uint64_t to_piece_end(std::uint64_t address) {
  return kRegisterPiece - address % kRegisterPiece;
}

struct SlabOptions {
  bool registers = true;  // false: slabs stay unregistered, every copy bounces
  bool in_pieces = true;  // false: at once, for callers with DMA calls of their own
  // So long the registration of a slab that is ready for it waits for the copies that run:
  // those that bounce are the reason to have it soon.
  Duration give_way = milliseconds(100);
  Populate populate = cuda::populate;
};

class SlabTable {
 public:
  SlabTable(std::shared_ptr<Context> context, SlabOptions options);
  // Unregisters what is left.
  ~SlabTable();

  void add(std::span<std::byte> slab);
  // Refuses new uses at once; returns when the last has gone and the slab is unregistered.
  // One that is being made present is waited for no longer than a piece of it takes.
  void remove(std::span<std::byte> slab);
  std::size_t registered() const;

  // A slab in use: it is neither unregistered nor unmapped while this lives.
  class Use {
   public:
    Use() = default;
    Use(SlabTable* table, std::size_t slab) : table_(table), slab_(slab) {}
    Use(Use&& other) noexcept : table_(std::exchange(other.table_, nullptr)), slab_(other.slab_) {}
    Use& operator=(Use&& other) noexcept;
    ~Use();

   private:
    SlabTable* table_ = nullptr;
    std::size_t slab_ = 0;  // number, never reused
  };
  struct Found {
    Use use;
    std::span<std::byte> slab;
    bool registered = false;
    CuPtr device = 0;  // registered: where the device sees the slab's first byte
  };
  // The slab that [at, at + bytes) lies in. kBug: none; kRecompute: it is being removed.
  // One that is not registered yet goes before those that nobody has asked for.
  Result<Found> find(const std::byte* at, ByteCount bytes);

 private:
  // kBusy: the thread populates or registers a piece of it.
  enum class State : std::uint8_t { kWaiting, kBusy, kRegistered, kUnreachable };
  struct Entry {
    std::size_t number = 0;
    std::span<std::byte> slab;
    State state = State::kWaiting;
    std::uint32_t uses = 0;
    bool going = false;
    std::size_t present = 0;    // bytes from its beginning that have been populated
    TimePoint present_at = {};  // all of them
    std::size_t reached = 0;    // bytes from its beginning that are registered
    CuPtr device = 0;           // of the first of them
    bool in_pieces = true;      // false: where the device sees it, pieces would end elsewhere
    std::uint64_t asked_for{};  // when a copy last met it unregistered; 0: never
  };
  using Lock = std::unique_lock<std::mutex>;
  void run();
  Entry* entry(std::size_t number);
  Entry* next_waiting();
  void populate_piece(Lock& lock, Entry& next);
  TimePoint registers_from(const Entry& next) const;
  void register_piece(Lock& lock, Entry& next);
  CuResult reach(std::span<std::byte> piece, CuPtr& device);
  CuResult let_go(std::span<std::byte> reached);
  [[noreturn]] void end_process(CuResult code) const;
  void release(std::size_t number);

  const std::shared_ptr<Context> context_;
  const SlabOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> entries_;
  std::size_t next_number_ = 1;
  std::uint32_t uses_ = 0;  // of all entries
  std::uint64_t asked_ = 0;
  TimePoint quiet_until_;  // the driver is left alone
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace orbitkv::device::cuda
