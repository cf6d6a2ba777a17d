// The conformance suite of the Copier seam. Every implementation instantiates it with
// its own memory, over all engine layouts, and passes:
//   INSTANTIATE_TEST_SUITE_P(Host, CopierSuite, Combine(ValuesIn(implementations),
//                            ValuesIn(engine_layouts())), test_name);
// Include it in one source of a test. Tests only.
#pragma once

#include <algorithm>
#include <tuple>

#include "base/limits.h"
#include "device/copier_rig.h"

namespace orbitkv::device::suite {

using Parameter = std::tuple<Implementation, EngineLayout>;

inline std::string test_name(const testing::TestParamInfo<Parameter>& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
}

class CopierSuite : public testing::TestWithParam<Parameter> {
 protected:
  static constexpr std::uint64_t kFirst = 100;   // seed of the pages that are saved
  static constexpr std::uint64_t kSecond = 200;  // of what the pages hold later

  std::unique_ptr<Rig> new_rig(const CopierOptions& options = {}) {
    auto rig = std::make_unique<Rig>(std::get<0>(GetParam()), std::get<1>(GetParam()), options);
    const Status status = validate(rig->group());
    EXPECT_TRUE(status.ok()) << status.error().message();
    rig->fill_pages(kFirst);
    return rig;
  }

  // Saves the blocks, then makes the pages forget them.
  std::vector<SlotCopy> saved(Rig& rig, std::vector<std::uint32_t> blocks) {
    std::vector<SlotCopy> slots = rig.new_slots(std::move(blocks));
    const Status status = rig.run(Direction::kSave, slots);
    EXPECT_TRUE(status.ok()) << status.error().message();
    rig.fill_pages(kSecond);
    return slots;
  }
};

inline void flip(std::byte& byte, unsigned bit) {
  byte ^= static_cast<std::byte>(1u << bit);
}

TEST_P(CopierSuite, SaveWritesPagesAndHeaderOfTheReference) {
  auto rig = new_rig();
  std::vector<SlotCopy> slots = rig->new_slots({6, 0, 8});
  ASSERT_TRUE(rig->run(Direction::kSave, slots).ok());
  for (const SlotCopy& slot : slots) {
    for (std::size_t f = 0; f < rig->group().fragments.size(); ++f) {
      const auto stored = rig->fragment_of(slot, f);
      EXPECT_EQ(Bytes(stored.begin(), stored.end()), rig->page(f, slot.block)) << "fragment " << f;
    }
    Bytes header(rig->layout().header_bytes);
    EXPECT_EQ(slot.digest, rig->expected_header(slot, header));
    const auto stored = rig->header_of(slot);
    EXPECT_EQ(Bytes(stored.begin(), stored.end()), header);
  }
  EXPECT_TRUE(rig->pages_are_as_expected()) << "a save changed a page";
  EXPECT_TRUE(rig->guards_are_whole());
}

TEST_P(CopierSuite, RestoreIsByteExactAndTouchesNothingElse) {
  auto rig = new_rig();
  std::vector<std::vector<Bytes>> content;
  for (const std::uint32_t block : {6u, 0u, 8u}) content.push_back(rig->pages(block));
  std::vector<SlotCopy> slots = saved(*rig, {6, 0, 8});
  const std::uint32_t destinations[] = {1, 8, 3};
  Bytes before;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i].block = destinations[i];
    rig->expect_pages(destinations[i], content[i]);
    const auto image = rig->image_of(slots[i]);
    before.insert(before.end(), image.begin(), image.end());
  }
  ASSERT_TRUE(rig->run(Direction::kRestore, slots).ok());
  Bytes after;
  for (const SlotCopy& slot : slots) {
    EXPECT_TRUE(slot.verified);
    const auto image = rig->image_of(slot);
    after.insert(after.end(), image.begin(), image.end());
  }
  EXPECT_TRUE(rig->pages_are_as_expected());
  EXPECT_TRUE(before == after) << "a restore changed an image";
  EXPECT_TRUE(rig->guards_are_whole());
}

TEST_P(CopierSuite, FlippedPayloadBitIsDetected) {
  auto rig = new_rig();
  SlotCopy slot = saved(*rig, {4})[0];
  for (std::size_t f = 0; f < rig->group().fragments.size(); ++f) {
    const auto bytes = rig->fragment_of(slot, f);
    const std::size_t size = bytes.size();
    for (const std::size_t at : {std::size_t{0}, size / 3, size / 2, size - 1}) {
      const auto bit = static_cast<unsigned>((at + f) % 8);
      flip(bytes[at], bit);
      EXPECT_FALSE(rig->restores(slot)) << "fragment " << f << " byte " << at << " bit " << bit;
      flip(bytes[at], bit);
    }
  }
  EXPECT_TRUE(rig->restores(slot));
}

