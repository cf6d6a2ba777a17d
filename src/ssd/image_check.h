// Whether the bytes of a stored image are those of its record: the header's digest, every
// field of it, every fragment's checksum. Fed in order and in pieces of any size that is a
// multiple of 8, so that a long image can be looked at in slices. Pure; one thread. Never
// accepts an image of another key, shard or revision.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ssd/format_entries.h"

namespace orbitkv::ssd {

class ImageCheck {
 public:
  enum class State : std::uint8_t { kMore, kGood, kBad };

  // A shape that was validated, and its image_layout(); both outlive the check.
  ImageCheck(const SpaceShape& shape, const ImageLayout& layout) : shape_(shape), layout_(layout) {}
  // The image of this shard; what was fed before is forgotten.
  void begin(const BlockHash& hash, ShardId shard, const ImageMark& mark);
  // The next bytes; those behind slot_bytes do not matter.
  State feed(std::span<const std::byte> bytes);
  State state() const { return state_; }

 private:
  std::span<const std::byte> take_header(std::span<const std::byte> bytes);
  std::span<const std::byte> take_fragment(std::span<const std::byte> bytes);
  std::uint64_t fragment_end() const;

  const SpaceShape& shape_;
  const ImageLayout& layout_;
  State state_ = State::kBad;
  ImageMark mark_;
  std::uint64_t seed_ = 0;
  std::uint64_t at_ = 0;  // in the image
  std::vector<std::byte> header_;
  std::vector<std::uint64_t> checks_;
  std::size_t fragment_ = 0;
  std::uint64_t raw_ = 0;  // of that fragment
};

}  // namespace orbitkv::ssd
