// What the check of a stored image accepts: those bytes for that key, however they are cut.
#include "ssd/image_check.h"

#include <gtest/gtest.h>

#include <random>

#include "ssd/written_store_suite.h"

namespace orbitkv::ssd::suite {
namespace {

class ImageCheckTest : public testing::Test {
 protected:
  // Three fragments, the first over several pages; a header of more than one stretch of 128.
  const SpaceShape shape_ = [] {
    std::vector<SpaceShape::Fragment> fragments = {{0, 0, 0, 9000}, {0, 1, 0, 24}};
    for (std::uint32_t i = 1; i < 30; ++i) fragments.push_back({i, 0, 0, 8 * i});
    return shape_of(fragments, 2);
  }();
  const ImageLayout layout_ = image_layout(shape_);
  const BlockHash key_ = numbered(7);
  const WrittenImage image_ = written_image(shape_, key_, ShardId(1), AllocationId(42));

  ImageCheck::State look(std::span<const std::byte> bytes, std::size_t piece) const {
    ImageCheck check(shape_, layout_);
    check.begin(key_, ShardId(1), image_.mark);
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      check.feed(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    return check.state();
  }
};

TEST_F(ImageCheckTest, good_in_pieces_of_any_size) {
  for (const std::size_t piece : {8u, 24u, 128u, 1000u, 4096u, 1u << 20})
    EXPECT_EQ(look(image_.bytes, piece), ImageCheck::State::kGood) << piece;
  std::mt19937_64 random(3);
  ImageCheck check(shape_, layout_);
  for (int round = 0; round < 50; ++round) {
    check.begin(key_, ShardId(1), image_.mark);
    for (std::size_t at = 0; at < image_.bytes.size();) {
      const std::size_t n = std::min<std::size_t>(8 * (1 + random() % 300), image_.bytes.size() - at);
      check.feed(std::span(image_.bytes).subspan(at, n));
      at += n;
    }
    EXPECT_EQ(check.state(), ImageCheck::State::kGood);
  }
}

TEST_F(ImageCheckTest, every_flipped_bit_of_what_is_covered_is_bad) {
  Buffer bytes = image_.bytes;
  std::vector<bool> covered(bytes.size());
  std::fill_n(covered.begin(), layout_.header_bytes, true);
  for (std::size_t i = 0; i < layout_.offsets.size(); ++i)
    std::fill_n(covered.begin() + static_cast<std::ptrdiff_t>(layout_.offsets[i]), shape_.fragments[i].bytes,
                true);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    const auto mask = static_cast<std::byte>(1u << at % 8);
    bytes[at] ^= mask;
    EXPECT_EQ(look(bytes, 4096), covered[at] ? ImageCheck::State::kBad : ImageCheck::State::kGood) << at;
    bytes[at] ^= mask;
  }
}

TEST_F(ImageCheckTest, cut_image_is_not_good) {
  for (std::size_t n = 0; n < shape_.slot_bytes - 128; n += 8)
    EXPECT_EQ(look(std::span(image_.bytes).first(n), 4096), ImageCheck::State::kMore) << n;
}

TEST_F(ImageCheckTest, another_key_shard_revision_or_digest_is_bad) {
  struct Named {
    BlockHash key;
    ShardId shard;
    ImageMark mark;
  };
  const ImageMark& mark = image_.mark;
  const Named others[] = {{numbered(8), ShardId(1), mark},
                          {key_, ShardId(0), mark},
                          {key_, ShardId(1), {mark.digest, AllocationId(43)}},
                          {key_, ShardId(1), {mark.digest + 1, mark.revision}}};
  for (const Named& other : others) {
    ImageCheck check(shape_, layout_);
    check.begin(other.key, other.shard, other.mark);
    EXPECT_EQ(check.feed(image_.bytes), ImageCheck::State::kBad);
  }
  SpaceShape shape = shape_;
  shape.fragments[3].layer = 99;  // the same bytes under another name
  ImageCheck check(shape, layout_);
  check.begin(key_, ShardId(1), mark);
  EXPECT_EQ(check.feed(image_.bytes), ImageCheck::State::kBad);
}

}  // namespace
}  // namespace orbitkv::ssd::suite
