#include "bench/pairs.h"

#include <gtest/gtest.h>

#include <string>

#include "base/ids.h"
#include "bench/ssd.h"
#include "bench/ssd_rig.h"

namespace orbitkv::bench {
namespace {

TEST(Pairs, EachSideGoesFirstInEveryOtherPair) {
  std::string order;
  const auto note = [&](Side side) {
    order += side == Side::kOurs ? 'o' : 'c';
    return ok_status();
  };
  for (std::size_t pair = 0; pair < 3; ++pair) EXPECT_TRUE(by_turns(pair, note).ok());
  EXPECT_EQ(order, "occooc");
}

TEST(Pairs, TheFirstThatFailsEndsThePair) {
  int runs = 0;
  const auto failing = [&](Side) -> Status {
    ++runs;
    return bug("broken");
  };
  EXPECT_FALSE(by_turns(0, failing).ok());
  EXPECT_EQ(runs, 1);
}

TEST(Pairs, LowerQuartile) {
  EXPECT_EQ(lower_quartile({}), 0);
  EXPECT_EQ(lower_quartile({5, 1, 4, 2, 3}), 2);
}

TEST(SsdBench, AFileThatIsTooSmallIsSaidWithTheRemedy) {
  for (const ByteCount bytes : {ByteCount(1), kKiB, 31 * kMiB}) {
    const auto file = SsdFile::make(::testing::TempDir(), bytes);
    ASSERT_FALSE(file.ok());
    EXPECT_NE(file.error().message().find("--file-size is at least 32 MiB"), std::string::npos)
        << file.error().message();
  }
  const auto huge = SsdFile::make(::testing::TempDir(), 1024 * 1024 * kGiB);
  ASSERT_FALSE(huge.ok());
  EXPECT_NE(huge.error().message().find("free, the bench needs"), std::string::npos)
      << huge.error().message();
}

TEST(SsdBench, ItsCasesHaveNames) {
  const std::string names = ssd_case_names();
  for (const char* name : {"read_64KiB_qd8", "write_4MiB_qd32", "manager_read_1MiB"})
    EXPECT_NE(names.find(name), std::string::npos) << names;
}

}  // namespace
}  // namespace orbitkv::bench
