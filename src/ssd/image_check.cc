#include "ssd/image_check.h"

#include <algorithm>

#include "base/checksum.h"
#include "model/slot_image.h"

namespace orbitkv::ssd {

void ImageCheck::begin(const BlockHash& hash, ShardId shard, const ImageMark& mark) {
  state_ = State::kMore;
  mark_ = mark;
  seed_ = model::slot_seed({shape_.digest, shape_.group, hash, shard, mark.revision});
  at_ = 0;
  header_.clear();
  checks_.clear();
  fragment_ = 0;
  raw_ = 0;
}

// Collects the header; what is behind it is given back.
std::span<const std::byte> ImageCheck::take_header(std::span<const std::byte> bytes) {
  const std::size_t n = std::min<std::size_t>(bytes.size(), layout_.header_bytes - header_.size());
  header_.insert(header_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
  at_ += n;
  if (header_.size() < layout_.header_bytes) return {};
  const auto fragments = static_cast<std::uint32_t>(shape_.fragments.size());
  auto header =
      model::read_slot_header(header_, {mark_.digest, seed_, mark_.revision, shape_.slot_bytes, fragments});
  if (header.ok()) {
    checks_ = std::move(header->checks);
  } else {
    state_ = State::kBad;
  }
  return bytes.subspan(n);
}

std::uint64_t ImageCheck::fragment_end() const {
  return layout_.offsets[fragment_] + shape_.fragments[fragment_].bytes;
}

// Sums what belongs to the fragment at hand; skips the padding before it.
std::span<const std::byte> ImageCheck::take_fragment(std::span<const std::byte> bytes) {
  const SpaceShape::Fragment& fragment = shape_.fragments[fragment_];
  const std::uint64_t start = layout_.offsets[fragment_];
  if (at_ < start) {
    const std::size_t skip = std::min<std::size_t>(bytes.size(), start - at_);
    at_ += skip;
    return bytes.subspan(skip);
  }
  const std::size_t n = std::min<std::size_t>(bytes.size(), fragment_end() - at_);
  raw_ += checksum::raw(bytes.first(n), (at_ - start) / 8);
  at_ += n;
  if (at_ < fragment_end()) return {};
  const std::uint64_t id =
      checksum::fragment_id(seed_, {fragment.layer, fragment.component, fragment.encoding});
  if (checksum::check(raw_, id, fragment.bytes) != checks_[fragment_]) state_ = State::kBad;
  raw_ = 0;
  if (++fragment_ == shape_.fragments.size() && state_ == State::kMore) state_ = State::kGood;
  return bytes.subspan(n);
}

ImageCheck::State ImageCheck::feed(std::span<const std::byte> bytes) {
  while (!bytes.empty() && state_ == State::kMore)
    bytes = header_.size() < layout_.header_bytes ? take_header(bytes) : take_fragment(bytes);
  return state_;
}

}  // namespace orbitkv::ssd
