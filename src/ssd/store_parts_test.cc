// Parts of the store that need no device: segments by age, spaces, tombstones.
#include <gtest/gtest.h>

#include "base/limits.h"
#include "ssd/format_suite.h"
#include "ssd/segments.h"
#include "ssd/spaces.h"
#include "ssd/tombstones.h"

namespace orbitkv::ssd::suite {
namespace {

SegmentIndex seal(Segments& segments, PathIndex path, std::uint32_t number, std::uint64_t life) {
  const SegmentIndex segment = segments.of(path, SegmentNumber(number));
  segments.step(segment, SegmentEvent::kRecovered);
  segments.set_content(segment, SegmentSequence(life));
  return segment;
}
void free_again(Segments& segments, SegmentIndex segment) {
  segments.step(segment, SegmentEvent::kReclaim);
  segments.step(segment, SegmentEvent::kCopied);
  segments.step(segment, SegmentEvent::kDurable);
}

TEST(SegmentsTest, oldest_first_on_each_path) {
  Segments segments;
  segments.add_path(3);
  segments.add_path(2);
  EXPECT_EQ(segments.count(PathIndex(0), SegmentState::kFree), 3u);
  const SegmentIndex younger = seal(segments, PathIndex(0), 0, 20);
  const SegmentIndex older = seal(segments, PathIndex(0), 2, 10);
  const SegmentIndex other = seal(segments, PathIndex(1), 1, 5);
  EXPECT_EQ(segments.sealed(PathIndex(0)).begin()->second, older);
  EXPECT_EQ(segments.sealed(PathIndex(1)).begin()->second, other);
  // Without content first, then the oldest.
  EXPECT_EQ(*segments.oldest_free(PathIndex(0)), segments.of(PathIndex(0), SegmentNumber(1)));
  free_again(segments, older);
  free_again(segments, younger);
  segments.step(segments.of(PathIndex(0), SegmentNumber(1)), SegmentEvent::kOpen);
  EXPECT_EQ(*segments.oldest_free(PathIndex(0)), older);
  EXPECT_TRUE(segments.sealed(PathIndex(0)).empty());
}

TEST(SegmentsTest, content_stays_until_the_next_header) {
  Segments segments;
  segments.add_path(2);
  const SegmentIndex segment = seal(segments, PathIndex(0), 0, 10);
  segments.at(segment).min_record = RecordSequence(100);
  const Segments::Ended ended{SegmentSequence(10), RecordSequence(100)};
  EXPECT_TRUE(segments.may_hold(ended, std::nullopt));
  EXPECT_FALSE(segments.may_hold(ended, segment));
  EXPECT_FALSE(segments.may_hold({SegmentSequence(9), RecordSequence(100)}, std::nullopt));
  EXPECT_FALSE(segments.may_hold({SegmentSequence(10), RecordSequence(99)}, std::nullopt));
  free_again(segments, segment);
  EXPECT_TRUE(segments.may_hold(ended, std::nullopt));
  segments.step(segment, SegmentEvent::kOpen);
  EXPECT_TRUE(segments.may_hold(ended, std::nullopt));
  segments.step(segment, SegmentEvent::kOpened);
  segments.set_content(segment, SegmentSequence(11));
  EXPECT_FALSE(segments.may_hold(ended, std::nullopt));
}

TEST(SpacesTest, one_number_a_shape) {
  Spaces spaces;
  const SpaceShape shape = sample_shape();
  const SpaceIndex index = *spaces.enter(shape);
  EXPECT_EQ(*spaces.enter(shape), index);
  SpaceShape other = shape_of({{0, 0, 0, 512}}, 2);
  const SpaceIndex second = *spaces.enter(other);
  EXPECT_NE(second, index);
  EXPECT_EQ(spaces.of(shape.digest).size(), 2u);
  other.slot_bytes += 8;
  EXPECT_EQ(spaces.enter(other).error().code(), Code::kReject);
  // A number is used again when nothing names it.
  spaces.at(index).holds = 1;
  spaces.let_go(index);
  EXPECT_TRUE(spaces.known(index));
  spaces.at(index).holds = 0;
  spaces.let_go(index);
  EXPECT_FALSE(spaces.known(index));
  EXPECT_EQ(spaces.of(shape.digest), std::vector<SpaceIndex>{second});
  EXPECT_EQ(*spaces.enter(shape), index);
}

TEST(SpacesTest, bounded) {
  Spaces spaces;
  SpaceShape shape = shape_of({{0, 0, 0, 512}});
  for (std::uint32_t i = 0; i < limits::kStoredSpaces; ++i) {
    shape.digest.bytes[0] = static_cast<std::byte>(i);
    shape.digest.bytes[1] = static_cast<std::byte>(i >> 8);
    const auto entered = spaces.enter(shape);
    ASSERT_TRUE(entered.ok());
    spaces.at(*entered).uses = 1;
  }
  shape.digest.bytes[2] = std::byte{1};
  EXPECT_EQ(spaces.enter(shape).error().code(), Code::kBusy);
}

class TombstonesTest : public testing::Test {
 protected:
  TombstonesTest() {
    segments_.add_path(4);
    for (std::uint32_t i = 0; i < 3; ++i) {
      lives_[i] = seal(segments_, PathIndex(0), i, 10 + i);
      segments_.at(lives_[i]).min_record = RecordSequence(100 * i);
    }
  }
  static Tombstone ends(std::uint64_t sequence) {
    return {digest(1), GroupId(0), hash(2), RecordSequence(sequence)};
  }
  void write_into(Tombstones& tombstones, SegmentIndex segment) {
    const TombstoneId id = tombstones.next().id;
    tombstones.started(segment);
    tombstones.written(id);
  }
  Segments segments_;
  SegmentIndex lives_[3];
};

TEST_F(TombstonesTest, pending_until_written) {
  Tombstones tombstones(segments_, limits::kTombstones);
  EXPECT_FALSE(tombstones.pending());
  tombstones.bury(ends(50), SegmentSequence(12));
  ASSERT_TRUE(tombstones.pending());
  const TombstoneId id = tombstones.next().id;
  tombstones.started(lives_[2]);
  EXPECT_FALSE(tombstones.pending());
  EXPECT_TRUE(tombstones.in_flight());
  tombstones.failed(id);
  EXPECT_TRUE(tombstones.pending());
  EXPECT_FALSE(tombstones.in_flight());
  write_into(tombstones, lives_[2]);
  EXPECT_FALSE(tombstones.pending());
}

TEST_F(TombstonesTest, copied_while_older_content_may_hold_what_it_ends) {
  Tombstones tombstones(segments_, limits::kTombstones);
  tombstones.bury(ends(50), SegmentSequence(12));  // a record of the first segment
  write_into(tombstones, lives_[2]);
  EXPECT_FALSE(tombstones.needed_from(lives_[1]));
  ASSERT_TRUE(tombstones.needed_from(lives_[2]));
  tombstones.copy_from(lives_[2]);
  EXPECT_TRUE(tombstones.pending());
  write_into(tombstones, lives_[1]);
  // The first segment has another life: nothing holds the record.
  free_again(segments_, lives_[0]);
  EXPECT_TRUE(tombstones.needed_from(lives_[1]));
  segments_.set_content(lives_[0], SegmentSequence(20));
  EXPECT_FALSE(tombstones.needed_from(lives_[1]));
  EXPECT_EQ(tombstones.count(), 0u);
}

TEST_F(TombstonesTest, found_twice_the_newer_place_holds_it) {
  Tombstones tombstones(segments_, limits::kTombstones);
  tombstones.recovered(ends(50), lives_[1]);
  tombstones.recovered(ends(50), lives_[2]);
  tombstones.recovered(ends(50), lives_[1]);
  tombstones.recovery_ended(SegmentSequence(12));
  EXPECT_EQ(tombstones.count(), 1u);
  EXPECT_FALSE(tombstones.needed_from(lives_[1]));
  EXPECT_TRUE(tombstones.needed_from(lives_[2]));
}

TEST_F(TombstonesTest, bounded) {
  Tombstones tombstones(segments_, limits::kTombstones);
  for (std::uint32_t i = 0; i < limits::kTombstones + 10; ++i) tombstones.bury(ends(i), SegmentSequence(12));
  EXPECT_EQ(tombstones.count(), limits::kTombstones);
}

}  // namespace
}  // namespace orbitkv::ssd::suite
