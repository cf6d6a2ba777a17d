#include "wire/command.h"

#include <bit>
#include <span>
#include <string>
#include <type_traits>

#include "base/crc32c.h"
#include "base/limits.h"
#include "wire/frame.h"

namespace orbitkv::wire {
namespace {

constexpr std::uint32_t kCommandMagic = 0x434B524F;  // "ORKC"
constexpr std::uint32_t kReplyMagic = 0x524B524F;    // "ORKR"

// The bytes as they lie in the ring.
struct Layout {
  std::uint32_t magic = 0;
  std::uint16_t abi = kAbiVersion;
  std::uint16_t opcode = 0;
  std::uint64_t request = 0;
  std::uint64_t epoch = 0;
  std::uint32_t slot = 0;
  std::uint32_t length = 0;
  std::uint16_t code = 0;  // reply only
  std::uint16_t zero0 = 0;
  std::uint32_t zero1 = 0;
  std::uint64_t zero2 = 0;
  std::uint64_t zero3 = 0;
  std::uint32_t zero4 = 0;
  std::uint32_t crc = 0;
};
static_assert(sizeof(Layout) == kCommandBytes && std::has_unique_object_representations_v<Layout>);
static_assert(offsetof(Layout, crc) == 60);

// Whole words from the start: narrow stores read back as wide loads would stall.
CommandBytes seal(const Layout& layout) {
  std::array<std::uint64_t, 8> words{};
  words[0] = layout.magic | std::uint64_t{layout.abi} << 32 | std::uint64_t{layout.opcode} << 48;
  words[1] = layout.request;
  words[2] = layout.epoch;
  words[3] = layout.slot | std::uint64_t{layout.length} << 32;
  words[4] = layout.code;
  const auto bytes = std::as_bytes(std::span(words));
  words[7] = std::uint64_t{crc32c(bytes.first<offsetof(Layout, crc)>())} << 32;
  return std::bit_cast<CommandBytes>(words);
}

Error refuse(std::string_view what, std::uint64_t found) {
  return reject("ring entry: " + std::string(what) + " " + std::to_string(found));
}

bool known(std::uint16_t opcode) {
  return (opcode >= static_cast<std::uint16_t>(Opcode::kPing) &&
          opcode <= static_cast<std::uint16_t>(Opcode::kWarm)) ||
         (opcode >= static_cast<std::uint16_t>(Opcode::kPublishActivity) &&
          opcode <= static_cast<std::uint16_t>(Opcode::kInterest));
}

bool is_ping(const Layout& layout) {
  return layout.opcode == static_cast<std::uint16_t>(Opcode::kPing);
}

// Everything that commands and replies share; `magic` tells them apart.
Status check_common(const Layout& layout, const CommandBytes& bytes, std::uint32_t magic) {
  if (layout.magic != magic) return refuse("magic", layout.magic);
  if (layout.abi != kAbiVersion) return refuse("ABI version", layout.abi);
  const std::uint32_t crc = crc32c(std::span(bytes).first<offsetof(Layout, crc)>());
  if (layout.crc != crc) return refuse("damaged (CRC32C); found", layout.crc);
  if (!known(layout.opcode)) return refuse("unknown opcode", layout.opcode);
  if ((layout.zero0 | layout.zero1 | layout.zero2 | layout.zero3 | layout.zero4) != 0)
    return refuse("reserved bytes are set in opcode", layout.opcode);
  if (is_ping(layout))
    return layout.length == 0 ? ok_status() : refuse("ping with a frame of", layout.length);
  if (layout.slot >= limits::kDescriptorSlots) return refuse("descriptor slot", layout.slot);
  if (layout.length > limits::kDescriptorSlotBytes) return refuse("frame length", layout.length);
  return ok_status();
}

}  // namespace

CommandBytes encode(const Command& command) {
  return seal({.magic = kCommandMagic,
               .opcode = static_cast<std::uint16_t>(command.opcode),
               .request = command.request,
               .epoch = command.epoch.value,
               .slot = command.slot,
               .length = command.length});
}

CommandBytes encode(const Reply& reply) {
  return seal({.magic = kReplyMagic,
               .opcode = static_cast<std::uint16_t>(reply.opcode),
               .request = reply.request,
               .epoch = reply.epoch.value,
               .slot = reply.slot,
               .length = reply.length,
               .code = static_cast<std::uint16_t>(reply.code)});
}

Result<Command> decode_command(const CommandBytes& bytes) {
  const auto layout = std::bit_cast<Layout>(bytes);
  ORBITKV_RETURN_IF_ERROR(check_common(layout, bytes, kCommandMagic));
  if (layout.code != 0) return refuse("command with a code", layout.code);
  if (!is_ping(layout) && layout.length < kFrameHeaderBytes) return refuse("frame length", layout.length);
  return Command{static_cast<Opcode>(layout.opcode), layout.request, Epoch(layout.epoch),
                 is_ping(layout) ? 0 : layout.slot, layout.length};
}

Result<Reply> decode_reply(const CommandBytes& bytes) {
  const auto layout = std::bit_cast<Layout>(bytes);
  ORBITKV_RETURN_IF_ERROR(check_common(layout, bytes, kReplyMagic));
  if (layout.code > static_cast<std::uint16_t>(Code::kBug)) return refuse("unknown code", layout.code);
  // Release and cancel are answered by the code alone.
  if (layout.length != 0 && layout.length < kFrameHeaderBytes) return refuse("frame length", layout.length);
  return Reply{static_cast<Opcode>(layout.opcode), layout.request, Epoch(layout.epoch),
               is_ping(layout) ? 0 : layout.slot,  layout.length,  static_cast<Code>(layout.code)};
}

}  // namespace orbitkv::wire
