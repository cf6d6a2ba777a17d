// The 64-byte command and reply of the session rings. Fixed layout,
// little-endian, CRC32C over the first 60 bytes in the last four.
// Pure functions; any thread; the input is a private copy of a ring entry.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/ids.h"
#include "base/result.h"

namespace orbitkv::wire {

inline constexpr std::size_t kCommandBytes = 64;
using CommandBytes = std::array<std::byte, kCommandBytes>;

enum class Opcode : std::uint16_t {
  kPing = 1,
  kQuery = 2,
  kPublish = 3,
  kRestore = 4,
  kRelease = 5,
  kCancelQuery = 6,
  kPoll = 7,
  kReadRecovery = 8,
  kWarm = 9,
  kPublishActivity = 16,
  kSubmitInterest = 17,
  kInterest = 18,
};

// Client to Manager. The request frame lies in descriptor slot `slot`, `length`
// bytes; the Manager copies it out and writes the reply frame into the same slot.
// Ping has no frame (length 0, slot ignored).
struct Command {
  Opcode opcode{};
  std::uint64_t request = 0;  // rises by one a command; echoed
  Epoch epoch;                // of the session; another epoch is refused
  std::uint32_t slot = 0;
  std::uint32_t length = 0;
};

// Manager to client. On a code other than kOk the slot holds an ErrorReply frame.
struct Reply {
  Opcode opcode{};
  std::uint64_t request = 0;
  Epoch epoch;
  std::uint32_t slot = 0;
  std::uint32_t length = 0;
  Code code = Code::kOk;
};

CommandBytes encode(const Command& command);
CommandBytes encode(const Reply& reply);
// Refuse: magic, ABI version, unknown opcode or code, CRC, slot or length out of limits.
Result<Command> decode_command(const CommandBytes& bytes);
Result<Reply> decode_reply(const CommandBytes& bytes);

}  // namespace orbitkv::wire
