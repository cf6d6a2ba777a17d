// What pages hold. The bytes of a block are a function of its space, group, number and
// shard; a page that holds no block has a filling of its own, never seen twice. So every
// page says what it is, and a byte that came from anywhere else is found. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "device/copier.h"
#include "orbitkv/client.h"
#include "orbitkv/types.h"
#include "sim/config.h"

namespace orbitkv::sim {

// A block of a space: chain and position in the tree of prefixes, as one number.
using BlockNumber = std::uint64_t;
// The number at a position: chains share their beginnings.
BlockNumber block_at(std::uint32_t chain, std::uint32_t position);
BlockHash hash_of(BlockNumber block);

// Names the bytes of one page. The top bit tells blocks from fillings.
using Content = std::uint64_t;
struct BlockShard {
  std::uint32_t space = 0;
  GroupId group;
  BlockNumber block = 0;
  ShardId shard;
};
Content content_of(const BlockShard& what);
constexpr bool is_block(Content content) {
  return content >> 63 != 0;
}

// The pages of one rank in its engine's own memory, as a registration describes them.
class RankMemory {
 public:
  RankMemory(const SpacePlan& space, std::uint16_t rank, std::uint32_t pages);

  const std::vector<client::Layer>& layers() const { return layers_; }
  const std::vector<client::Group>& groups() const { return groups_; }
  std::uint32_t pages() const { return pages_; }
  // Fills every fragment of a page; or compares. `group`: place in SpacePlan::groups.
  void fill(std::size_t group, std::uint32_t page, Content content);
  bool holds(std::size_t group, std::uint32_t page, Content content) const;
  // What the page was last filled with or said to hold.
  Content& content(std::size_t group, std::uint32_t page) { return contents_[group * pages_ + page]; }
  // Copies that have been started on it and have not ended.
  std::uint32_t& copies(std::size_t group, std::uint32_t page) { return copies_[group * pages_ + page]; }
  void damage(std::size_t group, std::uint32_t page);  // one bit

 private:
  template <class Row>
  bool each_row(std::size_t group, std::uint32_t page, Row row) const;

  std::uint32_t pages_;
  std::vector<std::vector<client::Layer>> layers_of_;  // by group
  std::vector<client::Layer> layers_;
  std::vector<client::Group> groups_;
  std::vector<std::byte> bytes_;
  std::vector<Content> contents_;
  std::vector<std::uint32_t> copies_;
};

// Of a rank with those pages; its instance is the caller's.
client::Registration registration_of(const SpacePlan& space, std::uint16_t rank, const RankMemory& memory);

}  // namespace orbitkv::sim
