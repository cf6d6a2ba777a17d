#include "wire/frame.h"

#include <array>
#include <cstring>
#include <string>

#include "base/crc32c.h"
#include "wire/codec.h"

namespace orbitkv::wire {
namespace {

struct Header {
  std::uint32_t magic;
  std::uint16_t abi;
  std::uint16_t type;
  std::uint32_t body_bytes;
  std::uint32_t crc;
};
static_assert(sizeof(Header) == kFrameHeaderBytes);

// As if the crc field were zero.
std::uint32_t frame_crc(std::span<const std::byte> frame) {
  constexpr std::array<std::byte, 4> kZero{};
  const std::uint32_t head = crc32c(kZero, crc32c(frame.first(offsetof(Header, crc))));
  return crc32c(frame.subspan(kFrameHeaderBytes), head);
}

}  // namespace

void append_frame(FrameType type, std::span<const std::byte> body, std::vector<std::byte>& out) {
  FrameBuilder builder(type, body.size(), out);
  builder.bytes(body);
  builder.finish();
}

Result<FrameView> open_frame_of_any_version(std::span<const std::byte> bytes) {
  Header header{};
  if (bytes.size() < sizeof header) return reject("frame is shorter than its header");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kFrameMagic) return reject("frame has no OrbitKV magic");
  if (header.body_bytes != bytes.size() - sizeof header) return reject("frame has the wrong length");
  if (header.crc != frame_crc(bytes)) return reject("frame is damaged (CRC32C)");
  return FrameView{static_cast<FrameType>(header.type), bytes.subspan(sizeof header), header.abi};
}

Result<FrameView> open_frame(std::span<const std::byte> bytes) {
  ORBITKV_ASSIGN_OR_RETURN(const FrameView view, open_frame_of_any_version(bytes));
  if (view.abi != kAbiVersion)
    return reject("frame has ABI version " + std::to_string(view.abi) + ", this side speaks " +
                  std::to_string(kAbiVersion) + "; bring Manager and client to one OrbitKV version");
  if (frame_name(view.type).empty())
    return reject("frame has unknown type " + std::to_string(static_cast<unsigned>(view.type)));
  return view;
}

}  // namespace orbitkv::wire
