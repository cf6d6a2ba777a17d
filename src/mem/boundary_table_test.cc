#include "mem/boundary_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace orbitkv::mem {
namespace {

// Positions lie close together and far apart, so that clusters form, wrap and are closed.
TEST(BoundaryTable, AgreesWithAMap) {
  std::mt19937_64 random(3);
  BoundaryTable table;
  std::map<std::uint64_t, std::uint32_t> expected;
  for (int step = 0; step < 200000; ++step) {
    const std::uint64_t far = random() % 2 == 0 ? 0 : std::uint64_t{1} << 36;
    const std::uint64_t position = far + random() % 3000;
    const auto known = expected.find(position);
    const auto found = table.find(position);
    ASSERT_EQ(found != BoundaryTable::kNone, known != expected.end()) << step;
    if (known == expected.end()) {
      const auto run = static_cast<std::uint32_t>(random() % (1u << 27));
      table.put(position, BoundaryTable::Run{run});
      expected[position] = run;
    } else {
      ASSERT_EQ(found.index, known->second);
      if (random() % 2 == 0) {
        table.repoint(position, BoundaryTable::Run{known->second ^= 1});
      } else {
        table.drop(position);
        expected.erase(known);
      }
    }
    ASSERT_EQ(table.size(), expected.size());
  }
  for (const auto& [position, run] : expected) ASSERT_EQ(table.find(position).index, run);
}

TEST(BoundaryTableDeathTest, DropOfNothing) {
  BoundaryTable table;
  EXPECT_DEATH(table.drop(5), "no boundary");
  EXPECT_DEATH(table.repoint(5, BoundaryTable::Run{1}), "no boundary");
}

}  // namespace
}  // namespace orbitkv::mem
