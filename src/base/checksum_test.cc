// Golden values of the fragment checksum and what it detects. Damage of the kinds
// that memory, DMA, disks and bugs do to pages; every trial is seeded.
#include "base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

namespace orbitkv::checksum {
namespace {

using Page = std::vector<std::uint64_t>;

std::uint64_t raw_of(const Page& page) {
  return raw(std::as_bytes(std::span(page)));
}

// ---- golden values ----

TEST(Checksum, GoldenRaw) {
  const std::vector<std::byte> zeros(4096);
  EXPECT_EQ(raw(std::span(zeros).first(8)), 0x41dec7be3ab3ffb9u);
  EXPECT_EQ(raw(zeros), 0x558bcb0f265472d4u);
  const std::string_view a = "a";
  EXPECT_EQ(raw(std::as_bytes(std::span(a))), 0x8381b423a95ff215u);
  std::vector<std::byte> rising(64);
  for (std::size_t i = 0; i < 64; ++i) rising[i] = static_cast<std::byte>(i);
  EXPECT_EQ(raw(rising), 0x2f35703b379f7d8au);
  EXPECT_EQ(raw({}), 0u);
}

TEST(Checksum, GoldenCheck) {
  const std::uint64_t id = fragment_id(0x0123456789abcdef, {3, 1, 0});
  const std::vector<std::byte> zeros(8);
  EXPECT_EQ(check(0, id, 0), 0x09f85946554d0d2au);
  EXPECT_EQ(check(raw(zeros), id, 8), 0x423b88d9b6849a74u);
  EXPECT_EQ(check(raw(std::span(zeros).first(7)), id, 7), 0xb0f2cf4ae66614e2u);
}

TEST(Checksum, LengthIsBoundThoughPaddingIsNot) {
  // Seven and eight zero bytes have one raw sum; the stored value tells them apart.
  const std::vector<std::byte> zeros(8);
  EXPECT_EQ(raw(zeros), raw(std::span(zeros).first(7)));
  EXPECT_NE(check(0, 1, 7), check(0, 1, 8));
}

TEST(Checksum, PiecesAddUpInAnyOrder) {
  Page page(512);
  std::iota(page.begin(), page.end(), 1);
  const auto bytes = std::as_bytes(std::span(page));
  const std::uint64_t whole = raw(bytes);
  EXPECT_EQ(raw(bytes.subspan(1024), 128) + raw(bytes.first(1024)), whole);
  std::uint64_t lanes = 0;
  for (std::size_t i = page.size(); i-- > 0;) lanes += raw(bytes.subspan(8 * i, 8), i);
  EXPECT_EQ(lanes, whole);
  EXPECT_EQ(raw(bytes.subspan(4000, 91), 500),
            raw(bytes.subspan(4000, 88), 500) + raw(bytes.subspan(4088, 3), 511));
}

TEST(Checksum, IdsDifferInEveryPartOfTheName) {
  const FragmentName names[] = {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, kHeaderName};
  std::vector<std::uint64_t> ids;
  for (const FragmentName& name : names)
    for (const std::uint64_t seed : {0ull, 1ull, 1ull << 63}) ids.push_back(fragment_id(seed, name));
  std::ranges::sort(ids);
  EXPECT_EQ(std::ranges::adjacent_find(ids), ids.end());
}

// ---- detection ----

enum class Data { kRandom, kZeros, kSmallFloats };

// 4 KiB of a kind. kSmallFloats: bf16 values of +1, -1 and 0, the poorest real pages.
Page page_of(Data kind, std::mt19937_64& random) {
  Page page(512);
  for (std::uint64_t& word : page) {
    if (kind == Data::kRandom) word = random();
    if (kind != Data::kSmallFloats) continue;
    for (int lane = 0; lane < 4; ++lane) {
      constexpr std::uint64_t kValues[] = {0x3F80, 0xBF80, 0x0000};
      word = word << 16 | kValues[random() % 3];
    }
  }
  return page;
}

class Detection : public testing::TestWithParam<Data> {
 protected:
  std::mt19937_64 random_{42};
  Page page_ = page_of(GetParam(), random_);
  std::uint64_t sum_ = raw_of(page_);

