// Damage to what of kept memory is no record: neither a bit nor a whole word makes something else
// of it.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <string>
#include <vector>

#include "mem/kept_layout.h"
#include "mem/kept_table_test.h"

namespace orbitkv::mem {
namespace {

class KeptEntries : public ::testing::Test {
 protected:
  KeptEntries() {
    table_.name_given(SlabId(31));
    table_.allocation_given(AllocationId(5 << 20));
    table_.set_wanted(5);
    table_.set_device_files(DeviceFiles(0x123456789));
    table_.seal({KeptRegion::kFirst, 7}, {});
    table_.set_complete();
  }
  // Calls it for each damage to the word: a bit, or all of it.
  template <class F>
  void damage(std::size_t word, F&& look) {
    const std::uint64_t was = raw_[word];
    for (int n = 0; n < 66; ++n) {
      SCOPED_TRACE("word " + std::to_string(word) + " damage " + std::to_string(n));
      raw_[word] = n < 64 ? was ^ std::uint64_t{1} << n : n == 64 ? 0 : ~was;
      if (raw_[word] != was) look();
      raw_[word] = was;
    }
  }
  KeptTable table_ = KeptTable::create({77, 64, 10'000, 50, 20}).value();
  Raw raw_{table_};
};

TEST_F(KeptEntries, NoDamageToTheHeadIsBelieved) {
  constexpr std::size_t kMarks = 8, kAllocations = 12, kHighWater = 16;
  for (std::size_t word = 0; word < kMarks; ++word)
    damage(word, [&] { EXPECT_FALSE(KeptTable::open(copy_of(table_)).ok()); });
  for (const std::size_t word : {kMarks, kMarks + 1, kAllocations, kAllocations + 1})
    damage(word, [&] { EXPECT_FALSE(KeptTable::open(copy_of(table_)).ok()) << "no name, no id twice"; });
  damage(kMarks + 2, [&] { EXPECT_EQ(KeptTable::open(copy_of(table_))->wanted(), 0u); });
  damage(kMarks + 3,
         [&] { EXPECT_NE(KeptTable::open(copy_of(table_))->device_files(), DeviceFiles(0x123456789)); });
  // A record that may have been lent is never passed over.
  for (std::size_t region = 0; region < 3; ++region) {
    damage(kHighWater + region, [&] {
      const auto opened = KeptTable::open(copy_of(table_));
      ASSERT_TRUE(opened.ok());
      EXPECT_EQ(opened->high_water(static_cast<KeptRegion>(region)), (std::array{10'000u, 50u, 20u})[region]);
    });
  }
  EXPECT_EQ(KeptTable::open(copy_of(table_))->high_water(KeptRegion::kFirst), 4096u);
}

// One that retires may have writers that nobody knows of any more: it is never live again.
TEST_F(KeptEntries, NoDamageToASlabMakesAnotherOfIt) {
  const SlabSlot slot(2);
  const std::size_t at = kept::kSlabsAt / 8 + 2 * kept::kSlabWords;
  std::uint64_t seals[4] = {};
  for (const KeptSlabState state :
       {KeptSlabState::kLive, KeptSlabState::kTainted, KeptSlabState::kRetiring}) {
    table_.put_slab(slot, {SlabId(1), kMiB, kMiB, NodeId(1), KeptSlabState::kLive});
    if (state == KeptSlabState::kTainted) table_.taint_slab(slot);
    if (state == KeptSlabState::kRetiring) table_.retire_slab(slot);
    ASSERT_EQ(table_.slab(slot).state, state);
    seals[static_cast<std::size_t>(state)] = raw_[at];
    for (std::size_t word = 0; word < 5; ++word)
      damage(at + word, [&] { EXPECT_EQ(table_.slab(slot).state, KeptSlabState::kAbsent); });
  }
  for (int a = 1; a < 4; ++a)
    for (int b = 1; b < a; ++b) EXPECT_GE(std::popcount(seals[a] ^ seals[b]), 8);
}

TEST_F(KeptEntries, RetiredSlabsAreRememberedUntilTheyAreDropped) {
  for (std::uint32_t n = 0; n < 3; ++n) table_.put_retired({SlabId(n), (n + 1) * kMiB});
  table_.drop_retired(SlabId(1));
  const auto names = [&] {
    std::vector<std::uint32_t> out;
    for (const KeptRetired& each : KeptTable::open(copy_of(table_))->retired())
      out.push_back(each.name.value);
    return out;
  };
  EXPECT_EQ(names(), (std::vector{0u, 2u}));
  for (std::size_t word = 0; word < 3; ++word)
    damage(kept::kRetiredAt / 8 + word, [&] { EXPECT_EQ(names(), std::vector{2u}); });
  for (std::uint32_t n = 10; n < limits::kKeptRetired + 100; ++n) table_.put_retired({SlabId(n), kMiB});
  EXPECT_EQ(names().size(), limits::kKeptRetired);
}

TEST_F(KeptEntries, TheTextOfANamespaceComesLaterAndIsWholeOrNotThere) {
  const NamespaceIndex index(3);
  std::array<std::byte, 32> digest{};
  table_.put_name_text(index, "of nothing");
  EXPECT_FALSE(table_.name_space(index));
  table_.put_name_space(index, digest);
  EXPECT_EQ(table_.name_space(index)->text, "");
  const std::string longest(limits::kNamespaceBytes, 'x');
  for (const std::string& text : {std::string("model"), longest, std::string("m")}) {
    table_.put_name_text(index, text);
    EXPECT_EQ(table_.name_space(index)->text, text);
  }
  const std::size_t at = kept::kNamesAt / 8 + index.value * kept::kNameWords;
  for (std::size_t word = 0; word < 5; ++word)
    damage(at + word, [&] { EXPECT_FALSE(table_.name_space(index)); });
  for (std::size_t word = 5; word < 8; ++word) {
    damage(at + word, [&] {
      // Behind its end nothing of the text stands.
      const auto name = table_.name_space(index);
      ASSERT_TRUE(name);
      EXPECT_TRUE(name->text.empty() || name->text == "m");
    });
  }
  table_.put_name_text(index, longest + "x");
  EXPECT_EQ(table_.name_space(index)->text, "m");
  digest[0] = std::byte{1};
  table_.put_name_space(index, digest);
  EXPECT_EQ(table_.name_space(index)->text, "") << "it was another namespace's";
}

}  // namespace
}  // namespace orbitkv::mem
