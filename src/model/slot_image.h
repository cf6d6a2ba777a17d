// The slot image: one block, group and shard as it lies in a slab. A header with
// one checksum a fragment, then the fragments. The header's digest binds key, shard
// and revision; it stays with the Manager and travels in the grant, so nobody who
// can write the slab can make another image pass for this one by accident.
// Pure; any thread. Reads only private copies of headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "model/geometry.h"
#include "orbitkv/types.h"

namespace orbitkv::model {

// Header, little-endian:  0 u32 magic "OKVI" | 4 u16 version | 6 u16 encoding |
// 8 u32 fragments | 12 u32 header bytes | 16 u64 allocation id | 24 u64 slot bytes |
// 32 u64 check[fragments] | zeros to a multiple of 128.
inline constexpr std::uint32_t kSlotMagic = 0x49564B4F;
inline constexpr std::uint16_t kSlotVersion = 1;
// Header and fragments start at multiples of it: a GPU reads host memory in requests of 128
// bytes, and fragments that straddle them cost more of those.
inline constexpr std::uint64_t kSlotAlign = 128;
// Where an image may start.
inline constexpr std::uint64_t kImageAlign = 64;
constexpr std::uint64_t align_slot(std::uint64_t bytes) {
  return (bytes + kSlotAlign - 1) / kSlotAlign * kSlotAlign;
}
std::uint64_t slot_header_bytes(std::uint64_t fragments);

// Everything that an image is the image of.
struct SlotKey {
  NamespaceDigest name_space;
  GroupId group;
  BlockHash hash;
  ShardId shard;
  AllocationId revision;
};

// Checksum seed of an image: raw() over the canonical bytes of the key (base/checksum.h).
std::uint64_t slot_seed(const SlotKey& key);

struct SlotHeader {
  AllocationId allocation;
  std::uint64_t slot_bytes = 0;
  std::vector<std::uint64_t> checks;  // one a fragment, in layout order
};

// Writes exactly layout.header_bytes; returns the digest of what it wrote.
std::uint64_t write_slot_header(const SlotHeader& header, std::uint64_t seed, std::span<std::byte> out);
std::uint64_t slot_header_digest(std::span<const std::byte> header, std::uint64_t seed);

// What a grant says of an image.
struct ExpectedSlot {
  std::uint64_t digest = 0;
  std::uint64_t seed = 0;
  AllocationId allocation;
  std::uint64_t slot_bytes = 0;
  std::uint32_t fragments = 0;
};
// The same header check by check, in any order, as fragments are copied: when the last one
// is known nothing is left to write. Each check once; the digest is of what was put, not of
// what lies in `out` meanwhile.
class SlotHeaderWriter {
 public:
  // `out`: slot_header_bytes(fragments), written from the start.
  SlotHeaderWriter(const ExpectedSlot& slot, std::byte* out);
  void put(std::uint32_t fragment, std::uint64_t check);
  std::uint64_t digest(std::uint64_t seed) const;  // after all checks

 private:
  std::byte* out_;
  std::uint64_t bytes_;
  std::uint64_t raw_;  // of all words but the checks that are still to come
};

// Digest first, then every field against what the grant says.
Result<SlotHeader> read_slot_header(std::span<const std::byte> header, const ExpectedSlot& expected);

}  // namespace orbitkv::model
