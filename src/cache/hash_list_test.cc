#include "cache/hash_list.h"

#include <gtest/gtest.h>

#include <cstring>

namespace orbitkv::cache {
namespace {

constexpr std::size_t kPiece = HashList::kPiece;

BlockHash hash_of(std::size_t n) {
  BlockHash hash;
  std::memcpy(hash.bytes.data(), &n, sizeof n);
  return hash;
}

// Appends `count` more, `step` at a time.
void grow(HashList& list, std::size_t count, std::size_t step) {
  const std::size_t end = list.size() + count;
  while (list.size() < end) {
    std::vector<BlockHash> more;
    for (std::size_t i = list.size(); more.size() < step && i < end; ++i) more.push_back(hash_of(i));
    list.add(more);
  }
}

void expect_first(const HashList& list, std::size_t count) {
  ASSERT_EQ(list.size(), count);
  std::size_t at = 0;
  while (at < count) {
    const auto together = list.from(at, 1000);
    ASSERT_FALSE(together.empty());
    ASSERT_LE(together.size(), 1000u);
    for (const BlockHash& hash : together) {
      ASSERT_EQ(hash, hash_of(at));
      ASSERT_EQ(list[at], hash_of(at));
      ++at;
    }
  }
  EXPECT_TRUE(list.from(count, 1000).empty());
}

TEST(HashList, keeps_what_is_added_in_any_steps) {
  for (const std::size_t step : {std::size_t{1}, std::size_t{999}, kPiece, 3 * kPiece + 1}) {
    HashList list;
    EXPECT_TRUE(list.from(0, 10).empty());
    grow(list, 3 * kPiece + 7, step);
    expect_first(list, 3 * kPiece + 7);
  }
}

TEST(HashList, grows_on_from_where_it_is_cut) {
  for (const std::size_t cut : {std::size_t{0}, std::size_t{5}, kPiece - 1, kPiece, kPiece + 1, 3 * kPiece,
                                3 * kPiece + 7, 9 * kPiece}) {
    HashList list;
    grow(list, 3 * kPiece + 7, 1000);
    HashList rest = list.cut(cut);
    const std::size_t left = std::min(cut, 3 * kPiece + 7);
    expect_first(list, left);
    const std::size_t pieces = (left + kPiece - 1) / kPiece * kPiece;
    EXPECT_EQ(rest.size(), 3 * kPiece + 7 - std::min(pieces, 3 * kPiece + 7));
    while (!rest.free_some(1)) EXPECT_TRUE(rest.empty());
    grow(list, 2 * kPiece, 1000);
    expect_first(list, left + 2 * kPiece);
  }
}

TEST(HashList, goes_back_a_piece_at_a_time) {
  HashList list;
  grow(list, 3 * kPiece, 1000);
  HashList moved = std::move(list);
  expect_first(moved, 3 * kPiece);
  EXPECT_FALSE(moved.free_some(2));
  EXPECT_TRUE(moved.free_some(1));
  grow(moved, 10, 10);
  expect_first(moved, 10);
}

}  // namespace
}  // namespace orbitkv::cache
