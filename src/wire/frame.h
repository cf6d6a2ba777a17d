// Frames: every message body in a descriptor slot, in the plan bank or on the
// socket stands behind this 16-byte header. Little-endian. The CRC32C covers the
// header (crc field as zero) and the body, so a flipped bit anywhere is refused.
// Pure functions; any thread. Decoding never reads past the given bytes, never
// allocates more than the limits allow, and ends in a value or a kReject Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace orbitkv::wire {

// Version of everything both sides share: session memory layout, commands,
// frames, states. Any change raises it; a different number is refused at attach.
inline constexpr std::uint16_t kAbiVersion = 2;
inline constexpr std::uint32_t kFrameMagic = 0x464B524F;  // "ORKF"
inline constexpr std::size_t kFrameHeaderBytes = 16;      // magic u32, abi u16, type u16, body u32, crc u32

enum class FrameType : std::uint16_t {
  // Descriptor slots.
  kQueryRequest = 1,
  kQueryReply = 2,
  kPublishRequest = 3,
  kPublishReply = 4,
  kRestoreRequest = 5,
  kRestoreReply = 6,
  kReleaseRequest = 7,
  kCancelQueryRequest = 8,
  kErrorReply = 9,
  kPollRequest = 10,
  kTicketReply = 11,
  kRecoveryRequest = 12,
  kWarmRequest = 13,
  kActivityRequest = 16,
  kActivityReply = 17,
  kInterestSubmit = 18,
  kInterestCall = 19,
  kInterestReply = 20,
  // Plan bank.
  kPlan = 32,
  kPublishResult = 33,
  kRestoreResult = 34,
  // Socket.
  kHello = 64,
  kHelloReply = 65,
  kRegister = 66,
  kRegisterReply = 67,
  kUnregister = 68,
  kUnregisterReply = 69,
  kSlabOffer = 70,
  kStatusRequest = 71,
  kStatusReply = 72,
  kBye = 73,
  kSocketError = 74,
  kControlRequest = 75,
  kSlabRetire = 76,
  kSlabReleased = 77,
};

struct FrameView {
  FrameType type;
  std::span<const std::byte> body;  // into the bytes given to open_frame
  std::uint16_t abi = kAbiVersion;
};

// Appends a complete frame to `out`.
void append_frame(FrameType type, std::span<const std::byte> body, std::vector<std::byte>& out);

// Checks magic, version, length (exactly bytes.size()) and CRC. `bytes` must be a
// private copy: nothing here is safe against a writer on the other side.
Result<FrameView> open_frame(std::span<const std::byte> bytes);

// The same whatever version the header names; `abi` tells which. Header and CRC rule
// never change, so that a hello of another version can be refused with words, and the
// words be read (SocketError is frozen too).
Result<FrameView> open_frame_of_any_version(std::span<const std::byte> bytes);

}  // namespace orbitkv::wire
