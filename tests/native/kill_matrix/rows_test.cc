// The matrix has each fault point of base/fault.h.
#include "tests/native/kill_matrix/rows.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/fault.h"
#include "base/log.h"

namespace orbitkv::test::kills {
namespace {

bool is_fault(const std::string& name) {
  return configure_faults(name + ":kill:1").ok();
}

TEST(KillRows, EachFaultPointIsInARowOrLeftOutWithAReason) {
  set_log_level(LogLevel::kOff);
  std::set<std::string> named;
  for (const EngineRow& row : kEngineRows) named.emplace(row.fault);
  for (const ManagerRow& row : kManagerRows) named.emplace(row.fault);
  named.erase("");
  for (const LeftOut& each : kLeftOut) {
    EXPECT_TRUE(named.emplace(each.fault).second) << each.fault << " is in a row";
    EXPECT_GT(each.why.size(), 20u);
  }
  for (const std::string& name : named) EXPECT_TRUE(is_fault(name)) << name;
  EXPECT_TRUE(configure_faults({}).ok());
  EXPECT_EQ(named.size(), static_cast<std::size_t>(FaultPoint::kCount)) << "a fault point has no row";
}

TEST(KillRows, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const EngineRow& row : kEngineRows) EXPECT_TRUE(names.insert(row.name).second) << row.name;
  for (const ManagerRow& row : kManagerRows) EXPECT_TRUE(names.insert(row.name).second) << row.name;
}

}  // namespace
}  // namespace orbitkv::test::kills
