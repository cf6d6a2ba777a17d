#include "sim/content.h"

#include <cstring>
#include <string>

#include "sim/random.h"

namespace orbitkv::sim {
namespace {
// Chains part from each other at these positions: 0 and 1 share four blocks, 0 and 2 two.
constexpr std::uint32_t shared_with_parent(std::uint32_t chain) {
  return chain == 0 ? 0 : 1 + chain * 3 % 5;
}
constexpr std::uint32_t parent_of(std::uint32_t chain) {
  return chain == 0 ? 0 : (chain - 1) / 2;
}
constexpr std::uint64_t word_at(Content content, std::uint64_t index) {
  std::uint64_t x = content + (index + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
  return x ^ x >> 32;
}
}  // namespace

BlockNumber block_at(std::uint32_t chain, std::uint32_t position) {
  while (chain != 0 && position < shared_with_parent(chain)) chain = parent_of(chain);
  return BlockNumber{chain} << 32 | position;
}

BlockHash hash_of(BlockNumber block) {
  BlockHash hash;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t word = mix(block, i, 0x48A5u);
    std::memcpy(hash.bytes.data() + 8 * i, &word, sizeof word);
  }
  return hash;
}

Content content_of(const BlockShard& what) {
  return mix(what.block, what.space, what.group.value, what.shard.value) | std::uint64_t{1} << 63;
}

RankMemory::RankMemory(const SpacePlan& space, std::uint16_t rank, std::uint32_t pages)
    : pages_(pages), layers_of_(space.groups.size()) {
  std::uint64_t total = 0;
  for (const GroupPlan& g : space.groups) total += g.layers * g.components * g.rows * g.row_bytes * pages;
  bytes_.resize(total + 64);
  std::byte* at = bytes_.data();
  for (std::size_t i = 0; i < space.groups.size(); ++i) {
    const GroupPlan& g = space.groups[i];
    const auto shards = static_cast<std::uint16_t>(g.replicated ? 1 : space.world);
    const auto shard = static_cast<std::uint16_t>(g.replicated ? 0 : rank);
    groups_.push_back({g.id.value, shard, shards, !g.replicated || rank == 0, g.rule, g.window_tokens});
    const std::uint64_t fragment = g.rows * g.row_bytes, layer = fragment * g.components * pages;
    for (std::uint16_t l = 0; l < g.layers; ++l) {
      for (std::uint16_t c = 0; c < g.components; ++c) {
        client::Layer made;
        made.name = "group " + std::to_string(g.id.value) + " layer " + std::to_string(l);
        made.group = g.id.value;
        made.component = c;
        made.rows = g.rows;
        made.row_bytes = g.row_bytes;
        const std::uint64_t step = g.interleaved ? g.components : 1;
        made.row_stride = g.row_bytes * step;
        made.block_stride = fragment * step;
        made.base = at + (g.interleaved ? c * g.row_bytes : c * fragment * pages);
        made.bytes = static_cast<std::uint64_t>(at + layer - made.base);
        layers_of_[i].push_back(made);
        layers_.push_back(made);
      }
      at += layer;
    }
  }
  contents_.resize(space.groups.size() * pages);
  copies_.resize(space.groups.size() * pages);
}

// Calls row(bytes, first word index) for every row of the page; false ends it.
template <class Row>
bool RankMemory::each_row(std::size_t group, std::uint32_t page, Row row) const {
  std::uint64_t index = 0;
  for (const client::Layer& layer : layers_of_[group]) {
    for (std::uint32_t r = 0; r < layer.rows; ++r) {
      std::byte* at = layer.base + page * layer.block_stride + r * layer.row_stride;
      if (!row(at, layer.row_bytes, index)) return false;
      index += layer.row_bytes / 8;
    }
  }
  return true;
}

void RankMemory::fill(std::size_t group, std::uint32_t page, Content content) {
  this->content(group, page) = content;
  each_row(group, page, [&](std::byte* at, std::uint64_t bytes, std::uint64_t index) {
    for (std::uint64_t i = 0; i < bytes / 8; ++i) {
      const std::uint64_t word = word_at(content, index + i);
      std::memcpy(at + 8 * i, &word, sizeof word);
    }
    return true;
  });
}

bool RankMemory::holds(std::size_t group, std::uint32_t page, Content content) const {
  return each_row(group, page, [&](std::byte* at, std::uint64_t bytes, std::uint64_t index) {
    for (std::uint64_t i = 0; i < bytes / 8; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, at + 8 * i, sizeof word);
      if (word != word_at(content, index + i)) return false;
    }
    return true;
  });
}

void RankMemory::damage(std::size_t group, std::uint32_t page) {
  const client::Layer& layer = layers_of_[group].back();
  layer.base[page * layer.block_stride + layer.row_bytes / 2] ^= std::byte{4};
}

client::Registration registration_of(const SpacePlan& space, std::uint16_t rank, const RankMemory& memory) {
  client::Registration registration;
  registration.name_space = space.name;
  registration.rank = rank;
  registration.world_size = space.world;
  registration.num_blocks = memory.pages();
  registration.block_tokens = kBlockTokens;
  registration.groups = memory.groups();
  registration.layers = memory.layers();
  return registration;
}

}  // namespace orbitkv::sim
