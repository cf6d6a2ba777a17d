#include "model/slot_image.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/checksum.h"

namespace orbitkv::model {
namespace {

constexpr std::uint16_t kRawEncoding = 0;
constexpr std::uint64_t kFixedHeaderBytes = 32;

Error wrong(std::string_view field) {
  return recompute("slot header: " + std::string(field) + " is not what the grant says; drop the image");
}

}  // namespace

std::uint64_t slot_header_bytes(std::uint64_t fragments) {
  return align_slot(kFixedHeaderBytes + 8 * fragments);
}

std::uint64_t slot_seed(const SlotKey& key) {
  std::array<std::byte, 76> canonical;
  std::byte* at = canonical.data();
  const auto put = [&at](const auto& value) {
    std::memcpy(at, &value, sizeof value);
    at += sizeof value;
  };
  put(key.name_space.bytes);
  put(key.group.value);
  put(key.hash.bytes);
  put(key.shard.value);
  put(key.revision.value);
  return checksum::raw(canonical);
}

std::uint64_t write_slot_header(const SlotHeader& header, std::uint64_t seed, std::span<std::byte> out) {
  ORBITKV_CHECK(out.size() == slot_header_bytes(header.checks.size()), "header area of the wrong size");
  std::vector<std::byte> bytes;
  bytes.reserve(out.size());
  ByteWriter writer(bytes);
  writer.u32(kSlotMagic);
  writer.u16(kSlotVersion);
  writer.u16(kRawEncoding);
  writer.u32(static_cast<std::uint32_t>(header.checks.size()));
  writer.u32(static_cast<std::uint32_t>(out.size()));
  writer.u64(header.allocation.value);
  writer.u64(header.slot_bytes);
  writer.bytes(std::as_bytes(std::span(header.checks)));
  bytes.resize(out.size());
  std::copy(bytes.begin(), bytes.end(), out.begin());
  // Over the private bytes: what lies in the slab may change under us.
  return slot_header_digest(bytes, seed);
}

std::uint64_t slot_header_digest(std::span<const std::byte> header, std::uint64_t seed) {
  return checksum::check(checksum::raw(header), checksum::fragment_id(seed, checksum::kHeaderName),
                         header.size());
}

Result<SlotHeader> read_slot_header(std::span<const std::byte> header, const ExpectedSlot& expected) {
  if (header.size() != slot_header_bytes(expected.fragments)) return wrong("the header size");
  if (slot_header_digest(header, expected.seed) != expected.digest) return wrong("the digest");
  ByteReader in(header);
  if (in.u32() != kSlotMagic) return wrong("the magic");
  if (in.u16() != kSlotVersion) return wrong("the version");
  if (in.u16() != kRawEncoding) return wrong("the encoding");
  if (in.u32() != expected.fragments) return wrong("the fragment count");
  if (in.u32() != header.size()) return wrong("the header length");
  SlotHeader out;
  out.allocation = AllocationId(in.u64());
  out.slot_bytes = in.u64();
  if (out.allocation != expected.allocation) return wrong("the allocation");
  if (out.slot_bytes != expected.slot_bytes) return wrong("the image size");
  out.checks.resize(expected.fragments);
  for (std::uint64_t& check : out.checks) check = in.u64();
  const auto padding = in.take(in.left());
  const bool clean =
      std::all_of(padding.begin(), padding.end(), [](std::byte b) { return b == std::byte{0}; });
  if (!clean) return wrong("the padding");
  return out;
}

}  // namespace orbitkv::model
