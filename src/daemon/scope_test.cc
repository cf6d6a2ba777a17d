#include "daemon/scope.h"

#include <gtest/gtest.h>

namespace orbitkv::daemon {
namespace {

TEST(Scope, OfATextThatIsAJsonObject) {
  EXPECT_EQ(scope_of(R"({"model":"m","scope":"tenant-a","v":1})"), "tenant-a");
  for (const char* none :
       {"my model, float16", R"({"model":"m"})", R"(["scope"])", R"({"scope":)", "", "{"}) {
    EXPECT_EQ(scope_of(none), "") << none;
    EXPECT_TRUE(check_scope(none).ok()) << none;
  }
}

TEST(Scope, IsOneThatADropCanName) {
  const auto checked = [](const std::string& scope) { return check_scope(R"({"scope":)" + scope + "}"); };
  EXPECT_TRUE(checked("\"A-z_0.9\"").ok());
  EXPECT_TRUE(checked('"' + std::string(64, 'a') + '"').ok());
  for (const std::string& wrong :
       {std::string("\"\""), '"' + std::string(65, 'a') + '"', std::string("\"a b\""), std::string("\"a/b\""),
        std::string("7"), std::string("[]")}) {
    const Status status = checked(wrong);
    ASSERT_FALSE(status.ok()) << wrong;
    EXPECT_EQ(status.error().code(), Code::kReject);
    EXPECT_NE(status.error().message().find("1 to 64"), std::string::npos);
  }
}

}  // namespace
}  // namespace orbitkv::daemon
