// validate(): what a geometry may say, and the name of what it may not.
#include "device/copier.h"

#include <gtest/gtest.h>

#include <limits>

namespace orbitkv::device {
namespace {

std::byte* at(std::uint64_t address) {
  return reinterpret_cast<std::byte*>(address);
}

constexpr std::uint64_t kBase = 0x10000;
constexpr std::uint64_t kHuge = std::uint64_t{1} << 63;

GroupGeometry group_of(std::vector<FragmentGeometry> fragments, std::uint32_t num_blocks = 8) {
  GroupGeometry group;
  for (const FragmentGeometry& f : fragments)
    group.shape.fragments.push_back({f.layer, f.component, ByteCount(f.bytes())});
  group.fragments = std::move(fragments);
  group.num_blocks = num_blocks;
  return group;
}

FragmentGeometry contiguous() {
  return {.base = at(kBase), .block_stride = 4096, .row_bytes = 4096};
}

void expect_refused(const GroupGeometry& group, const std::string& words) {
  const Status status = validate(group);
  ASSERT_FALSE(status.ok()) << "expected: " << words;
  EXPECT_EQ(status.error().code(), Code::kReject);
  EXPECT_NE(status.error().message().find(words), std::string::npos) << status.error().message();
}

void expect_accepted(const GroupGeometry& group) {
  const Status status = validate(group);
  EXPECT_TRUE(status.ok()) << status.error().message();
}

TEST(ValidateGeometry, AcceptsWhatEnginesHave) {
  expect_accepted(group_of({contiguous()}));
  // Page-first: the layers of one block lie side by side.
  expect_accepted(group_of({{.layer = 0, .base = at(kBase), .block_stride = 256, .row_bytes = 128},
                            {.layer = 1, .base = at(kBase + 128), .block_stride = 256, .row_bytes = 128}}));
  // K and V as halves of one tensor: all blocks of a row precede the next row.
  expect_accepted(
      group_of({{.base = at(kBase), .block_stride = 128, .rows = 2, .row_bytes = 128, .row_stride = 1024}}));
  // Heads of a block, other heads between them.
  expect_accepted(
      group_of({{.base = at(kBase), .block_stride = 1024, .rows = 4, .row_bytes = 64, .row_stride = 256}}));
  // One block: no stride between blocks is needed.
  expect_accepted(group_of({{.base = at(kBase), .rows = 1, .row_bytes = 64}}, 1));
}

TEST(ValidateGeometry, RefusesShapeThatIsNotTheGeometrys) {
  GroupGeometry group = group_of({contiguous()});
  group.shape.fragments[0].bytes = ByteCount(4088);
  expect_refused(group, "layer 0 component 0: rows 1 of row_bytes 4096 are not the shape's 4088 bytes");
  group = group_of({contiguous()});
  group.shape.fragments[0].component = 1;
  expect_refused(group, "give both lists in the same order");
  group = group_of({contiguous()});
  group.shape.fragments.push_back(group.shape.fragments[0]);
  expect_refused(group, "give one geometry for each shape");
}

TEST(ValidateGeometry, RefusesEmptyAndBoundless) {
  expect_refused(group_of({}), "0 fragments");
  expect_refused(group_of({contiguous()}, 0), "num_blocks is 0");
  expect_refused(group_of(std::vector<FragmentGeometry>(4097, contiguous())), "4097 fragments");
  FragmentGeometry broken = contiguous();
  broken.base = nullptr;
  expect_refused(group_of({broken}), "base is null");
  broken = contiguous();
  broken.rows = 0;
  expect_refused(group_of({broken}), "rows is 0");
  broken = contiguous();
  broken.row_bytes = 0;
  expect_refused(group_of({broken}), "row_bytes is 0");
}

TEST(ValidateGeometry, RefusesOverlapOfRows) {
  expect_refused(
      group_of({{.base = at(kBase), .block_stride = 4096, .rows = 2, .row_bytes = 128, .row_stride = 127}}),
      "rows overlap: row_stride 127 is less than row_bytes 128");
  // Not a matter of the blocks: one block has rows, too.
  expect_refused(group_of({{.base = at(kBase), .rows = 2, .row_bytes = 128, .row_stride = 0}}, 1),
                 "rows overlap");
}

TEST(ValidateGeometry, RefusesOverlapOfBlocks) {
  expect_refused(group_of({{.base = at(kBase), .block_stride = 4095, .row_bytes = 4096}}),
                 "blocks overlap: block_stride 4095 is less than row_bytes 4096");
  // The last row of a block is the first row of the next.
  expect_refused(
      group_of({{.base = at(kBase), .block_stride = 256, .rows = 3, .row_bytes = 128, .row_stride = 128}}),
      "blocks overlap or interleave");
  // Halves one byte too close for eight blocks, right for seven.
  FragmentGeometry halves{
      .base = at(kBase), .block_stride = 128, .rows = 2, .row_bytes = 128, .row_stride = 1023};
  expect_refused(group_of({halves}), "blocks overlap or interleave");
  expect_accepted(group_of({halves}, 7));
}

TEST(ValidateGeometry, RefusesTheSameMemoryTwice) {
  FragmentGeometry second = contiguous();
  second.layer = 1;
  expect_refused(group_of({contiguous(), second}), "layer 0 component 0 and layer 1 component 0 overlap");
  second.base = at(kBase + 4095);
  expect_refused(group_of({contiguous(), second}), "register memory that layers share once");
}

TEST(ValidateGeometry, RefusesArithmeticOverflow) {
  GroupGeometry group = group_of({contiguous()});
  group.fragments[0].rows = 4;
  group.fragments[0].row_bytes = kHuge;
  expect_refused(group, "rows x row_bytes exceeds 64 bits");
  // Wraps to the very bytes that the shape says.
  group.fragments[0].rows = 3;
  group.fragments[0].row_bytes = 0xAAAAAAAAAAAAB000;
  group.shape.fragments[0].bytes = ByteCount(3 * group.fragments[0].row_bytes);
  expect_refused(group, "rows x row_bytes exceeds 64 bits");
  expect_refused(group_of({{.base = at(kBase), .block_stride = kHuge, .row_bytes = 64}}, 3),
                 "ends beyond the address space");
  expect_refused(
      group_of({{.base = at(kBase), .block_stride = 4096, .rows = 3, .row_bytes = 64, .row_stride = kHuge}}),
      "ends beyond the address space");
  expect_refused(group_of({{.base = at(std::numeric_limits<std::uint64_t>::max() - 100),
                            .block_stride = 64,
                            .row_bytes = 64}}),
                 "ends beyond the address space");
}

}  // namespace
}  // namespace orbitkv::device
