#include "tests/native/engine.h"

#include <algorithm>
#include <cstring>

namespace orbitkv::test {
namespace {
constexpr std::byte kGapByte{0xA5};

std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

std::uint64_t word_of(const BlockHash& hash) {
  std::uint64_t word;
  std::memcpy(&word, hash.bytes.data(), sizeof word);
  return word;
}

// The model: word w of row r of fragment f of a block.
std::uint64_t content(const BlockHash& hash, std::uint64_t fragment, std::uint64_t word) {
  return mix(word_of(hash) ^ mix(fragment << 32 ^ word));
}
}  // namespace

Shape shape_of(int number) {
  switch (number) {
    case 0: return {};
    case 1: return {.layers = 3, .components = 2, .row_bytes = 16384};
    case 2: return {.layers = 2, .components = 2, .rows = 8, .row_bytes = 264, .gap = 24};
    case 3: return {.layers = 5, .row_bytes = 8};
    case 4: return {.layers = 1, .row_bytes = 256 * 1024};
    case 5: return {.layers = 4, .rows = 3, .row_bytes = 1000, .gap = 8, .interleaved = true};
    default: return {.layers = 4, .components = 2, .row_bytes = 2048, .groups = 2};
  }
}

InstanceId instance_of(std::uint8_t number) {
  InstanceId id;
  id.bytes.fill(std::byte{number});
  return id;
}

BlockHash hash_of(std::uint64_t number) {
  BlockHash hash;
  for (std::uint64_t i = 0; i < 4; ++i) {
    const std::uint64_t word = mix(number * 4 + i);
    std::memcpy(hash.bytes.data() + 8 * i, &word, 8);
  }
  return hash;
}

std::vector<BlockHash> hashes_of(std::uint64_t first, std::uint32_t count) {
  std::vector<BlockHash> hashes;
  for (std::uint32_t i = 0; i < count; ++i) hashes.push_back(hash_of(first + i));
  return hashes;
}

std::vector<std::uint32_t> blocks_of(std::uint32_t first, std::uint32_t count) {
  std::vector<std::uint32_t> blocks(count);
  for (std::uint32_t i = 0; i < count; ++i) blocks[i] = first + i;
  return blocks;
}

Engine::Engine(EngineOptions options) : options_(std::move(options)) {
  lay_out();
  client::Options o;
  o.bootstrap_socket = options_.socket;
  o.name = "native test engine";
  o.timeout_ms = options_.timeout_ms;
  o.verify = options_.verify;
  o.inline_copies = options_.inline_copies;
  client_ = client::Client::open(o, opened_);
}

client::Outcome Engine::connect(std::uint32_t timeout_ms) {
  if (!client_) return opened_;
  if (auto outcome = client_->wait_connected(timeout_ms); !outcome.ok()) return outcome;
  return client_->register_rank(description_, registration_);
}

// Interleaved: [block][fragment][row]; else [fragment][block][row].
void Engine::lay_out() {
  const Shape& shape = options_.shape;
  const std::uint64_t row_stride = shape.row_bytes + shape.gap;
  const std::uint64_t page = shape.rows * row_stride;
  const std::uint32_t count = std::uint32_t{shape.layers} * shape.components * shape.groups;
  const std::size_t bytes = page * count * shape.blocks;
  if (options_.allocate) {
    memory_ = options_.allocate(bytes);
  } else {
    own_memory_.resize(bytes);
    memory_ = own_memory_;
  }
  wipe();
  description_.instance = instance();
  description_.name_space = options_.name_space;
  description_.device = options_.device;
  description_.rank = options_.rank;
  description_.world_size = options_.world_size;
  description_.num_blocks = shape.blocks;
  description_.block_tokens = 16;
  for (std::uint16_t g = 0; g < shape.groups; ++g)
    description_.groups.push_back({g, options_.shard, options_.shards, options_.writer});
  for (std::uint32_t f = 0; f < count; ++f) {
    const std::uint64_t stride = shape.interleaved ? page * count : page;
    const std::uint64_t offset = shape.interleaved ? page * f : page * f * shape.blocks;
    fragments_.push_back({offset, stride, f * options_.shards + options_.shard});
    const std::uint32_t layer = f / shape.components;
    client::Layer l;
    l.name = "layer " + std::to_string(layer);
    l.group = static_cast<std::uint16_t>(layer / shape.layers);
    l.component = static_cast<std::uint16_t>(f % shape.components);
    l.base = memory_.data() + offset;
    l.bytes = memory_.size() - offset;
    l.block_stride = stride;
    l.rows = shape.rows;
    l.row_bytes = shape.row_bytes;
    l.row_stride = row_stride;
    description_.layers.push_back(l);
  }
}

template <class Visit>
void Engine::each_row(std::uint32_t block, const BlockHash& hash, Visit visit) const {
  const Shape& shape = options_.shape;
  std::vector<std::byte> row(shape.row_bytes);
  for (const Fragment& fragment : fragments_) {
    for (std::uint32_t r = 0; r < shape.rows; ++r) {
      for (std::uint64_t at = 0; at < shape.row_bytes; at += 8) {
        const std::uint64_t word = content(hash, fragment.number, r * shape.row_bytes + at);
        std::memcpy(row.data() + at, &word, 8);
      }
      visit(fragment.offset + block * fragment.block_stride + r * (shape.row_bytes + shape.gap), row);
    }
  }
}

void Engine::compute(std::uint32_t block, const BlockHash& hash) {
  each_row(block, hash, [&](std::size_t at, const std::vector<std::byte>& row) {
    std::memcpy(memory_.data() + at, row.data(), row.size());
  });
  if (options_.lies) memory_[block * fragments_.front().block_stride] ^= std::byte{1};
}

void Engine::wipe() {
  std::fill(memory_.begin(), memory_.end(), kGapByte);
}

std::uint64_t Engine::wrong_bytes(std::uint32_t block, const BlockHash& hash) const {
  std::uint64_t wrong = 0;
  each_row(block, hash, [&](std::size_t at, const std::vector<std::byte>& row) {
    for (std::size_t i = 0; i < row.size(); ++i) wrong += memory_[at + i] != row[i];
  });
  return wrong;
}

std::uint64_t Engine::wrong_gap_bytes() const {
  std::uint64_t wrong = 0;
  const std::uint64_t row = options_.shape.row_bytes, stride = row + options_.shape.gap;
  for (std::uint64_t at = 0; at < memory_.size(); at += stride)
    for (std::uint64_t i = row; i < stride; ++i) wrong += memory_[at + i] != kGapByte;
  return wrong;
}

std::vector<std::byte> Engine::page_start(const BlockHash& hash) const {
  std::vector<std::byte> start(std::min<std::uint64_t>(32, options_.shape.row_bytes));
  for (std::uint64_t at = 0; at < start.size(); at += 8) {
    const std::uint64_t word = content(hash, fragments_.front().number, at);
    std::memcpy(start.data() + at, &word, 8);
  }
  return start;
}

client::Outcome Engine::start_save(std::span<const std::uint32_t> blocks, std::span<const BlockHash> hashes,
                                   client::OperationHandle& out, const client::SaveOptions& how) {
  std::vector<client::SaveGroup> groups;
  for (std::uint16_t g = 0; g < options_.shape.groups; ++g) groups.push_back({g, blocks, hashes});
  return client_->start_save(registration_, groups, how, out);
}

client::OperationStatus Engine::save(std::uint32_t block, std::uint64_t first_hash, std::uint32_t count) {
  const auto hashes = hashes_of(first_hash, count);
  const auto blocks = blocks_of(block, count);
  for (std::uint32_t i = 0; i < count; ++i) compute(blocks[i], hashes[i]);
  client::OperationHandle handle;
  if (auto outcome = start_save(blocks, hashes, handle); !outcome.ok())
    return {true, false, 0, outcome.message};
  const auto status = client_->wait(handle, kDoneWithinMs);
  client_->drop(handle);
  return status;
}

client::Outcome Engine::lease(std::uint64_t first_hash, std::uint32_t count, client::Ready& out) {
  return client_->query_prefetch(instance(), hashes_of(first_hash, count),
                                 "r" + std::to_string(next_request_++), 0, out);
}

client::OperationStatus Engine::restore_from(const LeaseId& lease, std::span<const std::uint32_t> blocks) {
  const client::Load load{lease, 0, blocks};
  client::OperationHandle handle;
  if (auto outcome = client_->start_restore(registration_, {&load, 1}, {}, handle); !outcome.ok())
    return {true, false, 0, outcome.message};
  const auto status = client_->wait(handle, kDoneWithinMs);
  client_->drop(handle);
  return status;
}

Engine::Restored Engine::restore(std::uint32_t block, std::uint64_t first_hash, std::uint32_t count) {
  Restored out;
  client::Ready ready;
  if (auto outcome = lease(first_hash, count, ready); !outcome.ok()) {
    out.status = {true, false, 0, outcome.message};
    return out;
  }
  out.hits = ready.hit_blocks;
  if (ready.hit_blocks == 0) return out;
  const auto blocks = blocks_of(block, ready.hit_blocks);
  out.status = restore_from(ready.lease, blocks);
  for (std::uint32_t i = 0; i < ready.hit_blocks; ++i)
    out.wrong += wrong_bytes(blocks[i], hash_of(first_hash + i));
  return out;
}

}  // namespace orbitkv::test
