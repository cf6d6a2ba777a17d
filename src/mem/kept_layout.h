// Where things stand in kept memory, and the checks that they carry. For the sources of
// kept_table.h and their tests; nobody else knows of it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "base/checksum.h"
#include "mem/kept_table.h"

namespace orbitkv::mem {

// Of the head, everything is written once; the marks are words of their own.
struct KeptTable::Header {
  struct Head {
    std::uint64_t magic, format, id, pool, bytes;
    std::uint32_t unit, first, further, pending;
  } head;
  std::uint64_t head_check;
  alignas(64) Word complete;
  Word next_name, wanted, device_files;
  std::array<Word, 2> allocations;
  alignas(64) std::array<Word, kRegions> high_water;
};
static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && sizeof(std::atomic<std::uint32_t>) == 4);

namespace kept {

// A seal is a tag over a check of all that it stands for; 0: there is nothing.
inline constexpr unsigned kTagShift = 56;
inline constexpr std::uint64_t kCheckMask = (std::uint64_t{1} << kTagShift) - 1;

inline constexpr std::size_t kSlabWords = 6;     // seal, name, bytes, huge, node, 0
inline constexpr std::size_t kRetiredWords = 3;  // seal, name, bytes
inline constexpr std::size_t kTextWords = limits::kNamespaceBytes / 8;
inline constexpr std::size_t kNameWords = 7 + kTextWords;  // seal, digest, seal of the text, its bytes, text
inline constexpr std::uint64_t kUnit = 64;
inline constexpr std::uint64_t kSlabsAt = 4096;
inline constexpr std::uint64_t kRetiredAt = kSlabsAt + std::uint64_t{limits::kSlabs} * kSlabWords * 8;
inline constexpr std::uint64_t kNamesAt =
    kRetiredAt + std::uint64_t{limits::kKeptRetired} * kRetiredWords * 8;
inline constexpr std::uint64_t kRecordsAt =
    (kNamesAt + std::uint64_t{limits::kNamespaces} * kNameWords * 8 + 4095) / 4096 * 4096;
inline constexpr std::uint64_t kRecordBytes = KeptTable::kRecordWords * 8;
inline constexpr std::uint64_t kUseBytes = 4;  // one for each record of kFirst, behind all records

template <std::size_t n>
std::uint64_t check_of(const std::array<std::uint64_t, n>& words, std::uint64_t id, std::uint64_t what) {
  return checksum::check(checksum::raw(std::as_bytes(std::span(words))), id, what);
}
// What a check is of, so that a word verifies in one place only.
enum class Kind : std::uint8_t { kMark = 1, kSlab, kRetired, kName, kText };
constexpr std::uint64_t what(Kind kind, std::uint64_t number) {
  return std::uint64_t{static_cast<std::uint8_t>(kind)} << 56 | number;
}

}  // namespace kept
}  // namespace orbitkv::mem
