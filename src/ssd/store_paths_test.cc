// Opening: what is taken, what is refused, and how a store grows.
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>

#include "base/limits.h"
#include "ssd/store_rig.h"

namespace orbitkv::ssd::suite {
namespace {

std::string refusal_of(StoreBed& bed) {
  const Status started = bed.try_start();
  EXPECT_FALSE(started.ok());
  return started.ok() ? "" : started.error().message();
}
bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(StorePathsTest, foreign_data_not_formatted) {
  for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{5000}, std::uint64_t{64 * 1024}}) {
    StoreBed bed;
    bed.disk.resize("ssd", 8 * kMiB);
    const std::array<std::byte, 4> foreign{std::byte{'d'}, std::byte{'a'}, std::byte{'t'}, std::byte{'a'}};
    bed.disk.poke("ssd", at, foreign);
    const std::string text = refusal_of(bed);
    EXPECT_TRUE(says(text, "ssd")) << text;
    EXPECT_TRUE(says(text, "remove the file")) << text;
    std::array<std::byte, 4> left{};
    bed.disk.peek("ssd", at, left);
    EXPECT_EQ(left, foreign);
    EXPECT_EQ(bed.disk.size("ssd"), 8 * kMiB) << "a foreign file was made longer";
  }
  StoreBed bed;
  bed.disk.resize("ssd", ByteCount(100));
  EXPECT_TRUE(says(refusal_of(bed), "remove the file"));
}

TEST(StorePathsTest, grown_config) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  bed.write_blocks(bed.space(shape), shape, 1, 300);
  bed.close();
  bed.config.paths[0].bytes = kFirstSegment + 32 * 256 * kKiB;
  bed.start();
  EXPECT_EQ(bed.store().paths()[0].segments, 32u);
  const SpaceIndex space = bed.space(shape);
  EXPECT_EQ(bed.readable(space, shape, 1, 300), 300u);
  bed.write_blocks(space, shape, 301, 900);
  EXPECT_EQ(bed.readable(space, shape, 1, 1200), 1200u);
  bed.close();
  // 0 keeps what it has.
  bed.config.paths[0].bytes = ByteCount();
  bed.start();
  EXPECT_EQ(bed.store().paths()[0].segments, 32u);
}

TEST(StorePathsTest, truncated_or_shrunk_file) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  bed.write_blocks(bed.space(shape), shape, 1, 600);
  bed.close();
  const ByteCount bytes = bed.config.paths[0].bytes;
  bed.config.paths[0].bytes = bytes - 256 * kKiB;
  const std::string text = refusal_of(bed);
  EXPECT_TRUE(says(text, "cannot shrink")) << text;
  EXPECT_TRUE(says(text, "--ssd-size")) << text;
  // A file that was cut: what is left is found, and the rest is empty.
  bed.config.paths[0].bytes = bytes;
  bed.disk.resize("ssd", kFirstSegment + 5 * 256 * kKiB);
  bed.start();
  const std::uint64_t left = bed.store().stats().recovered;
  EXPECT_GT(left, 100u);
  EXPECT_LT(left, 400u);
  const SpaceIndex space = bed.space(shape);
  EXPECT_EQ(bed.readable(space, shape, 1, 600), left);
  bed.write_blocks(space, shape, 1000, 200);
  EXPECT_EQ(bed.readable(space, shape, 1000, 200), 200u);
}

TEST(StorePathsTest, too_small_and_no_path) {
  StoreBed bed;
  bed.config.paths[0].bytes = kFirstSegment + 7 * 256 * kKiB;
  const std::string text = refusal_of(bed);
  EXPECT_TRUE(says(text, "too small")) << text;
  EXPECT_EQ(bed.disk.size("ssd"), ByteCount()) << "a refused path was made longer";
  bed.config.paths.clear();
  EXPECT_TRUE(says(refusal_of(bed), "1 to"));
}

