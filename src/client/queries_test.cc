#include "client/queries.h"

#include <gtest/gtest.h>

#include <vector>

namespace orbitkv::client {
namespace {

constexpr std::size_t kMost = 1u << 20;

// A Manager that takes every command, and how many came.
struct Taken {
  int commands = 0;
  SendCommand send() {
    return [this](wire::Opcode, const Attachment::Encode&) -> Result<wire::Buffer> {
      ++commands;
      return wire::Buffer();
    };
  }
};

TEST(Queries, AHintForMoreThanAQueryMayHaveIsRejectedWithTheLimit) {
  std::vector<BlockHash> hashes(kMost);
  Taken taken;
  EXPECT_TRUE(run_warm({}, hashes, taken.send()).ok());
  EXPECT_EQ(taken.commands, 1);
  hashes.emplace_back();
  const Status refused = run_warm({}, hashes, taken.send());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kReject);
  EXPECT_NE(refused.error().message().find(std::to_string(kMost)), std::string::npos);
  EXPECT_EQ(taken.commands, 1) << "nothing was sent";
  EXPECT_EQ(run_query({}, hashes, taken.send()).error().code(), Code::kReject) << "as a query";
}

}  // namespace
}  // namespace orbitkv::client
