// Writes paths of a store as the store does, with images that verify, wherever a test wants
// the bytes: into a MemoryDisk or a file. Tests only. What it writes follows from seeds.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "ssd/format_suite.h"

namespace orbitkv::ssd::suite {

struct WrittenImage {
  Buffer bytes;  // whole pages
  ImageMark mark;
};

// An image of this key with random fragments, as an engine's save leaves it.
inline WrittenImage written_image(const SpaceShape& shape, const BlockHash& key, ShardId shard,
                                  AllocationId revision) {
  const ImageLayout layout = image_layout(shape);
  const std::uint64_t seed = model::slot_seed({shape.digest, shape.group, key, shard, revision});
  WrittenImage out;
  out.bytes.resize(image_pages(shape) * kPageBytes);
  out.mark.revision = revision;
  std::mt19937_64 random(seed);
  model::SlotHeader header{revision, shape.slot_bytes, {}};
  for (std::size_t i = 0; i < shape.fragments.size(); ++i) {
    const SpaceShape::Fragment& fragment = shape.fragments[i];
    const auto bytes = std::span(out.bytes).subspan(layout.offsets[i], fragment.bytes);
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
      const std::uint64_t word = random();
      std::memcpy(bytes.data() + at, &word, sizeof word);
    }
    const std::uint64_t id =
        checksum::fragment_id(seed, {fragment.layer, fragment.component, fragment.encoding});
    header.checks.push_back(checksum::check(checksum::raw(bytes), id, fragment.bytes));
  }
  out.mark.digest = model::write_slot_header(header, seed, std::span(out.bytes).first(layout.header_bytes));
  return out;
}

inline BlockHash numbered(std::uint64_t n) {
  std::mt19937_64 random(n);
  BlockHash out;
  for (std::size_t at = 0; at < out.bytes.size(); at += 8) {
    const std::uint64_t word = random();
    std::memcpy(out.bytes.data() + at, &word, sizeof word);
  }
  return out;
}

using WriteBytes = std::function<void(std::uint64_t offset, std::span<const std::byte> bytes)>;

// One segment being written. Where things lie is for tests that damage them.
class WrittenSegment {
 public:
  struct Batch {
    BatchHead head;
    std::vector<BlockHash> keys;
    std::vector<std::uint32_t> first_pages;
  };

  WrittenSegment(WriteBytes write, std::uint64_t offset, const SegmentRead& segment)
      : write_(std::move(write)), offset_(offset), builder_(segment) {
    Buffer page(kPageBytes);
    encode_segment_header({segment.life, segment.pages, 1700000000}, page);
    put(0, page);
  }

  // Into the batch at hand.
  Fit add(SpaceIndex space, const SpaceShape& shape, const BlockHash& key, RecordSequence at) {
    std::vector<ImageMark> marks;
    std::vector<Buffer> images;
    for (std::uint16_t shard = 0; shard < shape.shards; ++shard) {
      WrittenImage image = written_image(shape, key, ShardId(shard), AllocationId(at.value * 64 + shard));
      marks.push_back(image.mark);
      images.push_back(std::move(image.bytes));
    }
    const Fit fit = builder_.add_record(space, shape, {key, at, marks});
    if (fit != Fit::kYes) return fit;
    keys_.push_back(key);
    for (Buffer& image : images) images_.insert(images_.end(), image.begin(), image.end());
    return fit;
  }
  Fit drop(const Tombstone& tombstone) { return builder_.add_tombstone(tombstone); }

  enum class Write : std::uint8_t { kAll, kDescriptorOnly, kNothing };
  Batch close(Write what = Write::kAll) {
    ClosedBatch closed = builder_.close_batch();
    Batch out{closed.head, std::exchange(keys_, {}), closed.first_pages};
    Buffer descriptor(closed.head.descriptor_pages * kPageBytes);
    builder_.encode_descriptor(closed, descriptor);
    if (what != Write::kNothing) put(closed.head.pages.first, descriptor);
    if (what == Write::kAll) put(closed.head.pages.first + closed.head.descriptor_pages, images_);
    images_.clear();
    builder_.committed(std::move(closed));
    return out;
  }
  void seal() {
    Buffer pages(builder_.seal_pages() * kPageBytes);
    builder_.encode_seal(pages);
    put(builder_.seal_place().first, pages);
  }
  SegmentBuilder& builder() { return builder_; }
  std::uint64_t offset_of(std::uint32_t page) const { return offset_ + page * kPageBytes; }

 private:
  void put(std::uint32_t page, std::span<const std::byte> bytes) { write_(offset_of(page), bytes); }

  const WriteBytes write_;
  const std::uint64_t offset_;
  SegmentBuilder builder_;
  std::vector<BlockHash> keys_;
  Buffer images_;
};

inline std::uint64_t segment_offset(const Superblock& superblock, std::uint32_t number) {
  return superblock.first_segment.value + number * superblock.segment.value;
}

inline WrittenSegment open_segment(const WriteBytes& write, const Superblock& superblock,
                                   std::uint32_t number, std::uint64_t life) {
  const SegmentLife named{superblock.uuid, SegmentSequence(first_sequence(superblock.epoch) + life),
                          SegmentNumber(number)};
  return {write, segment_offset(superblock, number), {named, pages_for(superblock.segment.value)}};
}

}  // namespace orbitkv::ssd::suite