TEST(StorePathsTest, half_of_what_is_free) {
  StoreBed bed;
  bed.config.paths[0].bytes = ByteCount();
  bed.disk.free_space = 18 * kMiB;
  bed.start();
  EXPECT_EQ(bed.store().paths()[0].segments, 32u);  // 9 MiB, less the first one
}

// Of two that say no size each takes a quarter.
TEST(StorePathsTest, half_of_what_is_free_for_both) {
  StoreBed bed;
  bed.config.paths[0].bytes = ByteCount();
  bed.config.paths.push_back({"more", ByteCount()});
  bed.disk.free_space = 36 * kMiB;
  bed.start();
  for (const PathStatus& path : bed.store().paths()) EXPECT_EQ(path.segments, 32u);
}

// While a path of the set is away, nothing that was dropped is forgotten: also when it is away at
// a second start.
TEST(StorePathsTest, drops_outlive_what_is_away) {
  for (const bool twice : {false, true}) {
    SCOPED_TRACE(twice);
    StoreBed::Options options;
    options.paths = {"a", "b"};
    StoreBed bed(options);
    bed.start();
    const SpaceShape gone = small_shape(0x61), filler = small_shape(0x62);
    bed.write_blocks(bed.space(gone), gone, 1, 300);
    bed.close();
    const PathConfig away = bed.config.paths[0];
    bed.config.paths.erase(bed.config.paths.begin());
    bed.start();
    const auto dropped = bed.store().drop_space(gone.digest);
    ASSERT_TRUE(dropped.ok());
    EXPECT_TRUE(bed.await(dropped->flushed).ok);
    if (twice) {
      bed.close();
      bed.start();
      EXPECT_TRUE(says(bed.store().paths()[0].note, "2 paths, 1 of which")) << bed.store().paths()[0].note;
    }
    const SpaceIndex space = bed.space(filler);
    for (std::uint64_t n = 1; n < 2500; n += 100) bed.write_blocks(space, filler, n, 100);
    const auto other = bed.store().drop_space(digest(0x77));  // looks which can be forgotten
    ASSERT_TRUE(other.ok());
    EXPECT_TRUE(bed.await(other->flushed).ok);
    bed.close();
    bed.config.paths.push_back(away);
    bed.start();
    EXPECT_EQ(bed.store().paths()[0].note, "");
    EXPECT_EQ(bed.readable(bed.space(gone), gone, 1, 300), 0u);
  }
}

// As the superblock can say: paths that were replaced again and again stay countable.
TEST(StorePathsTest, paths_that_are_away_are_counted_up_to_the_bound) {
  StoreBed bed;
  bed.start();
  bed.close();
  const ByteCount bytes = bed.config.paths[0].bytes;
  for (std::uint32_t i = 0; i < limits::kStorePaths + 3; ++i) {
    bed.config.paths = {bed.config.paths.back(), {"p" + std::to_string(i), bytes}};
    bed.start();
    bed.close();
  }
  bed.start();
  EXPECT_TRUE(says(bed.store().paths()[0].note, std::to_string(limits::kStorePaths) + " paths"));
}

// A file that never had one is its giver's business; one that loses it will be missed.
TEST(StorePathsTest, a_file_that_loses_its_name_is_noted) {
  StoreBed bed;
  bed.named = false;
  bed.start();
  EXPECT_EQ(bed.store().paths()[0].note, "");
  bed.close();
  bed.named = true;
  bed.start();
  EXPECT_EQ(bed.store().paths()[0].note, "");
  bed.named = false;
  EXPECT_TRUE(says(bed.store().paths()[0].note, "deleted or replaced"));
}

TEST(StorePathsTest, two_managers) {
  StoreBed bed;
  bed.start();
  MemoryIo other(bed.disk, {});
  const auto second = Store::open(bed.config, other);
  ASSERT_FALSE(second.ok());
  EXPECT_TRUE(says(second.error().message(), "ssd")) << second.error().message();
}

