// What a dead Manager has left, for those who look at it from outside: tables and session
// memories as they were when it died, bits that flip in them, and whether the bytes of a block
// are what its record says. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "client/registry.h"
#include "mem/kept_scan.h"
#include "shm/session_memory.h"
#include "sim/config.h"
#include "sim/content.h"

namespace orbitkv::sim {

// Memory files as they were.
class Frozen {
 public:
  Frozen() = default;
  explicit Frozen(const std::vector<int>& files);
  void thaw() const;  // they are so again

 private:
  struct File {
    UniqueFd fd;
    std::vector<std::pair<std::uint64_t, std::vector<std::byte>>> pieces;  // what is there of it
  };
  std::vector<File> files_;
};

// Words of a session, likewise.
class FrozenSession {
 public:
  explicit FrozenSession(const shm::SessionMemory& memory);
  void thaw() const;

 private:
  const shm::SessionMemory* memory_;
  std::vector<std::byte> state_;
};

// Flips a bit of something that was written.
void damage_tables(const std::vector<int>& tables, std::uint64_t word);

// Reads blocks of a pool as a restore does.
class KeptAudit {
 public:
  explicit KeptAudit(const Config& config) : config_(config) {}
  // `image`: its bytes in the pool. False: they are not that block's.
  bool verifies(const mem::KeptImage& kept, const std::array<std::byte, 32>& name_space, std::byte* image);

 private:
  struct Reader {
    std::uint32_t space = 0;
    std::shared_ptr<RankMemory> memory;
    std::shared_ptr<client::Entry> entry;
  };
  void prepare();
  const Config& config_;
  std::vector<Reader> readers_;  // one a space and rank
  std::map<std::array<std::byte, 32>, BlockNumber> blocks_;
};

}  // namespace orbitkv::sim
