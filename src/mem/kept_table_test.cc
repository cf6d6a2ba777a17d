#include "mem/kept_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <random>
#include <utility>

#include "base/checksum.h"
#include "mem/kept_layout.h"
#include "mem/kept_table_test.h"

namespace orbitkv::mem {
namespace {

using Found = KeptTable::Found;

constexpr KeptTable::Shape kShape{77, 64, 100, 50, 20};

KeptTable fresh(const KeptTable::Shape& shape = kShape) {
  auto table = KeptTable::create(shape);
  EXPECT_TRUE(table.ok());
  return std::move(table).value();
}

KeptImage image_of(std::uint64_t n) {
  KeptImage image;
  for (std::size_t i = 0; i < image.hash.size(); ++i)
    image.hash[i] = static_cast<std::byte>(n >> (i % 8 * 8));
  image.name_space = NamespaceIndex(3);
  image.group = GroupId(2);
  image.shard = ShardId(1);
  image.shards = 4;
  image.place = {SlabId(9), n % 1000 * 64, ByteCount(n % 1000 * 64 + 64)};
  image.digest = n * 3;
  image.revision = AllocationId(n * 5);
  return image;
}

bool same(const KeptImage& a, const KeptImage& b) {
  return a.hash == b.hash && a.name_space == b.name_space && a.group == b.group && a.shard == b.shard &&
         a.shards == b.shards && a.place.slab == b.place.slab && a.place.offset == b.place.offset &&
         a.place.bytes == b.place.bytes && a.digest == b.digest && a.revision == b.revision;
}

KeptLent lent_of(std::uint64_t n) {
  return {{SlabId(8), n % 1000 * 64, ByteCount(n % 1000 * 64 + 64)},
          {Epoch(n * 7), RecordIndex(n % 1024), OperationId(n)}};
}

bool same(const KeptLent& a, const KeptLent& b) {
  return a.place.slab == b.place.slab && a.place.offset == b.place.offset && a.place.bytes == b.place.bytes &&
         a.writer.session == b.writer.session && a.writer.record == b.writer.record &&
         a.writer.operation == b.writer.operation;
}

struct Read {
  Found found = Found::kFree;
  KeptLent lent;
  KeptImage image;
};
Read read(const KeptTable& table, KeptAt at) {
  Read out;
  out.found = table.read(at, out.lent, out.image);
  return out;
}

TEST(KeptTable, WhatIsWrittenIsFoundByTheNextLife) {
  KeptTable table = fresh();
  const KeptAt a{KeptRegion::kFirst, 99}, b{KeptRegion::kFurther, 49}, c{KeptRegion::kPending, 0};
  table.seal(a, image_of(12));
  table.lend(b, lent_of(13));
  table.lend(c, lent_of(14));
  table.name_given(SlabId(31));
  table.allocation_given(AllocationId(1000));
  table.set_wanted(5);
  table.put_slab(SlabSlot(4095), {SlabId(30), kGiB, kMiB, NodeId(1), KeptSlabState::kLive});
  std::array<std::byte, 32> digest{};
  digest[31] = std::byte{9};
  table.put_name_space(NamespaceIndex(1023), digest);
  table.set_complete();
  const auto opened = KeptTable::open(copy_of(table));
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  EXPECT_EQ(opened->shape().pool, 77u);
  EXPECT_EQ(opened->next_name(), 31u);
  EXPECT_GE(opened->allocations().value, 1000u);
  EXPECT_EQ(opened->wanted(), 5u);
  const KeptSlab slab = opened->slab(SlabSlot(4095));
  EXPECT_EQ(slab.name, SlabId(30));
  EXPECT_EQ(slab.bytes, kGiB);
  EXPECT_EQ(slab.huge, kMiB);
  EXPECT_EQ(slab.node, NodeId(1));
  EXPECT_EQ(slab.state, KeptSlabState::kLive);
  EXPECT_EQ(opened->slab(SlabSlot(0)).state, KeptSlabState::kAbsent);
  ASSERT_TRUE(opened->name_space(NamespaceIndex(1023)));
  EXPECT_EQ(opened->name_space(NamespaceIndex(1023))->digest, digest);
  EXPECT_EQ(opened->name_space(NamespaceIndex(1023))->text, "");
  EXPECT_FALSE(opened->name_space(NamespaceIndex(0)));
  EXPECT_EQ(read(*opened, a).found, Found::kSealed);
  EXPECT_TRUE(same(read(*opened, a).image, image_of(12)));
  EXPECT_EQ(read(*opened, b).found, Found::kLent);
  EXPECT_TRUE(same(read(*opened, b).lent, lent_of(13)));
  EXPECT_TRUE(same(read(*opened, c).lent, lent_of(14)));
  EXPECT_EQ(read(*opened, {KeptRegion::kFirst, 0}).found, Found::kFree);
  EXPECT_GT(opened->high_water(KeptRegion::kFirst), 99u);
  EXPECT_LE(opened->high_water(KeptRegion::kFirst), kShape.first);
}

TEST(KeptTable, AllocationIdsAreReservedAheadAndInStrides) {
  KeptTable table = fresh();
  table.set_complete();
  table.allocation_given(AllocationId(1));
  const auto first = KeptTable::open(copy_of(table)).value().allocations();
  table.allocation_given(AllocationId(first.value));
  EXPECT_EQ(KeptTable::open(copy_of(table)).value().allocations(), first);
  table.allocation_given(AllocationId(first.value + 1));
  EXPECT_GT(KeptTable::open(copy_of(table)).value().allocations(), first);
}

TEST(KeptTable, ARecordMovesFromLentToSealedToFree) {
  KeptTable table = fresh();
  const KeptAt at{KeptRegion::kFirst, 0};
  table.lend(at, lent_of(1));
  EXPECT_EQ(read(table, at).found, Found::kLent);
  table.seal(at, image_of(1));
  EXPECT_EQ(read(table, at).found, Found::kSealed);
  table.free(at);
  EXPECT_EQ(read(table, at).found, Found::kFree);
}

// Of a sealed image all but its seal, which is of this table alone, and its use behind the records.
TEST(KeptTable, ASealedImageHasTheseWords) {
  KeptTable table = fresh({1, 64, 2, 0, 0});
  Raw raw(table);
  const std::size_t record = raw.size() - 512 + KeptTable::kRecordWords, uses = raw.size() - 512 + 24;
  KeptImage image;
  for (std::size_t i = 0; i < image.hash.size(); ++i) image.hash[i] = static_cast<std::byte>(i);
  image.name_space = NamespaceIndex(0x102);
  image.group = GroupId(0x304);
  image.shard = ShardId(5);
  image.shards = 6;
  image.place = {SlabId(0x0708090A), 0x100 * 64, ByteCount(0x20 * 64)};
  image.digest = 0x1122334455667788;
  image.revision = AllocationId(0x99);
  table.seal({KeptRegion::kFirst, 1}, image);
  const std::array<std::uint64_t, KeptTable::kRecordWords - 1> words{
      0x0706050403020100,       0x0F0E0D0C0B0A0908, 0x1716151413121110,
      0x1F1E1D1C1B1A1918,       0x0005030400000102, 0x00000006'0708090A,
      0x100ull << 32 | 0x20ull, 0x1122334455667788, 0x99};
  for (std::size_t i = 0; i < words.size(); ++i) EXPECT_EQ(raw[record + 1 + i], words[i]) << i + 1;
  EXPECT_EQ(raw[uses], 0u);
  table.note_use(1, {KeptClass::kRetained, 0xBCDE});
  EXPECT_EQ(raw[uses], 0xBCDE0003'00000000u);
  table.note_use(0, {KeptClass::kReclaimable, 1});
  EXPECT_EQ(raw[uses], 0xBCDE0003'00010001u);
}

TEST(KeptTable, TheUseOfAnImageChangesWithoutItsRecord) {
  KeptTable table = fresh({1, 64, 1, 0, 0});
  Raw raw(table);
  const std::size_t record = raw.size() - 512;
  table.seal({}, image_of(7));
  EXPECT_EQ(read(table, {}).image.use.eviction, KeptClass::kUnknown) << "until it is noted";
  const std::uint64_t seal = raw[record];
  for (const auto eviction :
       {KeptClass::kReclaimable, KeptClass::kProbationary, KeptClass::kRetained, KeptClass::kDemoted}) {
    for (const int minute : {0, 1, 0x7FFF, 0xFFFF}) {
      table.note_use(0, {eviction, static_cast<std::uint16_t>(minute)});
      const Read got = read(table, {});
      ASSERT_EQ(got.found, Found::kSealed);
      EXPECT_TRUE(same(got.image, image_of(7)));
      EXPECT_EQ(got.image.use.eviction, eviction);
      EXPECT_EQ(got.image.use.minute, minute);
    }
  }
  EXPECT_EQ(raw[record], seal);
  table.seal({}, image_of(8));
  EXPECT_EQ(read(table, {}).image.use.eviction, KeptClass::kUnknown) << "of another image";
}

// Whatever stands there: the image is what it was.
TEST(KeptTable, AClassThatThereIsNotIsUnknown) {
  KeptTable table = fresh({1, 64, 1, 0, 0});
  Raw raw(table);
  const std::size_t uses = raw.size() - 512 + 16;
  table.seal({}, image_of(7));
  table.note_use(0, {KeptClass::kRetained, 5});
  ASSERT_EQ(raw[uses], 0x50003u);
  for (std::uint64_t eviction = 0; eviction < 0x10000; ++eviction) {
    raw[uses] = 0x50000 | eviction;
    const Read got = read(table, {});
    ASSERT_EQ(got.found, Found::kSealed);
    ASSERT_TRUE(same(got.image, image_of(7)));
    ASSERT_EQ(got.image.use.eviction, eviction < 5 ? static_cast<KeptClass>(eviction) : KeptClass::kUnknown);
  }
}

// One of format 2 ends where the uses would begin.
TEST(KeptTable, ATableOfTheFormatBeforeIsReadWithoutUses) {
  KeptTable table = fresh({1, 64, 2000, 0, 0});
  table.seal({}, image_of(7));
  table.note_use(0, {KeptClass::kRetained, 5});
  table.set_complete();
  Raw raw(table);
  const std::uint64_t shorter = (kept::kRecordsAt + 2000 * kept::kRecordBytes + 4095) / 4096 * 4096;
  ASSERT_LT(shorter, raw.size() * 8);
  const auto as_format = [&](std::uint64_t format, std::uint64_t bytes) {
    UniqueFd fd(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    raw[1] = format;
    raw[4] = bytes;
    raw[7] = checksum::check(checksum::raw({reinterpret_cast<const std::byte*>(&raw[0]), 56}), raw[2], 56);
    EXPECT_EQ(::write(fd.get(), &raw[0], bytes), static_cast<ssize_t>(bytes));
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL), 0);
    return KeptTable::open(std::move(fd));
  };
  for (const std::uint64_t format : {2, 3}) {
    const auto opened = as_format(format, format == 2 ? shorter : raw.size() * 8);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    const Read got = read(*opened, {});
    EXPECT_EQ(got.found, Found::kSealed);
    EXPECT_TRUE(same(got.image, image_of(7)));
    EXPECT_EQ(got.image.use.eviction, format == 2 ? KeptClass::kUnknown : KeptClass::kRetained);
  }
  EXPECT_FALSE(as_format(2, raw.size() * 8).ok());
  EXPECT_FALSE(as_format(3, shorter).ok()) << "its uses would lie behind its end";
  for (const std::uint64_t format : {0, 1, 4}) {
    const auto opened = as_format(format, raw.size() * 8);
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.error().message().find("this Manager reads formats 2 to 3"), std::string::npos);
  }
}

// Damage to one word of a record, any word and any bit of it, never makes another record of
// it; a lent one that does not verify is told from a sealed one.
TEST(KeptTable, NoFlippedBitOfARecordVerifies) {
  KeptTable table = fresh({1, 64, 1, 0, 0});
  const KeptAt at{KeptRegion::kFirst, 0};
  Raw raw(table);
  for (const bool sealed : {true, false}) {
    sealed ? table.seal(at, image_of(7)) : table.lend(at, lent_of(7));
    const std::size_t record = raw.size() - 512;
    for (std::size_t w = 0; w < KeptTable::kRecordWords; ++w) {
      for (int bit = 0; bit < 64; ++bit) {
        raw[record + w] ^= std::uint64_t{1} << bit;
        const Found found = read(table, at).found;
        if (sealed) {
          EXPECT_TRUE(found == Found::kWrongSealed || (w == 0 && found == Found::kWrong)) << w << ' ' << bit;
        } else {
          EXPECT_EQ(found, Found::kWrong) << w << ' ' << bit;
        }
        raw[record + w] ^= std::uint64_t{1} << bit;
      }
    }
    EXPECT_NE(read(table, at).found, Found::kWrong);
  }
}

// A record that was cut off in front of any of its stores.
TEST(KeptTable, ATornRecordIsAbsent) {
  KeptTable table = fresh({1, 64, 2, 0, 0});
  Raw raw(table);
  const std::size_t begin = raw.size() - 512;
  const auto words = [&] {
    std::array<std::uint64_t, KeptTable::kRecordWords> out{};
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = raw[begin + i];
    return out;
  };
  table.lend({}, lent_of(3));
  const auto before = words();
  table.seal({}, image_of(4));
  const auto after = words();
  for (std::size_t stores = 1; stores <= KeptTable::kRecordWords; ++stores) {
    for (std::size_t i = 0; i < before.size(); ++i)
      raw[begin + i] = i == 0 ? 0 : i < stores ? after[i] : before[i];
    EXPECT_EQ(read(table, {}).found, Found::kFree) << stores;
    // Nor with a seal of either.
    if (stores == 1 || stores == KeptTable::kRecordWords) continue;
    raw[begin] = before[0];
    EXPECT_EQ(read(table, {}).found, Found::kWrong) << stores;
    raw[begin] = after[0];
    EXPECT_EQ(read(table, {}).found, Found::kWrongSealed) << stores;
  }
}

// Nor does a record verify in another place, or in another table.
TEST(KeptTable, ARecordBelongsToItsPlace) {
  KeptTable table = fresh({1, 64, 2, 0, 0}), other = fresh({1, 64, 2, 0, 0});
  table.seal({}, image_of(3));
  Raw raw(table), beside(other);
  const std::size_t begin = raw.size() - 512;
  for (std::size_t i = 0; i < KeptTable::kRecordWords; ++i) {
    raw[begin + KeptTable::kRecordWords + i] = raw[begin + i];
    beside[begin + i] = raw[begin + i];
  }
  EXPECT_EQ(read(table, {}).found, Found::kSealed);
  EXPECT_EQ(read(table, {KeptRegion::kFirst, 1}).found, Found::kWrongSealed);
  EXPECT_EQ(read(other, {}).found, Found::kWrongSealed);
}

// A writer that is killed at a moment of chance leaves records absent or whole.
TEST(KeptTable, SigkillLeavesNoRecordHalf) {
  constexpr std::uint32_t kRecords = 64;
  KeptTable table = fresh({1, 64, kRecords, 0, 0});
  std::mt19937_64 random(7);
  table.set_complete();
  for (int kill = 0; kill < 40; ++kill) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto mine = KeptTable::open(copy_of(table));
      for (std::uint64_t n = 1; mine.ok(); ++n) {
        const KeptAt at{KeptRegion::kFirst, static_cast<std::uint32_t>(n % kRecords)};
        mine->lend(at, lent_of(n));
        mine->seal(at, image_of(n));
        mine->note_use(at.index, {KeptClass::kRetained, static_cast<std::uint16_t>(n)});
        if (n % 3 == 0) mine->free(at);
      }
      ::_exit(1);
    }
    ::usleep(1000 + random() % 2000);
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    for (std::uint32_t i = 0; i < kRecords; ++i) {
      const Read got = read(table, {KeptRegion::kFirst, i});
      if (got.found == Found::kSealed) {
        EXPECT_TRUE(same(got.image, image_of(got.image.digest / 3)));
      } else if (got.found == Found::kLent) {
        EXPECT_TRUE(same(got.lent, lent_of(got.lent.writer.operation.value)));
      } else {
        EXPECT_EQ(got.found, Found::kFree);
      }
    }
  }
}