TEST_P(CopierSuite, FlippedHeaderBitIsDetected) {
  auto rig = new_rig();
  SlotCopy slot = saved(*rig, {4})[0];
  const auto header = rig->header_of(slot);
  for (std::size_t at = 0; at < header.size(); ++at) {
    flip(header[at], at % 8);
    EXPECT_FALSE(rig->restores(slot)) << "header byte " << at;
    flip(header[at], at % 8);
  }
  if (std::get<0>(GetParam()).header_first) {
    EXPECT_TRUE(rig->pages_are_as_expected()) << "a page was written before its header was verified";
  }
  EXPECT_TRUE(rig->restores(slot));
}

TEST_P(CopierSuite, WrongGrantIsDetected) {
  auto rig = new_rig();
  const SlotCopy right = saved(*rig, {4})[0];
  SlotCopy wrong = right;
  wrong.digest ^= 1;
  EXPECT_FALSE(rig->restores(wrong)) << "digest";
  wrong = right;
  wrong.seed ^= std::uint64_t{1} << 63;
  EXPECT_FALSE(rig->restores(wrong)) << "seed";
  wrong = right;
  wrong.allocation.value += 1;
  EXPECT_FALSE(rig->restores(wrong)) << "allocation";
  if (std::get<0>(GetParam()).header_first) {
    EXPECT_TRUE(rig->pages_are_as_expected());
  }
}

TEST_P(CopierSuite, SwappedImagesAreDetected) {
  auto rig = new_rig();
  std::vector<SlotCopy> slots = saved(*rig, {2, 5});
  const auto first = rig->image_of(slots[0]);
  std::swap_ranges(first.begin(), first.end(), rig->image_of(slots[1]).begin());
  ASSERT_TRUE(rig->run(Direction::kRestore, slots).ok());
  EXPECT_FALSE(slots[0].verified);
  EXPECT_FALSE(slots[1].verified);
  // Payload alone, each under the other's right header.
  const auto header = rig->header_of(slots[0]);
  std::swap_ranges(header.begin(), header.end(), rig->header_of(slots[1]).begin());
  ASSERT_TRUE(rig->run(Direction::kRestore, slots).ok());
  EXPECT_FALSE(slots[0].verified);
  EXPECT_FALSE(slots[1].verified);
}

TEST_P(CopierSuite, SwappedFragmentsAreDetected) {
  auto rig = new_rig();
  SlotCopy slot = saved(*rig, {2})[0];
  const std::size_t count = rig->group().fragments.size();
  for (std::size_t f = 1; f < count; ++f) {
    const auto a = rig->fragment_of(slot, f - 1);
    const auto b = rig->fragment_of(slot, f);
    if (a.size() != b.size()) continue;
    std::swap_ranges(a.begin(), a.end(), b.begin());
    EXPECT_FALSE(rig->restores(slot)) << "fragments " << f - 1 << " and " << f;
    std::swap_ranges(a.begin(), a.end(), b.begin());
  }
  EXPECT_TRUE(rig->restores(slot));
}

TEST_P(CopierSuite, SwappedVectorsAreDetected) {
  auto rig = new_rig();
  SlotCopy slot = saved(*rig, {2})[0];
  for (const std::size_t width : {std::size_t{8}, std::size_t{16}, std::size_t{64}}) {
    const auto bytes = rig->fragment_of(slot, 0);
    if (bytes.size() < 2 * width) continue;
    const auto a = bytes.first(width);
    const auto b = bytes.last(width);
    std::swap_ranges(a.begin(), a.end(), b.begin());
    EXPECT_FALSE(rig->restores(slot)) << width << " bytes";
    std::swap_ranges(a.begin(), a.end(), b.begin());
  }
}

TEST_P(CopierSuite, ZeroedImageIsDetected) {
  auto rig = new_rig();
  SlotCopy slot = saved(*rig, {3})[0];
  const auto last = rig->fragment_of(slot, rig->group().fragments.size() - 1);
  std::fill(last.begin(), last.end(), std::byte{0});
  EXPECT_FALSE(rig->restores(slot)) << "one fragment";
  const auto image = rig->image_of(slot);
  std::fill(image.begin(), image.end(), std::byte{0});
  EXPECT_FALSE(rig->restores(slot)) << "all of it";
}

TEST_P(CopierSuite, StaleImageIsDetected) {
  auto rig = new_rig();
  SlotCopy old_slot = rig->new_slot(3);
  ASSERT_TRUE(rig->run(Direction::kSave, {&old_slot, 1}).ok());
  const auto image = rig->image_of(old_slot);
  const Bytes old_bytes(image.begin(), image.end());
  // The same page again, into the same place, under the next revision.
  SlotCopy slot = old_slot;
  slot.allocation.value += 1;
  slot.seed += 1;
  ASSERT_TRUE(rig->run(Direction::kSave, {&slot, 1}).ok());
  EXPECT_TRUE(rig->restores(slot));
  std::copy(old_bytes.begin(), old_bytes.end(), image.begin());
  EXPECT_FALSE(rig->restores(slot));
}

