#include "model/slot_image.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/checksum.h"

namespace orbitkv::model {
namespace {

constexpr std::uint64_t kSeed = 0x0123456789abcdef;

SlotKey sample_key() {
  SlotKey key;
  for (std::size_t i = 0; i < 32; ++i) {
    key.name_space.bytes[i] = static_cast<std::byte>(i);
    key.hash.bytes[i] = static_cast<std::byte>(0x80 + i);
  }
  key.group = GroupId(2);
  key.shard = ShardId(1);
  key.revision = AllocationId(100);
  return key;
}

struct Written {
  std::vector<std::byte> bytes;
  ExpectedSlot expected;
};

Written written(std::vector<std::uint64_t> checks = {0x1111, 0x2222, 0x3333}) {
  Written out;
  out.bytes.resize(slot_header_bytes(checks.size()), std::byte{0xEE});
  const auto fragments = static_cast<std::uint32_t>(checks.size());
  const SlotHeader header{AllocationId(100), 8448, std::move(checks)};
  out.expected = {write_slot_header(header, kSeed, out.bytes), kSeed, AllocationId(100), 8448, fragments};
  return out;
}

std::string refusal(const Written& w) {
  const auto header = read_slot_header(w.bytes, w.expected);
  if (header.ok()) return "accepted";
  EXPECT_EQ(header.error().code(), Code::kRecompute);
  return header.error().message();
}

TEST(SlotImage, SeedIsPinnedAndBindsTheWholeKey) {
  EXPECT_EQ(slot_seed(sample_key()), 0xb329f874c8254185u);
  const std::function<void(SlotKey&)> changes[] = {
      [](auto&) {},
      [](auto& k) { k.name_space.bytes[31] ^= std::byte{1}; },
      [](auto& k) { k.group = GroupId(3); },
      [](auto& k) { k.hash.bytes[0] ^= std::byte{1}; },
      [](auto& k) { k.shard = ShardId(0); },
      [](auto& k) { k.revision = AllocationId(101); },
      [](auto& k) { k.group = GroupId(1), k.shard = ShardId(2); }};
  std::vector<std::uint64_t> seeds;
  for (const auto& change : changes) {
    SlotKey key = sample_key();
    change(key);
    for (const std::uint64_t earlier : seeds) EXPECT_NE(slot_seed(key), earlier) << seeds.size();
    seeds.push_back(slot_seed(key));
  }
}

TEST(SlotImage, HeaderBytesAreExact) {
  const Written w = written();
  const std::uint64_t words[] = {
      0x0000000149564B4F, 0x0000008000000003, 100, 8448, 0x1111, 0x2222, 0x3333, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  ASSERT_EQ(w.bytes.size(), sizeof words);
  EXPECT_TRUE(std::ranges::equal(w.bytes, std::as_bytes(std::span(words))));
  EXPECT_EQ(w.expected.digest, 0xeefb65157c8590b9u);
  EXPECT_EQ(w.expected.digest, checksum::check(checksum::raw(w.bytes),
                                               checksum::fragment_id(kSeed, checksum::kHeaderName), 128));
}

TEST(SlotImage, RoundTripAtEveryFill) {
  for (std::uint64_t n = 1; n <= 20; ++n) {
    std::vector<std::uint64_t> checks;
    for (std::uint64_t i = 0; i < n; ++i) checks.push_back(i * 0x0101010101010101);
    const Written w = written(checks);
    const auto header = read_slot_header(w.bytes, w.expected);
    ASSERT_TRUE(header.ok()) << header.error().message();
    EXPECT_EQ(header->checks, checks);
    EXPECT_EQ(header->allocation, AllocationId(100));
    EXPECT_EQ(header->slot_bytes, 8448u);
  }
}

TEST(SlotImage, EveryFlippedBitIsSeenByTheDigest) {
  Written w = written();
  for (std::size_t bit = 0; bit < 8 * w.bytes.size(); ++bit) {
    w.bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    ASSERT_NE(refusal(w).find("the digest"), std::string::npos) << bit;
    w.bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }
}

TEST(SlotImage, AnotherKeyOrRevisionIsRefused) {
  Written w = written();
  w.expected.seed ^= 1;
  EXPECT_NE(refusal(w).find("the digest"), std::string::npos);
}

// A header that is whole but not what the grant says: only a bug can make one, and
// each field is compared all the same.
TEST(SlotImage, EveryFieldIsCompared) {
  const struct {
    std::size_t at;
    std::string_view field;
  } kFields[] = {{0, "the magic"},          {4, "the version"},        {6, "the encoding"},
                 {8, "the fragment count"}, {12, "the header length"}, {16, "the allocation"},
                 {24, "the image size"},    {56, "the padding"}};
  for (const auto& [at, field] : kFields) {
    Written w = written();
    w.bytes[at] ^= std::byte{2};
    w.expected.digest = slot_header_digest(w.bytes, kSeed);
    EXPECT_NE(refusal(w).find(field), std::string::npos) << refusal(w);
  }
  Written w = written();
  w.expected.fragments = 13;
  EXPECT_NE(refusal(w).find("the header size"), std::string::npos);
}

TEST(SlotImage, AHeaderGrowsCheckByCheckInAnyOrder) {
  for (const std::uint32_t n : {1u, 3u, 12u, 13u, 72u}) {
    std::vector<std::uint64_t> checks;
    for (std::uint64_t i = 0; i < n; ++i) checks.push_back(~i * 0x0101010101010101);
    const Written whole = written(checks);
    std::vector<std::byte> out(whole.bytes.size(), std::byte{0xEE});
    SlotHeaderWriter writer(whole.expected, out.data());
    for (std::uint32_t i = 0; i < n; ++i) writer.put((i * 5 + 2) % n, checks[(i * 5 + 2) % n]);
    EXPECT_EQ(out, whole.bytes) << n;
    EXPECT_EQ(writer.digest(kSeed), whole.expected.digest) << n;
    out[40] = std::byte{1};  // what others do to the image changes no digest
    EXPECT_EQ(writer.digest(kSeed), whole.expected.digest) << n;
  }
}

TEST(SlotImage, AWrongAreaIsABug) {
  std::vector<std::byte> small(32);
  EXPECT_DEATH(write_slot_header({AllocationId(1), 64, {1}}, kSeed, small), "wrong size");
}

}  // namespace
}  // namespace orbitkv::model
