// An engine whose pages lie in a GPU's memory, over the driver that this process finds: the
// real one, or the fake libcuda. And what it does as a process of its own, by the lines on
// its stdin: a victim that saves until it is killed or told that it is enough, a witness that saves known
// bytes and compares every one that it restores. Tests only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/cuda/driver.h"
#include "orbitkv/client.h"
#include "tests/cuda/driver_bed.h"

namespace orbitkv::test {

inline constexpr std::uint16_t kGpuLayers = 8;
inline constexpr std::uint64_t kGpuRow = 64 * 1024;  // of a layer and block
inline constexpr std::uint64_t kGpuBlock = kGpuLayers * kGpuRow;
inline constexpr std::byte kVictimByte{0xE7};  // all that a victim ever saves

class GpuEngine {
 public:
  struct Options {
    std::string socket;
    std::string name;
    std::uint8_t instance = 1;
    std::uint32_t blocks = 0;
    // Off: a witness judges by its own comparison.
    bool verify = true;
    std::string method = "auto", pace = "full";
  };
  GpuEngine(const device::cuda::Driver& driver, const Options& options);
  client::Outcome connect();
  // Until the device reaches so many slabs: until then copies take a detour.
  bool reaches(std::size_t slabs) const;

  // All pages.
  void fill(std::byte value);
  // What the model computes for the hash with this number.
  void compute(std::uint32_t block, std::uint64_t hash);
  struct Wrong {
    std::uint64_t bytes = 0;
    std::uint64_t victims = 0;  // of them, those that a victim saves
  };
  Wrong compare(std::uint32_t block, std::uint64_t hash) const;
  // Until the device has done what it was given.
  void synchronise() const;

  client::Outcome start_save(std::uint32_t block, std::uint64_t hash, std::uint32_t count,
                             client::OperationHandle& out);
  client::OperationStatus save(std::uint64_t hash, std::uint32_t count);
  struct Restored {
    std::uint32_t hits = 0;
    client::OperationStatus status;
    Wrong wrong;
  };
  Restored restore(std::uint64_t hash, std::uint32_t count);
  client::Client& client() { return *client_; }

 private:
  client::Registration description() const;
  std::byte* page(std::uint16_t layer, std::uint32_t block) const;

  const device::cuda::Bed bed_;
  const Options options_;
  std::unique_ptr<device::suite::DeviceMemory> memory_;
  std::byte* pages_ = nullptr;  // [layer][block]
  client::Outcome opened_;
  std::unique_ptr<client::Client> client_;
  client::RegistrationHandle registration_;
  std::uint64_t next_request_ = 1;
};

// What a victim has done, in a file that outlives it.
struct VictimProgress {
  std::atomic<std::uint64_t> enqueued;  // saves whose copies were given to the device
  std::atomic<std::uint64_t> ended;
  std::atomic<std::uint32_t> lives;  // of Managers that followed the first; it waits after each
  std::atomic<std::uint32_t> go_on;  // told to it: until this has the number
  std::atomic<bool> enough;          // told to it: what runs is waited for, and the process ends
};
VictimProgress& map_progress(const std::string& path);

// key=value words: role (victim, witness), socket; of a victim progress, slabs, blocks, hash,
// way (dma, kernel, gentle).
int gpu_engine_main(const std::vector<std::string>& words);

}  // namespace orbitkv::test