TEST_P(CopierSuite, WrongSlotLeavesTheOthersRight) {
  auto rig = new_rig();
  const auto first = rig->pages(1), second = rig->pages(4), third = rig->pages(7);
  std::vector<SlotCopy> slots = saved(*rig, {1, 4, 7});
  flip(rig->header_of(slots[1])[40], 3);
  slots[1].verified = true;  // a verdict of some earlier use
  rig->expect_pages(1, first);
  rig->expect_pages(7, third);
  if (!std::get<0>(GetParam()).header_first) rig->expect_pages(4, second);  // only its header is wrong
  ASSERT_TRUE(rig->run(Direction::kRestore, slots).ok());
  EXPECT_TRUE(slots[0].verified);
  EXPECT_FALSE(slots[1].verified);
  EXPECT_TRUE(slots[2].verified);
  EXPECT_TRUE(rig->pages_are_as_expected());
}

TEST_P(CopierSuite, RefusedBatchTouchesNothing) {
  auto rig = new_rig();
  std::vector<SlotCopy> slots = saved(*rig, {1, 4});
  const Bytes image(rig->image_of(slots[0]).begin(), rig->image_of(slots[0]).end());
  const auto refused = [&] {
    return !rig->run(Direction::kRestore, slots).ok() && !rig->run(Direction::kSave, slots).ok();
  };
  slots[1].block = kBlocks;
  EXPECT_TRUE(refused()) << "a block behind the last";
  slots[1].block = 4;
  slots[1].image += 8;
  EXPECT_TRUE(refused()) << "an image that is not aligned";
  slots[1].image = nullptr;
  EXPECT_TRUE(refused()) << "no image";
  EXPECT_TRUE(rig->pages_are_as_expected());
  EXPECT_TRUE(std::equal(image.begin(), image.end(), slots[0].image));
}

TEST_P(CopierSuite, BatchesMayFollowEachOtherBeforeTheDrain) {
  auto rig = new_rig();
  std::vector<SlotCopy> first = rig->new_slots({0, 1}), second = rig->new_slots({8}), none;
  std::vector<CopyTicket> tickets;
  for (std::vector<SlotCopy>* slots : {&first, &none, &second}) {
    auto ticket = rig->copier().submit(rig->batch(Direction::kSave, *slots));
    ASSERT_TRUE(ticket.ok()) << ticket.error().message();
    tickets.push_back(*ticket);
  }
  for (const CopyTicket ticket : tickets) ASSERT_TRUE(rig->copier().drain(ticket).status.ok());
  for (const auto* slots : {&first, &second}) {
    for (SlotCopy slot : *slots) EXPECT_TRUE(rig->restores(slot));
  }
}

TEST_P(CopierSuite, TwoGroupsAreOneBatch) {
  auto rig = new_rig();
  Rig other(rig->stand(), contiguous("other", {512, 4096, 64}), Turns{1, 2});
  other.fill_pages(kFirst + 50);
  const auto mine = rig->pages(2), theirs = other.pages(7), wrong = other.pages(0);
  std::vector<SlotCopy> here = rig->new_slots({2}), there = other.new_slots({7, 0});
  const auto both = [&](Direction direction) {
    CopyBatch batch = rig->batch(direction, here);
    batch.groups.push_back({&other.group(), there});
    return rig->run(std::move(batch));
  };
  ASSERT_TRUE(both(Direction::kSave).ok());
  rig->fill_pages(kSecond);
  other.fill_pages(kSecond + 50);
  here[0].block = 5;
  there[0].block = 3;
  there[1].digest ^= 1;
  rig->expect_pages(5, mine);
  other.expect_pages(3, theirs);
  if (!std::get<0>(GetParam()).header_first) other.expect_pages(0, wrong);
  ASSERT_TRUE(both(Direction::kRestore).ok());
  EXPECT_TRUE(here[0].verified);
  EXPECT_TRUE(there[0].verified);
  EXPECT_FALSE(there[1].verified);
  EXPECT_TRUE(rig->pages_are_as_expected());
  EXPECT_TRUE(other.pages_are_as_expected());
  EXPECT_TRUE(rig->guards_are_whole() && other.guards_are_whole());
}

