// An engine for tests: KV memory of a given geometry whose bytes are a function of the
// block hash, and a client. Used in the test's own process and in the helper's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "orbitkv/client.h"

namespace orbitkv::test {

struct Shape {
  std::uint16_t layers = 4;
  std::uint16_t components = 1;  // 2: K and V apart
  std::uint32_t rows = 1;
  std::uint64_t row_bytes = 4096;
  std::uint64_t gap = 0;     // bytes between rows, never touched
  bool interleaved = false;  // all layers of a block side by side (block_stride over all)
  std::uint16_t groups = 1;
  std::uint32_t blocks = 64;  // engine blocks
};
// Geometries that every test of bytes goes through, by number.
inline constexpr int kShapes = 7;
Shape shape_of(int number);

struct EngineOptions {
  std::string socket;
  Shape shape;
  std::uint8_t instance = 1;
  std::string name_space = "native";
  std::uint16_t rank = 0, world_size = 1;
  std::uint16_t shard = 0, shards = 1;
  bool writer = true;
  bool verify = true;
  bool inline_copies = true;
  bool lies = false;  // computes a wrong bit in each block: for tests of tests
  std::uint32_t timeout_ms = 5000;
  std::string device = "cpu:0";
  // Pages that the test can read and write, and that live on; null: the engine's own.
  std::function<std::span<std::byte>(std::size_t)> allocate = nullptr;
};

inline constexpr std::uint32_t kDoneWithinMs = 20'000;  // an honest operation, on a busy machine

InstanceId instance_of(std::uint8_t number);
BlockHash hash_of(std::uint64_t number);
std::vector<BlockHash> hashes_of(std::uint64_t first, std::uint32_t count);
std::vector<std::uint32_t> blocks_of(std::uint32_t first, std::uint32_t count);

class Engine {
 public:
  // Opens a client; connect() attaches and registers.
  explicit Engine(EngineOptions options);
  client::Outcome connect(std::uint32_t timeout_ms = kDoneWithinMs);

  client::Client& client() { return *client_; }
  client::RegistrationHandle registration() const { return registration_; }
  InstanceId instance() const { return instance_of(options_.instance); }
  const client::Registration& description() const { return description_; }

  void compute(std::uint32_t block, const BlockHash& hash);  // writes what the model would
  void wipe();
  // Bytes of the engine block that differ from what the model computes for the hash.
  std::uint64_t wrong_bytes(std::uint32_t block, const BlockHash& hash) const;
  std::uint64_t wrong_gap_bytes() const;  // gaps that somebody wrote into
  // The first bytes of a block's first page, as they lie in a slot image.
  std::vector<std::byte> page_start(const BlockHash& hash) const;

  client::Outcome start_save(std::span<const std::uint32_t> blocks, std::span<const BlockHash> hashes,
                             client::OperationHandle& out, const client::SaveOptions& how = {});
  // Computes, saves and waits.
  client::OperationStatus save(std::uint32_t block, std::uint64_t first_hash, std::uint32_t count);
  client::Outcome lease(std::uint64_t first_hash, std::uint32_t count, client::Ready& out);
  client::OperationStatus restore_from(const LeaseId& lease, std::span<const std::uint32_t> blocks);
  struct Restored {
    std::uint32_t hits = 0;
    client::OperationStatus status;
    std::uint64_t wrong = 0;
  };
  // Leases and restores the leading run into block, block + 1, ..., and compares.
  Restored restore(std::uint32_t block, std::uint64_t first_hash, std::uint32_t count);

 private:
  struct Fragment {
    std::size_t offset, block_stride;  // in memory_
    std::uint32_t number;              // seeds the content
  };
  void lay_out();
  template <class Visit>
  void each_row(std::uint32_t block, const BlockHash& hash, Visit visit) const;

  EngineOptions options_;
  client::Registration description_;
  std::vector<Fragment> fragments_;
  std::vector<std::byte> own_memory_;
  std::span<std::byte> memory_;
  std::unique_ptr<client::Client> client_;
  client::RegistrationHandle registration_;
  client::Outcome opened_;
  std::uint64_t next_request_ = 1;
};

}  // namespace orbitkv::test
