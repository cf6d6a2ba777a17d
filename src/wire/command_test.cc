#include "wire/command.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/crc32c.h"
#include "base/limits.h"

namespace orbitkv::wire {
namespace {

TEST(Command, RoundTripOfEveryOpcode) {
  for (std::uint16_t op = 1; op <= 6; ++op) {
    const bool ping = op == 1;
    const Command sent{static_cast<Opcode>(op), 77, Epoch(5), ping ? 0u : 15u, ping ? 0u : 65536u};
    const auto got = decode_command(encode(sent));
    ASSERT_TRUE(got.ok()) << got.error().message();
    EXPECT_EQ(got->opcode, sent.opcode);
    EXPECT_EQ(got->request, 77u);
    EXPECT_EQ(got->epoch, Epoch(5));
    EXPECT_EQ(got->slot, sent.slot);
    EXPECT_EQ(got->length, sent.length);
  }
}

TEST(Command, ReplyKeepsItsCode) {
  for (std::uint8_t code = 0; code <= 5; ++code) {
    const Reply sent{Opcode::kRestore, 9, Epoch(1), 2, code == 0 ? 24u : 0u, static_cast<Code>(code)};
    const auto got = decode_reply(encode(sent));
    ASSERT_TRUE(got.ok()) << got.error().message();
    EXPECT_EQ(got->code, sent.code);
    EXPECT_EQ(got->length, sent.length);
  }
}

TEST(Command, PingIgnoresItsSlot) {
  const auto got = decode_command(encode(Command{Opcode::kPing, 1, Epoch(1), 0xFFFFFFFF, 0}));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->slot, 0u);
}

TEST(Command, CommandsAndRepliesDoNotMix) {
  EXPECT_FALSE(decode_reply(encode(Command{Opcode::kPing, 1, Epoch(1), 0, 0})).ok());
  EXPECT_FALSE(decode_command(encode(Reply{Opcode::kPing, 1, Epoch(1), 0, 0, Code::kOk})).ok());
}

TEST(Command, AnEntryOfZerosIsRefused) {
  const auto got = decode_command(CommandBytes{});
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code(), Code::kReject);
  EXPECT_EQ(got.error().message(), "ring entry: magic 0");
}

}  // namespace
}  // namespace orbitkv::wire