TEST_P(CopierSuite, BatchesOfBothDirectionsRunAtOnce) {
  auto rig = new_rig();
  std::vector<std::vector<Bytes>> content;
  for (const std::uint32_t block : {0u, 1u, 2u, 3u}) content.push_back(rig->pages(block));
  std::vector<SlotCopy> restored = saved(*rig, {0, 1, 2, 3}), stored = rig->new_slots({5, 6, 7, 8});
  std::vector<CopyTicket> running;
  for (std::size_t i = 0; i < 4; ++i) {
    rig->expect_pages(restored[i].block, content[i]);
    for (auto& [direction, slots] : {std::pair(Direction::kRestore, std::span(restored)),
                                     std::pair(Direction::kSave, std::span(stored))}) {
      auto ticket = rig->copier().submit(rig->batch(direction, slots.subspan(i, 1)));
      ASSERT_TRUE(ticket.ok()) << ticket.error().message();
      running.push_back(*ticket);
    }
  }
  while (!running.empty()) {
    std::erase_if(running, [&](CopyTicket ticket) {
      const auto end = rig->copier().poll(ticket);
      EXPECT_TRUE(!end || end->status.ok());
      return end.has_value();
    });
  }
  for (const SlotCopy& slot : restored) EXPECT_TRUE(slot.verified);
  EXPECT_TRUE(rig->pages_are_as_expected());
  for (SlotCopy slot : stored) EXPECT_TRUE(rig->restores(slot));
  EXPECT_TRUE(rig->guards_are_whole());
}

TEST_P(CopierSuite, ABatchIsEnqueuedByItsEndAndEndsOnce) {
  auto rig = new_rig();
  SlotCopy slot = saved(*rig, {4})[0];
  auto ticket = rig->copier().submit(rig->batch(Direction::kRestore, {&slot, 1}));
  ASSERT_TRUE(ticket.ok()) << ticket.error().message();
  bool enqueued = false;
  std::optional<CopyEnd> end;
  while (!end) {
    const bool now = rig->copier().enqueued(*ticket);
    EXPECT_TRUE(now || !enqueued) << "what was enqueued stays so";
    enqueued = now;
    end = rig->copier().poll(*ticket);
  }
  ASSERT_TRUE(end->status.ok()) << end->status.error().message();
  EXPECT_TRUE(slot.verified);
  std::uint64_t bytes = 0;
  for (const auto& fragment : rig->group().fragments) bytes += fragment.bytes();
  EXPECT_EQ(end->stats.bytes, bytes);
  EXPECT_EQ(end->stats.fragments, rig->group().fragments.size());
  EXPECT_FALSE(rig->copier().poll(*ticket)) << "a second end";
}

TEST_P(CopierSuite, MoreBatchesThanMayRunAreRefused) {
  auto rig = new_rig();
  std::vector<SlotCopy> slots(limits::kCopyBatches + 1);
  for (SlotCopy& slot : slots) slot = rig->new_slot(4);
  const auto submit = [&](SlotCopy& slot) {
    return rig->copier().submit(rig->batch(Direction::kSave, {&slot, 1}));
  };
  std::vector<CopyTicket> running;
  for (std::uint32_t i = 0; i < limits::kCopyBatches; ++i) {
    auto ticket = submit(slots[i]);
    ASSERT_TRUE(ticket.ok()) << ticket.error().message();
    running.push_back(*ticket);
  }
  auto refused = submit(slots.back());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kBusy);
  for (const CopyTicket ticket : running) EXPECT_TRUE(rig->copier().drain(ticket).status.ok());
  auto last = submit(slots.back());
  ASSERT_TRUE(last.ok()) << last.error().message();
  EXPECT_TRUE(rig->copier().drain(*last).status.ok());
  for (SlotCopy& slot : slots) EXPECT_TRUE(rig->restores(slot));
}

TEST_P(CopierSuite, TwoImagesIntoOneBlockAreRefused) {
  auto rig = new_rig();
  std::vector<SlotCopy> slots = saved(*rig, {1, 4});
  slots[1].block = slots[0].block;
  EXPECT_FALSE(rig->run(Direction::kRestore, slots).ok());
  EXPECT_TRUE(rig->pages_are_as_expected());
  EXPECT_TRUE(rig->run(Direction::kSave, slots).ok()) << "two images of one block";
}

// Shows that the tests above notice a copier that does not verify.
TEST_P(CopierSuite, WithoutVerificationDamageGoesThrough) {
  auto rig = new_rig({.verify = false});
  auto content = rig->pages(4);
  SlotCopy slot = saved(*rig, {4})[0];
  flip(rig->fragment_of(slot, 0)[5], 2);
  flip(content[0][5], 2);
  flip(rig->header_of(slot)[33], 1);
  rig->expect_pages(4, content);
  EXPECT_TRUE(rig->restores(slot));
  EXPECT_TRUE(rig->pages_are_as_expected());
}

}  // namespace orbitkv::device::suite
