// Host memory that a GPU reaches: the pool's slabs, registered with the driver in the
// background, slab by slab. A registration belongs to the process (two GPUs share it), a
// use of a slab to a batch; a slab is let go of only when nobody uses it. Thread-safe.
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
#include "base/result.h"
#include "device/cuda/context.h"

namespace orbitkv::device::cuda {

class SlabTable {
 public:
  // `registers` false: slabs stay unregistered, every copy bounces.
  SlabTable(std::shared_ptr<Context> context, bool registers);
  // Unregisters what is left.
  ~SlabTable();

  void add(std::span<std::byte> slab);
  // Refuses new uses at once; returns when the last has gone and the slab is unregistered.
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
  Result<Found> find(const std::byte* at, ByteCount bytes);

 private:
  enum class State : std::uint8_t { kWaiting, kRegistering, kRegistered, kUnreachable };
  struct Entry {
    std::size_t number = 0;
    std::span<std::byte> slab;
    State state = State::kWaiting;
    CuPtr device = 0;
    std::uint32_t uses = 0;
    bool going = false;
  };
  void run();
  Entry* entry(std::size_t number);
  Entry* next_waiting();
  void release(std::size_t number);

  const std::shared_ptr<Context> context_;
  const bool registers_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> entries_;
  std::size_t next_number_ = 1;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace orbitkv::device::cuda
