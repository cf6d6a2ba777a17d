// A small engine that "computes" KV pages: page bytes are a function of the block
// hash, so that any process can say what a restored page must hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "orbitkv/client.h"

namespace orbitkv::example {

struct Shape {
  std::uint32_t layers = 4;
  std::uint32_t blocks = 64;  // of the prompt, and of the engine's memory
  std::uint32_t block_tokens = 16;
  std::uint32_t page_bytes = 16384;  // K or V of one layer and block
};

// The engine's KV memory: per layer one K and one V buffer, [block][page_bytes].
class KvMemory {
 public:
  explicit KvMemory(const Shape& shape);
  std::span<std::byte> page(std::uint32_t layer, std::uint32_t component, std::uint32_t block);
  std::vector<client::Layer> layers();
  std::uint64_t bytes() const { return memory_.size(); }

 private:
  Shape shape_;
  std::vector<std::byte> memory_;
};

// Chained hashes of a prompt that is the same in every process; each depends on all before.
std::vector<BlockHash> prompt_hashes(std::uint32_t blocks);
// What the "model" computes for one page.
void compute_page(const BlockHash& hash, std::uint32_t layer_and_component, std::span<std::byte> page);
// Bytes of all pages of the prompt that differ from what the model computes.
std::uint64_t wrong_bytes(const Shape& shape, KvMemory& memory, std::span<const BlockHash> hashes,
                          std::span<const std::uint32_t> engine_blocks);

// Publishes or restores the prompt through the Manager at `socket`. Prints progress on
// stdout; exit status 0 only if it worked. `publish` then waits to be killed.
int publish(const Shape& shape, const std::string& socket);
int restore(const Shape& shape, const std::string& socket);
// Manager, publisher killed with SIGKILL, restorer; table and JSON line on stdout.
int main_job(const Shape& shape, const std::string& orbitkv, const char* self);

}  // namespace orbitkv::example