TEST(StorePathsTest, paths_of_two_stores_and_copies) {
  StoreBed bed;
  bed.start();
  bed.close();
  bed.config.paths[0].path = "other";
  bed.start();
  bed.close();
  bed.config.paths.push_back({"ssd", bed.config.paths[0].bytes});
  EXPECT_TRUE(says(refusal_of(bed), "another store"));
  // A copy of a path of this store.
  std::vector<std::byte> pages(2 * kPageBytes);
  bed.disk.peek("other", 0, pages);
  bed.disk.poke("ssd", 0, pages);
  EXPECT_TRUE(says(refusal_of(bed), "copy"));
}

TEST(StorePathsTest, a_path_more) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  bed.write_blocks(bed.space(shape), shape, 1, 300);
  bed.close();
  bed.config.paths.push_back({"more", bed.config.paths[0].bytes});
  bed.start();
  bed.write_blocks(bed.space(shape), shape, 301, 600);
  bed.kill();
  std::swap(bed.config.paths[0], bed.config.paths[1]);
  bed.start();
  EXPECT_EQ(bed.readable(bed.space(shape), shape, 1, 900), 900u);
  bed.close();
  // Without the first one: what lies on it is missing, and nothing else.
  bed.config.paths.pop_back();
  bed.start();
  const std::uint64_t left = bed.store().stats().recovered;
  EXPECT_GT(left, 100u);
  EXPECT_LT(left, 700u);
  EXPECT_EQ(bed.readable(bed.space(shape), shape, 1, 900), left);
}

// A device that was away comes back beside one that took its place.
TEST(StorePathsTest, a_path_that_was_away) {
  StoreBed::Options options;
  options.paths = {"a", "b"};
  StoreBed bed(options);
  bed.start();
  const SpaceShape shape = small_shape();
  bed.write_blocks(bed.space(shape), shape, 1, 400);
  EXPECT_EQ(bed.store().paths()[0].note, "");
  bed.close();
  const PathConfig away = bed.config.paths[0];
  bed.config.paths = {bed.config.paths[1], {"c", away.bytes}};
  bed.start();
  const std::string note = bed.store().paths()[0].note;
  EXPECT_TRUE(says(note, "2 paths")) << note;
  bed.write_blocks(bed.space(shape), shape, 401, 100);
  bed.close();
  bed.config.paths.push_back(away);
  bed.start();
  EXPECT_EQ(bed.readable(bed.space(shape), shape, 1, 500), 500u);
  bed.close();
  bed.start();
  EXPECT_EQ(bed.store().paths()[0].note, "");
}

TEST(StorePathsTest, names_that_are_none) {
  StoreBed bed;
  bed.config.paths.push_back(bed.config.paths[0]);
  EXPECT_TRUE(says(refusal_of(bed), "the same file")) << refusal_of(bed);
  bed.config.paths[1].path = "";
  EXPECT_TRUE(says(refusal_of(bed), "empty"));
}

TEST(StorePathsTest, bounds_of_segments_are_said) {
  StoreBed bed;
  for (const ByteCount bytes : {128 * kKiB, 300 * kKiB + ByteCount(1), 2 * kGiB}) {
    bed.config.segment = bytes;
    EXPECT_TRUE(says(refusal_of(bed), "from 256 KiB to 1024 MiB")) << refusal_of(bed);
  }
}

TEST(StorePathsTest, stop_during_open) {
  StoreBed bed;
  bed.start();
  const SpaceShape shape = small_shape();
  bed.write_blocks(bed.space(shape), shape, 1, 300);
  bed.kill();
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  ASSERT_EQ(::write(fds[1], "x", 1), 1);
  bed.config.stop_fd = fds[0];
  EXPECT_EQ(bed.try_start().error().code(), Code::kBusy);
  bed.config.stop_fd = -1;
  bed.start();
  EXPECT_EQ(bed.store().stats().recovered, 300u);
  ::close(fds[0]);
  ::close(fds[1]);
}

}  // namespace
}  // namespace orbitkv::ssd::suite
