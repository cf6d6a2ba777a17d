// What the Manager and its keeper say to each other: one SEQPACKET message each, of one fixed
// layout, so that a keeper of an older version understands who comes after it. A version other
// than one's own is answered, and nothing more. A life finds in its environment how it came to be:
// ORBITKV_LIFE_CAME (first, successor, again, back) and ORBITKV_LIFE_WHY, a sentence (lives.h). They are for
// the status alone, and so is ORBITKV_LIFE_HUNG; by ORBITKV_LIFE the keeper knows what a life has
// started. A wrapper passes them on, and nothing else reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "base/limits.h"

namespace orbitkv::daemon {

inline constexpr std::uint32_t kKeeperMagic = 0x504B424F;  // "OBKP"
inline constexpr std::uint16_t kKeeperVersion = 1;
inline constexpr std::size_t kKeeperPathBytes = 1024;
inline constexpr std::size_t kKeeperSaidBytes =
    240;  // of what a Manager does, or why it fails; more is cut off
// Beside those of all others: without a table the rest is kept for nothing. One life's and the next's.
inline constexpr std::uint32_t kKeeperTablePlaces = 2;

enum class KeeperVerb : std::uint16_t {
  kPut = 1,   // name, one descriptor
  kRemove,    // name
  kGet,       // value: an index; answered with its name and descriptor, value: how many there are
  kSucceed,   // path of the next life's binary, or none: the same; value 1: it may start cold
  kReady,     // the Manager serves; value: its process, or 0; no answer
  kReply,     // keeper: code, and what the verb says
  kLeave,     // keeper: make place for the successor; request 0
  kStarting,  // it goes on with its start; text: with what; no answer
  kFails,     // it ends without having served; text: why; no answer
  kCount,
};

struct KeeperMessage {
  std::uint32_t magic = kKeeperMagic;
  std::uint16_t version = kKeeperVersion;
  KeeperVerb verb = KeeperVerb::kReply;
  std::uint64_t request = 0;
  std::uint32_t value = 0;
  std::uint16_t code = 0;  // orbitkv::Code
  std::uint16_t text_bytes = 0;
  char text[kKeeperPathBytes] = {};  // name or path

  std::string_view view() const { return {text, text_bytes}; }
  // False: it is too long.
  bool set_text(std::string_view from) {
    if (from.size() > sizeof text) return false;
    if (!from.empty()) std::memcpy(text, from.data(), from.size());
    text_bytes = static_cast<std::uint16_t>(from.size());
    return true;
  }
  std::size_t size() const { return offsetof(KeeperMessage, text) + text_bytes; }
};

// nullopt: no such message. One of another version has only magic, version, verb and request.
inline std::optional<KeeperMessage> read_keeper_message(std::span<const std::byte> bytes) {
  constexpr std::size_t kHead = offsetof(KeeperMessage, text);
  KeeperMessage m;
  if (bytes.size() < kHead || bytes.size() > sizeof m) return std::nullopt;
  std::memcpy(&m, bytes.data(), bytes.size());
  if (m.magic != kKeeperMagic) return std::nullopt;
  if (m.version != kKeeperVersion) {
    m.text_bytes = 0;
    return m;
  }
  const auto verb = static_cast<std::uint16_t>(m.verb);
  if (verb == 0 || verb >= static_cast<std::uint16_t>(KeeperVerb::kCount)) return std::nullopt;
  if (kHead + m.text_bytes != bytes.size()) return std::nullopt;
  return m;
}

// Of a descriptor: 1 to limits::kKeptNameBytes letters, digits and dashes.
inline bool is_kept_name(std::string_view name) {
  if (name.empty() || name.size() > limits::kKeptNameBytes) return false;
  for (const char c : name) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    if (!good) return false;
  }
  return true;
}

}  // namespace orbitkv::daemon
