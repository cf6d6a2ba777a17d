// A Manager in a second process for a bench, pinned to the second core, and clients of
// it in this one. Everything a case needs to have resident is published through it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/gpu.h"
#include "bench/harness.h"
#include "orbitkv/client.h"

namespace orbitkv::bench {

class BenchManager {
 public:
  // `flags` follow `orbitkv serve --bootstrap-socket …`.
  static Result<std::unique_ptr<BenchManager>> start(const Options& options, std::vector<std::string> flags);
  ~BenchManager();
  const std::string& socket() const { return socket_; }
  int pid() const { return child_->pid(); }

 private:
  BenchManager() = default;
  std::string directory_, socket_;
  std::optional<ChildProcess> child_;
};

// One layer (or several) of pages in this process, registered with a Manager.
struct EngineShape {
  std::uint32_t layers = 1;
  std::uint32_t components = 1;
  std::uint32_t blocks = 64;        // engine blocks
  std::uint64_t page_bytes = 4096;  // of one layer, component and block
};

// Engine blocks [first, first + count).
struct BlockRange {
  std::uint32_t first = 0, count = 0;
};

class BenchEngine {
 public:
  // With a GPU the pages lie there, and what page() shows is a copy: see push() and pull().
  static Result<std::unique_ptr<BenchEngine>> attach(const BenchManager& manager, const EngineShape& shape,
                                                     client::Options options = {}, Gpu* gpu = nullptr);
  client::Client& client() { return *client_; }
  InstanceId instance() const { return instance_; }
  const EngineShape& shape() const { return shape_; }
  std::uint64_t block_bytes() const { return shape_.layers * shape_.components * shape_.page_bytes; }
  std::byte* memory() { return memory_.data(); }
  std::uint64_t memory_bytes() const { return memory_.size(); }
  std::span<std::byte> page(std::uint32_t part, std::uint32_t block);

  // Fills every page of a block with words of its hash; counts bytes that differ.
  void fill(const BlockHash& hash, std::uint32_t block);
  std::uint64_t wrong_bytes(const BlockHash& hash, std::uint32_t block);

  // Between the copy here and the pages on the GPU. spoil(): the pages only.
  Status push(BlockRange blocks);
  Status pull(BlockRange blocks);
  Status spoil(BlockRange blocks);

  // Blocks until every block of the save is sealed. Kept off the clock by callers.
  Status save(std::span<const BlockHash> hashes, std::span<const std::uint32_t> blocks);
  // Publishes hashes [0, n) of hash_of, all from engine block 0.
  Status make_resident(std::uint32_t n);
  // A lease over exactly these hashes, under a fresh request id.
  Result<LeaseId> lease(std::span<const BlockHash> hashes);

 private:
  BenchEngine() = default;
  client::Registration registration_of(const Gpu* gpu);
  std::uint64_t page_offset(std::uint32_t part, std::uint32_t block) const {
    return (std::uint64_t{part} * shape_.blocks + block) * shape_.page_bytes;
  }
  EngineShape shape_;
  InstanceId instance_;
  std::vector<std::byte> memory_;
  std::unique_ptr<GpuMemory> gpu_memory_;
  std::unique_ptr<client::Client> client_;
  client::RegistrationHandle registration_;
  std::uint64_t next_request_ = 0;

 public:
  client::RegistrationHandle registration() const { return registration_; }
};

// The i-th hash of a series; series keep cases apart.
BlockHash hash_of(std::uint64_t i, std::uint64_t series = 0);
std::vector<BlockHash> hashes_from(std::uint64_t first, std::uint32_t n, std::uint64_t series = 0);
Status to_status(const client::Outcome& outcome);

}  // namespace orbitkv::bench