TEST(KeptTable, SlabsChangeTheirStateInOneStore) {
  KeptTable table = fresh();
  const SlabSlot slot(3);
  const auto state = [&] { return table.slab(slot).state; };
  table.taint_slab(slot);
  table.retire_slab(slot);
  EXPECT_EQ(state(), KeptSlabState::kAbsent);
  table.put_slab(slot, {SlabId(1), kMiB, {}, kAnyNode, KeptSlabState::kLive});
  EXPECT_EQ(table.slab(slot).node, kAnyNode);
  table.taint_slab(slot);
  EXPECT_EQ(state(), KeptSlabState::kTainted);
  table.taint_slab(slot);
  table.retire_slab(slot);
  EXPECT_EQ(state(), KeptSlabState::kRetiring);
  table.taint_slab(slot);
  EXPECT_EQ(state(), KeptSlabState::kRetiring);
  table.drop_slab(slot);
  EXPECT_EQ(state(), KeptSlabState::kAbsent);
  table.put_slab(slot, {SlabId(2), kMiB, {}, kAnyNode, KeptSlabState::kLive});
  EXPECT_EQ(table.slab(slot).name, SlabId(2));
}

TEST(KeptTable, WhatCannotBeUsedSaysWhy) {
  const auto why = [](UniqueFd fd) {
    const auto opened = KeptTable::open(std::move(fd));
    return opened.ok() ? std::string() : opened.error().message();
  };
  KeptTable table = fresh();
  EXPECT_NE(why(copy_of(table)).find("not complete"), std::string::npos);
  table.set_complete();
  EXPECT_EQ(why(copy_of(table)), "");
  Raw raw(table);
  raw[1] ^= 4;  // format
  EXPECT_NE(why(copy_of(table)).find("format"), std::string::npos);
  raw[1] ^= 4;
  for (const std::size_t word : {3u, 4u, 5u, 6u, 7u}) {
    raw[word] ^= 1;
    EXPECT_NE(why(copy_of(table)), "") << word;
    raw[word] ^= 1;
  }
  raw[0] ^= 1;
  EXPECT_NE(why(copy_of(table)).find("something else"), std::string::npos);
  raw[0] ^= 1;
  EXPECT_EQ(why(copy_of(table)), "");
  UniqueFd unsealed(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_NE(why(UniqueFd(::fcntl(unsealed.get(), F_DUPFD_CLOEXEC, 0))), "");
  ASSERT_EQ(::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL), 0);
  EXPECT_NE(why(std::move(unsealed)).find("shorter"), std::string::npos);
  EXPECT_NE(why(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC))), "");
}

}  // namespace
}  // namespace orbitkv::mem
