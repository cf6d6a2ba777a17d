#include "model/slot_image.h"

#include <algorithm>
#include <cstring>

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

namespace {
std::uint64_t raw_of_word(std::uint64_t word, std::uint64_t index) {
  return checksum::raw(std::as_bytes(std::span(&word, 1)), index);
}
}  // namespace

SlotHeaderWriter::SlotHeaderWriter(const ExpectedSlot& slot, std::byte* out)
    : out_(out), bytes_(slot_header_bytes(slot.fragments)) {
  std::vector<std::byte> fixed;
  ByteWriter writer(fixed);
  writer.u32(kSlotMagic);
  writer.u16(kSlotVersion);
  writer.u16(kRawEncoding);
  writer.u32(slot.fragments);
  writer.u32(static_cast<std::uint32_t>(bytes_));
  writer.u64(slot.allocation.value);
  writer.u64(slot.slot_bytes);
  std::copy(fixed.begin(), fixed.end(), out_);
  raw_ = checksum::raw(fixed);
  const std::uint64_t end = kFixedHeaderBytes + 8 * std::uint64_t{slot.fragments};
  std::fill(out_ + end, out_ + bytes_, std::byte{0});
  for (std::uint64_t at = end; at < bytes_; at += 8) raw_ += raw_of_word(0, at / 8);
}

void SlotHeaderWriter::put(std::uint32_t fragment, std::uint64_t check) {
  const std::uint64_t at = kFixedHeaderBytes + 8 * std::uint64_t{fragment};
  std::memcpy(out_ + at, &check, sizeof check);
  raw_ += raw_of_word(check, at / 8);
}

std::uint64_t SlotHeaderWriter::digest(std::uint64_t seed) const {
  return checksum::check(raw_, checksum::fragment_id(seed, checksum::kHeaderName), bytes_);
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