  // Counts damage that leaves the bytes different and the sum equal.
  template <class Damage>
  int missed(int trials, Damage damage) {
    int out = 0, different = 0;
    for (int i = 0; i < trials; ++i) {
      Page hurt = page_;
      damage(hurt);
      if (hurt == page_) continue;
      ++different;
      out += raw_of(hurt) == sum_;
    }
    EXPECT_GT(different, trials / 2) << "the damage does damage";
    return out;
  }
  std::size_t pick(std::size_t n) { return random_() % n; }
};

// A page of zeros has nothing to swap, move or zero.
class Moves : public Detection {};

TEST_P(Detection, EverySingleFlip) {
  for (std::size_t bit = 0; bit < 64 * page_.size(); ++bit) {
    page_[bit / 64] ^= std::uint64_t{1} << (bit % 64);
    ASSERT_NE(raw_of(page_), sum_) << bit;
    page_[bit / 64] ^= std::uint64_t{1} << (bit % 64);
  }
}

// The sum is a bijection of each word, so this holds for all of them, not most.
TEST_P(Detection, AnyChangeOfOneWord) {
  EXPECT_EQ(missed(20'000, [this](Page& p) { p[pick(512)] = random_(); }), 0);
}

TEST_P(Detection, DoubleFlips) {
  EXPECT_EQ(missed(20'000,
                   [this](Page& p) {
                     for (int i = 0; i < 2; ++i) p[pick(512)] ^= std::uint64_t{1} << pick(64);
                   }),
            0);
}

// Flips of one same bit in two words; a multilinear sum misses the top bit always.
TEST_P(Detection, EqualHighBitsInTwoWords) {
  for (int bit = 48; bit < 64; ++bit)
    for (std::size_t other = 1; other < 512; other += 3) {
      const std::uint64_t mask = std::uint64_t{1} << bit;
      page_[0] ^= mask, page_[other] ^= mask;
      ASSERT_NE(raw_of(page_), sum_) << "bit " << bit << " of words 0 and " << other;
      page_[0] ^= mask, page_[other] ^= mask;
    }
}

TEST_P(Detection, TwoSignFlipsOfBf16) {
  EXPECT_EQ(missed(20'000,
                   [this](Page& p) {
                     for (int i = 0; i < 2; ++i) p[pick(512)] ^= std::uint64_t{0x8000} << (16 * pick(4));
                   }),
            0);
}

TEST_P(Moves, SwappedWordsVectorsAndRows) {
  for (const std::size_t words : {1u, 2u, 8u, 32u, 128u}) {  // 8 bytes to 1 KiB
    const std::size_t places = 512 / words;
    const auto swap = [&](Page& p) {
      const auto a = p.begin() + static_cast<std::ptrdiff_t>(pick(places) * words);
      const auto b = p.begin() + static_cast<std::ptrdiff_t>(pick(places) * words);
      if (a != b) std::swap_ranges(a, a + static_cast<std::ptrdiff_t>(words), b);
    };
    EXPECT_EQ(missed(5000, swap), 0) << words;
  }
}

TEST_P(Moves, RotatedAndReversed) {
  EXPECT_EQ(missed(511,
                   [this](Page& p) {
                     std::rotate(p.begin(), p.begin() + 1 + static_cast<std::ptrdiff_t>(pick(511)), p.end());
                   }),
            0);
  EXPECT_EQ(missed(3, [](Page& p) { std::ranges::reverse(p); }), 0);
}

TEST_P(Moves, ZeroedRanges) {
  EXPECT_EQ(missed(5000,
                   [this](Page& p) {
                     const std::size_t first = pick(512), n = 1 + pick(512 - first);
                     std::fill_n(p.begin() + static_cast<std::ptrdiff_t>(first), n, 0);
                   }),
            0);
}

// What another page left there: a DMA that did not arrive.
TEST_P(Detection, StaleRanges) {
  const Page older = page_of(Data::kSmallFloats, random_);
  EXPECT_EQ(missed(5000,
                   [&](Page& p) {
                     const std::size_t first = pick(512), n = 1 + pick(512 - first);
                     std::copy_n(older.begin() + static_cast<std::ptrdiff_t>(first), n,
                                 p.begin() + static_cast<std::ptrdiff_t>(first));
                   }),
            0);
}

// The same bytes under another name: fragments of a block, blocks of a sequence and
// images of an older revision that changed places.
TEST_P(Detection, SwappedFragmentsAndBlocks) {
  std::vector<std::uint64_t> checks;
  for (std::uint64_t seed = 1; seed <= 8; ++seed)  // key, shard and revision
    for (std::uint32_t layer = 0; layer < 36; ++layer)
      for (std::uint16_t component = 0; component < 2; ++component)
        checks.push_back(check(sum_, fragment_id(seed, {layer, component, 0}), 4096));
  std::ranges::sort(checks);
  EXPECT_EQ(std::ranges::adjacent_find(checks), checks.end());
}

TEST_P(Detection, TheStoredValueIsABijectionOfTheSum) {
  std::vector<std::uint64_t> checks;
  for (std::uint64_t i = 0; i < 4096; ++i) checks.push_back(check(sum_ + i, 99, 4096));
  std::ranges::sort(checks);
  EXPECT_EQ(std::ranges::adjacent_find(checks), checks.end());
}

INSTANTIATE_TEST_SUITE_P(Pages, Detection, testing::Values(Data::kRandom, Data::kZeros, Data::kSmallFloats));
INSTANTIATE_TEST_SUITE_P(Pages, Moves, testing::Values(Data::kRandom, Data::kSmallFloats));

}  // namespace
}  // namespace orbitkv::checksum
