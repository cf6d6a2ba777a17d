// The pages and lists of the format: exact bytes, and everything that must be refused.
#include <gtest/gtest.h>

#include <string>

#include "ssd/format_suite.h"

namespace orbitkv::ssd::suite {
namespace {

struct Golden {
  std::string_view name;
  std::string_view hex;  // of the sample, without the zeros at its end
};

constexpr Golden kGolden[] = {
    {"superblock",
     "4f4b5653544f524501000000c2523915a0a1a2a3a4a5a6a7a8a9aaabacadaeaf0300000000000000090000000000"
     "000001000000000000000000000001000000010000000010000000000400000000000000100000000000a0000000"
     "0200000000f153650000000000000000000000000000000000000000000000000000000030313233343536373839"
     "3a3b3c3d3e3f404142434445464748494a4b4c4d4e4f0400000000030000505152535455565758595a5b5c5d5e5f"
     "606162636465666768696a6b6c6d6e6f050000000003"},
    {"segment_header",
     "4f4b565345474d54010000008652f3d5a0a1a2a3a4a5a6a7a8a9aaabacadaeaf0300000000000000070000000003"
     "000005000000000000000000000001000000400000000000000001f15365"},
    {"batch",
     "4f4b56424154434801000000af232bd2a0a1a2a3a4a5a6a7a8a9aaabacadaeaf0300000000000000070000000003"
     "00000500000001000000000000000100000004000000a0010000a509f857000000000d000000000000000b000000"
     "00030000020000008800000000000200020014000300000000000000002100000000000010111213141516171819"
     "1a1b1c1d1e1f202122232425262728292a2b2c2d2e2f000000000000000000100000000000000000000001000000"
     "0010000000000000030000000000000008000000000000006d6f64656c3d74696e793b64747970653d6633320000"
     "000001000000600000000b0000000003000002000000030000000000020000000000404142434445464748494a4b"
     "4c4d4e4f505152535455565758595a5b5c5d5e5f1111000000000000640000000000000022220000000000006500"
     "00000000000003000000580000000c000000000300000200000000000000101112131415161718191a1b1c1d1e1f"
     "202122232425262728292a2b2c2d2e2f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d"
     "7e7f01000000600000000d0000000003000008000000030000000000020000000000808182838485868788898a8b"
     "8c8d8e8f909192939495969798999a9b9c9d9e9f11110000000000006400000000000000222200000000000065"},
    {"footer",
     "4f4b56464f4f545201000000e2a0be25a0a1a2a3a4a5a6a7a8a9aaabacadaeaf0300000000000000070000000003"
     "0000050000003e000000000000000100000004000000a0010000a509f8570100000001000000000000000b000000"
     "00030000020000008800000000000200020014000300000000000000002100000000000010111213141516171819"
     "1a1b1c1d1e1f202122232425262728292a2b2c2d2e2f000000000000000000100000000000000000000001000000"
     "0010000000000000030000000000000008000000000000006d6f64656c3d74696e793b64747970653d6633320000"
     "000001000000600000000b0000000003000002000000030000000000020000000000404142434445464748494a4b"
     "4c4d4e4f505152535455565758595a5b5c5d5e5f1111000000000000640000000000000022220000000000006500"
     "00000000000003000000580000000c000000000300000200000000000000101112131415161718191a1b1c1d1e1f"
     "202122232425262728292a2b2c2d2e2f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d"
     "7e7f01000000600000000d0000000003000008000000030000000000020000000000808182838485868788898a8b"
     "8c8d8e8f909192939495969798999a9b9c9d9e9f11110000000000006400000000000000222200000000000065"},
    {"trailer",
     "4f4b56545241494c01000000bc15673fa0a1a2a3a4a5a6a7a8a9aaabacadaeaf0300000000000000070000000003"
     "0000050000003f00000000000000010000003e00000001000000a509f85701"},
};

std::string hex(std::span<const std::byte> bytes) {
  while (!bytes.empty() && bytes.back() == std::byte{0}) bytes = bytes.first(bytes.size() - 1);
  std::string out;
  for (const std::byte b : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[static_cast<unsigned>(b) >> 4];
    out += kDigits[static_cast<unsigned>(b) & 15];
  }
  return out;
}

const FormatCase& case_of(const std::vector<FormatCase>& cases, std::string_view name) {
  return *std::ranges::find(cases, name, &FormatCase::name);
}

// The first page of the case: of a superblock both copies would hide that one is damaged.
Buffer alone(const FormatCase& c) {
  Buffer out = c.sample;
  if (c.name == "superblock") std::fill(out.begin() + kPageBytes, out.end(), std::byte{0});
  return out;
}

TEST(FormatTest, golden_bytes) {
  const auto cases = all_cases();
  ASSERT_EQ(std::size(kGolden), cases.size());
  for (const Golden& golden : kGolden) {
    const FormatCase& c = case_of(cases, golden.name);
    const std::span<const std::byte> first = std::span(c.sample).first(kPageBytes);
    EXPECT_EQ(hex(first), golden.hex) << golden.name;
    EXPECT_EQ(c.probe(c.sample), Verdict::kAccepted) << golden.name;
  }
}

TEST(FormatTest, every_truncation_fails_closed) {
  for (const FormatCase& c : all_cases()) {
    const Buffer sample = alone(c);
    for (std::size_t n = 0; n < kPageBytes; ++n) {
      EXPECT_EQ(c.probe(std::span(sample).first(n)), Verdict::kRefused) << c.name << " of " << n;
      // As a torn write leaves it: the rest is what was there before, zeros or ones.
      for (const std::byte old : {std::byte{0}, std::byte{0xFF}}) {
        Buffer torn = sample;
        std::fill(torn.begin() + static_cast<std::ptrdiff_t>(n), torn.begin() + kPageBytes, old);
        if (torn == sample) continue;  // nothing but zeros was lost
        EXPECT_EQ(c.probe(torn), Verdict::kRefused) << c.name << " torn at " << n;
      }
    }
  }
}

TEST(FormatTest, every_flipped_bit_fails_closed) {
  for (const FormatCase& c : all_cases()) {
    Buffer bytes = alone(c);
    for (std::size_t bit = 0; bit < 8 * kPageBytes; ++bit) {
      const auto mask = static_cast<std::byte>(1u << bit % 8);
      bytes[bit / 8] ^= mask;
      EXPECT_EQ(c.probe(bytes), Verdict::kRefused) << c.name << " bit " << bit;
      bytes[bit / 8] ^= mask;
    }
    EXPECT_EQ(c.probe(bytes), Verdict::kAccepted) << c.name;
  }
}

// With the checksums made right, fields decide: nothing over a limit is ever accepted.
TEST(FormatTest, every_flipped_bit_with_right_checksums_is_refused_or_within_limits) {
  for (const FormatCase& c : all_cases()) {
    std::size_t refused = 0;
    for (std::size_t bit = 0; bit < 8 * 1024; ++bit) {
      Buffer bytes = alone(c);
      bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
      repair_crc(bytes, is_list(c.name));
      const Verdict verdict = c.probe(bytes);
      EXPECT_NE(verdict, Verdict::kBroken) << c.name << " bit " << bit;
      refused += verdict == Verdict::kRefused ? 1 : 0;
    }
    EXPECT_GT(refused, 8u * 64u) << c.name;
  }
}

TEST(FormatTest, version_refused_by_name) {
  Buffer pages = both_superblocks(sample_superblock());
  pages[8] = std::byte{7};
  repair_crc(pages, false);
  const auto found = decode_superblock(pages);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code(), Code::kReject);
  EXPECT_NE(found.error().message().find("version 7"), std::string::npos) << found.error().message();
  EXPECT_NE(found.error().message().find("version 1"), std::string::npos) << found.error().message();
  for (const FormatCase& c : all_cases()) {
    Buffer bytes = alone(c);
    bytes[8] = std::byte{7};
    repair_crc(bytes, is_list(c.name));
    EXPECT_EQ(c.probe(bytes), Verdict::kRefused) << c.name;
  }
}

// A page of an earlier use of the segment, of another store, of another segment.
TEST(FormatTest, stale_life_refused) {
  const std::size_t fields[] = {16, 32, 40, 48};  // uuid, epoch, sequence, segment
  for (const FormatCase& c : all_cases()) {
    if (c.name == "superblock") continue;
    for (const std::size_t at : fields) {
      Buffer bytes = c.sample;
      for (std::size_t page = 0; page < bytes.size(); page += kPageBytes)
        bytes[page + at] = static_cast<std::byte>(std::to_integer<int>(bytes[page + at]) + 1);
      repair_crc(bytes, is_list(c.name));
      // A header says the life of its segment: a later sequence of the same epoch is one.
      const bool is_the_life = c.name == "segment_header" && at == 40;
      EXPECT_EQ(c.probe(bytes), is_the_life ? Verdict::kAccepted : Verdict::kRefused) << c.name << " " << at;
    }
  }
}

TEST(FormatTest, header_of_a_later_epoch_refused) {
  const Buffer page = sample_segment_header();
  SegmentPlace place = kPlace;
  EXPECT_TRUE(decode_segment_header(page, place).ok());
  place.newest = StoreEpoch(kEpoch.value - 1);
  EXPECT_FALSE(decode_segment_header(page, place).ok());
  place = kPlace;
  place.pages = kPages + 1;
  EXPECT_FALSE(decode_segment_header(page, place).ok());
}

TEST(FormatTest, page_at_wrong_offset_refused) {
  const Buffer descriptor = sample_descriptor();
  EXPECT_TRUE(may_be_batch(descriptor, 1, kSegment));
  EXPECT_FALSE(may_be_batch(descriptor, 2, kSegment));
  EXPECT_FALSE(peek_batch(descriptor, 2, kSegment).ok());
  const Buffer seal = sample_seal();
  const auto trailer_page = std::span(seal).last(kPageBytes);
  const auto footer_pages = std::span(seal).first(seal.size() - kPageBytes);
  EXPECT_FALSE(decode_trailer(trailer_page, {kLife, kPages + 1}).ok());
  Trailer trailer = *decode_trailer(trailer_page, kSegment);
  EntryList list;
  EXPECT_TRUE(decode_footer(footer_pages, trailer, kSegment, list).ok());
  --trailer.footer.first;
  EXPECT_FALSE(decode_footer(footer_pages, trailer, kSegment, list).ok());
  Buffer pages = both_superblocks(sample_superblock());
  std::swap_ranges(pages.begin(), pages.begin() + kPageBytes, pages.begin() + kPageBytes);
  EXPECT_FALSE(decode_superblock(pages).ok());
}

TEST(FormatTest, footer_is_that_of_its_trailer) {
  const Buffer seal = sample_seal();
  const auto footer = std::span(seal).first(seal.size() - kPageBytes);
  const Trailer right = *decode_trailer(std::span(seal).last(kPageBytes), kSegment);
  EntryList list;
  for (int field = 0; field < 2; ++field) {
    Trailer wrong = right;
    (field == 0 ? wrong.entries_crc : wrong.batches) += 1;
    EXPECT_FALSE(decode_footer(footer, wrong, kSegment, list).ok()) << field;
    EXPECT_TRUE(list.records.empty());
  }
}

// ---- superblock ----

TEST(SuperblockTest, newest_right_copy_counts) {
  Superblock old = sample_superblock(), fresh = old;
  fresh.update = 10;
  fresh.drops.clear();
  Buffer pages = both_superblocks(old);
  encode_superblock(fresh, 1, std::span(pages).last(kPageBytes));
  auto found = decode_superblock(pages);
  ASSERT_TRUE(found.ok() && *found);
  EXPECT_EQ((*found)->superblock, fresh);
  EXPECT_EQ((*found)->write_first, 0u);
  EXPECT_FALSE((*found)->damaged_copy);
  pages[kPageBytes + 100] ^= std::byte{1};
  found = decode_superblock(pages);
  ASSERT_TRUE(found.ok() && *found);
  EXPECT_EQ((*found)->superblock, old);
  EXPECT_EQ((*found)->write_first, 1u);
  EXPECT_TRUE((*found)->damaged_copy);
  // An epoch counts before the updates within it.
  fresh.epoch = StoreEpoch(kEpoch.value + 1);
  fresh.update = 1;
  encode_superblock(fresh, 1, std::span(pages).last(kPageBytes));
  EXPECT_EQ((*decode_superblock(pages))->superblock.epoch, fresh.epoch);
}

TEST(SuperblockTest, empty_foreign_and_damaged_are_told_apart) {
  Buffer pages(kSuperblockCopies * kPageBytes);
  auto found = decode_superblock(pages);
  EXPECT_TRUE(found.ok() && !*found);
  // Cut while the first copy was written: nothing can be in it.
  encode_superblock(sample_superblock(), 0, std::span(pages).first(kPageBytes));
  pages[600] ^= std::byte{1};
  found = decode_superblock(pages);
  EXPECT_TRUE(found.ok() && !*found);
  // The first copy alone is a store.
  pages[600] ^= std::byte{1};
  found = decode_superblock(pages);
  ASSERT_TRUE(found.ok() && *found);
  EXPECT_EQ((*found)->write_first, 1u);
  pages = both_superblocks(sample_superblock());
  pages[600] ^= std::byte{1};
  pages[kPageBytes + 600] ^= std::byte{1};
  found = decode_superblock(pages);
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.error().message().find("damaged"), std::string::npos);
  std::fill(pages.begin(), pages.end(), std::byte{'x'});
  found = decode_superblock(pages);
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.error().message().find("no OrbitKV store"), std::string::npos);
  EXPECT_EQ(found.error().code(), Code::kReject);
}

TEST(SuperblockTest, copies_of_two_stores_refused) {
  Superblock other = sample_superblock();
  other.uuid[0] ^= std::byte{1};
  Buffer pages = both_superblocks(sample_superblock());
  encode_superblock(other, 1, std::span(pages).last(kPageBytes));
  EXPECT_FALSE(decode_superblock(pages).ok());
}

TEST(SuperblockTest, limits_fit) {
  Superblock s = sample_superblock();
  s.segments = limits::kPathSegments;
  s.segment = limits::kSegmentBytesMost;
  s.epoch = StoreEpoch(kMaxEpoch);
  s.path = PathNumber(limits::kPathNumbers - 1);
  s.paths = limits::kStorePaths;
  s.numbers = limits::kPathNumbers;
  s.drops.assign(limits::kSpaceDrops, {digest(1), RecordSequence(~std::uint64_t{0} >> 1)});
  const auto found = decode_superblock(both_superblocks(s));
  ASSERT_TRUE(found.ok() && *found);
  EXPECT_EQ((*found)->superblock, s);
}

}  // namespace
}  // namespace orbitkv::ssd::suite
